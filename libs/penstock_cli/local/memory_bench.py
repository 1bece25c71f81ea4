"""
Bench of borrowed memory: what it is worth on this machine.

:func:`measure` runs a NATS server and two memory agents as processes of their own. One is the client's, and lends
nothing; the other one is the donor. The client is this process. It reads borrowed slabs, and the same file cold from
the disk. It serves the store over NBD to ``fio``, in turn with ``nbdkit memory``. It goes on reading and writing while
the donor takes its slabs back, and while it is killed, and compares all bytes with what was written.

This is shell code: it starts and kills processes and reads clocks, which is the whole of its work.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import monotonic_ns, sleep
from typing import Final

import msgspec
import numpy as np

from penstock.memory.block_store import BlockStore, open_store
from penstock.memory.nbd_server import NbdServer
from penstock_bus.child_processes import dies_with_parent, module_command
from penstock_cli.local.bench_services import BenchError, last_lines, nats_server, service_environment

_MIB: Final = 1 << 20
SIZE: Final = 128 * _MIB
SLAB_BYTES: Final = 16 * _MIB
_LEAST_FREE_BYTES: Final = 64 * _MIB
_PLACE: Final = "/var/tmp"  # noqa: S108 - a folder of a name of its own is made in it; /tmp may be no disk
_LOOK_S: Final = 0.02
_PATIENCE_S: Final = 30.0
_READS: Final = 400
_COLD_READS: Final = 200
_FIO_S: Final = 1.0
_ROUNDS: Final = 5
_LOAD_S: Final = 1.0
_BLOCK_BYTES: Final = 4096
_BLOCKS_AT_ONCE: Final = 16


class DonorKilled(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a client finds whose donor first takes its slabs back and later is killed, amid reads and writes.

    Attributes
    ----------
    bytes_checked, bytes_wrong : int
        What was compared with what had been written, and what of it was anything else: stale, torn or lost.
    slabs_lost : int
        Slabs that the client had from the donor when that was killed, and found gone.
    """

    bytes_checked: int
    bytes_wrong: int
    slabs_lost: int


class MemoryCosts(msgspec.Struct, frozen=True, kw_only=True):
    """
    What borrowed memory is worth on a machine; times are medians of reads at random places, in microseconds.

    Attributes
    ----------
    read_64k_us, read_1m_us : float
        From a borrowed slab, without a local cache.
    disk_read_64k_us : float
        From the file below it, none of whose pages the kernel has in memory.
    nbd_1m_ratio, nbd_1m_write_ratio : float, optional
        How much of the throughput of ``nbdkit memory`` the same store has over NBD, with ``fio`` as the client: four
        requests of 1 MiB at a time, the median of five rounds of a second each. What is written goes to the disk too,
        which ``nbdkit memory`` has not. None where ``nbdkit`` or ``fio`` with its engine for NBD is not installed.
    nbd_1m_range, nbd_1m_write_range : tuple of float, optional
        The smallest and the largest of the rounds whose median that is: on a busy machine they are far apart.
    donor_killed : DonorKilled
    evicted_slabs : int
        Slabs that the donor took back in good order, amid reads and writes.
    shared : bool
        Whether slabs were read as memory shared with the donor, and not over a socket.
    """

    read_64k_us: float
    read_1m_us: float
    disk_read_64k_us: float
    nbd_1m_ratio: float | None
    nbd_1m_write_ratio: float | None
    nbd_1m_range: tuple[float, float] | None
    nbd_1m_write_range: tuple[float, float] | None
    donor_killed: DonorKilled
    evicted_slabs: int
    shared: bool


def measure(seed: int = 1) -> MemoryCosts:
    """
    Measure all of it; about a minute.

    Raises
    ------
    BenchError
        If an agent does not start, or does not lend: the node needs some hundred MiB free beyond its head-room.
    """
    rng = np.random.default_rng(seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=_place())))
        bus = stack.enter_context(nats_server(folder / "nats"))
        home = stack.enter_context(BenchAgent(folder, "home", bus, lend=False))
        donor = stack.enter_context(BenchAgent(folder, "donor", bus, lend=True))
        socket, content = str(home.socket), folder / "content"
        store = stack.enter_context(open_store(SIZE, path=content, local_bytes=0, socket=socket, name="bench"))
        load = _VerifiedLoad(store, rng)
        _borrow_all(store)
        read_64k_us, read_1m_us = _read_us(store, 64 << 10, rng), _read_us(store, _MIB, rng)
        shared = store.stats().shared > 0
        disk_read_64k_us = _cold_read_us(store, content, rng)
        reads, writes = _nbd_ratios(store, folder)
        load.write_all()
        _borrow_all(store)
        load.run(donor.ask_to_end)
        evicted = store.stats().evicted
        donor.restart()
        _borrow_all(store)
        lost = load.run(donor.kill)
        load.check_all()
    return MemoryCosts(
        read_64k_us=read_64k_us,
        read_1m_us=read_1m_us,
        disk_read_64k_us=disk_read_64k_us,
        nbd_1m_ratio=median(reads) if reads else None,
        nbd_1m_write_ratio=median(writes) if writes else None,
        nbd_1m_range=(min(reads), max(reads)) if reads else None,
        nbd_1m_write_range=(min(writes), max(writes)) if writes else None,
        donor_killed=DonorKilled(bytes_checked=load.checked_bytes, bytes_wrong=load.wrong_bytes, slabs_lost=lost),
        evicted_slabs=evicted,
        shared=shared,
    )


