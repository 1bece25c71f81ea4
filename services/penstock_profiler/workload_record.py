"""
What is known of one workload.

A :class:`WorkloadRecord` has a workload's samples, its iteration times, and what the log says of it. An elastic
workload has a :class:`ScalingCurve` for each kind of device: what samples and real runs have shown of its sizes there.
"""

from __future__ import annotations

import math
from bisect import insort
from typing import Final

import msgspec
import numpy as np

from penstock_log import Job, JobSpec, JobState, KindSpeed, ProfileSample, RunEnded, Scalability, Timing, workload
from penstock_log.records import compose
from penstock_policies import scaling_model, workload_stats
from penstock_policies.sample_plan import SamplePoint, is_sampled

REFINE_WEIGHT: Final = 0.3
"""Weight of the newest real run against what is known."""

MOVED: Final = 0.1
"""An iteration time that changed by no more than this fraction is not announced again."""

LEAST_STEPS: Final = 20
"""Iterations that a real run needs before it says anything about the iteration time."""

LEAST_RUN_S: Final = 1.0
"""Seconds that a run without iterations needs for the same: a shorter one shows how long it takes to start."""

LOST_TOO_OFTEN: Final = 2
"""A sample that was placed so often without ending is no longer waited for."""


class SampleRecord(msgspec.Struct, kw_only=True):
    """
    One sample: what was requested, and what it gave.

    Attributes
    ----------
    gpus, batch_size : int
        The size at which an elastic workload is sampled; a batch size of 0 is the workload's own, to compare kinds.
    """

    kind: str
    gpus: int = 1
    batch_size: int = 0
    over: bool = False
    steps: int = 0
    loop_s: float = 0.0
    failure: str = ""

    @property
    def point(self) -> SamplePoint | None:
        """The size; None for a sample that compares kinds."""
        return SamplePoint(self.gpus, self.batch_size) if self.batch_size else None


