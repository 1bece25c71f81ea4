"""
Elastic jobs as a replay takes them: as gangs of one size, for nobody resizes them there.

An elastic job is replayed on as many devices, and with the batch, with which it held devices for the longest time,
all its runs of that size together. What it did with other sizes is counted in samples: it has as many iterations to do
as its samples are with that batch. Without samples (its script has no sampler), iterations count as equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from penstock_events import Job, JobSpec, Size
from penstock_sim.history import Ran


def as_gang(job: Job, runs: Sequence[Ran]) -> Job:
    """Return a job with the specification that it is replayed with; the same if it is not elastic."""
    if not job.spec.elastic:
        return job
    return msgspec.structs.replace(job, spec=_gang(job, longest(runs)))


def _gang(job: Job, size: Size) -> JobSpec:
    kinds = job.spec.kinds if job.accepts is None else job.accepts
    batch_size = size.batch_size or job.spec.batch_size
    return msgspec.structs.replace(
        job.spec, gpus=size.gpus, min_gpus=0, max_gpus=0, batch=None, batch_size=batch_size, kinds=kinds
    )


def longest(runs: Sequence[Ran]) -> Size:
    """Return the size with which devices were held for the longest time, the first of equal ones."""
    held_s: defaultdict[Size, float] = defaultdict(float)
    for run in runs:
        held_s[run.size] += run.held_s
    return max(held_s, key=lambda size: held_s[size])


def equal(runs: Sequence[Ran]) -> list[Ran]:
    """
    Return what a job's runs were worth as runs of one size: those of that size, with the iterations of all at the end.

    Runs that failed are left out with those of other sizes: where they failed is not known in iterations of this size.
    """
    size = longest(runs)
    own = [run for run in runs if run.size == size and run.outcome != "failed"] or [
        run for run in runs if run.size == size
    ]
    samples = max(run.samples for run in runs)
    steps = round(samples / size.batch_size) if samples and size.batch_size else max(run.steps for run in runs)
    return [*own[:-1], replace(own[-1], steps=max(steps, 1))]
