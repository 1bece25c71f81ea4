"""
The sizes of an elastic job: which it has had, how fast it was with each, and which decisions led there.

:class:`JobSizes` is the record. :func:`bounded_size_text` and :func:`range_text` say a size and its bounds in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock_log import Demand, Event, Job, JobSpec, RunEnded, RunRewound, RunStarted, ScaleDecided
from penstock_log.job_state import Size
from penstock_log.request_bodies import RunProgress
from penstock_log.text import count
from penstock_log.views import ResizeView, SizedRunView, SizingView

MOST_RUNS: Final = 100
MOST_RESIZES: Final = 20


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

    def note_progress(self, steps: int, loop_s: float, batch_size: int, samples: int) -> None:
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
            self.runs[-1].note_progress(event.loop_steps, event.loop_s, event.batch_size, event.samples)
        elif isinstance(event, RunRewound) and self.runs and self.runs[-1].epoch == event.epoch:
            self.runs[-1].begun_steps, self.runs[-1].begun_samples = event.step, event.samples
        self._end(job, event.at_s)
        if len(job.unfit) > self.unfit:
            self.unfit = len(job.unfit)
            before, after = self.size, job.size
            self._resize(ResizeView(at_s=event.at_s, because="unfit", before=before, after=after, reason=job.reason))
        self.size, self.steps = job.size, job.steps

    def note_demand(self, job: Job, demand: Demand, event: ScaleDecided, takes: dict[str, int]) -> None:
        """Note a decision about the job's size; call this before :meth:`note`."""
        after = job.size if job.demand is None else Size(demand.gpus, demand.batch_size or job.spec.batch_size)
        self._resize(ResizeView.of(event, demand, before=self.size, after=after, takes=takes))

    def view(self, job: Job, report: RunProgress, now_s: float) -> SizingView:
        """Return the sizes as people see them, with what the job's run reported outside of the log."""
        spec, runs = job.spec, [_run(run, report, now_s) for run in self.runs]
        batch = spec.batch
        return SizingView(
            widths=(spec.widths[0], spec.widths[-1]),
            batches=(batch.min, batch.max) if batch is not None else (spec.batch_size, spec.batch_size),
            size=job.size,
            lr_rule=batch.lr if batch is not None else "keep",
            lr_factor=lr_factor(spec),
            samples_per_s=runs[-1].samples_per_s if runs and runs[-1].end_s is None else None,
            runs=tuple(runs),
            left_out=self.left_out,
            resizes=tuple(self.resizes),
            unfit=job.unfit,
        )

    def _resize(self, resize: ResizeView) -> None:
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
            self.runs[-1].outcome = "resized" if asked and job.run_outcome == "preempted" else job.run_outcome


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


def range_text(spec: JobSpec) -> str:
    """
    Return in words the sizes that an elastic job may have; empty for other jobs.

    Examples
    --------
    >>> range_text(JobSpec(name="a", command=("x",), min_gpus=1, max_gpus=8, batch_size=256))
    '1 to 8 devices with a batch of 256'
    """
    if not spec.elastic:
        return ""
    batch = f"{spec.batch.min} to {spec.batch.max}" if spec.batch is not None else str(spec.batch_size)
    devices = f"{spec.widths[0]} to {spec.max_gpus} devices" if spec.max_gpus else count(spec.gpus, "device")
    return f"{devices} with a batch of {batch}"


def bounded_size_text(spec: JobSpec) -> str:
    """
    Return in words the size that an elastic job has or asks for, and its bounds; empty for other jobs.

    Examples
    --------
    >>> from penstock_log import Batch
    >>> spec = JobSpec(name="a", command=("x",), gpus=4, min_gpus=1, max_gpus=8, batch_size=256)
    >>> bounded_size_text(spec)
    '4 devices (of 1 to 8) with a batch of 256'
    >>> batch = Batch(min=64, max=512)
    >>> bounded_size_text(msgspec.structs.replace(spec, min_gpus=0, max_gpus=0, batch=batch))
    '4 devices with a batch of 256 (of 64 to 512)'
    """
    if not spec.elastic:
        return ""
    devices = count(spec.gpus, "device") + (f" (of {spec.widths[0]} to {spec.max_gpus})" if spec.max_gpus else "")
    batch = f" with a batch of {spec.batch_size}" if spec.batch_size else ""
    return devices + batch + (f" (of {spec.batch.min} to {spec.batch.max})" if spec.batch is not None else "")


def _run(run: RunSizeRecord, report: RunProgress, now_s: float) -> SizedRunView:
    if run.end_s is None and report.step > run.begun_steps:
        run = msgspec.structs.replace(run)
        run.note_progress(report.step - run.begun_steps, report.loop_s, report.batch_size, report.samples)
    return SizedRunView.of(run, samples_per_s=run.samples_per_s(now_s))
