"""
Where turns are taken: memory and how it is measured. The host's processor here; a GPU in :mod:`penstock_packed.cuda`.

One process has one address space, so what a member takes is seen as what the process takes more after its turn than
before. That is its own as long as turns are taken one at a time.

Growth is told in whole MiB, since pages come and go by themselves; what is less is kept until it is more, so that
however little a turn keeps, all turns together are told what the process has grown by.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from penstock_events.agent import Env

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
GRAIN: Final = 2**20
"""Growth is told in whole MiB."""
SLACK: Final = (256 + 80 * (os.cpu_count() or 1)) * 2**20
"""
Address space that a turn may take beyond its memory: stacks and arenas of threads that begin meanwhile, one for each
processor if a library is of that mind. Not every library survives being refused a thread.
"""
SHARE: Final = 0.8
"""Of the memory that is available when the host starts: what its members get, unless something else is said."""


@dataclass(slots=True)
class Reading:
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


class Device(Protocol):
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

    def turn(self, lane: int, room_bytes: int) -> AbstractContextManager[Reading]:
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
        self._peaks = Peaks()
        self._untold = 0

    def turn(self, lane: int, room_bytes: int) -> AbstractContextManager[Reading]:
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
    def _measured(self, room_bytes: int) -> Iterator[Reading]:
        reading = Reading()
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
        """Return growth in whole MiB, with what has not been told before; the rest is told with the next."""
        self._untold += grew_bytes
        told = int(self._untold / GRAIN) * GRAIN
        self._untold -= told
        return told

    def _used(self) -> tuple[int, int]:
        """Return the address space and the resident memory of this process."""
        space, resident, _ = os.pread(self._status, 128, 0).split(b" ", 2)
        return int(space) * PAGE, int(resident) * PAGE


class Peaks:
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
    cap = os.environ.get(Env.MEMORY_BYTES)
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
def _unmeasured() -> Iterator[Reading]:
    yield Reading()


def _least(*limits: int) -> int:
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)
