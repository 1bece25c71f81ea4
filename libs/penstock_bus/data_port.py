"""
A data port: listening sockets whose connections prove a lease, and then are served, each in a thread of its own.

What is not proved costs little: a connection has :data:`HELLO_S` for its proof, and only so many may be without one at
a time. Who a lease belongs to, what is said over the connection and in which frames, says the service that listens.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog

from penstock_bus import service_folder

HELLO_S: Final = 5.0
"""So long a connection may take for its proof."""
MOST_UNPROVED: Final = 64
MOST_UNPROVED_OF_ONE: Final = 16
"""Connections without a proof at a time, of all and of one address, or of one account of this host."""
WAITING: Final = 256
FULL_S: Final = 0.2
"""How long no connection is accepted where there are no descriptors or threads left."""
_LINGER_S: Final = 1.0
_LOGGED: Final = 10
_LOGGED_S: Final = 10.0
"""So many refusals are logged in so long; the others are counted."""
_log = structlog.get_logger("penstock.data_port")


class RefusalCounts:
    """
    What was refused, by name; who attacks again and again does not fill the disk with it.

    Parameters
    ----------
    what : str
        What is refused, in the log: ``slab_request`` for one.
    ticking : callable
        Seconds that never jump.
    """

    def __init__(self, what: str, ticking: Callable[[], float]) -> None:
        self._what, self._ticking = what, ticking
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._since_s, self._recent = ticking(), 0

    def note(self, name: str, reason: str, **details: object) -> None:
        """Count a refusal, and log it unless many were logged just now."""
        with self._lock:
            self._counts[name] += 1
            now_s = self._ticking()
            if now_s - self._since_s >= _LOGGED_S:
                unlogged, self._since_s, self._recent = max(0, self._recent - _LOGGED), now_s, 0
            else:
                unlogged = 0
            self._recent += 1
            logs = self._recent <= _LOGGED
        if unlogged:
            _log.warning(f"{self._what}s_refused", unlogged=unlogged)
        if logs:
            _log.warning(f"{self._what}_refused", status=name, reason=reason, **details)

    def count(self, name: str) -> None:
        """Count a refusal that belongs to good clients' ordinary life, and is not logged."""
        with self._lock:
            self._counts[name] += 1

    def counts(self) -> dict[str, int]:
        """Return how often each was refused."""
        with self._lock:
            return dict(self._counts)


class LeaseHello(NamedTuple):
    """
    How a connection begins.

    Attributes
    ----------
    magic : bytes
        The first bytes of a client.
    lease_bytes, nonce_bytes, proof_bytes : int
    proof_of : callable
        What proves that one has a token, of the token, the lease and the nonce.
    """

    magic: bytes
    lease_bytes: int
    nonce_bytes: int
    proof_bytes: int
    proof_of: Callable[[bytes, bytes, bytes], bytes]


class DataService(Protocol):
    """Whose port it is. All is called by the threads of connections."""

    def token_of(self, lease: bytes) -> bytes | None:
        """Return the token of a lease; None where there is no such lease."""

    def serve_proved(self, connection: socket.socket, lease: bytes, who: str) -> None:
        """Serve a connection to its end. An OSError is one, too."""

    def refuse_unproved(self, connection: socket.socket, status: str, reason: str, who: str) -> None:
        """Say that a connection did not begin well: ``status`` is ``BAD_FRAME`` or ``BAD_PROOF``."""


