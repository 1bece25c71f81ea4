"""
Limits of hosts: what a host has for jobs, and how runs are held to their share of it.

A memory cap is enforced by the kernel or by what allocates, and never depends on the process's good will:

==========  =======================================================  ==========================================
backend     enforced by                                              a process that wants more
==========  =======================================================  ==========================================
cpu,        a cgroup (v2) of its own, where the executor may make    is killed by the kernel: exit status 137
emulated    one
..          else ``RLIMIT_DATA``, for each process by itself         gets ``MemoryError`` (malloc returns NULL)
cuda        the framework's allocator, set by :func:`environment`    gets ``torch.OutOfMemoryError``
..          under MPS, the driver as well                            ``cudaErrorMemoryAllocation``
==========  =======================================================  ==========================================

A process is under its cap before its program's first instruction: a command line limits itself by a shell, and its shim
enters its control group, before it becomes the user of the job.

:class:`Cgroups` caps memory by control groups, version 2: one group for each key, in a subtree that is the executor's
own. :class:`Rlimit` caps it by resource limits, for hosts where the executor may make no control groups.
:func:`host_capacity` says what a host has for jobs: processors and memory, as far as this process may use them, less
what its executor needs.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from penstock_cluster import device_guard
from penstock_cluster.accounting import family, host, total
from penstock_cluster.device_backend import DeviceError, MemoryCaps, MemoryUsage
from penstock_log import Device
from penstock_log.agent_protocol import AgentEnv

__all__ = ["MemoryCaps", "MemoryUsage", "environment", "strongest_caps"]


MPS_LIMIT: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


def strongest_caps(cgroup: Path | None = None) -> MemoryCaps:
    """
    Return the strongest way of capping that this process may use.

    Parameters
    ----------
    cgroup : path, optional
        A delegated cgroup directory; without one, this process's own, or for root one below the hierarchy's top.
    """
    reasons = []
    for root in [cgroup] if cgroup else [None, *of_root()]:
        try:
            return Cgroups.open(root)
        except CgroupsUnavailable as error:
            reasons.append(str(error))
    return Rlimit(reason=reasons[0])


def environment(devices: Sequence[Device], cap_bytes: int, framework_bytes: int = 0) -> dict[str, str]:
    """
    Return the variables that tell a process how much it may hold of each of its devices.

    :func:`penstock.session` passes the fraction on to torch's allocator. Under MPS the driver enforces the cap too, for
    whatever allocates.

    Parameters
    ----------
    devices : sequence of Device
        Of one process, of one backend.
    cap_bytes : int
        Of each device: everything that the process holds there.
    framework_bytes : int
        What of it the allocator does not see (F of a :class:`penstock_log.MemoryNeed`): the fraction is without it.

    Examples
    --------
    >>> gpu = Device(index=0, kind="h100", memory_bytes=80 << 30, backend="cuda", mps=True)
    >>> for name, value in environment([gpu], 20 << 30).items(): print(f"{name}={value}")
    PENSTOCK_MEMORY_BYTES=21474836480
    PENSTOCK_MEMORY_FRACTION=0.25
    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M
    """
    least = min((device.memory_bytes for device in devices), default=0)
    env = {AgentEnv.MEMORY_BYTES: str(cap_bytes)}
    if least:
        env[AgentEnv.MEMORY_FRACTION] = (
            f"{min(max(cap_bytes - framework_bytes, 1) / least, 1.0):.6g}"  # 0 would be no limit
        )
    if devices and all(device.mps for device in devices):
        env[MPS_LIMIT] = ",".join(f"{i}={max(cap_bytes >> 20, 1)}M" for i in range(len(devices)))
    return env


AGENT: Final = "penstock-agent"
"""Where the executor itself moves to: a group that gives controllers to its children may hold no processes."""
ROOTS: Final = "penstock"
"""What an executor that runs as root makes below the top of the hierarchy, where no group was delegated to it."""
_PERIOD_US: Final = 100_000
_JOB: Final = "penstock-job-"
_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")
_LOOKS: Final = 50
_LOOK_S: Final = 0.002


class CgroupsUnavailable(DeviceError):
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
        CgroupsUnavailable
            If it has no memory controller, is not ours to change, or holds processes that are not ours to move.
        """
        root = root or own()
        controllers = set(read(root / "cgroup.controllers").split())
        if "memory" not in controllers:
            has = ", ".join(sorted(controllers)) or "none"
            raise CgroupsUnavailable(f"{root} has no memory controller (it has {has}); delegate it: Delegate=memory")
        if not os.access(root, os.W_OK) or not os.access(root / "cgroup.procs", os.W_OK):
            raise CgroupsUnavailable(f"{root} is not ours to change; delegate it: Delegate=memory, or chown it")
        _step_aside(root)
        try:
            given = [f"+{name}" for name in ("memory", "cpu", "pids") if name in controllers]
            (root / "cgroup.subtree_control").write_text(" ".join(given))
        except OSError as error:
            raise CgroupsUnavailable(f"{root} does not give its memory controller to children: {error}") from error
        return cls(root)

    def command(self, key: str, argv: Sequence[str], cap_bytes: int, most_bytes: int = 0) -> list[str]:
        """Make the group, which ``argv`` has to enter: whoever starts it may, and its own user may not."""
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
        return list(argv)

    def group(self, key: str) -> str:
        """Return the group's folder."""
        return str(self._group(key))

    def bound(self, key: str, *, tasks: int = 0, gpus: Collection[int] | None = None) -> None:
        """Let the group have so many processes and threads, and open these GPUs alone; see :meth:`MemoryCaps.bound`."""
        group = self._group(key)
        if tasks and (group / "pids.max").exists():
            try:
                (group / "pids.max").write_text(str(tasks))
            except OSError as error:
                raise DeviceError(f"{group} cannot be held to {tasks} processes: {error}") from error
        if gpus is not None and os.geteuid() == 0:
            device_guard.guard(group, device_guard.program(gpus))

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

    def usage(self, key: str, leader: int) -> MemoryUsage:
        """Return what the group holds, cached files of it among that."""
        del leader
        group = self._group(key)
        return MemoryUsage(
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
    CgroupsUnavailable
        If there is no such hierarchy.
    """
    mount, path = mount_of(read(Path(mountinfo))), path_of(read(Path(cgroup)))
    if not mount or not path:
        raise CgroupsUnavailable("no cgroup v2 hierarchy is mounted; boot with systemd.unified_cgroup_hierarchy=1")
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
        raise CgroupsUnavailable(
            f"{root} holds other processes than the executor ({len(pids)}); give it a group of its own"
        )
    try:
        (root / AGENT).mkdir(exist_ok=True)
        (root / AGENT / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise CgroupsUnavailable(f"the executor cannot move into {root / AGENT}: {error}") from error


def _fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split(maxsplit=1) for line in text.splitlines())}


def read(path: Path) -> str:
    """Return a small file of the kernel without its last line's end; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


_LIMITED: Final = (
    'ulimit -S -d "$1" && ulimit -H -d "$0" && shift && exec "$@"'  # a hard limit may not be below the soft one
)


def limits_of(argv: Sequence[str]) -> tuple[Sequence[str], tuple[int, ...]]:
    """
    Return a command line without the shell of :meth:`Rlimit.command`, and its limits: soft and hard, in bytes.

    No limits where it has no such shell.
    """
    if tuple(argv[:3]) != ("/bin/sh", "-c", _LIMITED):
        return argv, ()
    most_kib, cap_kib = map(int, argv[3:5])
    return argv[5:], (cap_kib << 10, most_kib << 10)


class Rlimit:
    """
    ``RLIMIT_DATA``: private writable mappings of each process, touched or not (Linux 4.7 and later).

    Weaker than a cgroup. It counts process by process, so children have the same cap each, and it does not see shared
    memory. At the start it also counts what is mapped and never touched, such as 8 MiB for each thread's stack: leave
    room for it, or start with much and :meth:`change` it. ``RLIMIT_AS`` would count libraries and address space too,
    which CUDA reserves by the terabyte.
    """

    name: Literal["rlimit"] = "rlimit"

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def command(self, key: str, argv: Sequence[str], cap_bytes: int, most_bytes: int = 0) -> list[str]:
        """Return ``argv`` behind a shell that limits itself first."""
        del key
        most_kib, cap_kib = _kib(max(cap_bytes, most_bytes)), _kib(cap_bytes)
        return ["/bin/sh", "-c", _LIMITED, str(most_kib), str(cap_kib), *argv]

    def group(self, key: str) -> str:
        """Limits have no group."""
        del key
        return ""

    def bound(self, key: str, *, tasks: int = 0, gpus: Collection[int] | None = None) -> None:
        """Nothing: these are limits of groups, or of a user's processes on the whole host."""
        del key, tasks, gpus

    def set_cpus(self, key: str, cpus: float) -> None:
        """Nothing: there is no limit of the processors that a process may use at a time."""
        del key, cpus

    def change(self, key: str, leader: int, cap_bytes: int) -> None:
        """
        Let each process of the session grow until so much of it is resident; what it holds beyond that, it keeps.

        The limit is what it has mapped now and so much more; what it has mapped and not touched is not held against it.
        So a cap is right if it is set between two iterations, and too high by what an iteration holds if within one.
        """
        del key
        for pid in family(leader):
            held = host(pid)
            if held is not None and held.data_bytes:  # neither gone nor a zombie
                _set_soft(pid, cap_bytes, held.data_bytes + max(cap_bytes - held.resident_bytes, 0))

    def usage(self, key: str, leader: int) -> MemoryUsage:
        """Return the sum over the session."""
        del key
        return MemoryUsage(current_bytes=total(family(leader)).data_bytes)

    def end(self, key: str) -> None:
        """Limits know no members."""
        del key

    def forget(self, key: str) -> None:
        """Nothing is left of a limit whose process has ended."""
        del key


def _kib(size_bytes: int) -> int:
    if size_bytes < 1:
        raise DeviceError(f"a cap of {size_bytes} bytes lets nothing run; expected at least 1 byte, better 64 MiB")
    return -(-size_bytes // 1024)


def _set_soft(pid: int, cap_bytes: int, limit_bytes: int) -> None:
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
        bounded = hard != resource.RLIM_INFINITY
        if bounded and cap_bytes > hard:
            raise DeviceError(f"process {pid} may get {hard} bytes at most, not {cap_bytes}; it was started with less")
        resource.prlimit(pid, resource.RLIMIT_DATA, (min(limit_bytes, hard) if bounded else limit_bytes, hard))
    except ProcessLookupError:
        return  # it ended meanwhile
    except PermissionError as error:
        raise DeviceError(f"the limit of process {pid} cannot be changed: {error}; it is another user's") from error


HEADROOM_SHARE: Final = 0.1
MOST_HEADROOM_BYTES: Final = 2 << 30
"""Of the host's memory, so much is left to the agent, to the services beside it and to the kernel, at most."""
_UNLIMITED: Final = 1 << 60


class HostCapacity(msgspec.Struct, frozen=True):
    """What jobs may use of a host together."""

    cpus: float
    memory_bytes: int

    def share(self, devices: int) -> HostCapacity:
        """Return what comes with each of so many devices."""
        each = max(1, devices)
        return HostCapacity(self.cpus / each, self.memory_bytes // each)


def host_capacity(cpus: float = 0.0, memory_bytes: int = 0, root: Path = Path("/")) -> HostCapacity:
    """
    Return what there is for jobs.

    Parameters
    ----------
    cpus, memory_bytes
        As the operator says; 0: what this process may use, of memory less a head-room of a tenth, 2 GiB at most.
    root : path
        Where ``proc`` and the control groups' file systems are.
    """
    found_bytes = memory_bytes or all_memory(root)
    headroom = 0 if memory_bytes else min(int(found_bytes * HEADROOM_SHARE), MOST_HEADROOM_BYTES)
    return HostCapacity(cpus or _all_cpus(root), max(0, found_bytes - headroom))


def all_memory(root: Path) -> int:
    """Return the host's memory, or what the control groups of this process leave of it; 0 where nobody says."""
    text = read(root / "proc/meminfo")
    total = next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemTotal:")), 0)
    limits = [_number(read(group / "memory.max")) for group in own_groups(root)]
    limits.append(_number(read(old_group(root, "memory") / "memory.limit_in_bytes")))
    return min([total, *(limit for limit in limits if 0 < limit < _UNLIMITED)])


def _all_cpus(root: Path) -> float:
    """Return the processors that this process may run on, or the time that its control groups have of them."""
    found = float(len(os.sched_getaffinity(0)))
    for group in own_groups(root):
        quota, _, period = read(group / "cpu.max").partition(" ")
        if _number(quota) and _number(period):
            found = min(found, _number(quota) / _number(period))
    return found


def own_groups(root: Path) -> Iterator[Path]:
    """Yield this process's groups of version 2, from its own outwards."""
    mount = mount_of(read(root / "proc/self/mountinfo"))
    path = path_of(read(root / "proc/self/cgroup"))
    if mount and path:
        top = root / mount.lstrip("/")
        own = top / path.lstrip("/")
        yield own
        yield from (group for group in own.parents if group.is_relative_to(top))


def old_group(root: Path, controller: str) -> Path:
    """Return this process's group of version 1 for a controller; a folder that is not there where it has none."""
    for line in read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number and controller in names.split(","):
            return root / "sys/fs/cgroup" / controller / path.lstrip("/")
    return root / "nowhere"


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def host_name() -> str:
    """Return the host's name as an id: lower-case letters, digits, - and _."""
    return re.sub(r"[^a-z0-9_-]+", "-", platform.node().lower()).strip("-")[:63] or "node"


def node_id_of(named: str) -> str:
    """
    Return the id of a node as it is named, with dashes for what no id has; where it is not named, the host's name.

    Examples
    --------
    >>> node_id_of("ip-10-0-0-7.ec2.internal"), node_id_of("gpu_1")
    ('ip-10-0-0-7-ec2-internal', 'gpu_1')
    """
    return re.sub(r"[\s.*>]+", "-", named).strip("-") or host_name()
