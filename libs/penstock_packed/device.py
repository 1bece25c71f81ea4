"""
Devices of a packed host, where turns are taken: the host's processor, or a GPU; with their memory and its measurement.

:class:`CpuDevice` is the host. One process has one address space, so a member's memory is what the process has more
after its turn than before. That is the member's own as long as turns are taken one at a time. Growth is counted in
whole MiB, because pages come and go by themselves. The rest is carried over until it is more, so the sum over all turns
is the growth of the process, however little a turn keeps.

:class:`CudaDevice` is a GPU through torch: one context, and for each lane a stream and a memory pool. It is written
against torch 2.13 (``torch.cuda.MemPool``, ``use_mem_pool``, ``memory_snapshot``). It has not run on a GPU yet: the
tests hold its calls against a stand-in for torch, and no more. ``use_mem_pool`` holds for allocations of the calling
thread. A backward pass allocates on a thread of torch's own, unless it is made to stay on the caller's, as it is here.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.sessions.setup import read
from penstock_log.agent_protocol import AgentEnv

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
GRAIN: Final = 2**20
"""Growth is reported in whole MiB."""
SLACK: Final = (256 + 80 * (os.cpu_count() or 1)) * 2**20
"""
Address space that a turn may take beyond its memory: stacks and arenas of threads that begin meanwhile, one for each
processor if a library is of that mind. Not every library survives being refused a thread.
"""
SHARE: Final = 0.8
"""Of the memory that is available when the host starts: what its members get, unless something else is said."""


@dataclass(slots=True)
class TurnMemory:
    """
    What a turn has done to the device's memory.

    Attributes
    ----------
    grew_bytes : int
        More, or less, than before the turn.
    peak_bytes : int or None
        The most during the turn, beyond what was taken before it; None: not measured.
    """

    grew_bytes: int = 0
    peak_bytes: int | None = None


class TurnDevice(Protocol):
    """
    A device, in this process.

    Attributes
    ----------
    capacity_bytes, reserve_bytes : int
    lanes : int
        How many turns are taken at a time, each on a thread of its own where it is more than one.
    """

    capacity_bytes: int
    reserve_bytes: int
    lanes: int

    def turn(self, lane: int, room_bytes: int) -> AbstractContextManager[TurnMemory]:
        """Enter a lane for a turn that may take so much more; the reading is complete when it is left."""
        ...

    def pool(self, lane: int) -> tuple[int, int] | None:
        """Return the id of a lane's memory pool, where there is one."""
        ...

    def reclaim(self) -> None:
        """A member has ended: give back what it held."""

    def lost(self, error: BaseException) -> bool:
        """Say whether after this error nothing on the device works any more, so that the process has to end."""
        ...


class CpuDevice:
    """
    The host's processor and memory.

    Parameters
    ----------
    capacity_bytes : int
        0: four fifths of what is available now, and of what a job that shares its device may have.
    lanes : int
        Turns at a time. More than one is worth it where steps wait, or compute for long outside of Python; memory is
        then neither measured nor limited, since nobody could say whose it is, and what is declared counts alone.
    limited : bool
        Whether a turn that takes more than its room gets a ``MemoryError``. The limit is on address space
        (``RLIMIT_AS``), with ``SLACK`` on top.
    """

    def __init__(self, capacity_bytes: int = 0, lanes: int = 1, *, limited: bool = True) -> None:
        self.capacity_bytes = capacity_bytes or int(SHARE * available_bytes())
        self.reserve_bytes = 0
        self.lanes = lanes
        self._limited = limited
        self._status = os.open("/proc/self/statm", os.O_RDONLY)
        self._peaks = PeakMemory()
        self._unreported = 0

    def turn(self, lane: int, room_bytes: int) -> AbstractContextManager[TurnMemory]:
        """Measure a turn, and limit it."""
        del lane
        return self._measured(room_bytes) if self.lanes == 1 else _unmeasured()

    def pool(self, lane: int) -> None:
        """There are no pools."""

    def reclaim(self) -> None:
        """Nothing to do: what was freed is free."""

    def lost(self, error: BaseException) -> bool:
        """It is never lost."""
        del error
        return False

    @contextmanager
    def _measured(self, room_bytes: int) -> Iterator[TurnMemory]:
        reading = TurnMemory()
        space, before = self._used()
        peak_due = self._peaks.begin()
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        if self._limited:
            resource.setrlimit(resource.RLIMIT_AS, (_least(space + room_bytes + SLACK, soft, hard), hard))
        try:
            yield reading
        finally:
            if self._limited:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
            _, after = self._used()
            reading.grew_bytes = self._whole(after - before)
            if peak_due:
                reading.peak_bytes = max(0, self._peaks.read() - before)

    def _whole(self, grew_bytes: int) -> int:
        """Return growth in whole MiB, with what was not reported before; the rest is reported with the next."""
        self._unreported += grew_bytes
        whole = int(self._unreported / GRAIN) * GRAIN
        self._unreported -= whole
        return whole

    def _used(self) -> tuple[int, int]:
        """Return the address space and the resident memory of this process."""
        space, resident, _ = os.pread(self._status, 128, 0).split(b" ", 2)
        return int(space) * PAGE, int(resident) * PAGE


class PeakMemory:
    """
    The process's high-water mark of resident memory, which the kernel lets be reset.

    Reading it takes some 30 microseconds, so it is read in the first turns and then in one of 16. Not in every 16th:
    where 16 members take turns, those would all be one member's. So a linear congruential generator says in which.
    """

    EVERY: Final = 16

    def __init__(self) -> None:
        self._turns = 0
        self._chance = 0

    def begin(self) -> bool:
        """Begin a turn; return whether its peak is to be read."""
        self._turns += 1
        self._chance = (1_103_515_245 * self._chance + 12_345) % 2**31
        due = self._turns < 8 * self.EVERY or self._chance < 2**31 // self.EVERY
        if due:
            try:
                Path("/proc/self/clear_refs").write_text("5")
            except OSError:  # not this kernel, or not in this container
                return False
        return due

    def read(self) -> int:
        """Return the most since :meth:`begin`, in bytes."""
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def available_bytes() -> int:
    """
    Return what this process can have without swapping, by the kernel's estimate, within its cgroup, and within what the
    executor lets it have of a device that it shares.
    """
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    cap = os.environ.get(AgentEnv.MEMORY_BYTES)
    if cap:
        free = min(free, max(GRAIN, int(cap) - _resident_bytes()))
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except OSError:  # the root cgroup has neither
        return free
    return free if limit == "max" else min(free, max(0, int(limit) - used))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@contextmanager
def _unmeasured() -> Iterator[TurnMemory]:
    yield TurnMemory()


def _least(*limits: int) -> int:
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)


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

    def turn(self, lane: int, room_bytes: int) -> AbstractContextManager[TurnMemory]:
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
    def _alone(self, lane: int) -> Iterator[TurnMemory]:
        reading, before = TurnMemory(), self._cuda.memory_allocated(self._index)
        self._cuda.reset_peak_memory_stats(self._index)
        try:
            with self._current(lane):
                yield reading
        finally:
            reading.grew_bytes = self._cuda.memory_allocated(self._index) - before
            reading.peak_bytes = self._cuda.max_memory_allocated(self._index) - before

    @contextmanager
    def _among(self, lane: int) -> Iterator[TurnMemory]:
        reading, (before, _) = TurnMemory(), self._held(lane)
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
