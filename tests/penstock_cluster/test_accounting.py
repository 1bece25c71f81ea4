"""What processes hold: of the host by the kernel, of a GPU by its driver, of an emulated device by a ledger."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_cluster.accounting import (
    CudaAccounting,
    EmulatedAccounting,
    HeldMemory,
    HostAccounting,
    Ledger,
    OverCapacity,
    family,
    host,
    of_status,
    total,
)
from penstock_cluster.host_backends import CpuBackend, EmulatedBackend
from penstock_log import Device

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


def test_a_gpus_accounting_is_the_drivers_for_the_asked_processes_alone() -> None:
    gpu = Device(index=0, kind="h100", memory_bytes=100, backend="cuda", uuid="GPU-1")
    driver = {"GPU-1": {7: 60, 8: 30}}
    accounting = CudaAccounting(lambda device: driver[device.uuid])
    assert accounting.held(gpu, [7, 9]) == {7: 60}


def test_an_emulated_device_has_a_ledger_of_its_declared_size() -> None:
    fast, slow = EmulatedBackend("fast:1@1.0:100KiB,slow:1@0.5:1KiB").devices()
    accounting = EmulatedAccounting([fast, slow])
    accounting.ledgers[0].hold(7, 2048)
    assert accounting.held(fast, [7, 8]) == {7: 2048}
    with pytest.raises(OverCapacity, match="process 7 wants 2048 bytes of a device that has 1024 and 1024 of them"):
        accounting.ledgers[1].hold(7, 2048)
    assert accounting.held(slow, [7]) == {}


def test_a_ledger_gives_its_last_byte_and_not_one_more() -> None:
    ledger = Ledger(100)
    ledger.hold(1, 60)
    ledger.hold(2, 40)
    with pytest.raises(OverCapacity):
        ledger.hold(2, 41)
    with pytest.raises(OverCapacity):
        ledger.hold(3, 1)
    assert (ledger.of(1), ledger.of(2), ledger.of(3), ledger.free_bytes) == (60, 40, 0, 0)


def test_a_negative_holding_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        Ledger(100).hold(1, -1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60) | st.none()), max_size=30))
def test_a_ledger_never_gives_more_than_there_is(steps: list[tuple[int, int | None]]) -> None:
    ledger = Ledger(100)
    for pid, size in steps:
        before = ledger.of(pid)
        if size is None:
            ledger.release(pid)
            continue
        try:
            ledger.hold(pid, size)
        except OverCapacity:
            assert ledger.of(pid) == before
            assert size > ledger.free_bytes + before
    assert sum(ledger.of(pid) for pid in range(4)) + ledger.free_bytes == 100
    assert ledger.free_bytes >= 0