class DataPort:
    """
    The listening sockets, and the threads of the connections.

    Parameters
    ----------
    service : DataService
    hello : LeaseHello
    refusals : RefusalCounts
        Told of ``NO_HELLO``, ``HALF_FRAME`` and ``TOO_MANY``; the service tells it of its own.
    name : str
        Of the threads.
    host, port : str, int
        Where to listen; port 0 takes a free one.
    path : Path or None
        Of the Unix socket for clients of this host.
    ticking : callable
        Seconds that never jump.

    Attributes
    ----------
    port : int
        Where it listens.

    Raises
    ------
    OSError
        If it cannot listen there.
    """

    def __init__(
        self,
        service: DataService,
        hello: LeaseHello,
        refusals: RefusalCounts,
        *,
        name: str,
        host: str = "",
        port: int = 0,
        path: Path | None = None,
        ticking: Callable[[], float] = time.monotonic,  # noqa: TID251 - threads have no loop whose clock they could ask
    ) -> None:
        self._service, self._hello, self._refusals, self._name = service, hello, refusals, name
        self._ticking = ticking
        self._lock = threading.Lock()
        self._unproved: Counter[str] = Counter()
        self._open: set[socket.socket] = set()
        self._closing = False
        dual = not host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual or ":" in host else socket.AF_INET
        tcp = socket.create_server((host, port), family=family, backlog=WAITING, dualstack_ipv6=dual)
        self.port = int(tcp.getsockname()[1])
        self._listeners = [tcp]
        if path is not None:
            local = service_folder.bind(path, for_all=True)
            local.setblocking(True)
            local.listen(WAITING)
            self._listeners.append(local)
        self._acceptors = [
            threading.Thread(target=self._accept, args=(listener,), name=f"{name}-accept", daemon=True)
            for listener in self._listeners
        ]

    def open(self) -> None:
        """Accept connections from now on."""
        for acceptor in self._acceptors:
            acceptor.start()

    def close(self) -> None:
        """Listen no more, and end all connections."""
        self._closing = True
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
        for acceptor in self._acceptors:
            acceptor.join()
        for listener in self._listeners:
            listener.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing:
            try:
                connection, address = listener.accept()
                who = _who_calls(connection, address)
            except OSError as error:
                if not self._closing:
                    _log.warning("connection_not_taken", port=self._name, error=str(error))
                    time.sleep(FULL_S)
                continue
            if self._is_taken_in(connection, who):
                self._serve_in_thread(connection, who)
            else:
                self._refusals.note("TOO_MANY", "too many connections without a proof", peer=who)
                connection.close()

    def _is_taken_in(self, connection: socket.socket, who: str) -> bool:
        with self._lock:
            if self._unproved.total() >= MOST_UNPROVED or self._unproved[who] >= MOST_UNPROVED_OF_ONE:
                return False
            self._unproved[who] += 1
            self._open.add(connection)
            return True

    def _serve_in_thread(self, connection: socket.socket, who: str) -> None:
        thread = threading.Thread(target=self._serve, args=(connection, who), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there are no threads left
            _log.warning("connection_not_taken", port=self._name, error=str(error))
            self._forget_unproved(who)
            self._end(connection)
            time.sleep(FULL_S)

    def _forget_unproved(self, who: str) -> None:
        with self._lock:
            self._unproved[who] -= 1
            if not self._unproved[who]:
                del self._unproved[who]

    def _end(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def _serve(self, connection: socket.socket, who: str) -> None:
        try:
            lease = self._entered(connection, who)
            if lease is not None:
                self._service.serve_proved(connection, lease, who)
        except OSError:
            return  # whoever it was has gone, or the service ended the connection
        finally:
            self._end(connection)

    def _entered(self, connection: socket.socket, who: str) -> bytes | None:
        """Return the lease that a connection has proved; None where it has not, which was said and counted."""
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            lease = self._proved(connection)
        except TimeoutError:
            self._refusals.note("NO_HELLO", f"no proof of a lease within {HELLO_S:g} s", peer=who)
            return None
        except _NotProved as error:
            refused = error
        else:
            return lease
        finally:
            self._forget_unproved(who)
        self._service.refuse_unproved(connection, refused.status, str(refused), who)
        return None

    def _proved(self, connection: socket.socket) -> bytes:
        deadline_s = self._ticking() + HELLO_S
        magic = self._hello.magic
        hello = self._receive_by(connection, len(magic) + self._hello.lease_bytes, deadline_s)
        if not hello.startswith(magic):
            raise _NotProved("BAD_FRAME", f"expected {magic!r} and a lease")
        lease = hello[len(magic) :]
        nonce = secrets.token_bytes(self._hello.nonce_bytes)
        connection.sendall(nonce)
        proof = self._receive_by(connection, self._hello.proof_bytes, deadline_s)
        token = self._service.token_of(lease)  # only now: an answer to the lease alone would say whether it is one
        expected = self._hello.proof_of(token or b"", lease, nonce)
        if not hmac.compare_digest(proof, expected) or token is None:
            raise _NotProved("BAD_PROOF", "there is no such lease, or the proof is not by its token")
        connection.settimeout(None)
        return lease

    def _receive_by(self, connection: socket.socket, length: int, deadline_s: float) -> bytes:
        """Receive so many bytes until a time, however slowly they come one by one."""
        found = bytearray()
        while len(found) < length:
            left_s = deadline_s - self._ticking()
            if left_s <= 0:
                raise TimeoutError
            connection.settimeout(left_s)
            data = connection.recv(length - len(found))
            if not data:
                if found:
                    self._refusals.note("HALF_FRAME", f"{len(found)} of {length} bytes of a hello, then the end")
                raise ConnectionAbortedError
            found += data
        return bytes(found)


class _NotProved(Exception):
    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


def answer_and_end(connection: socket.socket, answer: bytes, *, ticking: Callable[[], float]) -> None:
    """Send the last words to a client, and take in what it still sends, so that this does not undo the answer."""
    with suppress(OSError):
        connection.settimeout(_LINGER_S)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        deadline_s = ticking() + _LINGER_S
        while (left_s := deadline_s - ticking()) > 0:
            connection.settimeout(left_s)
            if not connection.recv(65_536):
                return


class HalfFrame(Exception):
    """The connection ended, or stood still, inside a frame."""


def arrive(connection: socket.socket, view: memoryview, *, stall_s: float, idle: bool = False) -> bool:
    """
    Fill a buffer from a connection whose ``SO_RCVTIMEO`` is ``stall_s``.

    Parameters
    ----------
    idle : bool
        Whether the first byte may take as long as it likes.

    Returns
    -------
    bool
        False where it has ended before the first byte.

    Raises
    ------
    HalfFrame
        If it ends, or stands still for ``stall_s``, later than that.
    """
    had, length = 0, len(view)
    while had < length:
        try:
            count = connection.recv_into(view[had:], length - had, socket.MSG_WAITALL)
        except BlockingIOError:  # the socket's time is over
            if idle and not had:
                continue
            raise HalfFrame(f"{had} of {length} bytes of a frame, then nothing for {stall_s:g} s") from None
        except ConnectionResetError:
            count = 0
        if not count:
            if idle and not had:
                return False
            raise HalfFrame(f"{had} of {length} bytes of a frame, then the end")
        had += count
    return True


def _who_calls(connection: socket.socket, address: object) -> str:
    """Return the address of a client, or its account where it is on this host."""
    if isinstance(address, tuple):
        return str(address[0])
    _, uid = service_folder.peer(connection)
    return f"uid {uid}"
