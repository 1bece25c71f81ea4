"""
A job's past and its sizes.

:class:`JobHistory` is what the gateway remembers of a job beside its state: devices, rank, warnings, and the commits
that made it what it is. :class:`JobSizes` belongs to an elastic job: which sizes it has had, how fast it was with each,
and which decisions led there. :func:`view` shows the sizes to people.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock_log import (
    Demand,
    Event,
    Job,
    JobRank,
    JobSpec,
    JobState,
    Placement,
    RoundDecided,
    RunEnded,
    RunRewound,
    RunStarted,
    RunWarned,
    ScaleDecided,
)
from penstock_log.job_state import Size
from penstock_log.text import count
from penstock_log.views import ResizeView, RunView, SizingView

MOST_WARNINGS = 5


class JobHistory(msgspec.Struct, kw_only=True):
    """
    One job's past.

    Attributes
    ----------
    seq, last_seq : int
        Sequences of the commit that submitted the job and of the last one that changed it.
    state, since_s
        The job's state, and when it began.
    devices : list of str
        All devices that the job was placed on, in order of first use.
    warnings : list of str
        The last few warnings.
    announced : bool
        Whether the job's ``JobFinished`` is in the log.
    sizing : JobSizes or None
        The sizes of an elastic job.
    freed : dict of str to int
        Job → devices that it gives up for this job, until this job is placed.
    """

    seq: int
    last_seq: int
    state: JobState
    since_s: float
    devices: list[str] = msgspec.field(default_factory=list)
    rank: JobRank | None = None
    warnings: list[str] = msgspec.field(default_factory=list)
    announced: bool = False
    sizing: JobSizes | None = None
    freed: dict[str, int] = msgspec.field(default_factory=dict)

    def note(self, job: Job, event: Event, seq: int) -> None:
        """Note a fact that changed the job."""
        self.last_seq = seq
        if job.state is not self.state:
            self.state, self.since_s = job.state, event.at_s
        if isinstance(event, RoundDecided) and job.placement is not None:
            self.devices += [name for name in device_names(job.placement) if name not in self.devices]
            self.freed = {}
        if self.sizing is not None:
            self.sizing.note(job, event)

    def asked(self, job: Job) -> JobSpec:
        """Return the specification as submitted; an elastic job's own one changes with its size."""
        return self.sizing.asked if self.sizing is not None else job.spec

    def warn(self, event: RunWarned | RunRewound) -> None:
        """Keep a warning."""
        said = rewound(event) if isinstance(event, RunRewound) else event.warning
        self.warnings = [*self.warnings, said][-MOST_WARNINGS:]


def begin_sizes(job: Job) -> JobSizes | None:
    """Return the sizes of a job that was just submitted; None where its size is always the same."""
    return JobSizes(asked=job.spec, size=job.size) if job.spec.elastic else None


def begin_history(job: Job, event: Event, seq: int) -> JobHistory:
    """Return the history of a job that was just submitted."""
    return JobHistory(seq=seq, last_seq=seq, state=job.state, since_s=event.at_s, sizing=begin_sizes(job))


def rewound(event: RunRewound) -> str:
    """
    Return in a sentence from where a job goes on instead of its last checkpoint.

    Examples
    --------
    >>> rewound(RunRewound(at_s=0, job_id="j", epoch=2, node_id="n", step=0, lost_step=9, reason="it is on n1: gone"))
    'goes on from step 0 instead of 9: it is on n1: gone'
    """
    return f"goes on from step {event.step} instead of {event.lost_step}: {event.reason}"


def device_names(placement: Placement) -> list[str]:
    """
    Return the devices of a grant as people call them: node, kind and number.

    Examples
    --------
    >>> from penstock_log import Slot
    >>> slots = (Slot(node_id="n1", devices=(0, 1)),)
    >>> device_names(Placement(job_id="j", epoch=1, kind="fast", slots=slots))
    ['n1/fast0', 'n1/fast1']
    """
    return [f"{slot.node_id}/{placement.kind}{index}" for slot in placement.slots for index in slot.devices]


