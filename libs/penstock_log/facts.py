"""
Facts that are asked for, happen or are measured: those of jobs, runs, nodes, requests, policies and workloads.

Every fact is an :class:`Event`: it has a tag of its own, an entity, and the time at which it became true.

* The gateway writes facts about jobs on ``evt.job.<id>``, what people ask of sweeps and nodes on ``evt.request.<id>``,
  and a pool's live settings and reservations on ``evt.policy.<pool>``.
* Executors write facts about runs, each one attempt of a job on its devices, on ``evt.run.<job>``, and facts about
  their nodes on ``evt.node.<id>``.
* The profiler writes facts about workloads on ``evt.profile.<key>``.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Optional

import msgspec
from msgspec import Meta

from penstock_log.session_messages import Purpose
from penstock_log.spec import CheckpointTier, Device, JobSpec, MemoryNeed, Outcome, Role, Setting, SweepSpec


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """
    A fact of the past, about one entity.

    Every subclass repeats ``frozen=True, kw_only=True`` and gives a versioned ``tag``: the tag is what the log holds,
    the class name is free to change. Fields are only ever added, with defaults; a change of meaning is a new tag and
    an entry in :mod:`penstock_log.codec`.

    Attributes
    ----------
    at_s : float
        Seconds since the Unix epoch at which the fact became true, by the writer's clock.
    """

    at_s: float


_NEVER_READ: Final = Meta(pattern=r"(?!)")


class UnknownFact(Event, frozen=True, kw_only=True):
    """
    A fact of an extension, or of a later version: kept as the log holds it, and ignored by every fold.

    :mod:`penstock_log.codec` makes it of what no other type fits; no bytes decode as this type itself.

    Attributes
    ----------
    at_s : float
        The fact's own ``at_s``; 0 where it has none that is a number.
    tag : str
        Such as ``ext.billing.job_priced.v1``.
    raw : dict
        The whole JSON object, its tag included. It is not to be changed.
    """

    tag: Annotated[str, _NEVER_READ]
    raw: dict[str, Any]


class JobSubmitted(Event, frozen=True, kw_only=True, tag="job.submitted.v1"):
    """The gateway accepted a job; from here on it ends exactly once."""

    job_id: str
    spec: JobSpec


class JobCancelled(Event, frozen=True, kw_only=True, tag="job.cancelled.v1"):
    """Somebody asked for the job to end; a running one is stopped first."""

    job_id: str
    by: str = ""
    reason: str = ""


class JobHeld(Event, frozen=True, kw_only=True, tag="job.held.v1"):
    """The job is not to be started until it is released; a running one goes on."""

    job_id: str
    by: str = ""


class JobReleased(Event, frozen=True, kw_only=True, tag="job.released.v1"):
    """The job may start again."""

    job_id: str
    by: str = ""


class JobUnblocked(Event, frozen=True, kw_only=True, tag="job.unblocked.v1"):
    """
    All that the job waited for, by ``after`` of its specification, has come: it may start.

    Attributes
    ----------
    met : tuple of str
        What it waited for, each as in the specification.
    """

    job_id: str
    met: tuple[str, ...] = ()


class JobTimedOut(Event, frozen=True, kw_only=True, tag="job.timed_out.v1"):
    """
    The job has run for as long as it may; a running one is stopped first, and may save a checkpoint.

    Attributes
    ----------
    limit_s : float
        How long it may run, over all of its runs.
    executed_s : float
        How long it had run by then.
    """

    job_id: str
    limit_s: float
    executed_s: float


class JobTimeSet(Event, frozen=True, kw_only=True, tag="job.time_set.v1"):
    """The job may run for another time than it said at its submission: so many seconds over all of its runs; 0: any."""

    job_id: str
    limit_s: float
    by: str = ""


class JobEntered(Event, frozen=True, kw_only=True, tag="job.entered.v1"):
    """
    Somebody was let into the job's run: a command beside it, a connection to its ports, or a copy of its files.

    The executor lets in whom this fact names, once, and soon after. The command itself is not told: command lines hold
    passwords, and facts are kept.

    Attributes
    ----------
    session_id : str
        Chosen by who enters; the executor knows the session by it.
    node_id : str
        Where the process of rank ``rank`` is.
    """

    job_id: str
    session_id: str
    epoch: int
    rank: int
    node_id: str
    purpose: Purpose = "exec"
    by: str = ""


class JobFinished(Event, frozen=True, kw_only=True, tag="job.finished.v1"):
    """
    The job is over: the gateway's announcement, for people and for services that keep no fold of their own.

    A fold of job, round and run facts by :mod:`penstock_log.lifecycle` knows the same without it.
    """

    job_id: str
    name: str
    state: Literal["completed", "failed", "cancelled"]
    submitted_s: float
    reason: str = ""
    exit_code: Optional[int] = None
    run_s: float = 0.0
    gpu_s: float = 0.0
    preemptions: int = 0
    attempts: int = 0
    steps: int = 0
    metrics: dict[str, float] = {}
    user: str = ""
    parent: str = ""


class RunStarted(Event, frozen=True, kw_only=True, tag="run.started.v1"):
    """
    The executor of one node started the job's processes on all of its devices there.

    Attributes
    ----------
    resumed_step : int
        The step of the checkpoint that the executor has found on its node, and has the processes load; 0 where there
        is none.
    resumed_digest : str
        The digest of that checkpoint; empty where it is not known.
    begun_from : str
        The other job whose checkpoint it is, where the job has none of its own.
    copied_from : str
        The node from which the executor copied the checkpoint for this run; empty where it was there already.
    start : str
        ``parked`` where its process is that of an earlier run, which was stopped with its memory kept and goes on.
        ``warm`` where its processes were forked from a server that had imported their modules; ``cold: `` and the
        reason where the job asks for that and it could not be; empty otherwise.
    """

    job_id: str
    epoch: int
    node_id: str
    devices: tuple[int, ...]
    resumed_step: int = 0
    resumed_digest: str = ""
    begun_from: str = ""
    copied_from: str = ""
    start: str = ""


class RunCheckpointed(Event, frozen=True, kw_only=True, tag="run.checkpointed.v1"):
    """
    A checkpoint was completed on a node: a later run resumes after this step.

    Attributes
    ----------
    generation : int
        Epoch of the run that wrote the checkpoint, where that is not ``epoch``: an executor found it later.
    digest : str
        SHA-256 of its manifest, which has a checksum of each of its files; empty where the script did not say.
    tier : {"disk", "memory"}
        Where it is complete. A checkpoint that was in ``memory`` gets a second such fact once it is on the disk too.
    peers : tuple of str
        Nodes whose memory has a copy each.
    """

    job_id: str
    epoch: int
    node_id: str
    step: int
    generation: int = 0
    digest: str = ""
    tier: CheckpointTier = "disk"
    peers: tuple[str, ...] = ()


class RunRewound(Event, frozen=True, kw_only=True, tag="run.rewound.v1"):
    """
    The job's last checkpoint is not available or was not loaded, so the job goes on from an earlier step.

    Attributes
    ----------
    step : int
        The step from which it goes on; 0 is the beginning.
    generation, digest : int, str
        Of the checkpoint after that step; 0 and empty where there is none.
    samples : int
        Samples that were done by then.
    lost_step, lost_generation : int
        Step and generation of the checkpoint that is not used.
    reason : str
        Why, in one sentence.
    """

    job_id: str
    epoch: int
    node_id: str
    step: int
    generation: int = 0
    digest: str = ""
    samples: int = 0
    lost_step: int = 0
    lost_generation: int = 0
    reason: str = ""


class RunIdle(Event, frozen=True, kw_only=True, tag="run.idle.v1"):
    """
    A run has done nothing on a node for as long as its pool's rule says; it holds its devices all the same.

    Attributes
    ----------
    since_s : float
        Since when.
    measure : {"iterations", "processor"}
        By what: no iteration was done, of a script in a session; or no use of its devices and almost no processor time,
        of any other command.
    """

    job_id: str
    epoch: int
    node_id: str
    since_s: float
    measure: Literal["iterations", "processor"] = "iterations"


class RunBusyAgain(Event, frozen=True, kw_only=True, tag="run.busy_again.v1"):
    """A run that was idle on a node does something again."""

    job_id: str
    epoch: int
    node_id: str


class RunEnded(Event, frozen=True, kw_only=True, tag="run.ended.v1"):
    """
    All of the job's processes on one node are gone, and its devices there are free.

    Attributes
    ----------
    outcome : {"completed", "failed", "preempted", "cancelled", "lost"}
        ``lost`` means that the processes vanished without an exit status (the machine went down): it is not held
        against the job.
    steps : int
        Iterations done since the job's very beginning, over all runs.
    loop_steps, loop_s : int, float
        Iterations of this run and the seconds that they took.
    waited_s : float
        Seconds waited between them, for its turns on devices that it shares.
    saves : bool
        Whether its script can save a checkpoint: then a run that is stopped loses no step.
    peak_memory_bytes : int
        The most that its first process reported to hold of one device, between and within iterations; 0: no report.
    out_of_memory : bool
        Whether it failed for want of memory.
    killed : bool
        Whether it failed because one of its processes was ended by a signal that its executor had not sent.
    refuses_user : bool
        Whether no process was started, as the node runs no jobs of the user: ``preempted``, and to be placed elsewhere.
    cap_bytes : int
        The most that each of its processes may hold of a device that it shares; 0 where it has its devices to itself.
    metrics : dict
        The last value of each reported metric, where that was a finite number.
    diverged : tuple of str
        Metrics whose last value was none.
    skew : float
        Share of the model's largest tensor in all of its tensors, as the script described it; 0 where it did not.
    batch_size : int
        Samples of one step over all processes, as the script asks for or its sampler draws; 0 where it does neither.
    samples : int
        Samples that its sampler handed out and that were done, over all runs and epochs; 0 without a sampler.
    iteration_s, error_s : float
        Mean over the measured iterations of this run, and its standard error, in seconds; 0 where not known.
    parked, parked_bytes : bool, int
        Whether its process stays on the node, stopped, to go on as a later run; and the memory of the host that it
        holds there.
    """

    job_id: str
    epoch: int
    node_id: str
    outcome: Outcome
    exit_code: Optional[int] = None
    reason: str = ""
    steps: int = 0
    loop_steps: int = 0
    loop_s: float = 0.0
    waited_s: float = 0.0
    saves: bool = False
    peak_memory_bytes: int = 0
    out_of_memory: bool = False
    killed: bool = False
    refuses_user: bool = False
    cap_bytes: int = 0
    metrics: dict[str, float] = {}
    diverged: tuple[str, ...] = ()
    skew: float = 0.0
    batch_size: int = 0
    samples: int = 0
    iteration_s: float = 0.0
    error_s: float = 0.0
    parked: bool = False
    parked_bytes: int = 0


class RunUnparked(Event, frozen=True, kw_only=True, tag="run.unparked.v1"):
    """The process of a run that had ended as parked is gone: a later run begins from the checkpoint, by a load."""

    job_id: str
    epoch: int
    node_id: str
    reason: str = ""


class RunWarned(Event, frozen=True, kw_only=True, tag="run.warned.v1"):
    """Something about the run deserves attention, and it goes on: a checkpoint failed, output was dropped."""

    job_id: str
    epoch: int
    node_id: str
    warning: str


class RunMeasured(Event, frozen=True, kw_only=True, tag="run.measured.v1"):
    """A run's need of one device's memory was measured at its iterations' boundaries; again where it has changed."""

    job_id: str
    epoch: int
    node_id: str
    need: MemoryNeed
    iterations: int


