"""Samples of a node's devices: who is on each, and what its monitor reads. Part of the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from penstock_cluster.accounting import by_session
from penstock_cluster.device_backend import BACKENDS
from penstock_cluster.device_monitor import DeviceMonitor
from penstock_cluster.host_limits import host_name
from penstock_executor.run_state import LocalRun
from penstock_log import Device, Job
from penstock_log.device_samples import DeviceSample, DevicesSampled, DeviceUser

_MOST: Final = 2_000
"""On a node with more devices, those that nobody uses are left out of a sample: it is one message."""


class DeviceHolders(msgspec.Struct, frozen=True):
    """
    Who has the devices of a node.

    Attributes
    ----------
    users : dict of int to list of DeviceUser
        Device → jobs.
    sessions : dict of int to dict of int to float
        Device → session of a process that has it → which part of its work is on it.
    """

    users: dict[int, list[DeviceUser]]
    sessions: dict[int, dict[int, float]]


def holders(
    runs: Iterable[LocalRun], job_of: Callable[[str], Job | None], leader: Callable[[tuple[tuple[str, int], int]], int]
) -> DeviceHolders:
    """
    Return who has the devices, by the runs whose processes live.

    Parameters
    ----------
    job_of : callable
        From an id to the job, as far as the log has it.
    leader : callable
        From a run and the rank of a process to its session.
    """
    found = DeviceHolders({}, {})
    for run in runs:
        job = job_of(run.job_id)
        user = DeviceUser(run.job_id, job.spec.user, job.spec.team) if job is not None else DeviceUser(run.job_id)
        for rank, devices in run.devices_of.items():
            if not run.ranks[rank].alive:
                continue
            session = leader((run.key, rank))
            for device in devices:
                there = found.users.setdefault(device, [])
                there += [user] if user not in there else []
                if session:  # it may just have ended
                    found.sessions.setdefault(device, {})[session] = 1.0 / len(devices)
    return found


class DeviceSampler:
    """
    Samples the devices of a node.

    Parameters
    ----------
    devices : tuple of Device
        Of the node, numbered as the log has them.
    clock : callable
        Seconds that never jump.
    monitors : dict of str to DeviceMonitor, optional
        Backend → its monitor; by default the backends' own.
    """

    def __init__(
        self,
        node_id: str,
        devices: tuple[Device, ...],
        clock: Callable[[], float],
        monitors: Mapping[str, DeviceMonitor] | None = None,
    ) -> None:
        self._node_id, self._devices, self._host = node_id, devices, host_name()
        backends = {device.backend for device in devices}
        self._monitors = monitors or {name: BACKENDS[name].load().monitor(clock) for name in backends}

    def sample(self, held: DeviceHolders, now_s: float) -> DevicesSampled:
        """Return a sample; it asks drivers, which may take long, so it is for a thread of its own."""
        sessions = {session for parts in held.sessions.values() for session in parts}
        families = by_session(sessions) if sessions else {}
        shown = [one for one in self._devices if len(self._devices) <= _MOST or one.index in held.users]
        samples = tuple(self._sample(device, held, families) for device in shown)
        return DevicesSampled(node_id=self._node_id, host=self._host, at_s=now_s, devices=samples)

    def close(self) -> None:
        """Let go of the drivers."""
        for monitor in self._monitors.values():
            monitor.close()

    def _sample(self, device: Device, held: DeviceHolders, families: Mapping[int, tuple[int, ...]]) -> DeviceSample:
        parts = held.sessions.get(device.index, {})
        pids = {pid: part for session, part in parts.items() for pid in families.get(session, ())}
        return DeviceSample(
            index=device.index,
            kind=device.kind,
            backend=device.backend,
            uuid=device.uuid,
            parent=device.parent,
            users=tuple(held.users.get(device.index, ())),
            reading=self._monitors[device.backend].read(device, pids),
        )
