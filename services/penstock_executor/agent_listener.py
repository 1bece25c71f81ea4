"""
The executor's side of the socket that jobs talk to: lines in, lines out, and only processes of a run.

The listener accepts connections and reads them by itself, when the loop says that there is something and whenever a
caller asks. An event loop alone would not do: it accepts one connection in each turn, reads later, and may run timers
before both, so that it would be unknown when all messages of an ended process have been read.
"""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
import struct
import termios
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from penstock_bus.service_folder import bind, peer
from penstock_log.agent_protocol import VERSION, ConnectionRefused, FromJob, Hello, ToJob

LONGEST_LINE: Final = 256 * 1024
WAITING: Final = 1024
"""Connections that wait while the executor is busy; all others wait for room among these."""
FULL_S: Final = 1.0
"""How long no connection is taken in where there are no descriptors left."""
HELLO_S: Final = 10.0
"""So long a connection may stay without a hello: a process says it at once."""
LEAST_OF_ONE: Final = 64
SHARE: Final = 4
"""A user has one of so many parts of the descriptors at most, and :data:`LEAST_OF_ONE` in any case."""
_LOGGED: Final = 10
_LOGGED_S: Final = 10.0
"""So many refused connections are logged in so long; the others are counted."""
_decoder: Final[msgspec.json.Decoder[FromJob]] = msgspec.json.Decoder(FromJob)
_encoder: Final = msgspec.json.Encoder()
_log = structlog.get_logger("penstock.executor")


class AgentHandler(Protocol):
    """The handler of the messages that jobs send."""

    def may_speak(self, uid: int, job_id: str = "", epoch: int = 0) -> bool:
        """Return whether a user's processes may speak for a run; without one, for any run at all."""

    def accept(self, connection: AgentConnection, hello: Hello) -> bool:
        """Accept a process; return False if it is not the one that its hello names."""

    def handle(self, connection: AgentConnection, message: FromJob) -> None:
        """Handle a message of an accepted process."""

    def disconnected(self, connection: AgentConnection) -> None:
        """Let go of a process whose connection has ended."""


