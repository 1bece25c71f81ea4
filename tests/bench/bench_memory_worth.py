"""
What borrowed memory is worth to a program: ``bench_memory_worth.py [preparation|slow-disk|transfers|harm]``.

*preparation* is data preparation out of core with NumPy: a table of features is standardised, and then four times
read in a random order of slices, once for its covariance and three times to learn from. It is done in memory, and with
half of the table's memory taken away by a control group (version 1, which counts the page cache too): by
``numpy.memmap``, and by a ``RemoteFile`` with its own disk alone, with borrowed memory over TCP, and shared.
All have to come to the same bits. Where no control group can be made, it says so, and drops the file's pages from the
page cache before each pass over it instead. *slow-disk* is the same where the disk reads 125 MiB/s at most.

*transfers* are single reads and writes. *harm* is what a training on the donor's node has of it.

The donor is an agent beside the client's own one, on the same machine: over TCP, bytes go through the loopback device.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any, Final, Protocol

import numpy as np

import penstock
from penstock.memory import RemoteFile
from penstock_cli.local.memory_bench import MemoryAgent, nats_server

MIB: Final = 1 << 20
PLACE: Final = "/var/tmp"
COLUMNS: Final = 256
ROWS: Final = 512 * MIB // (4 * COLUMNS)
SLICE_ROWS: Final = 64
"""Rows that lie together and are read together: 64 KiB."""
BATCH_SLICES: Final = 64
PROGRAM_BYTES: Final = 256 * MIB
"""What the program is given beside its half of the table: the interpreter, its batches, 64 MiB on their way to disk."""
ROUNDS: Final = 3
CLOUD_DISK_MIB_PER_S: Final = 125
"""What a general purpose volume of a cloud reads where nobody pays for more."""
WAYS: Final = ("in memory", "numpy.memmap", "own disk", "borrowed over TCP", "borrowed, shared")


class Table(Protocol):
    """Rows by their numbers: an array of NumPy, or one in borrowed memory."""

    def __getitem__(self, index: Any) -> Any: ...

    def __setitem__(self, index: Any, value: Any) -> None: ...


# --- preparation


def fill(table: Table) -> None:
    """Write the table's rows, by a seed."""
    rng = np.random.default_rng(1)
    step = 16 * SLICE_ROWS
    for begin in range(0, ROWS, step):
        table[begin : begin + step] = rng.standard_normal((step, COLUMNS), dtype="f4") * 3 + 1


def standardised(table: Table) -> str:
    """Bring all columns to mean 0 and deviation 1, in two passes."""
    step = SLICE_ROWS * BATCH_SLICES
    total, squares = np.zeros(COLUMNS), np.zeros(COLUMNS)
    for begin in range(0, ROWS, step):
        block = table[begin : begin + step]
        total += block.sum(axis=0, dtype="f8")
        squares += np.square(block).sum(axis=0, dtype="f8")
    mean = total / ROWS
    factor = (1 / np.sqrt(squares / ROWS - mean**2)).astype("f4")
    for begin in range(0, ROWS, step):
        block = table[begin : begin + step]
        table[begin : begin + step] = (block - mean.astype("f4")) * factor
    return digest(mean, factor)


