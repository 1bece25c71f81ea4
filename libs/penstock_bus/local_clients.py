"""
Clients of a service on its own node: a JSON object a line over a Unix socket, and the kernel says whose process it is.

:class:`LocalListener` accepts them. Each is a :class:`LocalConnection`, from which a service derives a class of its own
that says what a client's lines mean. A client that sends faster than :data:`MESSAGES_PER_S` is read more slowly, and
a long message counts as many. One that does not read what it is told is hung up on.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from penstock_bus import service_folder
from penstock_bus.logger import get_logger

LONGEST_LINE: Final = 1 << 20
"""Bytes: a message about ten thousand things."""
HELLO_S: Final = 5.0
MOST_OF_ONE: Final = 128
"""Connections of one account."""
MESSAGES_PER_S: Final = 200.0
BURST: Final = 1000.0
MESSAGE_BYTES: Final = 4096
"""A message counts as one for each so many bytes: reading a MiB takes the service 10 ms."""
MOST_UNSENT_BYTES: Final = 1 << 20
"""So much may wait for a client that does not read; then it is hung up on."""
WAITING: Final = 128
FULL_S: Final = 1.0
LAST_S: Final = 1.0
"""How long a client has to read why it is hung up on."""
_encoder: Final = msgspec.json.Encoder()
_log = get_logger("penstock.clients")


class LocalConnection(ABC):
    """
    One client: the connection, and its lines in both directions.

    Attributes
    ----------
    pid, uid : int
        Process and account at the other end, as the kernel says.
    gone : bool
        Whether its connection has ended.
    """

    def __init__(self, connection: socket.socket, *, pid: int, uid: int, ticking: Callable[[], float]) -> None:
        connection.setblocking(False)
        self.pid, self.uid = pid, uid
        self.gone = self._dismissed = False
        self._socket, self._ticking = connection, ticking
        self._rest = bytearray()
        self._unsent = bytearray()
        self._to_send = asyncio.Event()
        self._sending = asyncio.Lock()
        self._tokens, self._at_s = BURST, ticking()

    @abstractmethod
    async def greet(self, line: bytes) -> str:
        """Take the first line; return why to hang up, empty where the client is welcome."""

    @abstractmethod
    async def handle(self, line: bytes) -> str:
        """Handle a further line; return why to hang up, empty where not."""

    @abstractmethod
    def refusal(self, reason: str) -> msgspec.Struct:
        """Return the message that says why the client is hung up on."""

    async def leave(self) -> None:  # noqa: B027 - most clients have nothing under way
        """End what is under way for a client that is gone."""

    async def serve(self) -> None:
        """Talk with the client until one of both hangs up."""
        try:
            async with asyncio.timeout(HELLO_S):
                line = await self._line()
        except TimeoutError:
            await self.refuse(f"no hello within {HELLO_S:g} s")
            return
        if line is None:
            return
        if why := await self.greet(line):
            await self.refuse(why)
            return
        sending = asyncio.create_task(self._send_on())
        try:
            while (line := await self._line()) is not None:
                if self.gone:  # what comes after the last word is not read
                    continue
                await self._keep_pace(1 + len(line) // MESSAGE_BYTES)
                if why := await self.handle(line):
                    await self.refuse(why)
                    return
        finally:
            self.gone = True
            sending.cancel()
            await asyncio.gather(sending, self.leave(), return_exceptions=True)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, in the order of the calls; a client that does not read is hung up on."""
        if self.gone:
            return
        self._unsent += _encoder.encode(message) + b"\n"
        if len(self._unsent) > MOST_UNSENT_BYTES:
            self.gone = True
            _log.warning("client_does_not_read", pid=self.pid, uid=self.uid)
            self._shut(socket.SHUT_RDWR)
        self._to_send.set()

    async def refuse(self, reason: str) -> None:
        """Hang up with a reason, behind what it was sent before."""
        self.gone = True
        _log.warning("client_refused", reason=reason, pid=self.pid, uid=self.uid)
        loop = asyncio.get_running_loop()
        self._unsent += _encoder.encode(self.refusal(reason)) + b"\n"
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self._flush()
                self._socket.shutdown(socket.SHUT_WR)
                while await loop.sock_recv(self._socket, 65_536):  # or the answer may be lost with what came behind it
                    pass

    def dismiss(self, reason: str) -> None:
        """Hang up with a reason, while :meth:`serve` goes on until the client has read it, or for a while."""
        if not self.gone:
            self.gone = self._dismissed = True
            _log.warning("client_dismissed", reason=reason, pid=self.pid, uid=self.uid)
            self._unsent += _encoder.encode(self.refusal(reason)) + b"\n"
            self._to_send.set()
            asyncio.get_running_loop().call_later(LAST_S, self._shut, socket.SHUT_RDWR)

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
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            try:
                await self._flush()
            except OSError:
                return  # it has hung up, which the reader sees too
            if self._dismissed:
                self._shut(socket.SHUT_WR)

    async def _flush(self) -> None:
        async with self._sending:  # or a last message could come between the halves of another one
            while self._unsent:
                data = bytes(self._unsent)
                self._unsent.clear()
                await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def _shut(self, how: int) -> None:
        with suppress(OSError):  # it is closed already
            self._socket.shutdown(how)


C = TypeVar("C", bound=LocalConnection)
MakeClient = Callable[[socket.socket, int, int], C]
"""From a connection, and the process and account at its other end."""


class LocalListener(Generic[C]):
    """
    The listening socket, and the clients that came in.

    Parameters
    ----------
    path : Path
        Of the socket, to which every account may come.
    make : callable
        Returns the client of a connection, its process and its account.
    on_gone : callable
        Called with each client after its connection has ended.
    """

    def __init__(self, path: Path, make: MakeClient[C], on_gone: Callable[[C], None]) -> None:
        self._make, self._on_gone = make, on_gone
        self._of_user: Counter[int] = Counter()
        self.clients: set[C] = set()
        self._tasks: set[asyncio.Task[None]] = set()
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
                    _log.warning("client_not_taken", error=str(error))
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

    async def _serve(self, connection: socket.socket) -> None:
        pid, uid = service_folder.peer(connection)
        client = self._make(connection, pid, uid)
        self._of_user[uid] += 1
        self.clients.add(client)
        try:
            if self._of_user[uid] > MOST_OF_ONE:
                await client.refuse(f"more than {MOST_OF_ONE} connections of uid {uid}; close some")
            else:
                await client.serve()
        except Exception:  # of one client, which must not end the others
            _log.exception("client_failed", pid=pid)
        finally:
            self.clients.discard(client)
            self._of_user[uid] -= 1
            if not self._of_user[uid]:
                del self._of_user[uid]
            connection.close()
            self._on_gone(client)
