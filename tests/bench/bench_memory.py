"""
What borrowed memory is worth, and what NBD costs on the way: ``python tests/bench/bench_memory.py [ROUNDS]``.

Four servers of one size are asked by ``fio`` in turn, and compared with ``nbdkit memory`` in each round: a bare loop of
``recv_into`` and ``sendmsg`` on one buffer, which is the most that Python can; the block device on bytes in memory; and
on a store with a local cache and the disk. Beside its throughput stands what a server moves in a second of its own
processor's time, which a busy machine changes less.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from penstock.memory.block_store import open_store
from penstock.memory.nbd_server import NbdServer
from penstock_cli.local.memory_bench import SIZE, fio_bytes_per_s, has_fio_for_nbd, measure, nbdkit_memory

KIB = 1024
RUN_S = 1.0


class MemoryBytes:
    """Bytes in memory, as a store."""

    size = SIZE

    def __init__(self) -> None:
        self.bytes = memoryview(mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def read_into(self, offset: int, view: memoryview) -> None:
        view[:] = self.bytes[offset : offset + len(view)]

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self.bytes[offset : offset + len(data)] = data

    def zero(self, offset: int, length: int) -> None:
        self.write(offset, bytes(length))

    discard = zero

    def flush(self) -> None:
        pass


def serve_bytes(path: Path, ready: Any) -> None:
    with NbdServer(MemoryBytes(), path):
        ready.set()
        signal.pause()


def serve_store(path: Path, ready: Any) -> None:
    with open_store(SIZE, path=path.with_suffix(".content"), socket="") as store, NbdServer(store, path):
        ready.set()
        signal.pause()


def serve_bare(path: Path, ready: Any) -> None:
    """Answer reads and writes by system calls on one buffer, and look at nothing else."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    held = MemoryBytes().bytes
    ready.set()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer_bare, args=(connection, held), daemon=True).start()


def answer_bare(connection: socket.socket, held: memoryview) -> None:
    def fill(view: memoryview) -> memoryview:
        if connection.recv_into(view, len(view), socket.MSG_WAITALL) < len(view):
            raise EOFError
        return view

    with connection, suppress(EOFError, OSError):
        connection.sendall(b"NBDMAGICIHAVEOPT\0\3")
        fill(memoryview(bytearray(4)))
        option = 0
        while option != 7:
            _, option, length = struct.unpack(">QII", fill(memoryview(bytearray(16))))
            fill(memoryview(bytearray(length)))
            answers = (
                [(3, struct.pack(">HQH", 0, SIZE, 0b100000101)), (1, b"")] if option == 7 else [(1 << 31 | 1, b"")]
            )
            for kind, data in answers:
                connection.sendall(struct.pack(">QIII", 0x3E889045565A9, option, kind, len(data)) + data)
        request = memoryview(bytearray(28))
        while True:
            _, _, kind, cookie, offset, length = struct.unpack(">IHHQQI", fill(request))
            answer = struct.pack(">IIQ", 0x67446698, 0, cookie)
            if kind == 2:
                return
            if kind == 1:
                fill(held[offset : offset + length])
            connection.sendmsg([answer, held[offset : offset + length]] if kind == 0 else [answer])


SERVERS: dict[str, Callable[[Path, Any], None]] = {
    "bare loop": serve_bare,
    "NBD, bytes in memory": serve_bytes,
    "NBD, a store": serve_store,
}


@contextmanager
def served(path: Path, serve: Callable[[Path, Any], None]) -> Iterator[int]:
    """Serve in a process of its own; yield its number."""
    context = get_context("spawn")
    ready = context.Event()
    process = context.Process(target=serve, args=(path, ready), daemon=True)
    process.start()
    ready.wait()
    try:
        yield process.pid or 0
    finally:
        process.kill()
        process.join()


def cpu_s(pid: int) -> float:
    """Return what a process has had of processors, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def nbdkit_pid(socket_path: str) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"--unix\0{socket_path}\0" in (folder / "cmdline").read_text():
                return int(folder.name)
    raise RuntimeError("nbdkit is not among the processes")


def compare_servers(rounds: int) -> None:
    found: defaultdict[tuple[str, int, int], defaultdict[str, list[tuple[float, float]]]]
    found = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        baseline = stack.enter_context(nbdkit_memory(folder))
        pids = {baseline: nbdkit_pid(str(folder / "nbdkit.sock"))}
        names = {baseline: "nbdkit memory"}
        for number, (name, serve) in enumerate(SERVERS.items()):
            path = folder / f"{number}.sock"
            uri = f"nbd+unix:///?socket={path}"
            pids[uri], names[uri] = stack.enter_context(served(path, serve)), name
        for uri in names:
            fio_bytes_per_s(uri, "write", 1024 * KIB, run_s=RUN_S)
        for _ in range(rounds):
            for case in [(what, kib, n) for what in ("read", "write") for kib in (64, 1024) for n in (1, 4)]:
                what, kib, at_once = case
                for uri, name in names.items():
                    before_s = cpu_s(pids[uri])
                    per_s = fio_bytes_per_s(uri, what, kib * KIB, at_once=at_once, run_s=RUN_S)
                    found[case][name].append((per_s, per_s * RUN_S / max(cpu_s(pids[uri]) - before_s, 0.01)))
    for (what, kib, at_once), by_name in found.items():
        base = by_name["nbdkit memory"]
        print(f"{what}s of {kib} KiB, {at_once} at a time")
        for name, measured in by_name.items():
            ratio = median(own[0] / theirs[0] for own, theirs in zip(measured, base, strict=True))
            cpu = median(own[1] / theirs[1] for own, theirs in zip(measured, base, strict=True))
            per_s = median(own[0] for own in measured)
            print(f"  {name:22} {per_s / 1e9:6.2f} GB/s, {ratio:5.2f} of nbdkit; for a second of processor {cpu:5.2f}")


def main() -> None:
    """Print the comparison, and what `penstock memory bench` finds."""
    if has_fio_for_nbd():
        compare_servers(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    else:
        print("NOT MEASURED: NBD; there is no fio with its engine for NBD")
    costs = measure()
    print(f"64 KiB borrowed {costs.read_64k_us:.1f} us, cold disk {costs.disk_read_64k_us:.1f} us:", end=" ")
    print(f"{costs.disk_read_64k_us / costs.read_64k_us:.1f} (aim: 3)")
    print(f"1 MiB borrowed {costs.read_1m_us:.1f} us")
    for what, middle, rounds in (
        ("reads (aim: 0.7)", costs.nbd_1m_ratio, costs.nbd_1m_range),
        ("writes, to the disk too,", costs.nbd_1m_write_ratio, costs.nbd_1m_write_range),
    ):
        if middle is not None and rounds is not None:
            print(
                f"1 MiB over NBD, borrowed: {what} {middle:.2f} of nbdkit memory ({rounds[0]:.2f} to {rounds[1]:.2f})"
            )
    killed = costs.donor_killed
    print(f"donor killed: {killed.bytes_wrong} of {killed.bytes_checked} bytes wrong; {costs.evicted_slabs} evicted")


if __name__ == "__main__":
    main()