class LaneChanged(Event, frozen=True, kw_only=True, tag="run.lane_changed.v1"):
    """
    A run that shares its device entered a lane, left it, or has to wait at a boundary for memory.

    Attributes
    ----------
    device : int
        Of the node.
    lane : int
        Number of the lane, counted from 0 over the device's life; -1 while it is in none.
    change : {"entered", "moved", "parked", "left"}
    reason : str
        In one sentence.
    """

    job_id: str
    epoch: int
    node_id: str
    device: int
    lane: int
    change: Literal["entered", "moved", "parked", "left"]
    reason: str = ""


class NodeJoined(Event, frozen=True, kw_only=True, tag="node.joined.v2"):
    """
    A node's executor is up, has ended what no longer belongs to it, and offers these devices.

    The executor writes it at every start. ``v1`` had only a count of devices of one kind; it is upcast.

    Attributes
    ----------
    incarnation : str
        Changes with every start of the executor.
    cpus : float
        Processors that jobs may use; 0: not known, so no job waits for want of them.
    host_memory_bytes : int
        Memory of the host that jobs may use; 0: not known, so no job waits for want of it.
    held_by : {"", "cgroup", "rlimit"}
        How the executor enforces their share of it; empty: it does not.
    containers : tuple of str
        What runs the images of jobs here; empty: nothing, so no job with an image comes here, but for one.
    image : str
        The image in which the executor itself runs, as in a Pod: its jobs run here without a container. Empty: none.
    until_s : float
        When the node will leave by itself, in seconds since the epoch: it was lent for a while. 0: nobody knows.
    """

    node_id: str
    devices: tuple[Device, ...]
    pool: str = "default"
    labels: dict[str, str] = {}
    incarnation: str = ""
    cpus: float = 0.0
    host_memory_bytes: int = 0
    held_by: Literal["", "cgroup", "rlimit"] = ""
    containers: tuple[str, ...] = ()
    image: str = ""
    until_s: float = 0.0


