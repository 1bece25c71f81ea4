"""What a host has for jobs: processors and memory, as far as this process may use them, less what its agent needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from penstock_devices import cgroups

HEADROOM_SHARE: Final = 0.1
MOST_HEADROOM_BYTES: Final = 2 << 30
"""Of the host's memory, so much is left to the agent, to the services beside it and to the kernel, at most."""
_UNLIMITED: Final = 1 << 60


class Capacity(msgspec.Struct, frozen=True):
    """
    What jobs may use of a host together.

    Attributes
    ----------
    cpus : float
    memory_bytes : int
    """

    cpus: float
    memory_bytes: int

    def share(self, devices: int) -> Capacity:
        """Return what comes with each of so many devices."""
        each = max(1, devices)
        return Capacity(self.cpus / each, self.memory_bytes // each)


def find(cpus: float = 0.0, memory_bytes: int = 0, root: Path = Path("/")) -> Capacity:
    """
    Return what there is for jobs.

    Parameters
    ----------
    cpus, memory_bytes
        As the operator says; 0: what this process may use, of memory less a head-room of a tenth, 2 GiB at most.
    root : path
        Where ``proc`` and the control groups' file systems are.
    """
    found_bytes = memory_bytes or _all_memory(root)
    headroom = 0 if memory_bytes else min(int(found_bytes * HEADROOM_SHARE), MOST_HEADROOM_BYTES)
    return Capacity(cpus or _all_cpus(root), max(0, found_bytes - headroom))


def _all_memory(root: Path) -> int:
    """Return the host's memory, or what the control groups of this process leave of it; 0 where nobody says."""
    text = cgroups.read(root / "proc/meminfo")
    total = next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemTotal:")), 0)
    limits = [_number(cgroups.read(group / "memory.max")) for group in _groups(root)]
    limits.append(_number(cgroups.read(_old_group(root, "memory") / "memory.limit_in_bytes")))
    return min([total, *(limit for limit in limits if 0 < limit < _UNLIMITED)])


def _all_cpus(root: Path) -> float:
    """Return the processors that this process may run on, or the time that its control groups have of them."""
    found = float(len(os.sched_getaffinity(0)))
    for group in _groups(root):
        quota, _, period = cgroups.read(group / "cpu.max").partition(" ")
        if _number(quota) and _number(period):
            found = min(found, _number(quota) / _number(period))
    return found


def _groups(root: Path) -> Iterator[Path]:
    """Yield this process's groups of version 2, from its own outwards."""
    mount = cgroups.mount_of(cgroups.read(root / "proc/self/mountinfo"))
    path = cgroups.path_of(cgroups.read(root / "proc/self/cgroup"))
    if mount and path:
        top = root / mount.lstrip("/")
        own = top / path.lstrip("/")
        yield own
        yield from (group for group in own.parents if group.is_relative_to(top))


def _old_group(root: Path, controller: str) -> Path:
    """Return this process's group of version 1 for a controller; a folder that is not there where it has none."""
    for line in cgroups.read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number and controller in names.split(","):
            return root / "sys/fs/cgroup" / controller / path.lstrip("/")
    return root / "nowhere"


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
