"""
A job's output as pages show it: lines made harmless, the last ones, those that hold a text, and those that come.

Whether a visitor may see a job is the gateway's to say, before anything is read here. The stream is read as ``penstock
logs`` reads it; nodes are asked in the visitor's name, so that the gateway decides about that, too.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Final, Literal, Protocol

import msgspec
from msgspec import Meta

from penstock.output_reader import OutputReader
from penstock_bus.port import Delivery, LogLine, LogReader, OutputPort, RequestPort, TelemetryPort
from penstock_dashboard.gateway_port import PageRefused, Visitor
from penstock_log import JobFinished, subjects
from penstock_log.request_bodies import OutputOffset
from penstock_log.text import count, escaped

MOST_LINE: Final = 2000
"""Characters of a line that are shown."""
MOST_LINES: Final = 2000
"""Lines that a page shows at most."""
_MOST_OPEN: Final = 16 * MOST_LINE
"""Bytes that are kept of a line that has not ended."""
_MOST_SEARCHED_BYTES: Final = 256 << 20
_BATCH: Final = 200
_AHEAD: Final = 8
_READERS: Final = 64
_READERS_OF_ONE: Final = 8
_CONTROL: Final = re.compile(r"\x1b\[[0-9:;<=>?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
"""Colours and what else is meant for a terminal, and titles of its window."""


class OutputQuery(msgspec.Struct, frozen=True, kw_only=True):
    """
    What of a job's output is shown.

    Attributes
    ----------
    q : str
        Lines that hold it, in either case; empty: the last.
    rank : int or None
        Of one process.
    """

    q: Annotated[str, Meta(max_length=200)] = ""
    rank: Annotated[int, Meta(ge=0)] | None = None
    stream: Literal["", "stdout", "stderr"] = ""
    lines: Annotated[int, Meta(ge=1, le=MOST_LINES)] = 500


class OutputLine(msgspec.Struct, frozen=True, array_like=True):
    """
    One line of output for people.

    Attributes
    ----------
    rank : int
        Of the process.
    stream : str
        ``stdout`` or ``stderr``; empty where that is not known.
    text : str
        Without control characters; of a line that overwrites itself, what is left of it.
    note : bool
        Whether it is no output, but says what is missing.
    """

    rank: int
    stream: str
    text: str
    note: bool = False


class OutputBus(OutputPort, TelemetryPort, RequestPort, LogReader, Protocol):
    """What it takes to read the output of jobs."""


class LineJoiner:
    r"""
    Makes lines of pieces; of a line that is longer than what is shown, the rest is counted and dropped.

    Examples
    --------
    >>> from penstock_log.request_bodies import OutputChannel
    >>> place = OutputOffset(OutputChannel(1, "n1", 0, "stdout"), 0)
    >>> piece = LogLine(seq=1, job_id="j", rank=0, stored_s=0.0, data=b"10%\r20%\nlast", place=place)
    >>> joiner = LineJoiner()
    >>> [line.text for line in joiner.feed(piece)], [line.text for line in joiner.rest()]
    (['20%'], ['last'])
    """

    def __init__(self, rank: int | None = None, stream: str = "") -> None:
        self._rank, self._stream = rank, stream
        self._open: dict[tuple[int, int, str], tuple[bytes, int]] = {}
        """Run, rank and stream → the beginning of the line that has not ended, and how many bytes more it has."""

    def feed(self, piece: LogLine) -> list[OutputLine]:
        """Return the lines that end with a piece."""
        epoch, stream = (
            (piece.place.channel.epoch, piece.place.channel.stream)
            if isinstance(piece.place, OutputOffset)
            else (0, "")
        )
        if not self._wants(piece.rank, stream):
            return []
        if piece.missing:
            return [OutputLine(piece.rank, stream, escaped(piece.missing), note=True)]
        key = epoch, piece.rank, stream
        *whole, last = piece.data.split(b"\n")
        found = []
        for data in whole:
            begun, more = self._open.pop(key, (b"", 0))
            found.append(_line(piece.rank, stream, begun + data if not more else begun, more + len(data) * bool(more)))
        if last:
            begun, more = self._open.get(key, (b"", 0))
            joined = _overwritten(begun + last) if not more else begun
            more += len(last) * bool(more) + max(0, len(joined) - _MOST_OPEN)
            self._open[key] = joined[:_MOST_OPEN], more
        return found

    def rest(self) -> list[OutputLine]:
        """Return what has not ended, as lines."""
        found = [_line(rank, stream, begun, more) for (_, rank, stream), (begun, more) in sorted(self._open.items())]
        self._open.clear()
        return found

    def _wants(self, rank: int, stream: str) -> bool:
        return self._rank in (None, rank) and (not self._stream or stream in ("", self._stream))


def _overwritten(data: bytes) -> bytes:
    """Return what is left of a line that was overwritten from its beginning, as progress bars do."""
    return data[data.rstrip(b"\r").rfind(b"\r") + 1 :]


def _line(rank: int, stream: str, data: bytes, more: int = 0) -> OutputLine:
    more += max(0, len(data) - _MOST_OPEN)
    text = _CONTROL.sub("", data[:_MOST_OPEN].decode(errors="replace")).rstrip("\r")
    text = text.rpartition("\r")[2].expandtabs(8)
    over = len(text) - MOST_LINE + more
    if over > 0:
        text = f"{text[:MOST_LINE]}"
    shown = escaped(text)
    return OutputLine(rank, stream, f"{shown} … and {count(over, 'character')} more" if over > 0 else shown)


class _AsVisitor:
    """The bus, with nodes asked in a visitor's name."""

    def __init__(self, bus: OutputBus, visitor: Visitor) -> None:
        self._bus, self._visitor = bus, visitor

    def read_output(
        self, job_id: str, follow: bool = False, tail: int | None = None, after_seq: int = 0
    ) -> AsyncGenerator[LogLine, None]:
        return self._bus.read_output(job_id, follow=follow, tail=tail, after_seq=after_seq)

    def subscribe(self, subject: str) -> AsyncIterator[tuple[str, bytes]]:
        return self._bus.subscribe(subject)

    async def request(self, subject: str, body: bytes, timeout_s: float = 5.0) -> bytes:
        return await self._bus.request(self._visitor.subject(subject), body, timeout_s)

    async def read(self, subject: str, after_seq: int = 0, until_seq: int | None = None) -> list[Delivery]:
        return await self._bus.read(subject, after_seq, until_seq)


