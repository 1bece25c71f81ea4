"""
Memory limits of runs.

Runs that share devices are held to a part of their devices' memory; runs that have devices alone are held to a part of
the host's memory. The kernel enforces a limit where it can, and otherwise the allocator of the process does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog

from penstock_cluster import DeviceError, device_guard, host_limits
from penstock_cluster.accounting import by_session, family, own_bytes, total
from penstock_cluster.device_backend import BACKENDS, CAPABILITIES, Accounting, DeviceCapabilities, MemoryCaps
from penstock_cluster.host_limits import HostCapacity
from penstock_executor.launchers import sandbox
from penstock_executor.run_state import WANTS_MEMORY, Key, sharing_of
from penstock_log import Device, Job
from penstock_log.text import gibibytes

LEAST_SHARE_BYTES: Final = 2**30
"""A run that asks for nothing is not held to less for each device, however small the shares of its node are."""
HOST_LEAST_BYTES: Final = 64 * 2**20
"""Beside its cap, a process gets this on the host: an interpreter and its libraries, which are nobody's tensors."""
_log = structlog.get_logger("penstock.executor")


class HostShare(NamedTuple):
    """
    A run's part of its host for each of its devices.

    Attributes
    ----------
    cpus : float
        CPUs for each device; 0: whatever is idle.
    node_bytes : int
        Memory that all jobs of the node may use together.
    asked : bool
        Whether the user has asked for this memory; otherwise it is the share of the run's devices.
    """

    memory_bytes: int
    cpus: float
    node_bytes: int
    asked: bool


