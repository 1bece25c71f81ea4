"""Facts about runs: one attempt of a job on its devices. Written by executors on ``evt.run.<job>``."""

from __future__ import annotations

from typing import Literal

from penstock_events.base import Event
from penstock_events.spec import MemoryNeed, Outcome


class RunStarted(Event, frozen=True, kw_only=True, tag="run.started.v1"):
    """
    The executor of one node started the job's processes on all of its devices there.

    Attributes
    ----------
    resumed_step : int
        The step of the checkpoint that the executor has found on its node, and has the processes load; 0 where there
        is none.
    resumed_digest : str
        Which one that is; empty where nobody knows.
    begun_from : str
        The other job whose checkpoint it is, where the job has none of its own.
    copied_from : str
        The node from which the executor has copied it for this run; empty where it lay there.
    """

    job_id: str
    epoch: int
    node_id: str
    devices: tuple[int, ...]
    resumed_step: int = 0
    resumed_digest: str = ""
    begun_from: str = ""
    copied_from: str = ""


class RunCheckpointed(Event, frozen=True, kw_only=True, tag="run.checkpointed.v1"):
    """
    A checkpoint was completed on a node: a later run resumes after this step.

    Attributes
    ----------
    generation : int
        Epoch of the run that wrote it, where that is not ``epoch``: an executor has found it later.
    digest : str
        SHA-256 of its manifest, which has a checksum of each of its files; empty where the script did not say.
    """

    job_id: str
    epoch: int
    node_id: str
    step: int
    generation: int = 0
    digest: str = ""


class RunRewound(Event, frozen=True, kw_only=True, tag="run.rewound.v1"):
    """
    The job's last checkpoint cannot be had or was not loaded: it goes on from an earlier step.

    Attributes
    ----------
    step : int
        From which it goes on; 0 is the beginning.
    generation, digest : int, str
        Of the checkpoint after that step; 0 and empty where there is none.
    samples : int
        That were done by then.
    lost_step, lost_generation : int
        Of the checkpoint that it does not go on from.
    reason : str
        In one sentence.
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
        Between them, for its turns on devices that it shares.
    saves : bool
        Its script has said how to save a checkpoint: a run that is stopped loses no step.
    peak_memory_bytes : int
        The most that its first process said it held of one device, between iterations and within them; 0: it did not.
    out_of_memory : bool
        It has failed for want of memory.
    killed : bool
        It has failed because one of its processes was ended by a signal that its executor had not sent.
    cap_bytes : int
        What each of its processes might hold of a device that it shared; 0 where it had its devices to itself.
    metrics : dict
        The last value of each reported metric, where that was a finite number.
    diverged : tuple of str
        Metrics whose last value was none.
    skew : float
        Share of the model's largest tensor in all of its tensors, as the script described it; 0 where it did not.
    batch_size : int
        Of one step over all processes, as the script has asked for it or has its sampler draw it; 0 where it has not.
    samples : int
        That its sampler has handed out and that were done, over all runs and epochs; 0 where it has none.
    iteration_s, error_s : float
        Mean over the measured iterations of this run, and its standard error, in seconds; 0 where not known.
    """

    job_id: str
    epoch: int
    node_id: str
    outcome: Outcome
    exit_code: int | None = None
    reason: str = ""
    steps: int = 0
    loop_steps: int = 0
    loop_s: float = 0.0
    waited_s: float = 0.0
    saves: bool = False
    peak_memory_bytes: int = 0
    out_of_memory: bool = False
    killed: bool = False
    cap_bytes: int = 0
    metrics: dict[str, float] = {}
    diverged: tuple[str, ...] = ()
    skew: float = 0.0
    batch_size: int = 0
    samples: int = 0
    iteration_s: float = 0.0
    error_s: float = 0.0


class RunWarned(Event, frozen=True, kw_only=True, tag="run.warned.v1"):
    """Something about the run deserves attention, and it goes on: a checkpoint failed, output was dropped."""

    job_id: str
    epoch: int
    node_id: str
    warning: str


class RunMeasured(Event, frozen=True, kw_only=True, tag="run.measured.v1"):
    """What a run needs of one device's memory, measured at its iterations' boundaries; again where it has changed."""

    job_id: str
    epoch: int
    node_id: str
    need: MemoryNeed
    iterations: int


class LaneChanged(Event, frozen=True, kw_only=True, tag="run.lane_changed.v1"):
    """
    A run that shares its device came into a lane, left it, or has to wait at a boundary until there is memory for it.

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
