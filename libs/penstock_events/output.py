"""
Where a job's output is: pieces of it in the stream ``LOG``, each with its place, and all of it on the job's nodes.

A process writes two files, ``stdout`` and ``stderr``, on its node, which are a *channel* each. Its executor streams
them to ``LOG`` in pieces that say from where in which channel they are, up to a bound, and says at the end how long the
channels are. So whoever reads ``LOG`` knows what is not there, and asks the node for it (:class:`OutputAsk`).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from penstock_events.asks import Ask

Stream = Literal["stdout", "stderr"]
STREAMS: Final[tuple[Stream, Stream]] = ("stdout", "stderr")
Count = Annotated[int, Meta(ge=0, le=2**53)]
MOST_BYTES: Final = 512 * 1024
"""Of one answer: half of what a server takes in one message by default."""


class Channel(msgspec.Struct, frozen=True, order=True):
    """One output file: of one stream of one process in one of its job's runs."""

    epoch: int
    node_id: str
    rank: int
    stream: Stream


class Place(msgspec.Struct, frozen=True):
    """From where in which channel a piece is; ``offset`` in bytes from the channel's beginning."""

    channel: Channel
    offset: int


class End(msgspec.Struct, frozen=True):
    """
    A process has ended: how many bytes its standard output and its standard error have.

    ``processes`` is how many its run has on that node.
    """

    epoch: int
    node_id: str
    rank: int
    stdout_bytes: int
    stderr_bytes: int
    processes: int = 1

    @property
    def sizes(self) -> dict[Channel, int]:
        """Its channels with their sizes."""
        sizes = (self.stdout_bytes, self.stderr_bytes)
        return {
            Channel(self.epoch, self.node_id, self.rank, stream): size
            for stream, size in zip(STREAMS, sizes, strict=True)
        }


def header_of(place: Place | End) -> str:
    """
    Return a place as a message's header has it.

    Examples
    --------
    >>> header_of(Place(Channel(1, "n1", 0, "stdout"), 300)), header_of(End(1, "n1", 0, 300, 0))
    ('1 n1 0 stdout 300', '1 n1 0 end 300 0 1')
    """
    match place:
        case Place(channel=at, offset=offset):
            return f"{at.epoch} {at.node_id} {at.rank} {at.stream} {offset}"
        case End():
            numbers = f"{place.stdout_bytes} {place.stderr_bytes} {place.processes}"
            return f"{place.epoch} {place.node_id} {place.rank} end {numbers}"


def of_header(text: str) -> Place | End | None:
    """
    Return the place that a header tells; None where there is no header, or one that is not understood.

    Examples
    --------
    >>> of_header("1 n1 0 stdout 300")
    Place(channel=Channel(epoch=1, node_id='n1', rank=0, stream='stdout'), offset=300)
    >>> of_header("1 n1 0 end 300 0 1"), of_header("something else")
    (End(epoch=1, node_id='n1', rank=0, stdout_bytes=300, stderr_bytes=0, processes=1), None)
    """
    try:
        epoch, node_id, rank, what, *numbers = text.split(" ")
        if what == "end":
            stdout_bytes, stderr_bytes, processes = map(int, numbers)
            return End(int(epoch), node_id, int(rank), stdout_bytes, stderr_bytes, processes)
        (offset,) = map(int, numbers)
        stream = next(stream for stream in STREAMS if stream == what)
        return Place(Channel(int(epoch), node_id, int(rank), stream), offset)
    except (ValueError, StopIteration):
        return None


class OutputAsk(Ask, frozen=True, kw_only=True):
    """
    What a node is asked of a job's output, as JSON: which channels it has, or a piece of one.

    Attributes
    ----------
    epoch : int
        0: which channels there are.
    offset : int
        In bytes; from there at most ``most_bytes`` are answered.
    """

    job_id: str
    epoch: Count = 0
    rank: Count = 0
    stream: Stream = "stdout"
    offset: Count = 0
    most_bytes: Annotated[int, Meta(ge=1, le=MOST_BYTES)] = MOST_BYTES


class OutputAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a node answers, as MessagePack.

    Attributes
    ----------
    data : bytes
        The piece; empty at the channel's end.
    sizes : list of (Channel, int)
        The channels that were asked for, and how many bytes each has by now.
    """

    data: bytes = b""
    sizes: list[tuple[Channel, int]] = []


class OutputGrown(msgspec.Struct, frozen=True, kw_only=True):
    """Telemetry, as JSON: how far a channel has come that has more than is streamed."""

    channel: Channel
    size: int