def batches(table: Table, seed: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the table in a random order of slices."""
    order = np.random.default_rng(seed).permutation(ROWS // SLICE_ROWS)
    batch = np.empty((BATCH_SLICES * SLICE_ROWS, COLUMNS), "f4")
    for first in range(0, len(order), BATCH_SLICES):
        for at, place in enumerate(order[first : first + BATCH_SLICES].tolist()):
            rows = slice(place * SLICE_ROWS, (place + 1) * SLICE_ROWS)
            batch[at * SLICE_ROWS : (at + 1) * SLICE_ROWS] = table[rows]
        yield batch


def covariance(table: Table) -> str:
    """Sum up the products of all columns."""
    found = np.zeros((COLUMNS, COLUMNS))
    for batch in batches(table, 2):
        found += batch.T @ batch
    return digest(found)


def learnt(table: Table, seed: int) -> str:
    """Learn the first column from the others, by one epoch of gradient descent."""
    weights = np.zeros(COLUMNS - 1, "f4")
    for batch in batches(table, seed):
        error = batch[:, 1:] @ weights - batch[:, 0]
        weights -= np.float32(0.1 / len(batch)) * (batch[:, 1:].T @ error)
    return digest(weights)


def digest(*arrays: np.ndarray[Any, Any]) -> str:
    """Return a checksum of every bit."""
    return "-".join(f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}" for array in arrays)


def prepare(table: Table, settle: Callable[[], None]) -> dict[str, Any]:
    """Prepare the table; return the seconds of each part and a checksum of all."""
    fill(table)
    parts: dict[str, Callable[[], str]] = {
        "standardise": lambda: standardised(table),
        "covariance": lambda: covariance(table),
        **{f"epoch {epoch}": lambda epoch=epoch: learnt(table, 10 + epoch) for epoch in range(3)},  # type: ignore[misc]  # mypy knows no default of a lambda
    }
    seconds, sums = {}, []
    for name, part in parts.items():
        settle()
        begun = perf_counter()
        sums.append(part())
        seconds[name] = perf_counter() - begun
    return {"seconds": seconds, "sums": "/".join(sums)}


def run_way(way: str, socket: str, dropping: bool) -> dict[str, Any]:
    """Prepare the table in this process, in one of the ways."""
    size = ROWS * COLUMNS * 4
    if way == "in memory":
        return prepare(np.empty((ROWS, COLUMNS), "f4"), lambda: None)
    with tempfile.NamedTemporaryFile(dir=PLACE) as named:

        def drop_pages() -> None:
            os.fsync(named.fileno())
            if dropping:
                os.posix_fadvise(named.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        if way == "numpy.memmap":
            table = np.memmap(named.name, "f4", "w+", shape=(ROWS, COLUMNS))

            def settle() -> None:
                table.flush()
                drop_pages()

            return prepare(table, settle)
        local = size // 2 - 64 * MIB  # what is on its way to the disk has the rest
        with RemoteFile(size, path=named.name, local_bytes=local, socket=socket, name="bench") as file:

            def settle_file() -> None:
                file.flush()
                drop_pages()

            found = prepare(file.array("f4", (ROWS, COLUMNS)), settle_file)
            stats = file.stats()
            read = stats.cache_bytes + stats.slab_bytes + stats.disk_bytes
            parts = {"cache": stats.cache_bytes, "slabs": stats.slab_bytes, "disk": stats.disk_bytes}
            return {**found, "read": {name: count / read for name, count in parts.items()}, "shared": stats.shared}


@contextmanager
def control_group(controller: str, values: dict[str, str]) -> Iterator[Path | None]:
    """Make a control group (version 1) below one's own, with some values; None where it cannot be made."""
    group = None
    with suppress(OSError, StopIteration):
        line = next(each for each in Path("/proc/self/cgroup").read_text().splitlines() if f":{controller}:" in each)
        own = line.rsplit(":", 1)[1].strip("/")
        group = Path("/sys/fs/cgroup", controller, own, f"penstock-bench-{os.getpid()}")
        group.mkdir()
        for name, value in values.items():
            (group / name).write_text(value)
    try:
        yield group
    finally:
        if group is not None and group.exists():
            group.rmdir()


def disk_of(folder: str) -> str:
    """Return the numbers of the disk that a folder is on."""
    device = Path(folder).stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def in_a_process(arguments: Sequence[str], groups: Sequence[Path]) -> dict[str, Any]:
    """Run this file with arguments, in control groups; return what it prints."""

    def enter() -> None:
        for group in groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=enter,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def donor_and_home(*, shared: bool) -> Iterator[tuple[MemoryAgent, MemoryAgent]]:
    """Run a donor and the client's agent."""
    slabs = {"slab_bytes": str(64 * MIB), "most_lent_bytes": str(1024 * MIB)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=PLACE)))
        bus = stack.enter_context(nats_server(folder / "nats"))
        home = stack.enter_context(MemoryAgent(folder, "home", bus, lend=False, **slabs))
        donor = stack.enter_context(MemoryAgent(folder, "donor", bus, lend=True, **slabs))
        if not shared:
            donor.share_nothing()
        yield donor, home


