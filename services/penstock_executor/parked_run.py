"""
Parked runs: processes that were preempted and stay in memory, stopped, until their job comes back to the same devices.

The rules are here, and pure: :func:`may_park` says which run may be parked, :func:`why_not_on` whether a parked one can
go on under its job's new grant. A run is parked only after its checkpoint is complete, so that one that cannot go on
costs what a preemption costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock_bus.identity.logins import VARIABLE as LOGIN_VARIABLE
from penstock_cluster.device_backend import CAPABILITIES
from penstock_log import Device, Job, JobSpec, JobState


class ParkedRun(msgspec.Struct, frozen=True, kw_only=True):
    """
    A run that has ended as parked.

    Attributes
    ----------
    epoch, step : int
        Of the run, and the step of the checkpoint that it has left.
    home : int
        Epoch of the run in which its processes were started, whose folders they still have.
    spec : JobSpec
        With which they were started.
    kind, devices : str, tuple of Device
        Kind and devices that the run had.
    hold_s : float
        Of its fence, which its shim keeps.
    held_bytes : int
        Memory of the host that it holds.
    at_s : float
        Since when.
    """

    job_id: str
    epoch: int
    step: int
    home: int
    spec: JobSpec
    kind: str
    devices: tuple[Device, ...]
    uid: int | None = None
    hold_s: float = 0.0
    held_bytes: int = 0
    at_s: float = 0.0


def may_park(job: Job, processes: int) -> bool:
    """
    Return whether a run that is to be preempted may be parked, as far as its job goes.

    Parameters
    ----------
    processes : int
        Of the whole run.
    """
    spec = job.spec
    waits = job.state is JobState.PREEMPTING and not job.timed_out and job.startable
    leaves_nothing = not _shares(spec) and LOGIN_VARIABLE not in spec.secret_files  # a parked run's secrets stay
    return waits and processes == 1 and job.demand is None and job.sample is None and leaves_nothing


def _shares(spec: JobSpec) -> bool:
    return spec.sharing != "exclusive" or bool(spec.image)


def why_not_on(parked: ParkedRun, job: Job, devices: Sequence[Device], hold_s: float) -> str:
    """
    Return why a parked run cannot go on under the job's present grant; empty where it can.

    Parameters
    ----------
    devices : sequence of Device
        Those of the grant, on this node.
    hold_s : float
        Of the grant's fence.
    """
    placement, checkpoint = job.placement, job.checkpoint
    if placement is None or len(placement.slots) != 1 or not devices:
        return "it was given other nodes"
    if placement.epoch <= parked.epoch or checkpoint is None:
        return "its job goes on from elsewhere"
    if (checkpoint.generation, checkpoint.step) != (parked.epoch, parked.step):
        return "its job has another checkpoint"
    if _program(job.spec) != _program(parked.spec):
        return "its job's specification has changed"
    if placement.kind != parked.kind or not _alike(parked.devices, devices):
        return "it was given other devices"
    return "" if hold_s == parked.hold_s else "its node has another time without the matcher"


def _program(spec: JobSpec) -> JobSpec:
    """Return a specification without what no process is told of."""
    return msgspec.structs.replace(spec, kinds=(), hold=False, refused_by=())


def _alike(before: Sequence[Device], now: Sequence[Device]) -> bool:
    """Return whether devices are the same to a program: the very ones, or such whose memory is the host's."""
    if all(CAPABILITIES[device.backend].host_memory for device in (*before, *now)):
        before, now = ([msgspec.structs.replace(each, index=0) for each in some] for some in (before, now))
    return sorted(before, key=repr) == sorted(now, key=repr)
