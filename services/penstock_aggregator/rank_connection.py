"""
One connection to an aggregator: frames of a rank, or of the aggregator that a part comes from.

Its thread reads requests; values are received straight into the memory that is summed up, or are where the rank shares
them. Whoever has an answer sends it at once as far as the socket takes it, and a second thread sends the rest, so that
a rank that does not read holds nobody up. What is refused is answered with its status, counted, and never summed.
"""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.aggregation.aggregator_connection import KEPT_ALIVE
from penstock.aggregation.frames import (
    ENDING,
    HEADER_BYTES,
    JOINED,
    MOST_VECTORS,
    PAUSED,
    SHARED_AT,
    PartFlag,
    PartFrame,
    PartFrameError,
    PartRequest,
    PartStatus,
    decoded,
    encoded,
)
from penstock.leased_connection import descriptors_in, room_for_descriptors, sealed_bytes
from penstock_aggregator.hosted_run import HostedPart, HostedRun
from penstock_aggregator.parts import JoinedRank, PartAnswer, Vector
from penstock_bus.data_port import HalfFrame, RefusalCounts, answer_and_end, arrive
from penstock_log.aggregation_messages import COPY_RANK, MOST_PARTS, PART_BYTES

STALL_S: Final = 10.0
"""So long a client may be silent inside a frame."""
MOST_WAITING: Final = 4 * MOST_PARTS
"""Answers that a client has not taken; one that lets more wait is hung up on."""
_REQUESTS: Final = frozenset({PartRequest.JOIN, PartRequest.PUSH, PartRequest.PULL, PartRequest.LEAVE})
_ORDINARY: Final = frozenset({PartStatus.COUNTED, PartStatus.MOVED, PartStatus.STALE})
"""What good ranks hear after a connection broke, or while parts move."""
_DISCARDED: Final = 65_536


class Asker(NamedTuple):
    """Who asked: its connection, and what it asked."""

    connection: RankConnection
    frame: PartFrame
    hosted: HostedPart


class ConnectionOwner(Protocol):
    """The aggregator, as its connections know it."""

    refusals: RefusalCounts

    def complete_whole(self, run: HostedRun, hosted: HostedPart) -> list[PartAnswer]:
        """Complete a part's step if it may be now; its lock is held. Return the answers that are due."""

    def copy_is_whole(self, run: HostedRun, hosted: HostedPart, copied_bytes: int, pause_s: float) -> None:
        """Note that the state of a part has come."""

    def count_traffic(self, received: int, sent: int) -> None:
        """Count bytes of payloads."""


def deliver(answers: Sequence[PartAnswer]) -> None:
    """Send answers to those who asked; no part's lock is held."""
    for answer in answers:
        answer.asker.connection.answer(answer)


