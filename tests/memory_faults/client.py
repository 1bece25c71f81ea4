"""
The process of a client: ``python -m memory_faults.client '<JSON of a ClientTask>'``.

Two threads write versions, one through :class:`RemoteFile` and one through an NBD connection, each into words of its
own; a third one reads through both. All check what they read. It takes lines on its standard input: at ``fork`` it
forks, and the child checks all that was written before; at ``finish`` it reads all back, closes, and reports.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random  # noqa: TID251 - the seed of a history is its name
from time import perf_counter
from typing import Any, Final

import msgspec
import numpy as np

from memory_faults import broken
from memory_faults.content import WORD_BYTES, WordVersions
from memory_faults.plan import SLAB_BYTES
from penstock.memory.block_store import BlockStore
from penstock.memory.nbd_server import NbdServer
from penstock.memory.remote_file import RemoteFile

PACE_S: Final = 0.01
"""Between two requests of a thread: the machine has other things to do."""
STRIP: Final = 8192
"""Words that have one writer; the next ones have the other."""
PIECE: Final = 32 << 10
CHILD_S: Final = 30.0
FLUSH_S: Final = 0.4
_VERSIONS_OF_LIFE: Final = 1_000_000


class ClientTask(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a client is to do.

    Attributes
    ----------
    life : int
        How often it was started before; from the second on it first checks what the killed one had flushed.
    folder : str
        Holds versions, socket, and, if it is kept, its content.
    break_by : str
        How the product is to be broken; see :mod:`memory_faults.broken`.
    """

    life: int
    folder: str
    content: str
    agent: str
    size: int
    seed: int
    local_bytes: int
    pending_bytes: int
    break_by: str = ""


class ClientReport(msgspec.Struct, kw_only=True):
    """What a client has found."""

    problems: list[str] = []
    checked_bytes: int = 0
    written_bytes: int = 0
    slab_bytes: int = 0
    shared_seen: bool = False
    tcp_seen: bool = False
    """Whether it had slabs as shared memory, and over TCP, when it had half of what it wants."""
    slowest_s: float = 0.0
    slowest: str = ""
    full: int = 0
    """Writes that were refused because the disk was full."""
    forks: int = 0
    lost: int = 0
    evicted: int = 0
    requests: dict[str, int] = {}


