"""
A session in a running job: a command beside its program, or connections to its ports, from anywhere.

:class:`JobSession` asks the gateway to be let in, and then talks to the executor of the job's node over the bus
(:mod:`penstock_log.session_messages`). Nothing is sent before the other side has room for it: :meth:`JobSession.chunks`
asks for as much as its caller takes, and :meth:`JobSession.feed` takes from its source as much as the command reads.
A connection to the server that breaks and comes back is not noticed, as long as the executor still has the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Optional, TypeVar

import msgspec

from penstock_bus.port import BusError, NoResponders, ServiceError, Timeout, Unauthorized, Unavailable
from penstock_log import subjects
from penstock_log.session_messages import (
    CHUNK_BYTES,
    FIRST_CONNECTION,
    POLL_S,
    WINDOW,
    ChunkRead,
    ChunkTaken,
    CloseSession,
    CloseStream,
    KeepSession,
    OpenConnection,
    OpenSession,
    Purpose,
    ReadChunk,
    ResizeTerminal,
    SessionStatus,
    SignalCommand,
    TerminalSize,
    ToExecutor,
    WriteChunk,
)

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_log import views

ANSWER_S: Final = POLL_S + 4.0
OPEN_S: Final = 20.0
PATIENCE_S: Final = 30.0
"""So long an executor that does not answer is asked again."""
_CLOSE_S: Final = 2.0
_PAUSE_S: Final = 0.2
_LARGE: Final = CHUNK_BYTES // 8
"""Behind a chunk of this size more are asked for at a time."""
_GONE: Final = (403, 404)
_CLOSED: Final = 410
A = TypeVar("A", bound=msgspec.Struct)


class SessionLost(BusError):
    """The session has ended before its command did: the job's run, or the executor, or the way to it."""


