"""Memory caps by control groups, version 2: one group for each key, in a subtree that is the executor's own."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from penstock_devices.port import DeviceError, Usage

AGENT: Final = "penstock-agent"
"""Where the executor itself moves to: a group that gives controllers to its children may hold no processes."""
ROOTS: Final = "penstock"
"""What an executor that runs as root makes below the top of the hierarchy, where no group was delegated to it."""
_PERIOD_US: Final = 100_000
_JOB: Final = "penstock-job-"
_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
_LOOKS: Final = 50
_LOOK_S: Final = 0.002
_ENTER: Final = 'echo $$ >"$0/cgroup.procs" && exec "$@"'


class Unavailable(DeviceError):
    """Control groups cannot be used here; says why, and what an operator may do."""


class Cgroups:
    """
    A delegated subtree: systemd's ``Delegate=memory``, or a directory whose owner is the executor's user.

    References
    ----------
    Linux, Documentation/admin-guide/cgroup-v2.rst: memory interface files, delegation, no internal processes.
    """

    name: Literal["cgroup"] = "cgroup"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reason = f"in {root}"

    @classmethod
    def open(cls, root: Path | None = None) -> Cgroups:
        """
        Take a subtree into use; without one, that of this process.

        Raises
        ------
        Unavailable
            If it has no memory controller, is not ours to change, or holds processes that are not ours to move.
        """
        root = root or own()
        controllers = set(read(root / "cgroup.controllers").split())
        if "memory" not in controllers:
            has = ", ".join(sorted(controllers)) or "none"
            raise Unavailable(f"{root} has no memory controller (it has {has}); delegate it: Delegate=memory")
        if not os.access(root, os.W_OK) or not os.access(root / "cgroup.procs", os.W_OK):
            raise Unavailable(f"{root} is not ours to change; delegate it: Delegate=memory, or chown it")
        _step_aside(root)
        try:
            (root / "cgroup.subtree_control").write_text("+memory +cpu" if "cpu" in controllers else "+memory")
        except OSError as error:
            raise Unavailable(f"{root} does not give its memory controller to children: {error}") from error
        return cls(root)

    def command(self, key: str, argv: Sequence[str], cap_bytes: int, most_bytes: int = 0) -> list[str]:
        """Make the group, and return ``argv`` behind a shell that enters it first."""
        del most_bytes
        group = self._group(key)
        if cap_bytes < 1:
            raise DeviceError(f"a cap of {cap_bytes} bytes lets nothing run; expected at least 1 byte, better 64 MiB")
        try:
            group.mkdir(exist_ok=True)
            (group / "memory.max").write_text(str(cap_bytes))
            for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                if (group / name).exists():
                    (group / name).write_text(value)
        except OSError as error:
            raise DeviceError(f"{group} cannot be made a group of {cap_bytes} bytes: {error}") from error
        return ["/bin/sh", "-c", _ENTER, str(group), *argv]

    def set_cpus(self, key: str, cpus: float) -> None:
        """Let the group have so much processor time, whatever else is idle; nothing without the controller."""
        quota = self._group(key) / "cpu.max"
        if quota.exists():
            try:
                quota.write_text(f"{max(1000, int(cpus * _PERIOD_US))} {_PERIOD_US}")
            except OSError as error:
                raise DeviceError(f"{quota} cannot be set to {cpus:g} cpus: {error}") from error

    def change(self, key: str, leader: int, cap_bytes: int) -> None:
        """Set the group's cap, or as low a one as its processes survive: below it, the kernel would kill at once."""
        del leader
        group = self._group(key)
        try:
            (group / "memory.max").write_text(str(max(cap_bytes, least(read(group / "memory.stat")))))
        except OSError as error:
            raise DeviceError(f"the cap of {group} cannot be changed: {error}") from error

    def usage(self, key: str, leader: int) -> Usage:
        """Return what the group holds, cached files of it among that."""
        del leader
        group = self._group(key)
        return Usage(
            current_bytes=int(read(group / "memory.current") or 0),
            peak_bytes=int(read(group / "memory.peak") or 0),  # Linux 5.19 and later
            killed=_fields(read(group / "memory.events")).get("oom_kill", 0),
        )

    def end(self, key: str) -> None:
        """Kill all that is in the group, and what it starts meanwhile: nobody leaves a group by himself."""
        for _ in range(_LOOKS):
            named = [int(pid) for pid in read(self._group(key) / "cgroup.procs").split()]
            pids = [pid for pid in named if pid > 0]  # 0 stands for processes that cannot be seen from here
            if not pids:
                return
            for pid in pids:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_S)

    def forget(self, key: str) -> None:
        """Remove the group; one that still holds processes stays."""
        try:
            self._group(key).rmdir()
        except OSError:
            return  # gone already, or busy: whoever ends its processes calls again

    def _group(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise DeviceError(f"{key!r} names no group; expected 1 to 200 letters, digits, - and _")
        return self.root / f"{_JOB}{key}"


def least(memory_stat: str) -> int:
    """
    Return what of a group's memory cannot be taken back: all but files that can be read again.

    Examples
    --------
    >>> least("anon 100\\nfile 900\\nshmem 20\\nkernel 3\\n")
    123
    """
    sizes = _fields(memory_stat)
    before_5_18 = ("kernel_stack", "pagetables", "slab_unreclaimable")
    kernel = sizes.get("kernel", sum(sizes.get(name, 0) for name in before_5_18))
    return sizes.get("anon", 0) + sizes.get("shmem", 0) + kernel


def own(cgroup: str = "/proc/self/cgroup", mountinfo: str = "/proc/self/mountinfo") -> Path:
    """
    Return this process's own group in the version 2 hierarchy: its parent, if it has stepped aside before.

    Raises
    ------
    Unavailable
        If there is no such hierarchy.
    """
    mount, path = mount_of(read(Path(mountinfo))), path_of(read(Path(cgroup)))
    if not mount or not path:
        raise Unavailable("no cgroup v2 hierarchy is mounted; boot with systemd.unified_cgroup_hierarchy=1")
    group = Path(mount, path.lstrip("/"))
    return group.parent if group.name == AGENT else group


def of_root(mountinfo: str = "/proc/self/mountinfo") -> list[Path]:
    """Return the group that root may make where memory is given to children of the top; none for anybody else."""
    mount = mount_of(read(Path(mountinfo)))
    if os.geteuid() != 0 or not mount or "memory" not in read(Path(mount, "cgroup.subtree_control")).split():
        return []
    group = Path(mount, ROOTS)
    try:
        group.mkdir(exist_ok=True)
    except OSError:  # mounted read-only, as containers have it
        return []
    return [group]


def mount_of(mountinfo: str) -> str:
    """
    Return where ``/proc/self/mountinfo`` says that cgroup v2 is mounted; empty where it is not.

    Examples
    --------
    >>> mount_of("30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw")
    '/sys/fs/cgroup'
    """
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return mount.split()[4]
    return ""


def path_of(cgroup: str) -> str:
    """
    Return the version 2 path of ``/proc/self/cgroup``; empty where there is none.

    Examples
    --------
    >>> path_of("4:memory:/x\\n0::/user.slice/penstock.service\\n")
    '/user.slice/penstock.service'
    """
    return next((line[3:] for line in cgroup.splitlines() if line.startswith("0::")), "")


def _step_aside(root: Path) -> None:
    pids = [int(pid) for pid in read(root / "cgroup.procs").split()]
    if not pids:
        return
    if pids != [os.getpid()]:
        raise Unavailable(f"{root} holds other processes than the executor ({len(pids)}); give it a group of its own")
    try:
        (root / AGENT).mkdir(exist_ok=True)
        (root / AGENT / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise Unavailable(f"the executor cannot move into {root / AGENT}: {error}") from error


def _fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split(maxsplit=1) for line in text.splitlines())}


def read(path: Path) -> str:
    """Return a small file of the kernel without its last line's end; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