class MemoryLimits:
    """
    The memory caps of the runs of one node.

    Parameters
    ----------
    enforcer : MemoryCaps or None
        Enforces caps on the host's memory, for devices that are the host's; None: the strongest way that there is.
    share : HostCapacity or None
        The part of the host that comes with each device; None: runs have no limit on the host.
    most_tasks : int
        The most processes and threads of each process of a run, where it has a group; 0: no limit.

    Attributes
    ----------
    caps : dict of Key to dict of int to int
        Run that shares → device → its present cap in bytes.
    framework_bytes : dict of Key to int
        Run → the memory that no allocator sees, as far as it is known.
    hosted : dict of Key to HostShare
        Run that has its devices alone → its part of the host.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        enforcer: MemoryCaps | None = None,
        share: HostCapacity | None = None,
        most_tasks: int = 0,
    ) -> None:
        self._most_tasks, self._unguarded = most_tasks, False
        self.hosted: dict[Key, HostShare] = {}
        self._homes: dict[Key, int] = {}
        self._share = share
        self.caps: dict[Key, dict[int, int]] = {}
        self.framework_bytes: dict[Key, int] = {}
        self._devices = {device.index: device for device in devices}
        self._enforcer = enforcer
        self._accounting: dict[str, Accounting] = {}

    @property
    def enforcer(self) -> MemoryCaps:
        """The enforcer of caps on the host's memory; it is made at first need, because this may move the executor."""
        if self._enforcer is None:
            self._enforcer = host_limits.strongest_caps()
            _log.info("memory_caps", by=self._enforcer.name, reason=self._enforcer.reason)
        return self._enforcer

    def set_fraction(self, job: Job, devices: Iterable[int]) -> None:
        """Give an opaque job the part of its devices that it was promised."""
        if sharing_of(job) == "fraction":
            share = job.spec.fraction
            self.caps[job.id, job.epoch] = {i: int(share * self._devices[i].memory_bytes) for i in devices}

    def set_host(self, job: Job) -> None:
        """Give a job that has its devices alone its part of the host: what it asks for, or its devices' share."""
        share, spec = self._share, job.spec
        if share is None or sharing_of(job) != "exclusive":
            return
        node_bytes = share.memory_bytes * len(self._devices)
        memory_bytes = spec.host_memory_bytes or min(
            max(share.memory_bytes, LEAST_SHARE_BYTES, spec.least_host_bytes), node_bytes
        )
        if memory_bytes:
            asked = bool(spec.host_memory_bytes)
            self.hosted[job.id, job.epoch] = HostShare(memory_bytes, spec.cpus, node_bytes, asked)

    def over_host(
        self,
        places: Mapping[tuple[Key, int], tuple[int, int]],
        beside: Mapping[tuple[Key, int], Collection[int]] = MappingProxyType({}),
    ) -> dict[Key, str]:
        """
        Return the runs that exceed their part of the host, and by how much; none if the kernel enforces it.

        Parameters
        ----------
        places : mapping
            Run and process rank → its session, and how many devices it has.
        beside : mapping
            The same → further sessions that count as its own: what people run beside the process.
        """
        hosted = dict(self.hosted)  # asked in a thread of its own, while runs come and go
        watched = {at: found for at, found in places.items() if at[0] in hosted and found[0]}
        if not watched or self.enforcer.name == "cgroup":
            return {}
        sessions = {at: (session, *beside.get(at, ())) for at, (session, _) in watched.items()}
        families = by_session({session for some in sessions.values() for session in some})
        over: dict[Key, str] = {}
        for at, (_, devices) in watched.items():
            key = at[0]
            cap_bytes = hosted[key].memory_bytes * devices
            pids = [pid for session in sessions[at] for pid in families.get(session, ())]
            if total(pids).resident_bytes > cap_bytes and own_bytes(pids) > cap_bytes:
                over[key] = _host_text(hosted[key], devices)
        return over

    def environment(self, key: Key, devices: Sequence[int], framework_bytes: int = 0) -> dict[str, str]:
        """Return the variables that give a process its cap on each device; empty if it has its devices alone."""
        cap_bytes = self._least(key, devices)
        if not cap_bytes:
            return {}
        return host_limits.environment([self._devices[index] for index in devices], cap_bytes, framework_bytes)

    def fraction(self, key: Key, devices: Sequence[int]) -> float | None:
        """Return the share of its GPUs that a process's allocator may hold now; None if it needs no limit."""
        cap_bytes = self._least(key, devices)
        if not cap_bytes or not all(self._offers(index).tells_allocators for index in devices):
            return None
        least_bytes = min(self._devices[index].memory_bytes for index in devices)
        return min(max(cap_bytes - self.framework_bytes.get(key, 0), 1) / least_bytes, 1.0)

    def command(self, key: Key, rank: int, devices: Sequence[int], argv: Sequence[str]) -> list[str]:
        """Return the command line that starts a process under its cap, where its devices' memory is the host's."""
        cap_bytes = self._on_host(key, devices)
        if not cap_bytes:
            return self._hosted_command(key, rank, len(devices), argv)
        most_bytes = HOST_LEAST_BYTES + sum(self._devices[index].memory_bytes for index in devices)
        return self.enforcer.command(self._name(key, rank), argv, cap_bytes, most_bytes)

    def beside(self, key: Key, rank: int, devices: Sequence[int], argv: Sequence[str]) -> list[str]:
        """Return the command line that holds a command to the cap of the process beside which it runs."""
        capped = self._on_host(key, devices) or key in self.hosted
        in_group = not capped or self.enforcer.name == "cgroup"  # which it enters, as the process did
        return list(argv) if in_group else self.command(key, rank, devices, argv)

    def group(self, key: Key, rank: int, devices: Sequence[int]) -> str:
        """
        Return the control group that a process has to enter, after :meth:`command`; empty where it has none.

        The group is held to so many processes, and to the GPUs of its grant, before anybody enters it.

        Raises
        ------
        DeviceError
            If it cannot be held to so many processes.
        """
        capped = self._on_host(key, devices) or key in self.hosted
        group = self.enforcer.group(self._name(key, rank)) if capped else ""
        if group:
            self.enforcer.bound(self._name(key, rank), tasks=self._most_tasks)
            self._guard(self._name(key, rank), devices)
        return group

    def _guard(self, name: str, devices: Sequence[int]) -> None:
        """Keep a group from the GPUs that it was not given, where the kernel lets this executor."""
        if not any(device.backend == "cuda" for device in self._devices.values()):
            return
        nodes = [*sandbox.device_nodes(self._devices[index] for index in devices)]
        try:
            self.enforcer.bound(name, gpus=device_guard.minors(nodes))
        except DeviceError as error:
            if not self._unguarded:
                _log.warning("devices_not_guarded", error=str(error))
            self._unguarded = True

    def _hosted_command(self, key: Key, rank: int, devices: int, argv: Sequence[str]) -> list[str]:
        hosted = self.hosted.get(key)
        if hosted is None:
            return list(argv)
        cap_bytes = hosted.memory_bytes * devices
        if self.enforcer.name == "rlimit":  # which counts what is mapped, touched or not
            cap_bytes = cap_bytes + HOST_LEAST_BYTES if hosted.asked else max(cap_bytes, hosted.node_bytes)
        command = self.enforcer.command(self._name(key, rank), argv, cap_bytes)
        if hosted.cpus:
            self.enforcer.set_cpus(self._name(key, rank), hosted.cpus * devices)
        return command

    def change(self, key: Key, rank: int, devices: Sequence[int], leader: int) -> None:
        """Enforce the present cap on a running process."""
        cap_bytes = self._on_host(key, devices)
        if cap_bytes:
            try:
                self.enforcer.change(self._name(key, rank), leader, cap_bytes)
            except DeviceError as error:
                _log.warning("memory_cap_not_changed", job_id=key[0], epoch=key[1], rank=rank, error=str(error))

    def held_bytes(self, index: int, leader: int) -> int:
        """Return what the processes of one rank hold on a device; 0 if nothing counts it."""
        device = self._devices[index]
        try:
            if device.backend not in self._accounting:
                self._accounting[device.backend] = BACKENDS[device.backend].load().accounting()
            return sum(self._accounting[device.backend].held(device, family(leader)).values())
        except DeviceError as error:  # a GPU that has fallen off the bus: its jobs fail, and those of others go on
            _log.warning("device_memory_not_read", device=index, error=str(error))
            return 0

    def broken(self, key: Key, rank: int, index: int, leader: int) -> str:
        """Return how a process exceeds its cap; empty if it keeps to the cap."""
        cap_bytes = self.caps.get(key, {}).get(index, 0)
        on_host = self._offers(index).host_memory
        if not cap_bytes or (on_host and self.enforcer.name == "cgroup"):
            return ""
        held_bytes = self.held_bytes(index, leader)
        if held_bytes <= cap_bytes + HOST_LEAST_BYTES * on_host:
            return ""
        return f"rank {rank} held {_mib(held_bytes)} of device {index}, where it may hold {_mib(cap_bytes)}"

    def killed(self, key: Key, rank: int, devices: Sequence[int]) -> str:
        """Return how the kernel ended a process for its memory; empty if it did not."""
        cap_bytes = self._on_host(key, devices)
        if not cap_bytes or not self.enforcer.usage(self._name(key, rank), 0).killed:
            return ""
        return f"rank {rank} wanted more than the {_mib(cap_bytes)} that it may hold, and was ended by the kernel"

    def killed_on_host(self, key: Key, rank: int, devices: int, last_line: str) -> str:
        """Return why a failed process was ended, if it was for the host's memory; otherwise empty."""
        hosted = self.hosted.get(key)
        if hosted is None:
            return ""
        if self.enforcer.name == "cgroup":
            return _host_text(hosted, devices) if self.enforcer.usage(self._name(key, rank), 0).killed else ""
        return f"{_host_text(hosted, devices)}: {last_line}" if hosted.asked and WANTS_MEMORY.search(last_line) else ""

    def end(self, key: Key, rank: int) -> None:
        """End everything that a process has left in its control group, if it has one."""
        self.enforcer.end(self._name(key, rank))

    def set_home(self, key: Key, home: int) -> None:
        """Note that a run's processes were started in another run of its job, whose groups they are still in."""
        self._homes[key] = home

    def leave_host(self, key: Key) -> None:
        """Note that a run has ended whose processes go on to hold their memory, in their groups."""
        self.hosted.pop(key, None)
        self._homes.pop(key, None)

    def forget_host(self, key: Key, ranks: Iterable[int]) -> None:
        """Remove what was made for a run that had its devices alone, and has ended."""
        if self.hosted.pop(key, None):
            for rank in ranks:
                self.enforcer.forget(self._name(key, rank))
        self._homes.pop(key, None)

    def forget(self, key: Key, ranks: Mapping[int, object]) -> None:
        """Remove what was made for a run that has ended."""
        self.framework_bytes.pop(key, None)
        if self.caps.pop(key, None) and self._enforcer is not None:
            for rank in ranks:
                self._enforcer.forget(self._name(key, rank))

    def least_bytes(self, key: Key) -> int:
        """Return the smallest cap of a run on any of its devices; 0 if it has them alone."""
        return min(self.caps.get(key, {}).values(), default=0)

    def _name(self, key: Key, rank: int) -> str:
        """Return the name of a process's group, which is that of the run in which it was started."""
        return f"{key[0]}-{self._homes.get(key, key[1])}-{rank}"

    def _offers(self, index: int) -> DeviceCapabilities:
        return CAPABILITIES[self._devices[index].backend]

    def _least(self, key: Key, devices: Sequence[int]) -> int:
        known = self.caps.get(key, {})
        return min((known[index] for index in devices if index in known), default=0)

    def _on_host(self, key: Key, devices: Sequence[int]) -> int:
        """Return the cap of a process on the host's memory: that of its devices whose memory is the host's; or 0."""
        known = self.caps.get(key, {})
        on_host = [known[i] for i in devices if i in known and self._offers(i).host_memory]
        return sum(on_host) + HOST_LEAST_BYTES if on_host else 0


def _host_text(hosted: HostShare, devices: int) -> str:
    whose = "" if hosted.asked else ", its devices' share of the node (--host-memory asks for more)"
    return f"ended for using more than its {gibibytes(hosted.memory_bytes * devices)} of host memory{whose}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"
