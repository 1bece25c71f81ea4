"""
The socket for the clients of this node: a JSON object a line, and the kernel says whose process it is.

A client that sends faster than :data:`MESSAGES_PER_S` is read more slowly, and a long message counts as many. One
whose connection ends has given everything back.
"""

from __future__ import annotations

import asyncio
import pwd
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog

from penstock_bus import service_folder
from penstock_log.memory_messages import (
    VERSION,
    AgentWelcome,
    BorrowSlab,
    ClientHello,
    ClientRefused,
    FindCopy,
    FromClient,
    KeepCopies,
    NoCopies,
    PlaceCopies,
    ReturnSlab,
    SlabRefused,
    SlabUse,
    ToClient,
)

LONGEST_LINE: Final = 1 << 20
"""Bytes: a message about the use of ten thousand slabs."""
HELLO_S: Final = 5.0
MOST_OF_ONE: Final = 128
"""Connections of one account."""
MESSAGES_PER_S: Final = 200.0
BURST: Final = 1000.0
MESSAGE_BYTES: Final = 4096
"""A message counts as one for each so many bytes: reading a MiB takes the agent 10 ms."""
MOST_UNSENT_BYTES: Final = 1 << 20
"""So much may wait for a client that does not read; then it is hung up on."""
MOST_BORROWING: Final = 64
"""Slabs that one client waits for at a time."""
WAITING: Final = 128
FULL_S: Final = 1.0
_decoder: Final[msgspec.json.Decoder[FromClient]] = msgspec.json.Decoder(FromClient)
_encoder: Final = msgspec.json.Encoder()
_log = structlog.get_logger("penstock.memory")


class ClientHandler(Protocol):
    """The handler of what clients ask for."""

    def welcome(self) -> AgentWelcome:
        """Return what a client is told at first."""

    def borrow(self, client: LocalClient, asked: BorrowSlab) -> Coroutine[Any, Any, ToClient]:
        """Note that a client asks for a slab, and return what finds one."""

    async def answer_copies(self, client: LocalClient, asked: PlaceCopies | KeepCopies | FindCopy) -> ToClient:
        """Answer a client about copies of a checkpoint."""

    def give_back(self, client: LocalClient, slab: int) -> None:
        """Take note that a client uses a slab no more."""

    def note_use(self, client: LocalClient, use: SlabUse) -> None:
        """Take note of how a client uses its slabs."""

    def give_back_all(self, client: LocalClient) -> None:
        """Take note that a client is gone."""