class NodeLeaving(Event, frozen=True, kw_only=True, tag="node.leaving.v1"):
    """
    The executor begins to stop: its node takes no new jobs, and those that run there are preempted next.

    It is in the log before the first of them has ended, so that none is placed there again. It holds until the next
    ``NodeJoined``.

    Attributes
    ----------
    incarnation : str
        Which start of the executor ends.
    reason : str
        Why: ``shutdown``, or ``it has had its runs``, which leaves those alone that are there still.
    """

    node_id: str
    incarnation: str = ""
    reason: str = ""


class NodeLeft(Event, frozen=True, kw_only=True, tag="node.left.v1"):
    """The executor stopped in good order and all of its runs have ended."""

    node_id: str
    reason: str = ""


class DeviceFailed(Event, frozen=True, kw_only=True, tag="node.device_failed.v1"):
    """
    The executor found a device of its node unfit: it takes no new jobs, and its running ones are moved.

    Attributes
    ----------
    index : int
        The device's number on its node.
    code : str
        What was measured: ``xid 79``, or the name of a counter such as ``ecc_uncorrected``.
    reason : str
        In one sentence, with the figures.
    boot : str
        The boot of the machine in which it failed; empty where that is not known. An error that only an event told of
        counts until the next boot, or until an operator resumes the device.
    """

    node_id: str
    index: int
    code: str
    reason: str = ""
    boot: str = ""