class WorkloadRecord(msgspec.Struct, kw_only=True):
    """
    What is known of one workload.

    Attributes
    ----------
    spec : JobSpec
        The job submitted last.
    sampled : JobSpec or None
        The job submitted last for which the workload may be sampled: samples run it.
    elastic : JobSpec or None
        The elastic job submitted last, if there has been one.
    active, elastic_active, sampled_active : int
        Open jobs of this workload; the elastic ones among them; and those for which it may be sampled.
    cause : int
        Sequence of the last fact that taught something about it.
    samples : dict of str to SampleRecord
        Sample id → its record.
    requested_s : float
        When the samples were requested for which jobs wait.
    sampled_s : float
        When the last sample ended; 0 if none has.
    iteration_s, memory_bytes, failures
        Kind → the measured seconds of an iteration, the peak of memory, and why samples gave no measure.
    run_s : dict of str to float
        Kind → the seconds of a whole run, if its runs have no iterations.
    run_of : str
        The work of these runs (:func:`penstock_log.workload.work`): more of it takes longer on any kind.
    gpus : int
        Devices of the runs that gave these times; 0 before the first.
    curves : dict of str to ScalingCurve
        Kind → the speed of an elastic workload by batch size and devices.
    announced : dict of str to KindSpeed, or None
        Kind → what the log says; None if the log says nothing yet.
    scaled : dict of str to Scalability, or None
        Kind → what the log says of the speed by batch size and devices; None if it says nothing yet.
    skew, announced_skew : float
        The skew of its model as a script described it last, and as the log has it; 0 for none.
    """

    key: str
    spec: JobSpec
    sampled: JobSpec | None = None
    elastic: JobSpec | None = None
    active: int = 0
    elastic_active: int = 0
    sampled_active: int = 0
    cause: int = 0
    samples: dict[str, SampleRecord] = msgspec.field(default_factory=dict)
    requested_s: float = 0.0
    sampled_s: float = 0.0
    iteration_s: dict[str, float] = msgspec.field(default_factory=dict)
    run_s: dict[str, float] = msgspec.field(default_factory=dict)
    run_of: str = ""
    gpus: int = 0
    memory_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    failures: dict[str, str] = msgspec.field(default_factory=dict)
    curves: dict[str, ScalingCurve] = msgspec.field(default_factory=dict)
    announced: dict[str, KindSpeed] | None = None
    scaled: dict[str, Scalability] | None = None
    skew: float = 0.0
    announced_skew: float = 0.0

    def enter(self, spec: JobSpec) -> None:
        """Note that a job of this workload was submitted."""
        self.spec = spec
        self.active += 1
        if is_sampled(spec):
            self.sampled, self.sampled_active = spec, self.sampled_active + 1
        if spec.elastic:
            self.elastic, self.elastic_active = spec, self.elastic_active + 1

    def leave(self, spec: JobSpec) -> None:
        """Note that a job of this workload is over."""
        self.active -= 1
        self.sampled_active -= is_sampled(spec)
        self.elastic_active -= spec.elastic

    def request(self, samples: tuple[ProfileSample, ...], at_s: float) -> None:
        """Note a request for samples; jobs that wait for earlier samples do not wait longer for these."""
        if self.announced is not None or not self.requested_s:
            self.requested_s = at_s
        for sample in samples:
            self.samples[sample.sample_id] = compose(SampleRecord, sample)

    def end_sample(self, sample_id: str, event: RunEnded, reason: str) -> None:
        """Note how a sample's run ended."""
        sampling = self.samples[sample_id]
        self.sampled_s = max(self.sampled_s, event.at_s)
        self._note_memory(sampling.kind, event.peak_memory_bytes)
        if sampling.point is not None:
            usual = usual_batch(self.elastic) if self.elastic is not None else 0
            sampling.failure = self.curve(sampling.kind).sampled(sampling.point, event, usual)
        elif event.outcome == "completed" and event.loop_steps > 0 and math.isfinite(event.loop_s) and event.loop_s > 0:
            sampling.steps, sampling.loop_s = event.loop_steps, event.loop_s
        elif event.outcome == "completed":
            sampling.failure = "opaque: it reported no iterations"
        else:
            sampling.failure = reason or event.outcome
        self._close(sampling)

    def give_up(self, sample_id: str, reason: str) -> None:
        """Note that nobody waits for a sample any longer."""
        sampling = self.samples[sample_id]
        sampling.failure = sampling.failure or reason
        if sampling.point is not None:
            self.curve(sampling.kind).failures[str(sampling.point)] = sampling.failure
        self._close(sampling)

    def learn(self, kind: str, spec: JobSpec, event: RunEnded, run_s: float) -> None:
        """Learn from a real run of a job with this size, which took ``run_s`` in all."""
        self._note_memory(kind, event.peak_memory_bytes)
        if not spec.elastic:
            self._refine(kind, spec, event, run_s)
        elif event.loop_steps >= LEAST_STEPS or event.out_of_memory:
            self.curve(kind).ran(spec, event)
            self._compare(kind)

    def curve(self, kind: str) -> ScalingCurve:
        """Return the workload's curve on a kind; an empty one if nothing is known."""
        return self.curves.setdefault(kind, ScalingCurve())

    def open_points(self, kind: str) -> list[SamplePoint]:
        """Return the sizes of open samples on a kind."""
        of_kind = (each for each in self.samples.values() if each.kind == kind and not each.over)
        return [each.point for each in of_kind if each.point is not None]

    def describe(self, event: RunEnded) -> None:
        """Note the skew of the model that a run's script described, if any; rounding makes no difference."""
        skew = round(event.skew, 3) if math.isfinite(event.skew) else 0.0
        self.skew = skew or self.skew

    def open_kinds(self) -> set[str]:
        """Return the kinds with open samples."""
        return {sampling.kind for sampling in self.samples.values() if not sampling.over}

    @property
    def times_s(self) -> dict[str, float]:
        """Kind → the time that is compared between kinds: of an iteration, or else of a whole run."""
        return self.iteration_s or self.run_s

    def unsampleable(self) -> bool:
        """Whether samples were tried and never gave a measure: further ones would not either."""
        return bool(self.failures) and not self.iteration_s

    def differs(self) -> bool:
        """Whether the measured times differ enough from the announced ones to announce them, or the skew at all."""
        if self.skew != self.announced_skew:
            return True
        announced = self.announced or {}
        for kind, now_s in self.times_s.items():
            then = announced.get(kind)
            if then is None or then.predicted or workload_stats.moved(then.iteration_s or then.run_s, now_s, MOVED):
                return True
        return False

    def _close(self, sampling: SampleRecord) -> None:
        sampling.over = True
        of_kind = [other for other in self.samples.values() if other.kind == sampling.kind]
        if not all(other.over for other in of_kind):
            return
        self._compare(sampling.kind)
        points = [(other.steps, other.loop_s) for other in of_kind if other.steps]
        if points:
            steps, loop_s = zip(*points, strict=True)
            self._compare_at(1)
            self.iteration_s[sampling.kind] = workload_stats.iteration_s(np.array(steps), np.array(loop_s))
            self.failures.pop(sampling.kind, None)
        elif sampling.kind not in self.iteration_s:
            self.failures[sampling.kind] = next((other.failure for other in of_kind if other.failure), "")

    def _refine(self, kind: str, spec: JobSpec, event: RunEnded, run_s: float) -> None:
        if event.loop_steps >= LEAST_STEPS and math.isfinite(event.loop_s) and event.loop_s > 0:
            times_s, seen_s = self.iteration_s, event.loop_s / event.loop_steps
        elif event.outcome == "completed" and not event.steps and not event.loop_steps and run_s >= LEAST_RUN_S:
            times_s, seen_s = self.run_s, run_s
        else:
            return
        if not self.gpus or spec.gpus <= self.gpus:
            self._compare_at(spec.gpus)
            if times_s is self.run_s and self.run_of != (work := workload.work(spec)):
                self.run_s.clear()
                self.run_of = work
            times_s[kind] = workload_stats.refined_s(times_s.get(kind, seen_s), seen_s, REFINE_WEIGHT)

    def _compare_at(self, gpus: int) -> None:
        """Compare kinds by runs of ``gpus`` devices from now on: times of wider runs are of other work."""
        if self.gpus > gpus:
            self.iteration_s.clear()
            self.run_s.clear()
        self.gpus = gpus

    def _compare(self, kind: str) -> None:
        """Set the time that compares kinds: at the batch that the script is meant for, from the times of all sizes."""
        compared = any(each.kind == kind and each.point is None for each in self.samples.values())
        spec = self.elastic
        if spec is None or compared:
            return
        batch = spec.batch.base if spec.batch is not None else 0
        local = math.ceil((batch or spec.batch_size or 1) / spec.widths[0])
        if alone_s := self.curve(kind).alone_s(local):
            self._compare_at(1)
            self.iteration_s[kind] = alone_s
            self.failures.pop(kind, None)

    def _note_memory(self, kind: str, peak_bytes: int) -> None:
        self.memory_bytes[kind] = max(self.memory_bytes.get(kind, 0), peak_bytes)