def compare_preparations(disk_mib_per_s: int = 0) -> None:
    """Print how long the preparation takes in each way; the disk reads so fast at most, if that is said."""
    half = ROWS * COLUMNS * 4 // 2
    throttle = {"blkio.throttle.read_bps_device": f"{disk_of(PLACE)} {disk_mib_per_s * MIB}"}
    found: dict[str, dict[str, Any]] = {}
    with (
        control_group("memory", {"memory.limit_in_bytes": str(half + PROGRAM_BYTES)}) as limited,
        control_group("blkio", throttle if disk_mib_per_s else {}) as throttled,
    ):
        groups = [group for group in (limited, throttled) if group is not None]
        limit = "a control group" if limited else "NOT LIMITED by a control group; the file's pages are dropped"
        speed = f"reads {disk_mib_per_s} MiB/s" if disk_mib_per_s and throttled else "is as fast as it is"
        print(f"a table of {2 * half // MIB} MiB, of which {half // MIB} fit, by {limit}; the disk {speed}", flush=True)
        for way in WAYS:
            with ExitStack() as stack:
                socket = ""
                if way.startswith("borrowed"):
                    _, home = stack.enter_context(donor_and_home(shared="shared" in way))
                    socket = str(home.socket)
                arguments = ["way", way, socket, "" if limited else "drop"]
                found[way] = in_a_process(arguments, () if way == "in memory" else groups)
            seconds = dict(found[way]["seconds"])
            total, base = sum(seconds.values()), sum(found["in memory"]["seconds"].values())
            tiers = ", ".join(f"{part:.0%} {tier}" for tier, part in found[way].get("read", {}).items())
            print(f"  {way:18} {total:6.1f} s, {total / base:5.1f} of in memory;", end=" ")
            print(
                ", ".join(f"{name} {each:.1f}" for name, each in seconds.items()),
                f"({tiers}) load {load()}",
                flush=True,
            )
    same = len({each["sums"] for each in found.values()}) == 1
    print("all come to the same bits" if same else f"WRONG: {[each['sums'] for each in found.values()]}")
    for way in ("borrowed over TCP", "borrowed, shared"):
        ratios = [sum(found[disk]["seconds"].values()) / sum(found[way]["seconds"].values()) for disk in WAYS[1:3]]
        print(
            f"  {way}: {ratios[0]:.1f} times as fast as numpy.memmap, {ratios[1]:.1f} as the own disk (paper: 2 to 15)"
        )
    if not same:
        sys.exit(1)


# --- transfers


def microseconds(do: Callable[[int], object], places: Sequence[int], settle: Callable[[], None]) -> float:
    """Return what doing something takes in the mean of some places: the median of rounds, each after ``settle``."""
    taken = []
    for _ in range(ROUNDS):
        settle()
        begun = perf_counter()
        for place in places:
            do(place)
        taken.append((perf_counter() - begun) / len(places))
    return median(taken) * 1e6


