"""How an elastic workload goes on one kind of device: what samples and real runs have shown so far."""

from __future__ import annotations

import math
from bisect import insort
from typing import Final

import msgspec

from penstock_events import JobSpec, RunEnded, Timing
from penstock_policies import scaling
from penstock_policies.points import Point

MOST_TIMINGS: Final = 64
"""Sizes that are kept of a workload on one kind: beyond them, only what is known is refined."""


class Curve(msgspec.Struct, kw_only=True):
    """
    One workload on one kind.

    Attributes
    ----------
    timings : list of Timing
        By width and local batch, ascending.
    fits, too_large : int
        The largest local batch that has run, and the smallest that ran out of memory; 0 where there is none.
    failures : dict of str to str
        Point → why its sample gave no measure.
    news : bool
        Whether the timings differ from what was said last by enough to say so.
    """

    timings: list[Timing] = msgspec.field(default_factory=list)
    fits: int = 0
    too_large: int = 0
    failures: dict[str, str] = msgspec.field(default_factory=dict)
    news: bool = False

    @property
    def cap(self) -> int:
        """Most samples that one device holds, as far as is known; 0 where no limit has been seen."""
        if not self.too_large:
            return 0
        return max(1, self.fits or self.too_large - 1)

    def sampled(self, point: Point, event: RunEnded, usual: int = 0) -> str:
        """
        Take in how a sample ended; return why it gave no measure, if it did not.

        Parameters
        ----------
        usual : int
            The batch size of a job whose batch is always the same: that of a script which does not ask; 0 elsewhere.
        """
        failure = self._refusal(point, event, usual)
        if failure:
            self.failures[str(point)] = failure
        else:
            self._learn(point, event)
        return failure

    def ran(self, spec: JobSpec, event: RunEnded) -> None:
        """Learn from a real run of a job that had this size, if it was long enough and did what it was asked to."""
        used = event.batch_size or usual_batch(spec)
        point = Point(spec.gpus, used)
        if used and event.out_of_memory:
            self._overflowed(point.local_batch)
        elif used and not wrong(*_observed(event)):
            self._learn(point, event)

    def at(self, gpus: int, local_batch: int) -> Timing | None:
        """Return what was measured at a size."""
        same = (each for each in self.timings if (each.gpus, each.local_batch) == (gpus, local_batch))
        return next(same, None)

    def alone_s(self, local_batch: int) -> float:
        """Return the seconds of an iteration with so many samples on one device; 0 where none was measured there."""
        alone = [each for each in self.timings if each.gpus == 1]
        if not alone:
            return 0.0
        right = next((i for i, each in enumerate(alone) if each.local_batch >= local_batch), len(alone) - 1)
        low, high = alone[max(right - 1, 0)], alone[max(right, min(1, len(alone) - 1))]
        if low.local_batch == high.local_batch:
            return low.iteration_s
        slope = max(0.0, (high.iteration_s - low.iteration_s) / (high.local_batch - low.local_batch))
        return max(low.iteration_s + slope * (local_batch - low.local_batch), alone[0].iteration_s / 2)

    def _refusal(self, point: Point, event: RunEnded, usual: int) -> str:
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

    def _learn(self, point: Point, event: RunEnded) -> None:
        iteration_s, error_s = _observed(event)
        known = self.at(point.gpus, point.local_batch)
        if known is not None:
            self.timings[self.timings.index(known)] = scaling.refined(known, iteration_s, error_s)
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
    """Return what is wrong about a measured iteration time, if anything is."""
    if not (math.isfinite(iteration_s) and iteration_s > 0):
        return f"it gave an iteration time of {iteration_s:g} s; expected a number above 0"
    if not (math.isfinite(error_s) and error_s >= 0):
        return f"it gave an error of {error_s:g} s for its iteration time; expected 0 or more"
    return ""


def _observed(event: RunEnded) -> tuple[float, float]:
    """Return the seconds of an iteration and the standard error of that; of a run that tells only a sum, without."""
    if event.iteration_s or not event.loop_steps:
        return event.iteration_s, event.error_s
    return event.loop_s / event.loop_steps, 0.0
