"""
What those who enter a job say to the executor of its node, and what it answers: MessagePack over requests.

A *session* is one visit to a process of a running job: a command that runs beside it, or connections to its ports. The
gateway lets somebody in by the fact :class:`penstock_log.JobEntered`, which the executor reads in the log by its
sequence (:class:`OpenSession`); nobody needs to reach the node.

A session has numbered *streams*. Each goes one way in *chunks*, numbered from 0:

* To the node: :class:`WriteChunk`. It is answered once the command, or the connection, has taken the chunk.
* From the node: :class:`ReadChunk`, which asks for one chunk by its number. It is answered when there is one.

As each side has at most :data:`WINDOW` chunks of a stream under way, neither has to hold more, however slow the other
is. A request that got no answer is made again: the same number is the same chunk, and none comes twice or is lost.
What has nothing to say within :data:`POLL_S` is answered all the same (``again``), and asked anew.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Optional, Union

import msgspec
from msgspec import Meta

WINDOW: Final = 8
"""Chunks of one stream that are under way at a time."""
CHUNK_BYTES: Final = 128 * 1024
POLL_S: Final = 6.0
"""So long a request for something that does not come is kept; each tells the executor that its client is there."""
LOST_S: Final = 15.0
"""A session of which nothing was heard for so long is ended, with all of its processes."""
STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
FIRST_CONNECTION: Final = 3
"""Streams of these numbers and above are connections to ports, one number for both ways."""

Purpose = Literal["exec", "shell", "forward", "copy"]
"""What somebody has entered a job for."""
Count = Annotated[int, Meta(ge=0, le=2**53)]
Size = Annotated[int, Meta(ge=0, le=10_000)]
SessionId = Annotated[str, Meta(min_length=16, max_length=64, pattern="^[A-Za-z0-9]+$")]


class TerminalSize(msgspec.Struct, frozen=True):
    """Rows and columns of a terminal."""

    rows: Size = 24
    columns: Size = 80


class OpenSession(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """
    Begin a session; answered by :class:`SessionStatus`.

    Attributes
    ----------
    session_id : str
        As in the fact that lets it in.
    seq : int
        Where that fact is in the log.
    argv : tuple of str
        The command; empty: the session is for connections alone.
    terminal : TerminalSize or None
        The command has a terminal of this size, and one stream of output; None: it has pipes.
    term : str
        The kind of the terminal, for ``TERM``.
    ends_run : bool
        The job is there for this session alone: its program is told when the session begins (USR1), and ends (TERM).
    """

    session_id: SessionId
    seq: Count
    job_id: str
    argv: tuple[str, ...] = ()
    terminal: Optional[TerminalSize] = None
    term: str = ""
    ends_run: bool = False


class OpenConnection(msgspec.Struct, frozen=True, kw_only=True, tag="connect"):
    """Connect to a port of the process's host, as stream ``stream``; error 502 where nothing listens."""

    session_id: SessionId
    stream: Annotated[int, Meta(ge=FIRST_CONNECTION, le=2**31)]
    port: Annotated[int, Meta(ge=1, le=65_535)]


class WriteChunk(msgspec.Struct, frozen=True, kw_only=True, tag="write"):
    """A chunk for a stream; ``last``: nothing comes behind it. Answered by :class:`ChunkTaken`."""

    session_id: SessionId
    stream: int
    number: Count
    data: bytes
    last: bool = False


class ReadChunk(msgspec.Struct, frozen=True, kw_only=True, tag="read"):
    """Ask for a chunk of a stream; all before number ``received`` have come. Answered by :class:`ChunkRead`."""

    session_id: SessionId
    stream: int
    number: Count
    received: Count


class CloseStream(msgspec.Struct, frozen=True, kw_only=True, tag="close_stream"):
    """End a connection, both ways; answered by :class:`SessionStatus`."""

    session_id: SessionId
    stream: int


class ResizeTerminal(msgspec.Struct, frozen=True, kw_only=True, tag="resize"):
    """Give the terminal another size; answered by :class:`SessionStatus`."""

    session_id: SessionId
    size: TerminalSize


class SignalCommand(msgspec.Struct, frozen=True, kw_only=True, tag="signal"):
    """Send a signal to the command and what it has started; answered by :class:`SessionStatus`."""

    session_id: SessionId
    signum: Annotated[int, Meta(ge=1, le=64)]


class KeepSession(msgspec.Struct, frozen=True, kw_only=True, tag="keep"):
    """Say that the client is there; answered by :class:`SessionStatus` once the session has ended, or after a while."""

    session_id: SessionId


class CloseSession(msgspec.Struct, frozen=True, kw_only=True, tag="close"):
    """End a session, and all of its processes; answered by :class:`SessionStatus`."""

    session_id: SessionId


ToExecutor = Union[
    OpenSession,
    OpenConnection,
    WriteChunk,
    ReadChunk,
    CloseStream,
    ResizeTerminal,
    SignalCommand,
    KeepSession,
    CloseSession,
]


class ChunkRead(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk; ``last``: the stream has ended behind it. ``again``: there is none yet, and it is to be asked anew."""

    data: bytes = b""
    last: bool = False
    again: bool = False


class ChunkTaken(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk was taken; ``closed``: nobody reads the stream any more. ``again``: it is not taken yet: ask anew."""

    closed: bool = False
    again: bool = False


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """
    How a session is.

    Attributes
    ----------
    exit_code : int or None
        Of the command, as a shell gives it; None while it runs, and where it ended with the session.
    reason : str
        Why the session has ended before its command did; empty otherwise.
    """

    ended: bool = False
    exit_code: Optional[int] = None
    reason: str = ""