class AgentListener:
    """The listening socket, and the connections that came in."""

    def __init__(self, path: Path, handler: AgentHandler, *, for_all: bool = False) -> None:
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._connections: dict[AgentConnection, int] = {}
        self._of_user: Counter[int] = Counter()
        self._most_of_one = max(LEAST_OF_ONE, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // SHARE)
        self._refusals = RefusalLog(self._loop.time)
        self._socket = bind(path, for_all=for_all)
        self._socket.listen(WAITING)
        self._open()

    def catch_up(self) -> None:
        """Accept waiting connections and handle all messages so far: of an ended process, all that it ever sent."""
        self._accept()
        for connection in list(self._connections):
            connection.read()

    def close(self) -> None:
        """Close all connections, and listen no more."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for connection in list(self._connections):
            connection.close()

    def _open(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        while self._socket.fileno() >= 0:
            try:
                accepted, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                _log.warning("agent_connection_not_taken", error=str(error))
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(FULL_S, self._open)
                return
            connection = AgentConnection(accepted, self._handler, self._forget, self._refusals.note)
            self._connections[connection] = accepted.fileno()
            self._of_user[connection.uid] += 1
            self._loop.add_reader(accepted.fileno(), connection.read)
            connection.check_user()
            if self._of_user[connection.uid] > self._most_of_one:
                connection.refuse("one more than a user may have", most=self._most_of_one)
            else:
                self._loop.call_later(HELLO_S, connection.check_hello)

    def _forget(self, connection: AgentConnection) -> None:
        self._loop.remove_reader(self._connections.pop(connection))
        self._of_user[connection.uid] -= 1
        if not self._of_user[connection.uid]:
            del self._of_user[connection.uid]


class RefusalLog:
    """The log of refused connections: who connects again and again does not fill the disk with it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._since_s, self._count = now_s(), 0

    def note(self, what: str, **details: object) -> None:
        """Log a refusal, or count it."""
        now_s = self._now_s()
        if now_s - self._since_s >= _LOGGED_S:
            if self._count > _LOGGED:
                _log.warning("agent_connections_refused", unlogged=self._count - _LOGGED)
            self._since_s, self._count = now_s, 0
        self._count += 1
        if self._count <= _LOGGED:
            _log.warning("agent_connection_refused", what=what, **details)


class AgentConnection:
    """
    The connection of one process.

    Parameters
    ----------
    ended : callable
        ``ended(connection)``: called once, while its descriptor is still open.
    refused : callable, optional
        ``refused(what=…, **details)``: notes why the executor has hung up; by default in the log.

    Attributes
    ----------
    pid, uid : int
        Process and user at the other end, as the kernel says.
    hello : Hello or None
        The first message of the process, once it is accepted.
    """

    def __init__(
        self,
        connection: socket.socket,
        handler: AgentHandler,
        ended: Callable[[AgentConnection], None],
        refused: Callable[..., None] | None = None,
    ) -> None:
        connection.setblocking(False)
        self.pid, self.uid = peer(connection)
        self.hello: Hello | None = None
        self._handler, self._ended = handler, ended
        self._refused = refused or partial(_log.warning, "agent_connection_refused")
        self._rest = b""
        self._socket: socket.socket | None = connection

    def read(self) -> None:
        """Handle all messages that have arrived by now, and no more: other connections wait too."""
        self.check_user()
        left = 0 if self._socket is None else max(1, _arrived(self._socket))
        while left > 0 and self._socket is not None:
            try:
                data = self._socket.recv(left)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                left -= len(data)
                self._take_in(data)
            else:
                self.close()

    def check_hello(self) -> None:
        """Hang up on a process that has not said who it is; what has arrived by now counts."""
        if self.hello is None and self._socket is not None:
            self.read()
        if self.hello is None and self._socket is not None:
            self.refuse("a process that said nothing", after_s=HELLO_S)

    def check_user(self) -> None:
        """Hang up on the process of a user who has no run here, before it has said anything."""
        if self.hello is None and self._socket is not None and not self._handler.may_speak(self.uid):
            self._refuse_user(f"uid {self.uid} has no run on this node")

    def send(self, message: ToJob) -> None:
        """
        Send a message, unless the process has hung up or does not read.

        A process that does not read sees the connection end. It connects again then, and gets the present state.
        """
        if self._socket is None:
            return
        line = _encoder.encode(message) + b"\n"
        try:
            sent = self._socket.send(line)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it has hung up; what it sent before is still to be read
        if sent < len(line):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._ended(self)
            self._socket.close()
            self._socket = None
            if self.hello is not None:
                self._handler.disconnected(self)

    def _take_in(self, data: bytes) -> None:
        """Handle whole lines; keep the beginning of the next one."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            self.refuse("a line without an end", length=len(self._rest))
        for line in lines:
            if self._socket is not None:
                self._decode(line)

    def _decode(self, line: bytes) -> None:
        try:
            message = _decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self.refuse("a line that is no message", line=line[:200], error=str(error))
            return
        if self.hello is not None:
            self._handler.handle(self, message)
        elif not isinstance(message, Hello):
            self.refuse("a process that did not say hello first")
        elif message.version != VERSION:
            self.refuse("a process of another version", version=message.version, expected=VERSION)
        elif not self._handler.may_speak(self.uid, message.job_id, message.epoch):
            self._refuse_user(f"run {message.epoch} of job {message.job_id} is not of uid {self.uid}")
        elif self._handler.accept(self, message):
            self.hello = message
        else:
            self.refuse("a process that is not of that run", job_id=message.job_id, epoch=message.epoch)

    def _refuse_user(self, reason: str) -> None:
        self.send(ConnectionRefused(reason=f"{reason}; only the run's own user may speak for it"))
        self.refuse("another user's process", uid=self.uid)

    def refuse(self, what: str, **details: object) -> None:
        """Hang up, and note why."""
        self._refused(what=what, pid=self.pid, **details)
        self.close()


def _arrived(connection: socket.socket) -> int:
    """Return how many bytes wait to be read."""
    return int(struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))[0])