class RankConnection:
    """
    A connection whose lease is proved.

    Parameters
    ----------
    owner : ConnectionOwner
    connection : socket
        It blocks.
    run : HostedRun
        That its lease is of.
    rank : int
        Of the lease; :data:`COPY_RANK` for an aggregator.
    who : str
        Its address, for the log.
    ticking : callable
        Seconds that never jump.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        connection: socket.socket,
        run: HostedRun,
        rank: int,
        *,
        who: str,
        ticking: Callable[[], float],
    ) -> None:
        self._owner, self._socket, self._run, self._rank, self._who = owner, connection, run, rank, who
        self._ticking = ticking
        self._shared: NDArray[np.uint8] | None = None
        self._described: set[HostedPart] = set()
        self._outbox = _Outbox(connection)

    def serve(self) -> None:
        """Answer requests until the connection ends."""
        stall = struct.pack("@ll", int(STALL_S), 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stall)
        if self._socket.family != socket.AF_UNIX:
            for name, value in KEPT_ALIVE:
                if hasattr(socket, name):
                    self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._outbox.send([encoded(PartFrame(PartRequest.HELLO))])
        header = memoryview(bytearray(HEADER_BYTES))
        frame = PartFrame(PartRequest.HELLO)
        try:
            while True:
                descriptors: list[int] = []
                try:
                    if not self._read_header(header, descriptors):
                        return
                    begun_s = time.thread_time()
                    frame = decoded(header)
                    self._handle(frame, descriptors)
                finally:
                    for descriptor in descriptors:
                        os.close(descriptor)
                hosted = self._run.parts.get(frame.part)
                if hosted is not None:
                    hosted.add_cost(time.thread_time() - begun_s)
        except PartFrameError as error:
            self._end_with(frame, error)
        except HalfFrame as half:
            self._owner.refusals.note("HALF_FRAME", str(half), peer=self._who, run=self._run.name)
        finally:
            self._outbox.close()

    def answer(self, answer: PartAnswer) -> None:
        """Send an answer to what was asked over this connection; it may be of any thread."""
        asker: Asker = answer.asker
        frame = asker.frame
        if answer.status != PartStatus.OK:
            self._refuse(frame, answer.status, answer.reason, answer)
            return
        vectors = answer.vectors
        flags, descriptor = PartFlag.NONE, -1
        if vectors and frame.flags & PartFlag.SHARED and self._shared is not None:
            known = asker.hosted in self._described
            descriptor = -1 if known else asker.hosted.duplicate_descriptor()
            if known or descriptor >= 0:
                self._described.add(asker.hosted)
                flags = PartFlag.SHARED if known else PartFlag.SHARED | PartFlag.DESCRIPTOR
                vectors = ()
        reply = frame._replace(
            status=PartStatus.OK,
            step=answer.step,
            safe_step=answer.safe_step,
            flags=flags,
            length=sum(vector.nbytes for vector in vectors),
        )
        pieces = [encoded(reply), *(vector.data.cast("B") for vector in vectors)]
        self._outbox.send(pieces, asker.hosted, descriptor)
        self._owner.count_traffic(0, reply.length)

    # --- requests
    def _read_header(self, header: memoryview, descriptors: list[int]) -> bool:
        """Fill a header, and add the descriptors that came with it; return False where the connection has ended."""
        if self._socket.family != socket.AF_UNIX:
            return arrive(self._socket, header, stall_s=STALL_S, idle=True)
        while True:
            try:
                count, ancillary, _, _ = self._socket.recvmsg_into(
                    [header], room_for_descriptors(4), socket.MSG_CMSG_CLOEXEC
                )
                break
            except BlockingIOError:  # idle: it may take as long as it likes
                continue
            except ConnectionResetError:
                return False
        descriptors += descriptors_in(ancillary)
        if not count:
            return False
        if count < len(header):
            arrive(self._socket, header[count:], stall_s=STALL_S)
        return True

    def _handle(self, frame: PartFrame, descriptors: Sequence[int]) -> None:
        if frame.kind == PartRequest.SHARE:
            self._share(frame, descriptors)
            return
        if frame.kind not in (_REQUESTS if self._rank != COPY_RANK else {PartRequest.COPY}):
            who = "an aggregator" if self._rank == COPY_RANK else "a rank"
            raise PartFrameError(PartStatus.BAD_FRAME, f"a frame of kind {frame.kind} is not answered here, to {who}")
        if frame.length > MOST_VECTORS * PART_BYTES + JOINED.size:
            most = MOST_VECTORS * PART_BYTES + JOINED.size
            raise PartFrameError(PartStatus.TOO_LONG, f"a frame has {most} bytes at most, and this {frame.length}")
        try:
            hosted = self._hosted(frame)
            if frame.kind == PartRequest.PUSH:
                self._push(frame, hosted)
            elif frame.kind == PartRequest.PULL:
                self._pull(frame, hosted)
            elif frame.kind == PartRequest.JOIN:
                self._join(frame, hosted)
            elif frame.kind == PartRequest.LEAVE:
                self._leave(frame, hosted)
            else:
                self._copy(frame, hosted)
        except _Refused as refused:
            self._discard(refused.left_bytes)
            self._refuse(frame, refused.status, str(refused))

    def _hosted(self, frame: PartFrame) -> HostedPart:
        """Return the part that a frame is about; raises _Refused where the frame is not about it."""
        if self._run.over:
            raise _Refused(PartStatus.RUN_OVER, self._run.over, frame.length)
        hosted = self._run.parts.get(frame.part)
        if hosted is None:
            raise _Refused(
                PartStatus.UNKNOWN_PART, f"part {frame.part} of run {self._run.name} is not here", frame.length
            )
        if frame.generation != hosted.generation:
            reason = f"part {frame.part} is here since generation {hosted.generation}, not {frame.generation}"
            raise _Refused(PartStatus.STALE, reason, frame.length)
        itemsize = hosted.part.dtype.itemsize
        if frame.dtype != itemsize:
            reason = f"the run's elements have {itemsize} bytes, and these {frame.dtype}"
            raise _Refused(PartStatus.WRONG_TYPE, reason, frame.length)
        return hosted

    def _push(self, frame: PartFrame, hosted: HostedPart) -> None:
        asker = Asker(self, frame, hosted)
        part, begun_s = hosted.part, self._ticking()
        if frame.flags & PartFlag.SHARED:
            values = self._shared_vector(frame, hosted)
            with hosted.lock:
                answers = self._count(asker, values, begun_s, is_own=False)
            deliver(answers)
            return
        if frame.length != part.bytes:
            reason = f"part {frame.part} has {part.bytes} bytes, and this push {frame.length}"
            raise _Refused(PartStatus.WRONG_SHAPE, reason, frame.length)
        with hosted.lock:
            refusal = part.push_refusal(self._rank, frame.step, frame.safe_step, asker)
            buffer = part.take_buffer() if refusal is None else None
        if buffer is None or refusal is not None:
            self._discard(frame.length)
            deliver([refusal] if refusal is not None else [])
            return
        try:
            arrive(self._socket, buffer.data.cast("B"), stall_s=STALL_S)
        except (HalfFrame, OSError):
            with hosted.lock:
                part.give_back_buffer(buffer)
            raise
        self._owner.count_traffic(frame.length, 0)
        with hosted.lock:
            answers = self._count(asker, buffer, begun_s, is_own=True)
        deliver(answers)

    def _count(self, asker: Asker, values: Vector, begun_s: float, *, is_own: bool) -> list[PartAnswer]:
        """Count a push that is here, and began to come then; the part's lock is held."""
        frame, part = asker.frame, asker.hosted.part
        refusal = part.push_refusal(self._rank, frame.step, frame.safe_step, asker)
        if refusal is not None:
            if is_own:
                part.give_back_buffer(values)
            return [refusal]
        answers = part.push(self._rank, frame.step, values, asker, is_own=is_own)
        asker.hosted.pushed_s = begun_s
        if part.is_whole:
            answers += self._owner.complete_whole(self._run, asker.hosted)
        return answers

    def _pull(self, frame: PartFrame, hosted: HostedPart) -> None:
        if frame.length:
            raise _Refused(
                PartStatus.WRONG_SHAPE, f"a pull has no payload, and this one {frame.length} bytes", frame.length
            )
        with hosted.lock:
            answers = hosted.part.pull(self._rank, frame.step, frame.flags, Asker(self, frame, hosted))
        deliver(answers)

    def _leave(self, frame: PartFrame, hosted: HostedPart) -> None:
        if frame.length:
            raise _Refused(PartStatus.WRONG_SHAPE, "who leaves sends no payload", frame.length)
        with hosted.lock:
            answers = hosted.part.leave(self._rank)
        deliver(answers)

    def _join(self, frame: PartFrame, hosted: HostedPart) -> None:
        part = hosted.part
        holds = part.updates and self._rank == part.holder
        expected = JOINED.size + (part.held_vectors * part.bytes if holds else 0)
        if frame.length != expected:
            reason = f"rank {self._rank} joins part {frame.part} with {expected} bytes, and this has {frame.length}"
            raise _Refused(PartStatus.WRONG_SHAPE, reason, frame.length)
        fields = memoryview(bytearray(JOINED.size))
        arrive(self._socket, fields, stall_s=STALL_S)
        oldest, held_step = JOINED.unpack(fields)
        vectors = self._receive_vectors(hosted, part.held_vectors if holds else 0)
        with hosted.lock:
            brought = JoinedRank(frame.step, oldest, held_step, vectors)
            answers = part.join(self._rank, brought, Asker(self, frame, hosted))
        deliver(answers)

    def _copy(self, frame: PartFrame, hosted: HostedPart) -> None:
        part = hosted.part
        begun_s = self._ticking()
        counts = {part.held_vectors} if part.updates else {0, 1}  # a mean is there once a step is complete
        count = (frame.length - PAUSED.size) // part.bytes
        if frame.length != PAUSED.size + count * part.bytes or count not in counts:
            reason = (
                f"a copy of part {frame.part} has {part.held_vectors} x {part.bytes} bytes, and this {frame.length}"
            )
            raise _Refused(PartStatus.WRONG_SHAPE, reason, frame.length)
        with hosted.lock:
            waits = part.awaits_copy
        if not waits:
            raise _Refused(PartStatus.COUNTED, f"part {frame.part} does not wait for a copy", frame.length)
        fields = memoryview(bytearray(PAUSED.size))
        arrive(self._socket, fields, stall_s=STALL_S)
        (paused_us,) = PAUSED.unpack(fields)
        vectors = self._receive_vectors(hosted, count)
        asker = Asker(self, frame._replace(length=0), hosted)
        with hosted.lock:
            if not part.awaits_copy:
                raise _Refused(PartStatus.COUNTED, f"part {frame.part} does not wait for a copy any more")
            answers = part.take_copy(frame.step, frame.safe_step, vectors)
            if part.is_whole:
                answers += self._owner.complete_whole(self._run, hosted)
        pause_s = paused_us / 1e6 + self._ticking() - begun_s
        self._owner.copy_is_whole(self._run, hosted, frame.length, pause_s)
        deliver([PartAnswer(asker, PartStatus.OK, frame.step, frame.safe_step), *answers])

    def _receive_vectors(self, hosted: HostedPart, count: int) -> tuple[Vector, ...]:
        part = hosted.part
        vectors: list[Vector] = [np.empty(part.order.elements, part.dtype) for _ in range(count)]
        for vector in vectors:
            arrive(self._socket, vector.data.cast("B"), stall_s=STALL_S)
        self._owner.count_traffic(count * part.bytes, 0)
        return tuple(vectors)

    # --- shared memory
    def _share(self, frame: PartFrame, descriptors: Sequence[int]) -> None:
        if self._socket.family != socket.AF_UNIX or frame.length or len(descriptors) != 1:
            reason = f"memory is shared over a Unix socket, by one descriptor; {len(descriptors)} came"
            raise PartFrameError(PartStatus.BAD_FRAME, reason)
        size = sealed_bytes(descriptors[0])
        if not size:
            raise PartFrameError(PartStatus.BAD_FRAME, "the memory is not sealed against shrinking (F_SEAL_SHRINK)")
        try:
            self._shared = np.frombuffer(mmap.mmap(descriptors[0], size), np.uint8)
        except OSError as error:
            raise PartFrameError(PartStatus.BAD_FRAME, f"the memory cannot be mapped: {error}") from error
        self._outbox.send([encoded(frame._replace(status=PartStatus.OK))])

    def _shared_vector(self, frame: PartFrame, hosted: HostedPart) -> Vector:
        if self._shared is None:
            raise _Refused(PartStatus.BAD_FRAME, "no memory is shared over this connection", frame.length)
        if frame.length != SHARED_AT.size:
            reason = f"a place in shared memory has {SHARED_AT.size} bytes, and this {frame.length}"
            raise _Refused(PartStatus.WRONG_SHAPE, reason, frame.length)
        fields = memoryview(bytearray(SHARED_AT.size))
        arrive(self._socket, fields, stall_s=STALL_S)
        (at,) = SHARED_AT.unpack(fields)
        part = hosted.part
        if at + part.bytes > len(self._shared) or at % part.dtype.itemsize:
            reason = f"bytes {at} to {at + part.bytes} are not elements within the {len(self._shared)} that are shared"
            raise _Refused(PartStatus.WRONG_SHAPE, reason)
        vector: Vector = self._shared[at : at + part.bytes].view(part.dtype)
        return vector

    # --- what is refused
    def _refuse(self, frame: PartFrame, status: PartStatus, reason: str, answer: PartAnswer | None = None) -> None:
        """Answer and count what is refused; the connection goes on."""
        if status in ENDING:
            raise PartFrameError(status, reason)
        if status in _ORDINARY:
            self._owner.refusals.count(status.name)
        else:
            self._owner.refusals.note(status.name, reason, peer=self._who, run=self._run.name, rank=self._rank)
        text = reason.encode()
        reply = frame._replace(
            status=status,
            step=answer.step if answer is not None else frame.step,
            safe_step=answer.safe_step if answer is not None else 0,
            flags=0,
            length=len(text),
        )
        self._outbox.send([encoded(reply), text])

    def _end_with(self, frame: PartFrame, error: PartFrameError) -> None:
        """Answer and count what ends the connection."""
        self._owner.refusals.note(error.status.name, str(error), peer=self._who, run=self._run.name, rank=self._rank)
        text = str(error).encode()
        answer = encoded(frame._replace(status=error.status, flags=0, length=len(text))) + text
        answer_and_end(self._socket, answer, ticking=self._ticking)

    def _discard(self, length: int) -> None:
        """Receive what is not wanted."""
        scratch = memoryview(bytearray(min(length, _DISCARDED)))
        while length:
            piece = scratch[: min(length, len(scratch))]
            arrive(self._socket, piece, stall_s=STALL_S)
            length -= len(piece)


