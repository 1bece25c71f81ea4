"""What runs of elastic jobs have shown of them: whether they save, which batch they really use, what does not fit."""

from __future__ import annotations

import math
from typing import Final, TypeVar

import msgspec

from penstock_events import Job, RunEnded

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

    def note_checkpoint(self, key: str) -> None:
        """Note that a run of a workload has saved something."""
        _put(self.saves, key, True)

    def note_end(self, job: Job, key: str, event: RunEnded) -> None:
        """Learn from the end of a run on one node; ``job`` is as it was before it."""
        placement = job.placement
        if placement is None or event.epoch != placement.epoch:
            return
        gpus = sum(len(slot.devices) for slot in placement.slots)
        if event.out_of_memory and job.spec.batch_size and job.spec.sharing == "exclusive":
            self._cap(key, placement.kind, math.ceil(job.spec.batch_size / gpus) - 1)
        if event.node_id != placement.slots[0].node_id or not event.loop_steps:
            return  # of a gang, the node of its first process tells of the loop
        _put(self.saves, key, event.saves)
        if job.spec.batch is not None and job.sample is None and abs(event.batch_size - job.spec.batch_size) >= gpus:
            self.stubborn[job.id] = event.batch_size or job.spec.batch_size

    def forget(self, job_id: str) -> None:
        """Note that a job is over."""
        self.stubborn.pop(job_id, None)

    def _cap(self, key: str, kind: str, most: int) -> None:
        known = self.caps.get(key, {})
        _put(self.caps, key, {**known, kind: min(most, known.get(kind, most))})


def _put(known: dict[str, T], key: str, value: T) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > WORKLOADS:
        del known[next(iter(known))]
