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

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.leased_connection import LEASE_BYTES, NONCE_BYTES, PROOF_BYTES, proof_of, send
from penstock.memory.frames import (
    HEADER_BYTES,
    MAGIC,
    MOST_BYTES,
    Frame,
    FrameError,
    Kind,
    Status,
    check,
    decoded,
    encoded,
)
from penstock_bus.data_port import DataPort, HalfFrame, LeaseHello, RefusalCounts, answer_and_end, arrive
from penstock_memory.slab_pool import Slab, SlabPool

STALL_S: Final = 10.0
"""So long a client may be silent inside a frame, or not take an answer: a lease lasts no longer without its agent."""
MOST_OF_SLAB: Final = 16
"""Connections about one slab."""
_HELLO: Final = LeaseHello(MAGIC, LEASE_BYTES, NONCE_BYTES, PROOF_BYTES, proof_of)


class SlabServer:
    """
    The data port, and what its connections read and write.

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
        self.refusals = RefusalCounts("slab_request", ticking)
        self._lock = threading.Lock()
        self._ended_traffic = [0, 0]
        self._traffic: dict[socket.socket, list[int]] = {}
        self._data_port = DataPort(
            self, _HELLO, self.refusals, name="slab", host=host, port=port, path=path, ticking=ticking
        )
        self.port = self._data_port.port
        self._data_port.open()

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
        self._data_port.close()

    # --- connections, as their port knows them
    def token_of(self, lease: bytes) -> bytes | None:
        """See :class:`~penstock_bus.data_port.DataService`."""
        slab = self._pool.find(lease)
        return slab.token if slab is not None else None

    def serve_proved(self, connection: socket.socket, lease: bytes, who: str) -> None:
        """See :class:`~penstock_bus.data_port.DataService`."""
        slab = self._pool.find(lease)
        why = "the lease is over" if slab is None else slab.enter(connection, MOST_OF_SLAB)
        if why or slab is None:
            status = Status.STALE if "over" in why else Status.BAD_FRAME
            self._refuse(connection, Frame(Kind.HELLO), FrameError(status, why), who)
            return
        try:
            self._serve_slab(connection, slab, who)
        finally:
            slab.leave(connection)

    def refuse_unproved(self, connection: socket.socket, status: str, reason: str, who: str) -> None:
        """See :class:`~penstock_bus.data_port.DataService`."""
        self._refuse(connection, Frame(Kind.HELLO), FrameError(Status[status], reason), who)

    # --- requests
    def _serve_slab(self, connection: socket.socket, slab: Slab, who: str) -> None:
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
                    if not arrive(connection, memoryview(header), stall_s=STALL_S, idle=True):
                        return
                    frame, *sums = decoded(header)
                    self._answer(connection, slab, frame, (sums[0], sums[1]), traffic)
                except FrameError as error:
                    trouble = error
                except HalfFrame as half:
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
                    arrive(connection, place, stall_s=STALL_S)
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
        answer_and_end(connection, encoded(answer, reason) + reason, ticking=self._ticking)

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
