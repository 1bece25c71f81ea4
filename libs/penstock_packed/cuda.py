"""
A GPU through torch: one context, and for each lane a stream and a memory pool.

Written against torch 2.13 (``torch.cuda.MemPool``, ``use_mem_pool``, ``memory_snapshot``). It has not run on a GPU yet:
the tests hold its calls against a stand-in for torch, and no more.

``use_mem_pool`` holds for allocations of the calling thread. A backward pass allocates on a thread of torch's own,
unless it is told to stay on the caller's, which is done here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from typing import Any

from penstock.sessions.setup import read
from penstock_packed.device import Reading


class CudaDevice:
    """
    One GPU of this process.

    Parameters
    ----------
    index : int
        As torch counts them.
    lanes : int
        Turns at a time, each on a stream of its own.
    capacity_bytes : int
        0: the whole device, less what is in use now: contexts, this process's and those of others.
    torch : module
        Imported where it is not given.
    fraction : float
        Of the device, where torch's allocator is held to a part of it; 0: it is not. Then ``capacity_bytes`` of 0 is
        that part, and what others have in use is none of it.

    Notes
    -----
    With one lane, what a turn takes is read from the allocator's statistics. With more, those of several turns would
    run together; then what a lane's pool holds is summed up block by block, and its reserved size stands for the peak:
    never too little, but too much by what the pool keeps for reuse.
    """

    def __init__(
        self, index: int = 0, lanes: int = 1, capacity_bytes: int = 0, torch: Any = None, fraction: float = 0.0
    ) -> None:
        self._torch = torch or import_module("torch")
        self._cuda = self._torch.cuda
        free_bytes, total_bytes = self._cuda.mem_get_info(index)  # makes the context
        capacity_bytes = capacity_bytes or int(fraction * total_bytes)
        self.capacity_bytes = capacity_bytes or total_bytes
        self.reserve_bytes = 0 if capacity_bytes else total_bytes - free_bytes
        self.lanes = lanes
        self._index = index
        self._places: dict[int, tuple[Any, Any]] = {}

    def turn(self, lane: int, room_bytes: int) -> AbstractContextManager[Reading]:
        """Make a lane's stream and pool current; what the turn has begun on the stream is done when it is left."""
        del room_bytes  # the allocator has a limit for the process, and none for a pool
        return self._alone(lane) if self.lanes == 1 else self._among(lane)

    def pool(self, lane: int) -> tuple[int, int]:
        """Return the id of a lane's memory pool."""
        number, kind = self._place(lane)[1].id
        return number, kind

    def reclaim(self) -> None:
        """Return segments that nobody uses to the driver, so that other lanes can have them."""
        self._cuda.empty_cache()

    def lost(self, error: BaseException) -> bool:
        """Say whether the context is broken: after a failed assertion or an illegal address all later calls fail."""
        kind = getattr(self._torch, "AcceleratorError", None)  # before 2.8 it was a RuntimeError like others
        return isinstance(error, kind) if kind else "CUDA error" in str(error)

    @contextmanager
    def _alone(self, lane: int) -> Iterator[Reading]:
        reading, before = Reading(), self._cuda.memory_allocated(self._index)
        self._cuda.reset_peak_memory_stats(self._index)
        try:
            with self._current(lane):
                yield reading
        finally:
            reading.grew_bytes = self._cuda.memory_allocated(self._index) - before
            reading.peak_bytes = self._cuda.max_memory_allocated(self._index) - before

    @contextmanager
    def _among(self, lane: int) -> Iterator[Reading]:
        reading, (before, _) = Reading(), self._held(lane)
        try:
            with self._current(lane):
                yield reading
        finally:
            after, reserved = self._held(lane)
            reading.grew_bytes = after - before
            reading.peak_bytes = reserved - before

    @contextmanager
    def _current(self, lane: int) -> Iterator[None]:
        stream, pool = self._place(lane)
        with ExitStack() as stack:
            stack.enter_context(self._cuda.device(self._index))
            stack.enter_context(self._cuda.stream(stream))
            stack.enter_context(self._cuda.use_mem_pool(pool, self._index))
            stack.enter_context(self._torch.autograd.set_multithreading_enabled(False))
            try:
                yield
            finally:
                stream.synchronize()

    def _place(self, lane: int) -> tuple[Any, Any]:
        """Return a lane's stream and pool. They outlive the lane: members that moved have their weights in the pool."""
        if lane not in self._places:
            self._places[lane] = self._cuda.Stream(self._index), self._cuda.MemPool()
        return self._places[lane]

    def _held(self, lane: int) -> tuple[int, int]:
        """Return what is allocated in a lane's pool, and how large the pool is, in bytes."""
        segments = self._cuda.memory_snapshot(self.pool(lane), include_traces=False)
        allocated = sum(
            block["size"] for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"
        )
        return allocated, sum(segment["total_size"] for segment in segments)


def here(lanes: int = 0, capacity_bytes: int = 0) -> CudaDevice | None:
    """Return the first GPU, if torch is there and sees one; by default with two lanes and all of its memory."""
    try:
        torch = import_module("torch")
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    return CudaDevice(0, lanes or 2, capacity_bytes, torch, read(os.environ).memory_fraction)