class ClientListener:
    """The listening socket, and the clients that came in."""

    def __init__(self, path: Path, handler: ClientHandler, ticking: Callable[[], float]) -> None:
        self._handler, self._ticking = handler, ticking
        self._of_user: Counter[int] = Counter()
        self.clients: set[LocalClient] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        # Threads of their own: a directory of accounts that does not answer holds up new clients, and nothing else.
        self._names = ThreadPoolExecutor(2, "account-names")
        self._socket = service_folder.bind(path, for_all=True)
        self._socket.listen(WAITING)

    async def accept(self) -> None:
        """Accept clients until cancelled; then hang up on all of them."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._socket)
                except OSError as error:
                    _log.warning("memory_client_not_taken", error=str(error))
                    await asyncio.sleep(FULL_S)
                    continue
                task = asyncio.create_task(self._serve(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            self._socket.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._names.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, connection: socket.socket) -> None:
        pid, uid = service_folder.peer(connection)
        client = LocalClient(connection, self._handler, pid=pid, uid=uid, ticking=self._ticking, names=self._names)
        self._of_user[uid] += 1
        self.clients.add(client)
        try:
            if self._of_user[uid] > MOST_OF_ONE:
                await client.refuse(f"more than {MOST_OF_ONE} connections of uid {uid}; close some")
            else:
                await client.serve()
        except Exception:  # of one client, which must not end the others
            _log.exception("memory_client_failed", pid=pid)
        finally:
            self.clients.discard(client)
            self._of_user[uid] -= 1
            if not self._of_user[uid]:
                del self._of_user[uid]
            connection.close()
            self._handler.give_back_all(client)


class LocalClient:
    """
    One client.

    Parameters
    ----------
    names : Executor
        Where its account's name is looked up, which may take long.

    Attributes
    ----------
    pid, uid : int
        Process and account at the other end, as the kernel says.
    user : str
        The account's name, or its number where it has none.
    hello : ClientHello or None
        What it said first.
    gone : bool
        Whether its connection has ended.
    """

    def __init__(
        self,
        connection: socket.socket,
        handler: ClientHandler,
        *,
        pid: int,
        uid: int,
        ticking: Callable[[], float],
        names: Executor,
    ) -> None:
        connection.setblocking(False)
        self._names = names
        self.pid, self.uid, self.user = pid, uid, str(uid)
        self.hello: ClientHello | None = None
        self.gone = False
        self._socket, self._handler, self._ticking = connection, handler, ticking
        self._rest = bytearray()
        self._unsent = bytearray()
        self._to_send = asyncio.Event()
        self._tokens, self._at_s = BURST, ticking()
        self._borrowing: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Talk with the client until one of both hangs up."""
        try:
            async with asyncio.timeout(HELLO_S):
                line = await self._line()
        except TimeoutError:
            await self.refuse(f"no hello within {HELLO_S:g} s")
            return
        if line is None or not await self._is_welcome(line):
            return
        sending = asyncio.create_task(self._send_on())
        try:
            while (line := await self._line()) is not None:
                if why := await self._handle(line):
                    await self.refuse(why)
                    return
        finally:
            self.gone = True
            tasks = [sending, *self._borrowing]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, message: ToClient) -> None:
        """Send a message, in the order of the calls; a client that does not read is hung up on."""
        if self.gone:
            return
        self._unsent += _encoder.encode(message) + b"\n"
        if len(self._unsent) > MOST_UNSENT_BYTES:
            self._hang_up()
        self._to_send.set()

    async def refuse(self, reason: str) -> None:
        """Hang up with a reason."""
        self.gone = True
        _log.warning("memory_client_refused", reason=reason, pid=self.pid, uid=self.uid)
        loop = asyncio.get_running_loop()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await loop.sock_sendall(self._socket, _encoder.encode(ClientRefused(reason=reason)) + b"\n")
                self._socket.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(self._socket, 65_536):  # or the answer may be lost with what came behind it
                    pass

    async def _is_welcome(self, line: bytes) -> bool:
        message = _decoded(line)
        if isinstance(message, str):
            await self.refuse(message)
        elif not isinstance(message, ClientHello):
            await self.refuse("expected a hello first")
        elif message.version != VERSION:
            await self.refuse(f"this agent speaks version {VERSION}, and the client {message.version}; update one")
        else:
            self.hello = message
            self.user = await asyncio.get_running_loop().run_in_executor(self._names, _account, self.uid)
            self.send(self._handler.welcome())
            return True
        return False

    async def _handle(self, line: bytes) -> str:
        """Handle a message; return why to hang up, empty where not."""
        await self._keep_pace(1 + len(line) // MESSAGE_BYTES)
        match message := _decoded(line):
            case BorrowSlab():
                if len(self._borrowing) >= MOST_BORROWING:
                    return f"more than {MOST_BORROWING} slabs asked for at a time; wait for answers"
                found = self._handler.borrow(self, message)
                task = self._begin(self._answer(message, found))
                task.add_done_callback(lambda _: found.close())  # a task that was cancelled early has not begun it
            case PlaceCopies() | KeepCopies() | FindCopy():
                if self._borrowing:
                    return "copies were asked about before the last answer; wait for it"
                self._begin(self._answer_copies(message))
            case ReturnSlab():
                self._handler.give_back(self, message.slab)
            case SlabUse():
                self._handler.note_use(self, message)
            case ClientHello():
                return "a second hello"
            case str():
                return message
        return ""

    def _begin(self, answering: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(answering)
        self._borrowing.add(task)
        task.add_done_callback(self._borrowing.discard)
        return task

    async def _answer_copies(self, asked: PlaceCopies | KeepCopies | FindCopy) -> None:
        try:
            answer = await self._handler.answer_copies(self, asked)
        except Exception:  # the client waits for an answer, whatever went wrong
            _log.exception("copies_not_answered", pid=self.pid)
            answer = NoCopies(reason="the agent failed; its log says how")
        self.send(answer)

    async def _answer(self, asked: BorrowSlab, found: Coroutine[Any, Any, ToClient]) -> None:
        try:
            answer = await found
        except Exception:  # the client waits for an answer, whatever went wrong
            _log.exception("slab_not_borrowed", pid=self.pid)
            answer = SlabRefused(slab=asked.slab, reason="the agent failed; its log says how")
        self.send(answer)

    async def _keep_pace(self, messages: int) -> None:
        now_s = self._ticking()
        self._tokens = min(BURST, self._tokens + (now_s - self._at_s) * MESSAGES_PER_S) - messages
        self._at_s = now_s
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / MESSAGES_PER_S)

    async def _line(self) -> bytes | None:
        """Return the next line; None at the end, or where it is too long, which is said."""
        loop, looked = asyncio.get_running_loop(), 0
        while (end := self._rest.find(b"\n", looked)) < 0:
            looked = len(self._rest)
            if looked > LONGEST_LINE:
                await self.refuse(f"a line of more than {LONGEST_LINE} bytes")
                return None
            try:
                data = await loop.sock_recv(self._socket, 65_536)
            except OSError:
                return None
            if not data:
                return None
            self._rest += data
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    async def _send_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            while self._unsent:
                data = bytes(self._unsent)
                self._unsent.clear()
                try:
                    await loop.sock_sendall(self._socket, data)
                except OSError:
                    return  # it has hung up, which the reader sees too

    def _hang_up(self) -> None:
        self.gone = True
        _log.warning("memory_client_does_not_read", pid=self.pid, uid=self.uid)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _decoded(line: bytes) -> FromClient | str:
    """Return a message, or what is wrong with it."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return f"a line that is no message: {error}"


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
