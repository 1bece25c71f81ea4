"""The processor as a device: what a turn takes is measured and limited, on real memory."""

from __future__ import annotations

import mmap
import resource

import numpy as np
import pytest
from packed_cases import Count

from penstock_log.agent_protocol import AgentEnv
from penstock_packed import CpuDevice, MemoryNeed, PackedHost
from penstock_packed.device import SLACK, PeakMemory, available_bytes

MIB = 2**20


def touched(size: int) -> np.ndarray:
    """Return memory that is new to the process: the allocator may still have what tests before have freed."""
    block = np.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    block.fill(1)
    return block


@pytest.mark.slow
def test_what_a_turn_keeps_and_what_it_only_used_are_told_apart() -> None:
    device = CpuDevice(2**30)
    kept = []
    with device.turn(0, 2**30) as reading:
        kept.append(touched(48 * MIB))
        touched(64 * MIB).sum()
    assert reading.grew_bytes == pytest.approx(48 * MIB, abs=8 * MIB)
    assert reading.peak_bytes == pytest.approx(112 * MIB, abs=8 * MIB)
    with device.turn(0, 2**30) as reading:
        kept.clear()
    assert reading.grew_bytes == pytest.approx(-48 * MIB, abs=8 * MIB)


def test_growth_of_less_than_a_mib_a_turn_is_told_when_it_has_become_one() -> None:
    device, kept, told = CpuDevice(2**30), [], 0
    for _ in range(64):
        with device.turn(0, 2**30) as reading:
            kept.append(
                mmap.mmap(-1, MIB // 4, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            )  # new, whatever was freed before
            kept[-1].write(b"x" * (MIB // 4))
        told += reading.grew_bytes
    assert told == pytest.approx(16 * MIB, abs=4 * MIB)


@pytest.mark.parametrize("members", [2, 3, 7, 16, 32, 48])
def test_peaks_are_read_of_each_of_so_many_members_that_take_turns(members: int) -> None:
    peaks = PeakMemory()
    due = [turn % members for turn in range(8000) if peaks.begin()]
    if not due:
        pytest.skip("this kernel lets no peak be reset")
    late = due[8 * PeakMemory.EVERY :]

    assert min(late.count(member) for member in range(members)) > 0


def test_a_job_that_shares_its_device_has_no_more_than_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    before = available_bytes()
    monkeypatch.setenv(AgentEnv.MEMORY_BYTES, str(before // 2))
    assert CpuDevice().capacity_bytes < 0.8 * before / 2
    monkeypatch.setenv(AgentEnv.MEMORY_BYTES, "1")
    assert 0 < CpuDevice().capacity_bytes <= MIB


def test_a_turn_that_takes_far_more_than_its_room_gets_a_memory_error_and_later_turns_do_not() -> None:
    device = CpuDevice(2**30)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError), device.turn(0, 10 * MIB):
        np.ones(SLACK + 64 * MIB, np.uint8)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    with device.turn(0, 64 * MIB):
        np.empty(SLACK + 32 * MIB, np.uint8)


def test_a_member_that_takes_all_memory_at_once_ends_alone() -> None:
    host = PackedHost(CpuDevice(512 * MIB))
    good = Count()
    host.train("greedy", Count(lambda step: step == 3 and np.ones(SLACK + 2000 * MIB, np.uint8)), steps=10)
    host.train("good", good, steps=10)
    outcomes = host.run()
    assert outcomes["greedy"].stage == "failed"
    assert "MemoryError" in outcomes["greedy"].reason
    assert (outcomes["good"].stage, good.count) == ("finished", 10)


def test_a_member_that_leaks_real_memory_is_ended_before_it_takes_its_neighbours() -> None:
    leaked: list[object] = []
    leak, good = Count(lambda _: leaked.append(np.ones(8 * MIB, np.uint8))), Count()
    leak.teardown = leaked.clear
    host = PackedHost(CpuDevice(128 * MIB))
    host.train("leak", leak, steps=1000, memory=MemoryNeed(0, 0, 16 * MIB))
    host.train("good", good, steps=100, memory=MemoryNeed(32 * MIB, 0, 16 * MIB))
    outcomes = host.run()
    assert "no room" in outcomes["leak"].reason
    assert 3 <= outcomes["leak"].steps <= 20
    assert (outcomes["good"].stage, good.count) == ("finished", 100)


def test_with_several_lanes_nothing_is_measured_since_nobody_could_say_whose_it_is() -> None:
    with CpuDevice(2**30, lanes=2).turn(0, 0) as reading:
        np.ones(32 * MIB, np.uint8)
    assert (reading.grew_bytes, reading.peak_bytes) == (0, None)


def test_a_device_of_no_given_size_has_most_of_what_is_available() -> None:
    assert 0.5 * available_bytes() < CpuDevice().capacity_bytes < available_bytes()
