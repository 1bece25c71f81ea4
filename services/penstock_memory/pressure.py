"""
How much memory a node has free, measured each second and smoothed.

What is free is what the kernel says could be had without swapping (``MemAvailable``), or what the control groups of
this process leave, versions 1 and 2, whichever is less. The agent's own slabs are added by the caller: they could be
free at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock_cluster.host_limits import all_memory, old_group, own_groups, read
from penstock_policies.slabs import smoothed

LEAST_HEADROOM_BYTES: Final = 1 << 30
HEADROOM_SHARE: Final = 0.1
_UNLIMITED: Final = 1 << 60


class HostMemory(msgspec.Struct, frozen=True):
    """A host's memory as far as this process may use it, and what of it could be had now, in bytes."""

    total_bytes: int
    available_bytes: int


class MemoryUnknown(Exception):
    """The kernel does not say how much memory there is."""


def host_memory(root: Path = Path("/")) -> HostMemory:
    """
    Return how much memory there is, and how much is available.

    Parameters
    ----------
    root : path
        Where ``proc`` and the control groups' file systems are.

    Raises
    ------
    MemoryUnknown
        If ``/proc/meminfo`` does not say it.
    """
    sizes = _fields(read(root / "proc/meminfo").replace(":", " "))
    if "MemAvailable" not in sizes:
        raise MemoryUnknown(f"{root / 'proc/meminfo'} has no line MemAvailable; expected Linux 3.14 or later")
    available = min([sizes["MemAvailable"] * 1024, *_left_by_groups(root)])
    return HostMemory(total_bytes=all_memory(root), available_bytes=max(0, available))


def headroom(wanted_bytes: int, total_bytes: int) -> int:
    """
    Return how much memory is to stay free.

    Examples
    --------
    >>> headroom(0, 4 << 30) >> 20, headroom(0, 100 << 30) >> 30, headroom(5 << 30, 100 << 30) >> 30
    (1024, 10, 5)
    """
    return wanted_bytes or max(LEAST_HEADROOM_BYTES, int(total_bytes * HEADROOM_SHARE))


class FreeMemory:
    """
    What a node has free, smoothed over measurements a second apart.

    A sudden fall counts at once where it goes deeper than half of the head-room: what is left by then is gone before
    the average has followed.
    """

    def __init__(self) -> None:
        self.average_bytes: float | None = None
        self.last_bytes = 0

    def note(self, measured_bytes: int) -> None:
        """Take in one measurement; the first is the average."""
        self.last_bytes = measured_bytes
        before = self.average_bytes
        self.average_bytes = float(measured_bytes) if before is None else smoothed(measured_bytes, before)

    def free_bytes(self, headroom_bytes: int) -> int:
        """
        Return what counts as free now.

        Examples
        --------
        >>> free = FreeMemory()
        >>> for measured in (100, 90, 20):
        ...     free.note(measured)
        ...     print(free.free_bytes(headroom_bytes=40))
        100
        98
        40
        """
        return int(min(self.average_bytes or 0.0, self.last_bytes + headroom_bytes // 2))


def _left_by_groups(root: Path) -> Iterator[int]:
    """Yield what each control group of this process leaves, counting files that can be read again as free."""
    for group in own_groups(root):
        most = read(group / "memory.max")
        if most.isdigit() and int(most) < _UNLIMITED:
            files = _fields(read(group / "memory.stat"))
            reclaimable = files.get("inactive_file", 0) + files.get("active_file", 0) // 2
            yield int(most) - int(read(group / "memory.current") or 0) + reclaimable
    old = old_group(root, "memory")
    limit = read(old / "memory.limit_in_bytes")
    if limit.isdigit() and int(limit) < _UNLIMITED:
        files = _fields(read(old / "memory.stat"))
        reclaimable = files.get("total_inactive_file", 0) + files.get("total_active_file", 0) // 2
        yield int(limit) - int(read(old / "memory.usage_in_bytes") or 0) + reclaimable


def _fields(text: str) -> dict[str, int]:
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