def lost_too_often(job: Job) -> bool:
    """Return whether a sample was placed twice and waits or runs once more."""
    return job.epoch > LOST_TOO_OFTEN or (job.epoch == LOST_TOO_OFTEN and job.state is JobState.PENDING)


MOST_TIMINGS: Final = 64
"""Sizes that are kept of a workload on one kind: beyond them, only what is known is refined."""


class ScalingCurve(msgspec.Struct, kw_only=True):
    """
    The speed of one elastic workload on one kind, by size.

    Attributes
    ----------
    timings : list of Timing
        Times in order of width and local batch, ascending.
    fits, too_large : int
        The largest local batch that has run, and the smallest that ran out of memory; 0 where there is none.
    failures : dict of str to str
        Point → why its sample gave no measure.
    moved : bool
        Whether the timings differ enough from the announced ones to announce them.
    """

    timings: list[Timing] = msgspec.field(default_factory=list)
    fits: int = 0
    too_large: int = 0
    failures: dict[str, str] = msgspec.field(default_factory=dict)
    moved: bool = False

    @property
    def cap(self) -> int:
        """The largest local batch that one device holds, as far as is known; 0 if no limit has been seen."""
        if not self.too_large:
            return 0
        return max(1, self.fits or self.too_large - 1)

    def sampled(self, point: SamplePoint, event: RunEnded, usual: int = 0) -> str:
        """
        Note how a sample ended; return why it gave no measure, or an empty text.

        Parameters
        ----------
        usual : int
            The batch size of a job whose batch is always the same, as of a script that does not ask for it; else 0.
        """
        failure = self._refusal(point, event, usual)
        if failure:
            self.failures[str(point)] = failure
        else:
            self._learn(point, event)
        return failure

    def ran(self, spec: JobSpec, event: RunEnded) -> None:
        """Learn from a real run of a job with this size, if its iteration time can be trusted."""
        used = event.batch_size or usual_batch(spec)
        point = SamplePoint(spec.gpus, used)
        if used and event.out_of_memory:
            self._overflowed(point.local_batch)
        elif used and not wrong(*_observed(event)):
            self._learn(point, event)

    def at(self, gpus: int, local_batch: int) -> Timing | None:
        """Return what was measured at a size."""
        same = (each for each in self.timings if (each.gpus, each.local_batch) == (gpus, local_batch))
        return next(same, None)

    def alone_s(self, local_batch: int) -> float:
        """Return the seconds of an iteration with a local batch on one device; 0 if none was measured there."""
        alone = [each for each in self.timings if each.gpus == 1]
        if not alone:
            return 0.0
        right = next((i for i, each in enumerate(alone) if each.local_batch >= local_batch), len(alone) - 1)
        low, high = alone[max(right - 1, 0)], alone[max(right, min(1, len(alone) - 1))]
        if low.local_batch == high.local_batch:
            return low.iteration_s
        slope = max(0.0, (high.iteration_s - low.iteration_s) / (high.local_batch - low.local_batch))
        return max(low.iteration_s + slope * (local_batch - low.local_batch), alone[0].iteration_s / 2)

    def _refusal(self, point: SamplePoint, event: RunEnded, usual: int) -> str:
        if event.out_of_memory:
            self._overflowed(point.local_batch)
            return "it ran out of memory"
        if event.outcome != "completed":
            return event.reason or event.outcome
        if not event.loop_steps and not event.iteration_s:
            return "opaque: it reported no iterations"
        used = event.batch_size or usual
        if used != point.batch_size:
            does = f"used {used}" if used else "asked for none; session.sampler() does, or session.batch_size"
            return f"it was to use a batch of {point.batch_size} and {does}"
        return wrong(*_observed(event))

    def _learn(self, point: SamplePoint, event: RunEnded) -> None:
        iteration_s, error_s = _observed(event)
        known = self.at(point.gpus, point.local_batch)
        if known is not None:
            self.timings[self.timings.index(known)] = scaling_model.refined(known, iteration_s, error_s)
        elif len(self.timings) < MOST_TIMINGS:
            seen = Timing(
                gpus=point.gpus, local_batch=point.local_batch, iteration_s=iteration_s, error_s=error_s, runs=1
            )
            insort(self.timings, seen, key=lambda each: (each.gpus, each.local_batch))
        if not self.too_large or point.local_batch < self.too_large:
            self.fits = max(self.fits, point.local_batch)

    def _overflowed(self, local_batch: int) -> None:
        self.too_large = min(self.too_large or local_batch, local_batch)
        self.fits = max((each.local_batch for each in self.timings if each.local_batch < self.too_large), default=0)


def usual_batch(spec: JobSpec) -> int:
    """Return the batch size of a job whose batch is always the same; 0 where it may change."""
    return spec.batch_size if spec.batch is None else 0


def wrong(iteration_s: float, error_s: float) -> str:
    """Return what is wrong with a measured iteration time; empty if nothing is."""
    if not (math.isfinite(iteration_s) and iteration_s > 0):
        return f"it gave an iteration time of {iteration_s:g} s; expected a number above 0"
    if not (math.isfinite(error_s) and error_s >= 0):
        return f"it gave an error of {error_s:g} s for its iteration time; expected 0 or more"
    return ""


def _observed(event: RunEnded) -> tuple[float, float]:
    """Return the seconds of an iteration and their standard error; without error if the run reports only a sum."""
    if event.iteration_s or not event.loop_steps:
        return event.iteration_s, event.error_s
    return event.loop_s / event.loop_steps, 0.0