MOST_RUNS: Final = 100
MOST_RESIZES: Final = 20


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a running job last reported outside of the log; ``epoch`` is 0 if an old executor left it out."""

    epoch: int = 0
    step: int = 0
    metrics: dict[str, float] = {}
    loop_s: float = 0.0
    batch_size: int = 0
    samples: int = 0


class RunSizeRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    One run, with what its first process last reported; ``end_s`` is None while it lasts.

    ``begun_samples`` counts the samples done before the run; -1 where the count is unknown, because the job lost some.
    """

    epoch: int
    start_s: float
    gpus: int
    batch_size: int = 0
    kind: str = ""
    begun_steps: int = 0
    begun_samples: int = -1
    samples: int = 0
    end_s: float | None = None
    steps: int = 0
    loop_s: float = 0.0
    outcome: str = ""

    def told(self, steps: int, loop_s: float, batch_size: int, samples: int) -> None:
        """Note the run's progress; of a gang over several nodes, the largest that any node reports."""
        if steps >= self.steps:
            self.steps, self.loop_s = steps, loop_s
        self.batch_size = batch_size or self.batch_size
        if self.begun_samples >= 0:
            self.samples = max(self.samples, samples - self.begun_samples)

    def samples_per_s(self, now_s: float) -> float | None:
        """
        Return the run's speed, with its start and end included; None where it is not known.

        The time is the clock's and not ``loop_s``: on an emulated device ``loop_s`` leaves out waiting, also for peers.
        """
        done = self.samples or self.batch_size * self.steps
        lasted_s = (now_s if self.end_s is None else self.end_s) - self.start_s
        return done / lasted_s if done and lasted_s > 0 else None


