"""How much memory each run that shares may hold of its devices, made true: by the kernel, or by what allocates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog

from penstock_devices import DeviceError, caps
from penstock_devices.accounting import HostAccounting, family
from penstock_devices.nvml import Nvml
from penstock_devices.port import Caps
from penstock_events import Device, Job
from penstock_executor.local import Key, sharing_of

HOST_LEAST_BYTES: Final = 64 * 2**20
"""Beside its cap, a process gets this on the host: an interpreter and its libraries, which are nobody's tensors."""
_log = structlog.get_logger("penstock.executor")


class Limits:
    """
    Caps of the runs of one node.

    Parameters
    ----------
    devices : iterable of Device
    enforcer : Caps or None
        Caps what processes hold of the host's memory, for devices that are the host's; None: the strongest there is.

    Attributes
    ----------
    caps : dict of Key to dict of int to int
        Runs that share → device → bytes, as they are now.
    framework_bytes : dict of Key to int
        What of it no allocator sees, as far as is known.
    """

    def __init__(self, devices: Iterable[Device], enforcer: Caps | None = None) -> None:
        self.caps: dict[Key, dict[int, int]] = {}
        self.framework_bytes: dict[Key, int] = {}
        self._devices = {device.index: device for device in devices}
        self._enforcer = enforcer
        self._nvml: Nvml | None = None

    @property
    def enforcer(self) -> Caps:
        """What caps the host's memory; looked for when it is first needed, because that may move the executor."""
        if self._enforcer is None:
            self._enforcer = caps.find()
            _log.info("memory_caps", by=self._enforcer.name, reason=self._enforcer.reason)
        return self._enforcer

    def set_fraction(self, job: Job, devices: Iterable[int]) -> None:
        """Give an opaque job the part of its devices that it was promised."""
        if sharing_of(job) == "fraction":
            share = job.spec.fraction
            self.caps[job.id, job.epoch] = {i: int(share * self._devices[i].memory_bytes) for i in devices}

    def environment(self, key: Key, devices: Sequence[int], framework_bytes: int = 0) -> dict[str, str]:
        """Return what tells a process how much it may hold of each of its devices; empty where it has them alone."""
        cap_bytes = self._least(key, devices)
        if not cap_bytes:
            return {}
        return caps.environment([self._devices[index] for index in devices], cap_bytes, framework_bytes)

    def fraction(self, key: Key, devices: Sequence[int]) -> float | None:
        """Return which share of its GPUs a process's allocator may hold by now; None where nobody has to tell it."""
        cap_bytes = self._least(key, devices)
        if not cap_bytes or any(self._devices[index].backend != "cuda" for index in devices):
            return None
        least_bytes = min(self._devices[index].memory_bytes for index in devices)
        return min(max(cap_bytes - self.framework_bytes.get(key, 0), 1) / least_bytes, 1.0)

    def command(self, key: Key, rank: int, devices: Sequence[int], argv: Sequence[str]) -> list[str]:
        """Return the command line that starts a process under its cap, where its devices' memory is the host's."""
        cap_bytes = self._on_host(key, devices)
        if not cap_bytes:
            return list(argv)
        most_bytes = HOST_LEAST_BYTES + sum(self._devices[index].memory_bytes for index in devices)
        return self.enforcer.command(_name(key, rank), argv, cap_bytes, most_bytes)

    def change(self, key: Key, rank: int, devices: Sequence[int], leader: int) -> None:
        """Have a process that runs keep to the cap that it has now."""
        cap_bytes = self._on_host(key, devices)
        if cap_bytes:
            try:
                self.enforcer.change(_name(key, rank), leader, cap_bytes)
            except DeviceError as error:
                _log.warning("memory_cap_not_changed", job_id=key[0], epoch=key[1], rank=rank, error=str(error))

    def held_bytes(self, index: int, leader: int) -> int:
        """Return what the processes of one rank hold on a device, as far as anybody counts it; 0 where none can say."""
        device = self._devices[index]
        if device.backend != "cuda":
            return sum(HostAccounting().held(device, family(leader)).values())
        try:
            self._nvml = self._nvml or Nvml()
            return sum(self._nvml.accounting().held(device, family(leader)).values())
        except DeviceError as error:  # a GPU that has fallen off the bus: its jobs fail, and those of others go on
            _log.warning("device_memory_not_read", device=index, error=str(error))
            return 0

    def broken(self, key: Key, rank: int, index: int, leader: int) -> str:
        """Return how a process holds more than it may; empty where it keeps to its cap."""
        cap_bytes = self.caps.get(key, {}).get(index, 0)
        on_host = self._devices[index].backend != "cuda"
        if not cap_bytes or (on_host and self.enforcer.name == "cgroup"):
            return ""
        held_bytes = self.held_bytes(index, leader)
        if held_bytes <= cap_bytes + HOST_LEAST_BYTES * on_host:
            return ""
        return f"rank {rank} held {_mib(held_bytes)} of device {index}, where it may hold {_mib(cap_bytes)}"

    def killed(self, key: Key, rank: int, devices: Sequence[int]) -> str:
        """Return how the kernel ended a process for its memory; empty where it did not."""
        cap_bytes = self._on_host(key, devices)
        if not cap_bytes or not self.enforcer.usage(_name(key, rank), 0).killed:
            return ""
        return f"rank {rank} wanted more than the {_mib(cap_bytes)} that it may hold, and was ended by the kernel"

    def forget(self, key: Key, ranks: Mapping[int, object]) -> None:
        """Remove what was made for a run that has ended."""
        self.framework_bytes.pop(key, None)
        if self.caps.pop(key, None) and self._enforcer is not None:
            for rank in ranks:
                self._enforcer.forget(_name(key, rank))

    def least_bytes(self, key: Key) -> int:
        """Return the least of what a run may hold of any of its devices; 0 where it has them alone."""
        return min(self.caps.get(key, {}).values(), default=0)

    def _least(self, key: Key, devices: Sequence[int]) -> int:
        known = self.caps.get(key, {})
        return min((known[index] for index in devices if index in known), default=0)

    def _on_host(self, key: Key, devices: Sequence[int]) -> int:
        """Return the cap of a process on the host's memory: that of all of its devices which are no GPUs; or 0."""
        known = self.caps.get(key, {})
        on_host = [known[i] for i in devices if i in known and self._devices[i].backend != "cuda"]
        return sum(on_host) + HOST_LEAST_BYTES if on_host else 0


def _name(key: Key, rank: int) -> str:
    return f"{key[0]}-{key[1]}-{rank}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.0f} MiB"