class DeviceRecovered(Event, frozen=True, kw_only=True, tag="node.device_recovered.v1"):
    """The executor finds a device well that it had found unfit; what an operator drained stays drained."""

    node_id: str
    index: int


class SweepSubmitted(Event, frozen=True, kw_only=True, tag="request.sweep_submitted.v1"):
    """The gateway accepted a sweep."""

    sweep_id: str
    spec: SweepSpec


class SweepCancelled(Event, frozen=True, kw_only=True, tag="request.sweep_cancelled.v1"):
    """No further trials; the gateway cancels those that have not ended."""

    sweep_id: str
    by: str = ""


class NodeDrained(Event, frozen=True, kw_only=True, tag="request.node_drained.v1"):
    """The node takes no new jobs; with ``preempt`` its running ones are checkpointed and moved."""

    node_id: str
    by: str = ""
    reason: str = ""
    preempt: bool = False


class NodeRemoved(Event, frozen=True, kw_only=True, tag="request.node_removed.v1"):
    """The node is gone and no longer listed; if its executor ever starts again, it joins as a new node."""

    node_id: str
    by: str = ""
    reason: str = ""


class NodeResumed(Event, frozen=True, kw_only=True, tag="request.node_resumed.v1"):
    """The node takes jobs again."""

    node_id: str
    by: str = ""


class DeviceDrained(Event, frozen=True, kw_only=True, tag="request.device_drained.v1"):
    """One device takes no new jobs; with ``preempt`` its running ones are checkpointed and moved."""

    node_id: str
    index: int
    by: str = ""
    reason: str = ""
    preempt: bool = False


class DeviceResumed(Event, frozen=True, kw_only=True, tag="request.device_resumed.v1"):
    """The device takes jobs again, whether it was drained or had failed."""

    node_id: str
    index: int
    by: str = ""


class PolicySet(Event, frozen=True, kw_only=True, tag="policy.set.v1"):
    """
    From here on a pool is run by these settings; the services' own settings say what these leave out.

    Attributes
    ----------
    settings : dict of str to Setting
        All that are set live, by name as in ``[ranker.pools.NAME]`` and ``[matcher.pools.NAME]``; none: nothing is.
    """

    pool: str
    settings: dict[str, Setting]
    by: str = ""
    reason: str = ""


class ReservationMade(Event, frozen=True, kw_only=True, tag="policy.reserved.v1"):
    """
    So many devices of a pool are a team's own for a time; what it does not claim is lent.

    Attributes
    ----------
    reservation_id : str
        Unique within the pool.
    gpus : int
        Devices, beside the team's quota.
    from_s, until_s : float
        Seconds since the epoch.
    kind : str
        Of the devices; empty: of whatever kinds.
    """

    pool: str
    reservation_id: str
    team: str
    gpus: int
    from_s: float
    until_s: float
    by: str = ""
    reason: str = ""
    kind: str = ""


class ReservationCancelled(Event, frozen=True, kw_only=True, tag="policy.unreserved.v1"):
    """A reservation holds no longer, or never will."""

    pool: str
    reservation_id: str
    by: str = ""
    reason: str = ""


