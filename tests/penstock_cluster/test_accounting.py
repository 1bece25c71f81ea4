"""What processes hold: of the host by the kernel, of a GPU by its driver, of an emulated device by a ledger."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

from penstock_cluster.accounting import (
    HeldMemory,
    HostAccounting,
    family,
    host,
    of_status,
    total,
)
from penstock_cluster.host_backends import CpuBackend

MIB = 2**20


def test_memory_that_a_process_touches_is_resident_and_stays_in_its_peak() -> None:
    before = host(os.getpid())
    with mmap.mmap(-1, 48 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
        mapped = host(os.getpid())
        taken.write(b"x" * (48 * MIB))
        touched = host(os.getpid())
    after = host(os.getpid())
    assert before
    assert mapped
    assert touched
    assert after
    assert mapped.data_bytes - before.data_bytes >= 48 * MIB
    assert mapped.resident_bytes - before.resident_bytes < 40 * MIB
    assert touched.resident_bytes - mapped.resident_bytes > 40 * MIB
    assert after.peak_bytes >= touched.resident_bytes > after.resident_bytes


def test_a_peak_can_be_measured_from_now_on() -> None:
    with mmap.mmap(-1, 48 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
        taken.write(b"x" * (48 * MIB))
    before = host(os.getpid())
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak
    after = host(os.getpid())
    assert before
    assert after
    assert before.peak_bytes - after.peak_bytes > 8 * MIB  # others' tests may have left it low already


def test_a_process_that_has_ended_holds_nothing() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        process.wait()
    assert host(process.pid) is None
    assert total([process.pid]) == HeldMemory()
    assert of_status("Name:\tx\nState:\tZ (zombie)\n") == HeldMemory()


def test_a_jobs_processes_are_those_of_its_session(tmp_path: Path) -> None:
    for pid, name, session in ((10, "sh", 10), (11, "py (x) thon", 10), (12, "other", 12)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S 1 {pid} {session} 0 -1 4194304")
        (tmp_path / str(pid) / "status").write_text(f"VmRSS:\t{pid} kB\nVmData:\t1 kB\n")
    (tmp_path / "self").mkdir()
    assert family(10, tmp_path) == [10, 11]
    assert total([10, 11, 99], tmp_path) == HeldMemory(
        resident_bytes=21 * 1024,
        peak_bytes=21 * 1024,
        data_bytes=2 * 1024,
    )


def test_the_host_accounts_for_the_processes_of_its_cpu() -> None:
    (device,) = CpuBackend().devices()
    held = HostAccounting().held(device, [os.getpid(), 2**22 + 1])
    assert list(held) == [os.getpid()]
    assert held[os.getpid()] > MIB