class FoundLines(msgspec.Struct, frozen=True, kw_only=True):
    """
    Lines of the output that there is by now, the oldest first.

    Attributes
    ----------
    matched : int
        Lines that match, of which these are the last.
    cut_off : bool
        Whether there was more than is searched at once.
    """

    lines: tuple[OutputLine, ...]
    matched: int
    cut_off: bool = False


class JobOutputs:
    """
    The output of jobs; of each visitor a few are read at a time, and so many of all.

    Every method raises :class:`PageRefused` with 429 or 503 where too many are, and the bus's errors.
    """

    def __init__(self, bus: OutputBus) -> None:
        self._bus = bus
        self._reading: dict[str, int] = {}

    async def search(self, visitor: Visitor, job_id: str, asked: OutputQuery) -> FoundLines:
        """Return the last lines that hold a text."""
        wanted, joiner = asked.q.casefold(), LineJoiner(asked.rank, asked.stream)
        kept, matched, read_bytes, cut_off = deque[OutputLine](maxlen=asked.lines), 0, 0, False

        def keep(found: Iterable[OutputLine]) -> int:
            these = [line for line in found if wanted in line.text.casefold() or line.note]
            kept.extend(these)
            return len(these)

        async with (
            self._slot(visitor),
            aclosing(OutputReader(_AsVisitor(self._bus, visitor), job_id).stored()) as pieces,
        ):
            async for piece in pieces:
                matched += keep(joiner.feed(piece))
                read_bytes += len(piece.data)
                if cut_off := read_bytes > _MOST_SEARCHED_BYTES:
                    break
                await asyncio.sleep(0)
        matched += keep(joiner.rest())
        return FoundLines(lines=tuple(kept), matched=matched, cut_off=cut_off)

    async def raw(self, visitor: Visitor, job_id: str, asked: OutputQuery) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a process's stream, or of all as they came."""
        async with (
            self._slot(visitor),
            aclosing(OutputReader(_AsVisitor(self._bus, visitor), job_id).stored()) as pieces,
        ):
            async for piece in pieces:
                of = piece.place.channel.stream if isinstance(piece.place, OutputOffset) else ""
                if asked.rank in (None, piece.rank) and (not asked.stream or of in ("", asked.stream)):
                    yield piece.data if not piece.missing else f"\n[{escaped(piece.missing)}]\n".encode()

    async def follow(
        self, visitor: Visitor, job_id: str, asked: OutputQuery, *, ended: bool
    ) -> AsyncGenerator[list[OutputLine], None]:
        """
        Yield the last lines, and then those that come until the job ends; what nobody takes is not read.

        Parameters
        ----------
        ended : bool
            Whether the job has ended.
        """
        reader = OutputReader(_AsVisitor(self._bus, visitor), job_id)
        joiner, lines = LineJoiner(asked.rank, asked.stream), asked.lines
        async with self._slot(visitor):
            yield _last_lines(await reader.last(lines, asked.rank), joiner, lines, open_end=not ended)
            if ended:
                return
            pieces: asyncio.Queue[LogLine | None] = asyncio.Queue(_AHEAD)
            task = asyncio.create_task(self._pump(reader, job_id, pieces))
            try:
                while (piece := await pieces.get()) is not None:
                    found = joiner.feed(piece)
                    while len(found) < _BATCH and not pieces.empty() and piece is not None:
                        piece = pieces.get_nowait()
                        found += joiner.feed(piece) if piece is not None else []
                    if found:
                        yield found
                    if piece is None:
                        break
                if found := joiner.rest():
                    yield found
                await task
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _pump(self, reader: OutputReader, job_id: str, pieces: asyncio.Queue[LogLine | None]) -> None:
        end = asyncio.ensure_future(self._ended(job_id))
        try:
            async with aclosing(reader.follow(end)) as lines:
                async for line in lines:
                    await pieces.put(line)
        except asyncio.CancelledError:  # nobody takes any more
            raise
        except BaseException:
            await pieces.put(None)
            raise
        else:
            await pieces.put(None)
        finally:
            end.cancel()
            await asyncio.gather(end, return_exceptions=True)

    async def _ended(self, job_id: str) -> None:
        async for delivery in self._bus.follow(subjects=[subjects.job(job_id)]):
            if any(isinstance(fact, JobFinished) for fact in delivery.commit.facts):
                return

    @asynccontextmanager
    async def _slot(self, visitor: Visitor) -> AsyncIterator[None]:
        own = self._reading.get(visitor.name, 0)
        if own >= _READERS_OF_ONE:
            raise PageRefused(
                429, f"{own} outputs are read for you already; close a page that shows one, and try again"
            )
        if sum(self._reading.values()) >= _READERS:
            raise PageRefused(503, f"{_READERS} outputs are read already, the most at a time; try again in a moment")
        self._reading[visitor.name] = own + 1
        try:
            yield
        finally:
            self._reading[visitor.name] -= 1
            if not self._reading[visitor.name]:
                del self._reading[visitor.name]


def _last_lines(
    pieces: Iterable[LogLine], joiner: LineJoiner, lines: int, *, open_end: bool = False
) -> list[OutputLine]:
    """Return the last lines of pieces; with ``open_end``, what has not ended stays in the joiner."""
    found: list[OutputLine] = []
    for piece in pieces:
        found += joiner.feed(piece)
    return (found if open_end else found + joiner.rest())[-lines:]