def _place() -> str | None:
    """Return where the folder is made: on a disk if one can tell, else where temporary files go."""
    return _PLACE if os.access(_PLACE, os.W_OK) else None


# --- processes


class BenchAgent:
    """A memory agent as a process, by settings of which ``more`` can be said; it has started when one enters it."""

    def __init__(self, folder: Path, node_id: str, bus: dict[str, str], *, lend: bool, **more: str) -> None:
        self._data = folder / node_id
        self._ready = folder / f"{node_id}.ready"
        self._log = folder / f"{node_id}.log"
        settings = {
            "node_id": node_id,
            "data_dir": str(self._data),
            "address": "127.0.0.1",
            "host": "127.0.0.1",
            "slab_bytes": str(SLAB_BYTES),
            "headroom_bytes": str(_LEAST_FREE_BYTES),
            "most_lent_bytes": str(SIZE),
            "lend": str(lend).lower(),
            **more,
        }
        variables = {f"PENSTOCK_MEMORY_{name.upper()}": value for name, value in settings.items()}
        self._environment = service_environment(bus, variables, self._ready)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """Where clients come."""
        return self._data / "memory.sock"

    @property
    def pid(self) -> int:
        """Number of the process; 0 before there is one."""
        return 0 if self._process is None else self._process.pid

    def share_nothing(self) -> None:
        """Take away the socket by which its memory is shared, so that clients of this host come over TCP."""
        for path in self._data.glob("slabs*.sock"):
            path.unlink()

    def __enter__(self) -> BenchAgent:
        self.restart()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def restart(self) -> None:
        """Start it, once it has ended; return when it answers over the bus."""
        if self._process is not None:
            self._process.wait()
        self._ready.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                module_command("penstock_memory"),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=dies_with_parent(),  # noqa: PLW1509 - it only calls prctl
            )
        process = self._process
        _wait_until(lambda: self._ready.exists() or process.poll() is not None, "no memory agent got ready", self.said)
        if process.poll() is not None:
            raise BenchError(f"a memory agent ended with {process.returncode}: {self.said()}")

    def ask_to_end(self) -> None:
        """Have it take its slabs back and end."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill it, and see it gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        """Return the last lines of its log."""
        return last_lines(self._log)


def _wait_until(condition: Callable[[], bool], failure: str, about: Callable[[], str]) -> None:
    end = monotonic_ns() + int(_PATIENCE_S * 1e9)
    while not condition():
        if monotonic_ns() > end:
            raise BenchError(f"{failure} within {_PATIENCE_S:g} s: {about()}")
        sleep(_LOOK_S)


# --- reads


def _borrow_all(store: BlockStore) -> None:
    """Read the whole store until all of it comes from slabs."""
    view = memoryview(bytearray(256 << 10))

    def all_borrowed() -> bool:
        before = store.stats().disk_bytes
        for offset in range(0, SIZE, len(view)):
            store.read_into(offset, view)
        after = store.stats()
        return after.bound * SLAB_BYTES == SIZE and after.disk_bytes == before

    _wait_until(all_borrowed, "not all of a store was borrowed", lambda: str(store.stats()))


def _read_us(store: BlockStore, length: int, rng: np.random.Generator) -> float:
    view = memoryview(bytearray(length))
    taken = []
    for offset in _places(length, _READS, rng):
        begun = monotonic_ns()
        store.read_into(offset, view)
        taken.append(monotonic_ns() - begun)
    return median(taken) / 1e3


def _cold_read_us(store: BlockStore, content: Path, rng: np.random.Generator) -> float:
    """Read the store's file past the store, once the kernel has given up its pages."""
    length = 64 << 10
    store.flush()
    view = memoryview(bytearray(length))
    taken = []
    fd = os.open(content, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for offset in _places(length, _COLD_READS, rng):
            begun = monotonic_ns()
            os.preadv(fd, [view], offset)
            taken.append(monotonic_ns() - begun)
    finally:
        os.close(fd)
    return median(taken) / 1e3


def _places(length: int, count: int, rng: np.random.Generator) -> list[int]:
    """Return so many multiples of a length, none of them twice while there are others."""
    every = SIZE // length
    return [int(place) * length for _ in range(-(-count // every)) for place in rng.permutation(every)][:count]


# --- NBD


def _nbd_ratios(store: BlockStore, folder: Path) -> tuple[list[float], list[float]]:
    """
    Return the throughput of the store over NBD as parts of that of ``nbdkit memory``: reads and writes of each round.

    A single second of either server may have half of what the next one has. So both serve once before anything counts,
    which takes their memory from the kernel, and the one that is first in a round is second in the next.
    """
    if shutil.which("nbdkit") is None or not has_fio_for_nbd():
        return [], []
    ratios: dict[str, list[float]] = {"read": [], "write": []}
    with nbdkit_memory(folder) as theirs, NbdServer(store, folder / "nbd.sock") as server:
        order = [theirs, server.uri]
        for uri in order:
            fio_bytes_per_s(uri, "write", _MIB)
            fio_bytes_per_s(uri, "read", _MIB)
        for _ in range(_ROUNDS):
            for what, found in ratios.items():
                speeds = {uri: fio_bytes_per_s(uri, what, _MIB) for uri in order}
                found.append(speeds[server.uri] / speeds[theirs])
            order.reverse()
    return ratios["read"], ratios["write"]


@contextmanager
def nbdkit_memory(folder: Path, size: int = SIZE) -> Iterator[str]:
    """Run ``nbdkit memory``; yield its URI."""
    socket = folder / "nbdkit.sock"
    with subprocess.Popen(
        ["nbdkit", "--foreground", "--exit-with-parent", "--unix", str(socket), "memory", str(size)]
    ) as process:
        try:
            _wait_until(socket.exists, "nbdkit did not listen", lambda: f"it ended with {process.poll()}")
            yield f"nbd+unix:///?socket={socket}"
        finally:
            process.terminate()


def has_fio_for_nbd() -> bool:
    """Say whether there is ``fio``, with its engine for NBD."""
    if shutil.which("fio") is None:
        return False
    engines = subprocess.run(["fio", "--enghelp"], capture_output=True, text=True, check=True).stdout
    return "nbd" in engines.split()


def fio_bytes_per_s(
    uri: str, what: str, block_bytes: int, *, at_once: int = 4, size: int = SIZE, run_s: float = _FIO_S
) -> float:
    """Return what ``fio`` reads or writes in a second, in order, with so many requests at a time."""
    done = subprocess.run(
        ["fio", "--name=bench", "--ioengine=nbd", f"--uri={uri}", f"--rw={what}", f"--bs={block_bytes}",
         f"--iodepth={at_once}", f"--size={size}", "--time_based", f"--runtime={run_s}", "--output-format=json"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"fio could not {what} {uri}: {done.stderr.strip() or done.stdout.strip()}")
    return float(json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0][what]["bw_bytes"])


# --- verified load


def _run_for(seconds: float, step: Callable[[], None]) -> None:
    end = monotonic_ns() + int(seconds * 1e9)
    while monotonic_ns() < end:
        step()


class _VerifiedLoad:
    """Reads and writes whose every byte is checked: a block's words say which block it is, and which writing of it."""

    def __init__(self, store: BlockStore, rng: np.random.Generator) -> None:
        self._store, self._rng = store, rng
        self._versions = np.zeros(SIZE // _BLOCK_BYTES, dtype=np.uint64)
        self.checked_bytes = 0
        self.wrong_bytes = 0
        self.write_all()

    def run(self, act: Callable[[], None]) -> int:
        """Read and write at random, and ``act`` amid it, until no slab is borrowed; return how many there were."""
        _run_for(_LOAD_S, self._step)
        borrowed = self._store.stats().bound
        act()
        _wait_until(self._none_borrowed, "slabs of a donor that is gone were kept", lambda: str(self._store.stats()))
        _run_for(_LOAD_S, self._step)
        return borrowed

    def _none_borrowed(self) -> bool:
        _run_for(_LOOK_S, self._step)
        return not self._store.stats().bound

    def _step(self) -> None:
        first = int(self._rng.integers(len(self._versions) - _BLOCKS_AT_ONCE))
        blocks = slice(first, first + int(self._rng.integers(1, _BLOCKS_AT_ONCE)))
        if self._rng.random() < 0.5:
            self._write(blocks)
        else:
            self._check(blocks)

    def write_all(self) -> None:
        """Write every block."""
        self._in_steps(self._write)

    def check_all(self) -> None:
        """Read every block."""
        self._in_steps(self._check)

    def _in_steps(self, do: Callable[[slice], None]) -> None:
        step = _MIB // _BLOCK_BYTES
        for first in range(0, len(self._versions), step):
            do(slice(first, first + step))

    def _write(self, blocks: slice) -> None:
        self._versions[blocks] += np.uint64(1)
        self._store.write(blocks.start * _BLOCK_BYTES, self._expected(blocks).data.cast("B"))

    def _check(self, blocks: slice) -> None:
        expected = self._expected(blocks)
        found = np.empty_like(expected)
        self._store.read_into(blocks.start * _BLOCK_BYTES, found.data.cast("B"))
        self.checked_bytes += expected.nbytes
        self.wrong_bytes += int(np.count_nonzero(expected.view(np.uint8) != found.view(np.uint8)))

    def _expected(self, blocks: slice) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
        """Return what blocks are to hold: (blocks, words) of the block's number and its version."""
        numbers = np.arange(blocks.start, blocks.stop, dtype=np.uint64) << np.uint64(32)
        return np.repeat((numbers | self._versions[blocks])[:, None], _BLOCK_BYTES // 8, axis=1)