class JobSession:
    """
    One session; an asynchronous context manager, which ends it.

    Parameters
    ----------
    argv : sequence of str
        The command; empty for connections alone.
    terminal : TerminalSize or None
        The command has a terminal of this size, whose output is all on one stream; None: it has pipes.
    ends_run : bool
        The job is there for this session alone, and ends with it.

    Examples
    --------
    ::

        async with JobSession(client, "j1", ["nvidia-smi"]) as session:
            async for data in session.chunks(STDOUT):
                print(data)
            print((await session.wait()).exit_code)
    """

    def __init__(
        self,
        client: Client,
        job_id: str,
        argv: Sequence[str] = (),
        *,
        rank: int = 0,
        purpose: Purpose = "exec",
        terminal: Optional[TerminalSize] = None,
        term: str = "",
        ends_run: bool = False,
    ) -> None:
        self._client, self._job_id, self._argv, self._rank = client, job_id, tuple(argv), rank
        self._purpose, self._terminal, self._term, self._ends_run = purpose, terminal, term, ends_run
        self.id = secrets.token_hex(16)
        self.entry: Optional[views.EnterAnswer] = None
        self._subject = ""
        self._next_stream = FIRST_CONNECTION
        self._keeping: Optional[asyncio.Task[SessionStatus]] = None

    async def __aenter__(self) -> JobSession:
        entry = self.entry = await self._client.enter(self._job_id, self.id, rank=self._rank, purpose=self._purpose)
        self._subject = subjects.session(entry.node_id)
        opening = OpenSession(
            session_id=self.id,
            seq=entry.seq,
            job_id=entry.id,
            argv=self._argv,
            terminal=self._terminal,
            term=self._term,
            ends_run=self._ends_run,
        )
        await self._asked(opening, SessionStatus, OPEN_S)
        self._keeping = asyncio.ensure_future(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        with contextlib.suppress(BusError):  # it ends by itself once nothing is heard of us
            body = msgspec.msgpack.encode(CloseSession(session_id=self.id))
            await self._client.bus.request(self._subject, body, _CLOSE_S)

    @property
    def node_id(self) -> str:
        """The node on which the session is."""
        return self.entry.node_id if self.entry is not None else ""

    async def wait(self) -> SessionStatus:
        """
        Return how the session has ended, once it has.

        Raises
        ------
        SessionLost
            If that cannot be known.
        """
        if self._keeping is None:
            raise RuntimeError("the session is not open; use it inside `async with JobSession(...) as session:`")
        return await asyncio.shield(self._keeping)

    async def chunks(self, stream: int) -> AsyncGenerator[bytes, None]:
        """
        Yield what a stream gives until it ends.

        Raises
        ------
        SessionLost
        """
        asked: deque[asyncio.Future[ChunkRead]] = deque()
        number, received, width = 0, 0, 1
        try:
            while True:
                while len(asked) < width:
                    asked.append(asyncio.ensure_future(self._read(stream, number, received)))
                    number += 1
                chunk = await asked[0]
                asked.popleft()
                received += 1
                if chunk.data:
                    yield chunk.data
                if chunk.last:
                    return
                width = min(2 * width, WINDOW) if len(chunk.data) >= _LARGE else max(width - 1, 1)
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def feed(self, stream: int, source: AsyncIterable[bytes]) -> bool:
        """
        Give a stream all that a source yields, and its end; return false once nobody takes it any more.

        Raises
        ------
        SessionLost
        """
        under_way: deque[asyncio.Future[ChunkTaken]] = deque()
        number = 0
        try:
            async for data in source:
                for start in range(0, len(data), CHUNK_BYTES):
                    if len(under_way) >= WINDOW - 1 and (await under_way.popleft()).closed:
                        return False
                    part = data[start : start + CHUNK_BYTES]
                    under_way.append(asyncio.ensure_future(self._write(stream, number, part)))
                    number += 1
                while under_way and under_way[0].done():
                    if (await under_way.popleft()).closed:
                        return False
            under_way.append(asyncio.ensure_future(self._write(stream, number, b"", last=True)))
            taken = await asyncio.gather(*under_way)
            return not any(one.closed for one in taken)
        finally:
            for one in under_way:
                one.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def connect(self, port: int) -> int:
        """
        Connect to a port of the process's host; return the number of the stream, which goes both ways.

        Raises
        ------
        ServiceError
            With code 502 where nothing listens there.
        SessionLost
        """
        stream, self._next_stream = self._next_stream, self._next_stream + 1
        await self._asked(OpenConnection(session_id=self.id, stream=stream, port=port), SessionStatus, OPEN_S)
        return stream

    async def close_stream(self, stream: int) -> None:
        """End a connection, both ways."""
        await self._asked(CloseStream(session_id=self.id, stream=stream), SessionStatus)

    async def resize(self, size: TerminalSize) -> None:
        """Give the terminal another size."""
        await self._asked(ResizeTerminal(session_id=self.id, size=size), SessionStatus)

    async def signal(self, signum: int) -> None:
        """Send a signal to the command and what it has started."""
        await self._asked(SignalCommand(session_id=self.id, signum=signum), SessionStatus)

    # --- requests
    async def _keep(self) -> SessionStatus:
        """Keep the session until it has ended."""
        while True:
            status = await self._asked(KeepSession(session_id=self.id), SessionStatus)
            if status.ended:
                return status

    async def _read(self, stream: int, number: int, received: int) -> ChunkRead:
        asking = ReadChunk(session_id=self.id, stream=stream, number=number, received=received)
        while True:
            chunk = await self._asked_of_stream(asking, ChunkRead, ChunkRead(last=True))
            if not chunk.again:
                return chunk

    async def _write(self, stream: int, number: int, data: bytes, *, last: bool = False) -> ChunkTaken:
        chunk = WriteChunk(session_id=self.id, stream=stream, number=number, data=data, last=last)
        while True:
            taken = await self._asked_of_stream(chunk, ChunkTaken, ChunkTaken(closed=True))
            if not taken.again:
                return taken

    async def _asked_of_stream(self, message: ToExecutor, answer: type[A], closed: A) -> A:
        """Return the executor's answer about a stream; what is said of a ``closed`` one where it is no more."""
        try:
            return await self._asked(message, answer)
        except ServiceError as error:
            if error.code != _CLOSED:
                raise
            return closed

    async def _asked(self, message: ToExecutor, answer: type[A], answer_s: float = ANSWER_S) -> A:
        """Return the executor's answer; ask again while there is none, which does no harm."""
        body, clock = msgspec.msgpack.encode(message), asyncio.get_running_loop().time
        end_s = clock() + PATIENCE_S
        while True:
            try:
                return msgspec.msgpack.decode(
                    await self._client.bus.request(self._subject, body, answer_s), type=answer
                )
            except ServiceError as error:
                if error.code in _GONE and not isinstance(message, OpenSession):
                    raise SessionLost(f"the session has ended: {error}") from error
                raise
            except Unauthorized as error:
                raise SessionLost(f"the session has ended: {error}") from error
            except (NoResponders, Timeout, Unavailable) as error:
                if clock() > end_s:
                    raise SessionLost(
                        f"node {self.node_id} has not answered for {PATIENCE_S:.0f} s: {error}"
                    ) from error
            await asyncio.sleep(_PAUSE_S)
