"""The calls to torch that make a lane, held against a stand-in: no GPU is needed, and none is tested."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from penstock_log.agent_protocol import AgentEnv
from penstock_packed import CudaDevice
from penstock_packed.device import here


class AcceleratorError(RuntimeError):
    pass


class Pool:
    made = 0

    def __init__(self) -> None:
        Pool.made += 1
        self.id = (0, Pool.made)
        self.allocated = self.reserved = 0


class Stream:
    def __init__(self, log: list[str]) -> None:
        self._log = log

    def synchronize(self) -> None:
        self._log.append("synchronize")


class Cuda:
    """As much of torch.cuda as is called, with memory that is counted."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.pools: dict[tuple[int, int], Pool] = {}
        self.current: list[Pool] = []
        self.peak = 0

    def mem_get_info(self, _: int) -> tuple[int, int]:
        return 900, 1000

    def MemPool(self) -> Pool:  # noqa: N802 - as torch names it
        pool = Pool()
        self.pools[pool.id] = pool
        return pool

    def Stream(self, _: int) -> Stream:  # noqa: N802 - as torch names it
        return Stream(self.log)

    @contextmanager
    def device(self, _: int) -> Iterator[None]:
        yield

    @contextmanager
    def stream(self, _: Stream) -> Iterator[None]:
        self.log.append("stream")
        yield
        self.log.append("stream left")

    @contextmanager
    def use_mem_pool(self, pool: Pool, _: int) -> Iterator[None]:
        self.current.append(pool)
        yield
        self.current.pop()

    def allocate(self, size: int) -> None:
        pool = self.current[-1]
        pool.allocated += size
        pool.reserved = max(pool.reserved, pool.allocated)
        self.peak = max(self.peak, self.memory_allocated(0))

    def memory_allocated(self, _: int) -> int:
        return sum(pool.allocated for pool in self.pools.values())

    def max_memory_allocated(self, _: int) -> int:
        return self.peak

    def reset_peak_memory_stats(self, _: int) -> None:
        self.peak = self.memory_allocated(0)

    def memory_snapshot(self, number: tuple[int, int], *, include_traces: bool) -> list[dict[str, object]]:
        assert not include_traces
        pool = self.pools[number]
        blocks = [
            {"size": pool.allocated, "state": "active_allocated"},
            {"size": pool.reserved - pool.allocated, "state": "inactive"},
        ]
        return [{"total_size": pool.reserved, "blocks": blocks}]

    def empty_cache(self) -> None:
        self.log.append("empty_cache")

    def is_available(self) -> bool:
        return True


class Torch:
    AcceleratorError = AcceleratorError

    def __init__(self) -> None:
        self.log: list[str] = []
        self.cuda = Cuda(self.log)
        self.autograd = self

    @contextmanager
    def set_multithreading_enabled(self, mode: bool) -> Iterator[None]:
        assert mode is False
        self.log.append("backward here")
        yield


def test_a_turn_runs_on_its_lanes_stream_and_pool_and_ends_with_the_stream() -> None:
    torch = Torch()
    device = CudaDevice(lanes=2, torch=torch)
    with device.turn(0, 0):
        assert torch.cuda.current[-1].id == device.pool(0)
    with device.turn(1, 0):
        assert torch.cuda.current[-1].id == device.pool(1)
    assert device.pool(0) != device.pool(1)
    assert torch.log[:4] == ["stream", "backward here", "synchronize", "stream left"]


@pytest.mark.parametrize("lanes", [1, 2])
def test_what_a_turn_keeps_and_its_peak_are_read_from_the_allocator(lanes: int) -> None:
    torch = Torch()
    device = CudaDevice(lanes=lanes, torch=torch)
    with device.turn(0, 0) as reading:
        torch.cuda.allocate(300)
        torch.cuda.allocate(500)
        torch.cuda.allocate(-500)
    assert (reading.grew_bytes, reading.peak_bytes) == (300, 800)


def test_with_two_lanes_what_happens_in_the_other_lane_is_not_counted() -> None:
    torch = Torch()
    device = CudaDevice(lanes=2, torch=torch)
    with device.turn(0, 0) as outer, device.turn(1, 0) as inner:
        torch.cuda.allocate(70)
    assert (outer.grew_bytes, inner.grew_bytes) == (0, 70)


def test_what_is_in_use_when_the_host_starts_is_left_alone() -> None:
    device = CudaDevice(torch=Torch())
    assert (device.capacity_bytes, device.reserve_bytes) == (1000, 100)


def test_where_the_allocator_is_held_to_a_part_that_part_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AgentEnv.MEMORY_FRACTION, "0.25")
    monkeypatch.setitem(sys.modules, "torch", Torch())
    device = here()
    assert device is not None
    assert (device.capacity_bytes, device.reserve_bytes) == (250, 0)


def test_an_older_torch_tells_a_broken_context_by_its_words_alone() -> None:
    torch = SimpleNamespace(cuda=Torch().cuda)
    device = CudaDevice(torch=torch)
    assert device.lost(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not device.lost(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))


def test_a_broken_context_is_told_from_an_error_of_a_member() -> None:
    device = CudaDevice(torch=Torch())
    assert device.lost(AcceleratorError("CUDA error: device-side assert triggered"))
    assert not device.lost(RuntimeError("CUDA out of memory"))


def test_without_torch_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert here() is None