class _Refused(Exception):
    """A frame is refused, and so many bytes of it have not been received; the next one may be good."""

    def __init__(self, status: PartStatus, reason: str, left_bytes: int = 0) -> None:
        super().__init__(reason)
        self.status, self.left_bytes = status, left_bytes


class _Words(NamedTuple):
    """What is to be sent, what part it is of, and a descriptor that goes along; -1 where none does."""

    pieces: list[Any]
    hosted: HostedPart | None
    descriptor: int


class _Outbox:
    """What is to be sent over a connection: at once as far as it goes, and the rest by a thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Condition()
        self._queue: deque[_Words] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False

    def send(self, pieces: list[Any], hosted: HostedPart | None = None, descriptor: int = -1) -> None:
        """
        Send pieces in their order; never waits. The rest of a broken connection goes nowhere.

        ``descriptor`` goes along, and is closed.
        """
        words = _Words(pieces, hosted, descriptor)
        with self._lock:
            if self._closed:
                _close(words)
                return
            if not self._queue:
                try:
                    words = self._sent(words, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    pass
                except OSError:
                    _close(words)
                    self._hang_up()
                    return
                if not words.pieces:
                    return
            if len(self._queue) >= MOST_WAITING:
                _close(words)
                self._hang_up()
                return
            self._queue.append(words)
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_rest, name="aggregator-send", daemon=True)
                self._thread.start()
            self._lock.notify()

    def close(self) -> None:
        """Send nothing any more, and end the thread, even one that waits for a client which does not read."""
        with self._lock:
            self._hang_up()

    def _sent(self, words: _Words, flags: int) -> _Words:
        """Send once, and return what is left."""
        ancillary = []
        if words.descriptor >= 0:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [words.descriptor]))]
        sent = self._socket.sendmsg(words.pieces, ancillary, flags)
        _close(words)
        return _Words(_without(words.pieces, sent), words.hosted, -1)

    def _send_rest(self) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._closed:
                    self._lock.wait()
                if self._closed:
                    return
                words = self._queue[0]
                self._queue[0] = words._replace(descriptor=-1)
            begun_s = time.thread_time()
            hosted = words.hosted
            try:
                while words.pieces:
                    words = self._sent(words, 0)
            except OSError:
                _close(words)
                with self._lock:
                    self._hang_up()
                return
            if hosted is not None:
                hosted.add_cost(time.thread_time() - begun_s)
            with self._lock:
                if self._queue:
                    self._queue.popleft()

    def _hang_up(self) -> None:
        self._end()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        self._closed = True
        while self._queue:
            _close(self._queue.popleft())
        self._lock.notify()


def _close(words: _Words) -> None:
    if words.descriptor >= 0:
        os.close(words.descriptor)


def _without(pieces: list[Any], sent: int) -> list[Any]:
    """Return what is left of pieces of which so many bytes were sent."""
    for at, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[at + 1 :]]
        sent -= len(piece)
    return []