class NbdFile:
    """The smallest NBD client: one connection, one request at a time."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._get(18)
        self._socket.sendall(struct.pack(">I", 3) + struct.pack(">QIIIH", 0x49484156454F5054, 7, 6, 0, 0))
        while True:
            _, _, kind, length = struct.unpack(">QIII", self._get(20))
            self._get(length)
            if kind == 1:
                return
            if kind >> 31:
                raise OSError(errno.EPROTO, f"the server answers {kind:#x}")

    def pread(self, length: int, offset: int) -> bytes:
        """Read."""
        self._request(0, offset, length)
        return self._get(length)

    def pwrite(self, data: bytes, offset: int) -> None:
        """Write."""
        self._request(1, offset, len(data), data)

    def zero(self, offset: int, length: int) -> None:
        """Write zeros."""
        self._request(6, offset, length)

    def close(self) -> None:
        """Hang up."""
        self._socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 2, 0, 0, 0))
        self._socket.close()

    def _request(self, kind: int, offset: int, length: int, data: bytes = b"") -> None:
        self._socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, kind, 7, offset, length) + data)
        _, error, _ = struct.unpack(">IIQ", self._get(16))
        if error:
            raise OSError(error, f"the NBD server answers: {os.strerror(error)}")

    def _get(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not (more := self._socket.recv(count - len(data))):
                raise OSError(errno.EPIPE, "the NBD server hung up")
            data += more
        return bytes(data)


class StoreFile(RemoteFile):
    """A file whose ranges can be zeroed, as those of :class:`NbdFile`."""

    def zero(self, offset: int, length: int) -> None:
        """Have a range read as zeros."""
        self.store.zero(offset, length)


class LoadedClient:
    """The store, its two faces, and the threads that use them."""

    def __init__(self, task: ClientTask) -> None:
        self.task = task
        self.random = Random(f"{task.seed}/{task.life}")  # noqa: S311 - no secret
        self.report = ClientReport()
        self.requests: Counter[str] = Counter()
        self.versions = WordVersions(Path(task.folder) / "versions", task.size // WORD_BYTES)
        self.store = BlockStore(
            task.size,
            path=task.content or None,
            local_bytes=task.local_bytes,
            pending_bytes=task.pending_bytes,
            socket=task.agent,
            name=f"life {task.life}",
        )
        self.file = StoreFile(store=self.store)
        self.nbd_path = Path(task.folder) / "nbd.sock"
        self.server = NbdServer(self.store, self.nbd_path)
        self.stopping, self.has_slabs = threading.Event(), threading.Event()
        self._noting = threading.Lock()

    def run(self) -> None:
        """Live until ``finish``."""
        if self.task.life:
            self._recover()
        faces = [self.file, NbdFile(self.nbd_path)]
        readers = [StoreFile(store=self.store), NbdFile(self.nbd_path)]
        jobs = [
            (self._write_on, 0, faces[0]),
            (self._write_on, 1, faces[1]),
            (self._read_on, readers),
            (self._flush_on,),
        ]
        threads = [threading.Thread(target=self._guarded, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        self.has_slabs.wait(8.0)
        say(ready=True, bound=self.store.stats().bound)
        for line in sys.stdin:
            if line.strip() == "fork":
                self._guarded(self._fork)
            elif line.strip() == "finish":
                break
        self.stopping.set()
        for thread in threads:
            thread.join()
        for face in readers:
            self._check_all(face)
        with self._timed("flush"):
            self.store.flush()
        self._check_all(self.file)
        stats = self.store.stats()
        self.report.slab_bytes, self.report.lost, self.report.evicted = stats.slab_bytes, stats.lost, stats.evicted
        self.report.written_bytes = stats.written_bytes
        for face in (faces[1], readers[1]):
            face.close()
        self.server.close()
        self.store.close()
        if self.nbd_path.exists():
            self.note("the NBD server has left its socket")
        self.report.requests = dict(self.requests)
        say(report=msgspec.to_builtins(self.report))

    def note(self, problem: str) -> None:
        """Note a violation."""
        with self._noting:
            if len(self.report.problems) < 20:
                self.report.problems.append(f"{self.task.folder} life {self.task.life}: {problem}")

    def _guarded(self, do: Any, *arguments: Any) -> None:
        try:
            do(*arguments)
        except Exception:  # whatever it is, it is a finding
            self.note(traceback.format_exc())

    # --- load
    def _write_on(self, writer: int, face: Any) -> None:
        random = Random(self.random.random())  # noqa: S311 - no secret
        version = self.task.life * _VERSIONS_OF_LIFE
        words, own = self.versions.words, range(writer, -(-self.versions.words // STRIP), 2)
        for strip in own:  # every block has a version
            version += 1
            self._write(face, strip * STRIP, min(words, (strip + 1) * STRIP), version)
        while not self.stopping.wait(PACE_S):
            first = random.choice(own) * STRIP
            last = min(words, first + STRIP)
            begin = random.randrange(first, last) if random.random() < 0.5 else first
            end = min(last, begin + random.choice([1, 60, 512, STRIP]))
            version += 1
            self._write(face, begin, end, version, zeros=random.random() < 0.04)

    def _write(self, face: Any, begin: int, end: int, version: int, *, zeros: bool = False) -> None:
        self.versions.begun[begin:end] = version
        try:
            with self._timed("write"):
                if zeros:
                    self.versions.zeroed[begin:end] = version
                    face.zero(begin * WORD_BYTES, (end - begin) * WORD_BYTES)
                else:
                    face.pwrite(self.versions.encoded(begin, end, version), begin * WORD_BYTES)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            with self._noting:
                self.report.full += 1
            return
        self.versions.done[begin:end] = version

    def _read_on(self, faces: list[Any]) -> None:
        random = Random(self.random.random())  # noqa: S311 - no secret
        while not self.stopping.wait(PACE_S):
            begin = random.randrange(self.versions.words)
            length = random.choice([1, 512, 513, STRIP, PIECE])
            self._check(random.choice(faces), begin, min(self.versions.words, begin + length))
            if not self.has_slabs.is_set():
                stats = self.store.stats()
                self.report.shared_seen |= stats.shared > 0
                if stats.bound * 2 * SLAB_BYTES >= self.task.size:
                    self.report.tcp_seen = stats.bound > stats.shared
                    self.has_slabs.set()

    def _flush_on(self) -> None:
        while self.task.content and not self.stopping.wait(FLUSH_S):
            done = np.array(self.versions.done)
            with self._timed("flush"):
                self.store.flush()
            np.maximum(self.versions.safe, done, out=self.versions.safe)

    # --- checks
    def _check(self, face: Any, begin: int, end: int) -> None:
        least = np.array(self.versions.done[begin:end])
        with self._timed("read"):
            data = face.pread((end - begin) * WORD_BYTES, begin * WORD_BYTES)
        found = np.frombuffer(data, np.int64)
        if problem := self.versions.problem(begin, found, least, self.versions.begun[begin:end]):
            self.note(f"{type(face).__name__}: {problem}")
        with self._noting:
            self.report.checked_bytes += len(data)

    def _check_all(self, face: Any) -> None:
        for begin in range(0, self.versions.words, PIECE):
            self._check(face, begin, min(self.versions.words, begin + PIECE))

    def _recover(self) -> None:
        """Check that what the killed process had flushed is there, and go on from what is found."""
        versions = self.versions
        for begin in range(0, versions.words, PIECE):
            end = min(versions.words, begin + PIECE)
            found = np.frombuffer(self.file.pread((end - begin) * WORD_BYTES, begin * WORD_BYTES), np.int64)
            if problem := versions.problem(begin, found, versions.safe[begin:end], versions.begun[begin:end]):
                self.note(f"after a kill: {problem}")
            self.report.checked_bytes += found.nbytes
            now = np.where(found == 0, versions.zeroed_by(begin, end), found & 0xFFFFFFFF)
            now = np.where((found == 0) & (versions.safe[begin:end] == 0), 0, now)
            versions.done[begin:end] = versions.begun[begin:end] = versions.safe[begin:end] = now

    def _fork(self) -> None:
        least = np.array(self.versions.done)
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(ours)
            self._be_child(least, theirs)
        os.close(theirs)
        self.report.forks += 1
        if not select.select([ours], [], [], CHILD_S)[0]:
            self.note(f"a forked child has not read all within {CHILD_S:g} s")
            os.kill(child, signal.SIGKILL)
        with os.fdopen(ours) as answers:
            answer = answers.read()
        os.waitpid(child, 0)
        if answer != "good":
            self.note(f"in a forked child: {answer or 'it ended without an answer'}")

    def _be_child(self, least: np.ndarray, answers: int) -> None:
        try:
            problem = self._problem_of_child(least)
        except BaseException:
            problem = traceback.format_exc()
        os.write(answers, (problem or "good").encode())
        os._exit(0)

    def _problem_of_child(self, least: np.ndarray) -> str:
        try:
            self.store.write(0, b"12345678")
        except RuntimeError:
            pass
        else:
            return "it could write"
        for begin in range(0, self.versions.words, PIECE):
            end = min(self.versions.words, begin + PIECE)
            found = np.frombuffer(self.file.pread((end - begin) * WORD_BYTES, begin * WORD_BYTES), np.int64)
            if problem := self.versions.problem(begin, found, least[begin:end], self.versions.begun[begin:end]):
                return problem
        return ""

    def _timed(self, what: str) -> _Timed:
        return _Timed(self, what)


class _Timed:
    """Measures a request."""

    def __init__(self, client: LoadedClient, what: str) -> None:
        self.client, self.what = client, what

    def __enter__(self) -> None:
        self.begun_s = perf_counter()

    def __exit__(self, *_: object) -> None:
        taken_s = perf_counter() - self.begun_s
        with self.client._noting:
            self.client.requests[self.what] += 1
            if taken_s > self.client.report.slowest_s:
                self.client.report.slowest_s, self.client.report.slowest = taken_s, self.what


def say(**message: Any) -> None:
    """Tell the verifier, a line of JSON."""
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Be the client that the argument asks for."""
    task = msgspec.json.decode(sys.argv[1], type=ClientTask)
    if task.break_by:
        broken.BROKEN[task.break_by]()
    LoadedClient(task).run()


if __name__ == "__main__":
    main()