class UserSet(Event, frozen=True, kw_only=True, tag="user.set.v1"):
    """
    A person may use the cluster, with this role and in these teams.

    Attributes
    ----------
    user : str
        The name under which the server knows the person.
    teams : tuple of str
        The first is the team of jobs that name none.
    valid_from_s : float
        The last revocation: logins that were issued before it count no more, seconds since the epoch; 0 for none.
    open_jobs : int, optional
        The most jobs that the person may have open; None is as the gateway's settings say.
    commands_per_s : float, optional
        How many commands the person may go on sending in each second; None as above.
    """

    user: str
    role: Role = "user"
    teams: tuple[str, ...] = ()
    valid_from_s: float = 0.0
    by: str = ""
    open_jobs: Optional[int] = None
    commands_per_s: Optional[float] = None


class UserRemoved(Event, frozen=True, kw_only=True, tag="user.removed.v1"):
    """A person may not use the cluster any more; jobs that were submitted go on."""

    user: str
    by: str = ""
    reason: str = ""


def worded(value: Setting) -> str:
    """
    Return a setting as people write it.

    Examples
    --------
    >>> worded("fifo"), worded([60.0, 600.0]), worded(True), worded(None), worded([])
    ('fifo', '60,600', 'true', 'off', '[]')
    """
    if value is None:
        return "off"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(worded, value)) or "[]"
    return f"{value:g}" if isinstance(value, float) else str(value)


class ProfileSample(msgspec.Struct, frozen=True, kw_only=True):
    """
    One short run of a workload, placed by the matcher like a job and never retried.

    Attributes
    ----------
    batch_size : int
        Over all of its devices; 0: as the workload has it.
    """

    sample_id: str
    kind: str
    iterations: int
    gpus: int = 1
    batch_size: int = 0


class SamplesRequested(Event, frozen=True, kw_only=True, tag="profile.samples_requested.v1"):
    """
    An unseen workload is to be sampled; each sample becomes a job of its own, ahead of all others.

    No sample is requested of a workload that its user neither names, nor asks to sample, nor repeats
    (:func:`penstock_policies.sample_plan.why_sampled`).
    """

    key: str
    spec: JobSpec
    samples: tuple[ProfileSample, ...]


class KindSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """
    How fast a workload is on one kind of device.

    Attributes
    ----------
    kind : str
    iteration_s : float
        Seconds an iteration (the slope ``a`` of ``t = a·n + b``); 0 where it could not be measured.
    run_s : float
        Seconds of a whole run, of a workload whose runs have no iterations; 0 where none was measured.
    speed : float
        Relative to the fastest measured kind of this workload, in (0, 1]; larger is faster.
    memory_bytes : int
        Peak seen; 0 where unknown.
    predicted : bool
        True where it was not measured but predicted from other workloads.
    """

    kind: str
    iteration_s: float
    speed: float
    memory_bytes: int = 0
    predicted: bool = False
    run_s: float = 0.0


class WorkloadProfiled(Event, frozen=True, kw_only=True, tag="profile.measured.v1"):
    """
    The profiler's present knowledge of a workload; a later one replaces it.

    Attributes
    ----------
    skew : float
        Share of the model's largest tensor in all of its tensors, as its script described it last; 0 where it did not.
    """

    key: str
    speeds: tuple[KindSpeed, ...]
    note: str = ""
    skew: float = 0.0


class Timing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    The time of an iteration on a number of devices, with a number of samples on each.

    Attributes
    ----------
    gpus, local_batch : int
    iteration_s : float
        Mean, in seconds.
    error_s : float
        Standard error of that mean; 0 where it is not known.
    runs : int
        Samples and real runs that have gone into it.
    """

    gpus: int = 1
    local_batch: int
    iteration_s: float
    error_s: float = 0.0
    runs: int = 1


class Scalability(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A workload's measured scaling with batch size and devices, on one kind of device.

    Attributes
    ----------
    per_gpu_cap : int
        Most samples that one device holds, as far as is known; 0: no limit has been seen.
    note : str
        What could not be measured, and why.
    """

    kind: str
    timings: tuple[Timing, ...]
    per_gpu_cap: int = 0
    note: str = ""


class WorkloadScaled(Event, frozen=True, kw_only=True, tag="profile.scaled.v1"):
    """An elastic workload's scaling with batch size and devices became known, on each kind; a later one replaces it."""

    key: str
    kinds: tuple[Scalability, ...]
