"""What runs of elastic jobs have shown of them: whether they save, which batch they really use, what does not fit."""

from __future__ import annotations

import math
from typing import Final, TypeVar

import msgspec

from penstock_events import Job, RunCheckpointed, RunEnded
from penstock_events.sizes import EARLY_STEPS

T = TypeVar("T")

WORKLOADS: Final = 4096
"""Workloads of which it is remembered what did not fit, and whether they save."""


class Shown(msgspec.Struct):
    """
    What is known from runs.

    Attributes
    ----------
    saves : dict of str to bool
        Workload key → whether its script says how to save a checkpoint; one that does not is never resized.
    caps : dict of str to dict of str to int
        Workload key → kind of device → most samples that one such device may be given: one more did not fit.
    stubborn : dict of str to int
        Job → batch size that its script uses, whatever it is given.
    """

    saves: dict[str, bool] = msgspec.field(default_factory=dict)
    caps: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    stubborn: dict[str, int] = msgspec.field(default_factory=dict)

    def note_checkpoint(self, job: Job, key: str, event: RunCheckpointed) -> None:
        """Note that a run of a workload has saved something; ``job`` is as it was before."""
        _put(self.saves, key, True)
        if event.step > job.checkpoint_step:
            self._fits(job, key)

    def doubts(self, key: str, job: Job) -> bool:
        """Say whether a run has more on a device than is said to fit, and has not shown yet that it does fit."""
        if job.placement is None:
            return False
        cap = self.caps.get(key, {}).get(job.placement.kind)
        return cap is not None and _local(job) > cap

    def note_end(self, job: Job, key: str, event: RunEnded) -> None:
        """Learn from the end of a run on one node; ``job`` is as it was before it."""
        placement = job.placement
        if placement is None or event.epoch != placement.epoch:
            return
        if event.out_of_memory and job.spec.batch_size and job.spec.sharing == "exclusive":
            self._cap(key, placement.kind, _local(job) - 1)
        elif event.loop_steps > EARLY_STEPS:
            self._fits(job, key)
        if event.node_id != placement.slots[0].node_id or not event.loop_steps:
            return  # of a gang, the node of its first process tells of the loop
        _put(self.saves, key, event.saves)
        if (
            job.spec.batch is not None
            and job.sample is None
            and abs(event.batch_size - job.spec.batch_size) >= job.spec.gpus
        ):
            self.stubborn[job.id] = event.batch_size or job.spec.batch_size

    def forget(self, job_id: str) -> None:
        """Note that a job is over."""
        self.stubborn.pop(job_id, None)

    def _fits(self, job: Job, key: str) -> None:
        """Take back what was said not to fit, now that it does."""
        if job.placement is not None and self.doubts(key, job):
            del self.caps[key][job.placement.kind]

    def _cap(self, key: str, kind: str, most: int) -> None:
        known = self.caps.get(key, {})
        _put(self.caps, key, {**known, kind: min(most, known.get(kind, most))})


def _local(job: Job) -> int:
    """Return how many samples each of a job's devices has."""
    return math.ceil(job.spec.batch_size / job.spec.gpus)


def _put(known: dict[str, T], key: str, value: T) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > WORKLOADS:
        del known[next(iter(known))]