def orders(length: int, size: int, most: int) -> dict[str, list[int]]:
    """Return places in a file, in order and at random."""
    count = min(size // length, most)
    random = np.random.default_rng(3).permutation(size // length)[:count]
    return {"in order": [at * length for at in range(count)], "random": [int(at) * length for at in random]}


def compare_transfers() -> None:
    """Print what reads and writes take: of the disk, cold and warm, and of borrowed memory."""
    size, most_bytes = 256 * MIB, 48 * MIB  # so much may be on its way to the disk without waiting
    table: dict[tuple[str, int, str], dict[str, float]] = {}
    for shared in (False, True):
        with (
            donor_and_home(shared=shared) as (_, home),
            tempfile.NamedTemporaryFile(dir=PLACE) as named,
            RemoteFile(size, path=named.name, local_bytes=0, socket=str(home.socket)) as file,
        ):
            borrow_all(file)
            for length in (64 << 10, MIB):
                view, data = memoryview(bytearray(length)), os.urandom(length)
                for order, places in orders(length, size, most_bytes // length).items():
                    reads = table.setdefault(("read", length >> 10, order), {})
                    writes = table.setdefault(("write", length >> 10, order), {})
                    way = "shared" if shared else "TCP"
                    reads[way] = microseconds(lambda at, view=view: file.pread_into(view, at), places, file.flush)  # type: ignore[misc]
                    writes[way] = microseconds(lambda at, data=data: file.pwrite(data, at), places, file.flush)  # type: ignore[misc]
                    if not shared:
                        continue

                    advice = os.POSIX_FADV_RANDOM if order == "random" else os.POSIX_FADV_SEQUENTIAL
                    disk_reads, disk_writes = disk_transfers(named.fileno(), file, data, places, advice)
                    reads |= disk_reads
                    writes |= disk_writes
    ways = ("TCP", "shared", "disk, cold", "disk, warm")
    print(f"means in us, medians of {ROUNDS} rounds; a cold write is one with fdatasync; load {load()}")
    print(f"{'':24}" + "".join(f"{way:>12}" for way in ways) + "   cold disk to TCP, shared")
    for (what, kib, order), found in table.items():
        ratios = ", ".join(f"{found['disk, cold'] / found[way]:.1f}" for way in ways[:2])
        print(f"{what:5} {kib:5} KiB {order:9}" + "".join(f"{found[way]:12.0f}" for way in ways) + f"   {ratios}")


def disk_transfers(
    fd: int, file: RemoteFile, data: bytes, places: Sequence[int], advice: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return what reads and writes of the file below take, past the store."""
    view = memoryview(bytearray(len(data)))

    def cool() -> None:
        file.flush()
        os.posix_fadvise(fd, 0, 0, advice)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def write_through(at: int) -> None:
        os.pwrite(fd, data, at)
        os.fdatasync(fd)

    reads = {
        "disk, cold": microseconds(lambda at: os.preadv(fd, [view], at), places, cool),
        "disk, warm": microseconds(lambda at: os.preadv(fd, [view], at), places, file.flush),
    }
    writes = {
        "disk, cold": microseconds(write_through, places, cool),
        "disk, warm": microseconds(lambda at: os.pwrite(fd, data, at), places, file.flush),
    }
    return reads, writes


def borrow_all(file: RemoteFile) -> None:
    """Read a file until all of it comes from slabs."""
    view = memoryview(bytearray(256 << 10))
    begun = perf_counter()
    before = -1
    while file.stats().disk_bytes != before:
        before = file.stats().disk_bytes
        for at in range(0, file.size, len(view)):
            file.pread_into(view, at)
        if perf_counter() - begun > 30:
            sys.exit(f"not all was borrowed within 30 s: {file.stats()}")


# --- the donor's harm


def train(seconds: float) -> tuple[float, float]:
    """Train a small network in a session; return the medians of an iteration's seconds, by clock and of processor."""
    rng = np.random.default_rng(4)
    inputs, wanted = rng.standard_normal((256, 512), dtype="f4"), rng.standard_normal((256, 16), dtype="f4")
    first, second = (rng.standard_normal(shape, dtype="f4") / 30 for shape in ((512, 512), (512, 16)))
    taken, worked = [], []
    end = perf_counter() + seconds
    with penstock.session() as session:
        for _ in session.iterations(iter(lambda: perf_counter() < end, False)):
            begun, begun_cpu = perf_counter(), thread_time()
            hidden = np.maximum(inputs @ first, 0)
            error = hidden @ second - wanted
            back = (error @ second.T) * (hidden > 0)
            second -= np.float32(1e-4) * (hidden.T @ error)
            first -= np.float32(1e-4) * (inputs.T @ back)
            taken.append(perf_counter() - begun)
            worked.append(thread_time() - begun_cpu)
    warm = len(taken) // 10
    return median(taken[warm:]), median(worked[warm:])


def read_for_ever(socket: str) -> None:
    """Borrow 256 MiB, say so, and read them until somebody ends it; the bytes of each second are told."""
    with RemoteFile(256 * MIB, local_bytes=0, socket=socket) as file:
        borrow_all(file)
        view = memoryview(bytearray(MIB))
        begun, count = perf_counter(), 0
        print("ready", flush=True)
        while True:
            for at in range(0, file.size, len(view)):
                file.pread_into(view, at)
                count += len(view)
            print(count / (perf_counter() - begun), flush=True)


def pin(pid: int, cores: set[int]) -> None:
    """Keep all threads of a process on some cores, and those that they start."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def measure_harm(pairs: int = 7, seconds: float = 1.5) -> None:
    """
    Print how much longer an iteration takes on the donor's node while its slabs are read.

    The training has a higher priority than everything else, alone too: so nobody but the donor and the client, who
    move others out of a core, makes it slower.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("NOT MEASURED: a training and its donor want a core each")
        return
    with donor_and_home(shared=False) as (donor, home):
        for label, training, others in (
            ("the training has a core, donor and client another", {cores[0]}, {cores[-1]}),
            ("all are on all cores, the training before them", set(cores), set(cores)),
        ):
            pin(donor.pid, others)
            command = [sys.executable, __file__, "reader", str(home.socket)]
            reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            pin(reader.pid, others)
            assert reader.stdout is not None
            reader.stdout.readline()
            ratios = []
            try:
                for _ in range(pairs):
                    reader.send_signal(signal.SIGSTOP)
                    alone = in_a_core(training, seconds)
                    reader.send_signal(signal.SIGCONT)
                    beside = in_a_core(training, seconds)
                    ratios.append((beside[0] / alone[0], beside[1] / alone[1]))
            finally:
                reader.kill()
            told = [line for line in reader.stdout.read().splitlines() if line]
            per_s = float(told[-1]) * 2 if told else 0.0  # it is stopped for half of the time
            clock, worked = (median(column) - 1 for column in zip(*ratios, strict=True))
            each = ", ".join(f"{by_clock - 1:+.1%}" for by_clock, _ in ratios)
            print(f"{label}: iterations take {clock:+.1%} ({each}; aim: +5 %), {worked:+.1%} of processor,", end=" ")
            print(f"while about {per_s / 1e9:.2f} GB/s are read; load {load()}", flush=True)


def in_a_core(cores: set[int], seconds: float) -> tuple[float, float]:
    """Train in a process of its own on some cores; return what :func:`train` does."""
    done = subprocess.run(
        [sys.executable, __file__, "train", str(seconds)],
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=lambda: _before_others(cores),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    by_clock, worked = map(float, done.stdout.split())
    return by_clock, worked


def _before_others(cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)


def load() -> str:
    """Return the machine's load of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def main() -> None:
    """Do what the arguments say, or everything."""
    what, *arguments = sys.argv[1:] or ["all"]
    if what == "way":
        way, socket, dropping = arguments
        print(json.dumps(run_way(way, socket, bool(dropping))))
    elif what == "train":
        print(*train(float(arguments[0])))
    elif what == "reader":
        read_for_ever(arguments[0])
    else:
        comparisons: dict[str, Callable[[], None]] = {
            "preparation": compare_preparations,
            "slow-disk": partial(compare_preparations, CLOUD_DISK_MIB_PER_S),
            "transfers": compare_transfers,
            "harm": measure_harm,
        }
        for name, compare in comparisons.items():
            if what in (name, "all"):
                compare()


if __name__ == "__main__":
    main()
