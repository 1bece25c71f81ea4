"""
The data port of a donor: clients read and write their slabs here, each connection in a thread of its own.

Sockets block, bytes are received straight into the slab's memory and sent from it, and the system calls let other
threads run meanwhile. What is no frame, or not of the lease that the connection has proved, is answered with its
:class:`~penstock.memory.frames.Status`, counted and logged, and the connection ends. It never touches another slab: a
connection has the memory of its own lease and no other.

A write is in the slab before its checksum is known, since the checksum covers header and payload together. One whose
checksum is wrong may have written anywhere in the slab, so the slab ends with it: no connection reads it any more.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from penstock.memory.frames import (
    HEADER_BYTES,
    LEASE_BYTES,
    MAGIC,
    MOST_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    ConnectionEnded,
    Frame,
    FrameError,
    Kind,
    Status,
    check,
    decoded,
    encoded,
    proof_of,
    send,
)
from penstock_bus import service_folder
from penstock_memory.slab_pool import Slab, SlabPool

HELLO_S: Final = 5.0
"""So long a connection may take for its proof."""
STALL_S: Final = 10.0
"""So long a client may be silent inside a frame, or not take an answer: a lease lasts no longer without its agent."""
MOST_UNPROVED: Final = 64
MOST_UNPROVED_OF_ONE: Final = 16
"""Connections without a proof at a time, of all and of one address, or of one account of this host."""
MOST_OF_SLAB: Final = 16
"""Connections about one slab."""
WAITING: Final = 256
FULL_S: Final = 0.2
"""How long no connection is accepted where there are no descriptors or threads left."""
_LINGER_S: Final = 1.0
_LOGGED: Final = 10
_LOGGED_S: Final = 10.0
"""So many refusals are logged in so long; the others are counted."""
_log = structlog.get_logger("penstock.memory")


class RefusalCounts:
    """What was refused, by name; who attacks again and again does not fill the disk with it."""

    def __init__(self, ticking: Callable[[], float]) -> None:
        self._ticking = ticking
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
            _log.warning("slab_requests_refused", unlogged=unlogged)
        if logs:
            _log.warning("slab_request_refused", status=name, reason=reason, **details)

    def counts(self) -> dict[str, int]:
        """Return how often each was refused."""
        with self._lock:
            return dict(self._counts)


class SlabServer:
    """
    The listening sockets and the threads of the connections.

    Parameters
    ----------
    pool : SlabPool
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
    refusals : RefusalCounts
        By the names of :class:`~penstock.memory.frames.Status`, and ``NO_HELLO``, ``HALF_FRAME`` and ``TOO_MANY``.
    received_bytes, sent_bytes : int
        Payloads since the start.

    Raises
    ------
    OSError
        If it cannot listen there.
    """

    def __init__(
        self,
        pool: SlabPool,
        host: str = "",
        port: int = 0,
        path: Path | None = None,
        *,
        ticking: Callable[[], float] = time.monotonic,  # noqa: TID251 - threads have no loop whose clock they could ask
    ) -> None:
        self._pool, self._ticking = pool, ticking
        self.refusals = RefusalCounts(ticking)
        self._lock = threading.Lock()
        self._unproved: Counter[str] = Counter()
        self._open: set[socket.socket] = set()
        self._ended_traffic = [0, 0]
        self._traffic: dict[socket.socket, list[int]] = {}
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
            threading.Thread(target=self._accept, args=(listener,), name="slab-accept", daemon=True)
            for listener in self._listeners
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    @property
    def received_bytes(self) -> int:
        """Payloads of writes since the start."""
        return self._sum(0)

    @property
    def sent_bytes(self) -> int:
        """Payloads of reads since the start."""
        return self._sum(1)

    def _sum(self, at: int) -> int:
        with self._lock:
            return self._ended_traffic[at] + sum(counts[at] for counts in self._traffic.values())

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

    # --- connections before their proof
    def _accept(self, listener: socket.socket) -> None:
        while not self._closing:
            try:
                connection, address = listener.accept()
                who = _who_calls(connection, address)
            except OSError as error:
                if not self._closing:
                    _log.warning("slab_connection_not_taken", error=str(error))
                    time.sleep(FULL_S)
                continue
            if self._is_taken_in(connection, who):
                self._serve_in_thread(connection, who)
            else:
                self.refusals.note("TOO_MANY", "too many connections without a proof", peer=who)
                connection.close()

    def _is_taken_in(self, connection: socket.socket, who: str) -> bool:
        with self._lock:
            if self._unproved.total() >= MOST_UNPROVED or self._unproved[who] >= MOST_UNPROVED_OF_ONE:
                return False
            self._unproved[who] += 1
            self._open.add(connection)
            return True

    def _serve_in_thread(self, connection: socket.socket, who: str) -> None:
        thread = threading.Thread(target=self._serve, args=(connection, who), name="slab", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there are no threads left
            _log.warning("slab_connection_not_taken", error=str(error))
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
            with self._entered(connection, who) as slab:
                if slab is not None:
                    self._serve_slab(connection, slab, who)
        except (ConnectionEnded, OSError):
            return  # whoever it was has gone, or the slab was taken back
        finally:
            self._end(connection)

    @contextmanager
    def _entered(self, connection: socket.socket, who: str) -> Iterator[Slab | None]:
        """Give the slab whose lease the connection has proved; None where it has not, which was said and counted."""
        slab, refused = None, None
        try:
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            slab = self._proved(connection)
            if why := slab.enter(connection, MOST_OF_SLAB):
                refused, slab = FrameError(Status.STALE if "over" in why else Status.BAD_FRAME, why), None
        except TimeoutError:
            self.refusals.note("NO_HELLO", f"no proof of a lease within {HELLO_S:g} s", peer=who)
        except FrameError as error:
            refused = error
        finally:
            self._forget_unproved(who)
        if refused is not None:
            self._refuse(connection, Frame(Kind.HELLO), refused, who)
        try:
            yield slab
        finally:
            if slab is not None:
                slab.leave(connection)

    def _proved(self, connection: socket.socket) -> Slab:
        deadline_s = self._ticking() + HELLO_S
        hello = self._receive_by(connection, len(MAGIC) + LEASE_BYTES, deadline_s)
        if not hello.startswith(MAGIC):
            raise FrameError(Status.BAD_FRAME, f"expected {MAGIC!r} and a lease")
        lease = hello[len(MAGIC) :]
        nonce = secrets.token_bytes(NONCE_BYTES)
        connection.sendall(nonce)
        proof = self._receive_by(connection, PROOF_BYTES, deadline_s)
        slab = self._pool.find(lease)  # only now: an answer to the lease alone would say whether it is one
        expected = proof_of(slab.token if slab is not None else b"", lease, nonce)
        if not hmac.compare_digest(proof, expected) or slab is None:
            raise FrameError(Status.BAD_PROOF, "there is no such lease, or the proof is not by its token")
        return slab

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
                    self.refusals.note("HALF_FRAME", f"{len(found)} of {length} bytes of a hello, then the end")
                raise ConnectionEnded
            found += data
        return bytes(found)

    # --- requests
    def _serve_slab(self, connection: socket.socket, slab: Slab, who: str) -> None:
        connection.settimeout(None)
        stall = struct.pack("@ll", int(STALL_S), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stall)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, stall)
        about = Frame(Kind.HELLO, slab=slab.number, generation=slab.generation, length=slab.slab_bytes)
        send(connection, encoded(about))
        with self._counted(connection) as traffic:
            header = bytearray(HEADER_BYTES)
            while True:
                frame, trouble = Frame(Kind.HELLO), None
                try:
                    if not _arrive(connection, memoryview(header), idle=True):
                        return
                    frame, *sums = decoded(header)
                    self._answer(connection, slab, frame, (sums[0], sums[1]), traffic)
                except FrameError as error:
                    trouble = error
                except _HalfFrame as half:
                    if slab.counts:  # otherwise it was the agent that ended the connection
                        self.refusals.note("HALF_FRAME", str(half), peer=who, slab=slab.number)
                    return
                if trouble is not None:
                    self._refuse(connection, frame, trouble, who)
                    return

    def _answer(
        self, connection: socket.socket, slab: Slab, frame: Frame, sums: tuple[int, int], traffic: list[int]
    ) -> None:
        """Do what a frame asks for and answer it; raises FrameError for what is refused. ``sums`` are of its header."""
        if frame.kind != Kind.WRITE:
            check(b"", *sums)
        if frame.slab != slab.number or frame.generation != slab.generation or not slab.counts:
            raise FrameError(
                Status.STALE,
                f"slab {frame.slab} in generation {frame.generation} is not what was lent: slab {slab.number} in "
                f"generation {slab.generation}" + ("" if slab.counts else ", whose lease is over"),
            )
        if frame.kind in {Kind.READ, Kind.WRITE}:
            if frame.length > MOST_BYTES:
                raise FrameError(Status.TOO_LONG, f"a frame has {MOST_BYTES} bytes at most, and this {frame.length}")
            if frame.offset + frame.length > slab.slab_bytes:
                end = frame.offset + frame.length
                raise FrameError(Status.OUT_OF_RANGE, f"the slab ends at {slab.slab_bytes}, and the range at {end}")
        with slab.view[frame.offset : frame.offset + frame.length] as place:
            match frame.kind:
                case Kind.READ:
                    send(connection, encoded(frame, place), place)
                    traffic[1] += frame.length
                case Kind.WRITE:
                    _arrive(connection, place)
                    try:
                        check(place, *sums)
                    except FrameError:
                        slab.end(but=connection)
                        raise
                    send(connection, encoded(frame._replace(length=0)))
                    traffic[0] += frame.length
                case Kind.SHARE if connection.family == socket.AF_UNIX:
                    socket.send_fds(connection, [encoded(frame._replace(offset=0, length=0))], [slab.share()])
                case _:
                    raise FrameError(Status.BAD_FRAME, f"a frame of kind {frame.kind} is not answered here")

    def _refuse(self, connection: socket.socket, frame: Frame, error: FrameError, who: str) -> None:
        """Say what was wrong, count it and end the connection, so that what is on its way does not undo the answer."""
        status = Status(error.status)
        self.refusals.note(status.name, str(error), peer=who, slab=frame.slab)
        reason = str(error).encode()
        answer = frame._replace(status=status, offset=0, length=len(reason))
        with suppress(OSError):
            connection.settimeout(_LINGER_S)
            send(connection, encoded(answer, reason), reason)
            connection.shutdown(socket.SHUT_WR)
            deadline_s = self._ticking() + _LINGER_S
            while (left_s := deadline_s - self._ticking()) > 0:
                connection.settimeout(left_s)
                if not connection.recv(65_536):
                    return

    @contextmanager
    def _counted(self, connection: socket.socket) -> Iterator[list[int]]:
        """Give ``[received, sent]`` of a connection, which no other thread writes."""
        traffic = [0, 0]
        with self._lock:
            self._traffic[connection] = traffic
        try:
            yield traffic
        finally:
            with self._lock:
                del self._traffic[connection]
                self._ended_traffic = [before + more for before, more in zip(self._ended_traffic, traffic, strict=True)]


def _who_calls(connection: socket.socket, address: object) -> str:
    """Return the address of a client, or its account where it is on this host."""
    if isinstance(address, tuple):
        return str(address[0])
    _, uid = service_folder.peer(connection)
    return f"uid {uid}"


class _HalfFrame(Exception):
    """The connection ended, or stood still, inside a frame."""


def _arrive(connection: socket.socket, view: memoryview, *, idle: bool = False) -> bool:
    """
    Fill a buffer from a connection; return False where it has ended before the first byte.

    Parameters
    ----------
    idle : bool
        Whether the first byte may take as long as it likes.

    Raises
    ------
    _HalfFrame
        If it ends, or stands still for :data:`STALL_S`, later than that.
    """
    had, length = 0, len(view)
    while had < length:
        try:
            count = connection.recv_into(view[had:], length - had, socket.MSG_WAITALL)
        except BlockingIOError:  # the socket's time is over
            if idle and not had:
                continue
            raise _HalfFrame(f"{had} of {length} bytes of a frame, then nothing for {STALL_S:g} s") from None
        except ConnectionResetError:
            count = 0
        if not count:
            if idle and not had:
                return False
            raise _HalfFrame(f"{had} of {length} bytes of a frame, then the end")
        had += count
    return True