class JobSizes(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    One elastic job's sizes.

    Attributes
    ----------
    asked : JobSpec
        The specification as submitted; the job's own one changes with each demand.
    size : Size
        The size that the job has, or asks for, by the last fact about it.
    runs : list of RunSizeRecord
        The last :data:`MOST_RUNS` runs; ``left_out`` counts the earlier ones.
    resizes : list of ResizeView
        The last :data:`MOST_RESIZES` resizes.
    unfit : int
        How many sizes did not work, so that the job returned to the one before.
    steps : int
        Steps that the job had done by the last fact about it.
    """

    asked: JobSpec
    size: Size
    runs: list[RunSizeRecord] = []
    left_out: int = 0
    resizes: list[ResizeView] = []
    unfit: int = 0
    steps: int = 0

    def note(self, job: Job, event: Event) -> None:
        """Note a fact that changed the job's size or run."""
        if isinstance(event, RunStarted):
            self._begin(job, event)
        elif isinstance(event, RunEnded) and self.runs and self.runs[-1].epoch == event.epoch:
            self.runs[-1].told(event.loop_steps, event.loop_s, event.batch_size, event.samples)
        elif isinstance(event, RunRewound) and self.runs and self.runs[-1].epoch == event.epoch:
            self.runs[-1].begun_steps, self.runs[-1].begun_samples = event.step, event.samples
        self._end(job, event.at_s)
        if len(job.unfit) > self.unfit:
            self.unfit = len(job.unfit)
            self._resized(_went_back(job, self.size, event.at_s))
        self.size, self.steps = job.size, job.steps

    def demanded(self, job: Job, demand: Demand, event: ScaleDecided, takes: dict[str, int]) -> None:
        """Note a decision about the job's size; call this before :meth:`note`."""
        after = job.size if job.demand is None else Size(demand.gpus, demand.batch_size or job.spec.batch_size)
        resize = ResizeView(
            at_s=event.at_s,
            because=event.because,
            before=self.size,
            after=after,
            kinds=demand.kinds,
            reason=demand.reason,
            gives=demand.gives,
            takes=takes,
            done_s=None,
        )
        self._resized(resize)

    def _resized(self, resize: ResizeView) -> None:
        self.resizes = [*self.resizes, resize][-MOST_RESIZES:]

    def _begin(self, job: Job, event: RunStarted) -> None:
        if job.placement is None or (self.runs and self.runs[-1].epoch == event.epoch):
            return
        run = RunSizeRecord(
            epoch=event.epoch,
            start_s=event.at_s,
            gpus=job.spec.gpus,
            batch_size=job.spec.batch_size,
            kind=job.placement.kind,
            begun_steps=event.resumed_step,
            begun_samples=job.samples if event.resumed_step == self.steps else -1,
        )
        self.left_out += len(self.runs) == MOST_RUNS
        self.runs = [*self.runs, run][-MOST_RUNS:]
        if self.resizes and self.resizes[-1].done_s is None and self.resizes[-1].after == job.size:
            self.resizes[-1] = msgspec.structs.replace(self.resizes[-1], done_s=event.at_s)

    def _end(self, job: Job, at_s: float) -> None:
        """Close the last run if the job no longer has its devices, whichever fact took them."""
        if self.runs and self.runs[-1].end_s is None and job.placement is None:
            asked = bool(self.resizes) and self.resizes[-1].done_s is None
            self.runs[-1].end_s = at_s
            self.runs[-1].outcome = "resized" if asked and job.outcome == "preempted" else job.outcome


def givers(demands: Iterable[Demand]) -> dict[str, dict[str, int]]:
    """
    Return who gets devices from whom.

    Examples
    --------
    >>> givers([Demand(job_id="a", epoch=1, gives={"b": 2}), Demand(job_id="c", epoch=1, gives={"b": 1})])
    {'b': {'a': 2, 'c': 1}}
    """
    found: dict[str, dict[str, int]] = {}
    for demand in demands:
        for job_id, devices in demand.gives.items():
            found.setdefault(job_id, {})[demand.job_id] = devices
    return found


def lr_factor(spec: JobSpec) -> float | None:
    """
    Return the factor of a job's learning rate at its present batch size; None if a function of its script decides.

    Examples
    --------
    >>> from penstock_log import Batch
    >>> batch = Batch(min=32, max=512, base=64, lr="sqrt")
    >>> lr_factor(JobSpec(name="a", command=("x",), batch=batch, batch_size=256))
    2.0
    """
    batch = spec.batch
    if batch is None or not batch.base or not spec.batch_size:
        return 1.0
    times = spec.batch_size / batch.base
    return {"keep": 1.0, "linear": times, "sqrt": math.sqrt(times), "callback": None}[batch.lr]


def view(sizing: JobSizes, job: Job, told: RunReport, now_s: float) -> SizingView:
    """Return a job's sizes as people see them, with what its run reported outside of the log."""
    spec, runs = job.spec, [_run(run, told, now_s) for run in sizing.runs]
    batch = spec.batch
    return SizingView(
        widths=(spec.widths[0], spec.widths[-1]),
        batches=(batch.min, batch.max) if batch is not None else (spec.batch_size, spec.batch_size),
        size=job.size,
        lr_rule=batch.lr if batch is not None else "keep",
        lr_factor=lr_factor(spec),
        samples_per_s=runs[-1].samples_per_s if runs and runs[-1].end_s is None else None,
        runs=tuple(runs),
        left_out=sizing.left_out,
        resizes=tuple(sizing.resizes),
        unfit=job.unfit,
    )


def range_words(spec: JobSpec) -> str:
    """
    Return in words the sizes that an elastic job may have; empty for other jobs.

    Examples
    --------
    >>> range_words(JobSpec(name="a", command=("x",), min_gpus=1, max_gpus=8, batch_size=256))
    '1 to 8 devices with a batch of 256'
    """
    if not spec.elastic:
        return ""
    batch = f"{spec.batch.min} to {spec.batch.max}" if spec.batch is not None else str(spec.batch_size)
    devices = f"{spec.widths[0]} to {spec.max_gpus} devices" if spec.max_gpus else count(spec.gpus, "device")
    return f"{devices} with a batch of {batch}"


def words(spec: JobSpec) -> str:
    """
    Return in words the size that an elastic job has or asks for, and its bounds; empty for other jobs.

    Examples
    --------
    >>> from penstock_log import Batch
    >>> spec = JobSpec(name="a", command=("x",), gpus=4, min_gpus=1, max_gpus=8, batch_size=256)
    >>> words(spec)
    '4 devices (of 1 to 8) with a batch of 256'
    >>> batch = Batch(min=64, max=512)
    >>> words(msgspec.structs.replace(spec, min_gpus=0, max_gpus=0, batch=batch))
    '4 devices with a batch of 256 (of 64 to 512)'
    """
    if not spec.elastic:
        return ""
    devices = count(spec.gpus, "device") + (f" (of {spec.widths[0]} to {spec.max_gpus})" if spec.max_gpus else "")
    batch = f" with a batch of {spec.batch_size}" if spec.batch_size else ""
    return devices + batch + (f" (of {spec.batch.min} to {spec.batch.max})" if spec.batch is not None else "")


def _run(run: RunSizeRecord, told: RunReport, now_s: float) -> RunView:
    if run.end_s is None and told.step > run.begun_steps:
        run = msgspec.structs.replace(run)
        run.told(told.step - run.begun_steps, told.loop_s, told.batch_size, told.samples)
    return RunView(
        start_s=run.start_s,
        end_s=run.end_s,
        gpus=run.gpus,
        batch_size=run.batch_size,
        kind=run.kind,
        steps=run.steps,
        loop_s=run.loop_s,
        samples_per_s=run.samples_per_s(now_s),
        outcome=run.outcome,
    )


def _went_back(job: Job, before: Size, at_s: float) -> ResizeView:
    return ResizeView(
        at_s=at_s,
        because="unfit",
        before=before,
        after=job.size,
        kinds=(),
        reason=job.reason,
        gives={},
        takes={},
        done_s=None,
    )
