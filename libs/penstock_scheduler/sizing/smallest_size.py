"""
Smallest size of an elastic job: how many devices hold its smallest batch, as far as is known.

:func:`smallest` returns the job at that size; a what-if tries it before the autoscaler has decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from penstock_log import JobSpec
from penstock_policies import sample_plan

Caps = Mapping[str, int]
"""Device kind → most samples that one device of it holds; kinds without a known limit are not in it."""


def smallest(spec: JobSpec, known: Caps, kinds: Mapping[str, int]) -> JobSpec:
    """
    Return an elastic job as one that always has its smallest size; any other job is returned unchanged.

    Parameters
    ----------
    kinds : mapping of str to int
        Device kind that the job accepts → how many devices there are.

    Notes
    -----
    The width is the smallest that holds the job's smallest batch on any kind with enough devices; if no kind has
    enough, the smallest that would hold it.
    """
    if not spec.elastic:
        return spec
    widths = {kind: needed(spec, kind, known) for kind in kinds}
    there = [width for kind, width in widths.items() if width <= most_devices(spec, kinds[kind])]
    gpus = min(there or widths.values(), default=spec.widths[0])
    batch_size = spec.batch_size or (spec.batch.min if spec.batch is not None else 0)
    if spec.batch is not None and any(cap(spec, kind, known) for kind in kinds):
        batch_size = spec.batch.min
    profile = "on" if sample_plan.is_sampled(spec) else "off"  # what an elastic job is sampled for is no longer said
    size = {"gpus": gpus, "min_gpus": 0, "max_gpus": 0, "batch": None, "batch_size": batch_size}
    return msgspec.structs.replace(spec, profile=profile, **size)


def needed(spec: JobSpec, kind: str, known: Caps) -> int:
    """
    Return on how many devices of a kind the job's smallest batch fits, as far as is known.

    Examples
    --------
    >>> job = JobSpec(name="a", command=("x",), min_gpus=2, max_gpus=8, batch_size=512)
    >>> needed(job, "fast", {"fast": 100}), needed(job, "slow", {"fast": 100})
    (6, 2)
    """
    limit = cap(spec, kind, known)
    least = spec.batch.min if spec.batch is not None else spec.batch_size
    return max(spec.widths[0], math.ceil(least / limit)) if limit else spec.widths[0]


def most_devices(spec: JobSpec, there: int) -> int:
    """Return the most devices that a job may have of those that are there."""
    return min(there, spec.widths[-1])


def cap(spec: JobSpec, kind: str, known: Caps) -> int:
    """Return the most samples that a job may have on one device of a kind; 0 without a known limit."""
    limits = (spec.batch.per_gpu_max if spec.batch is not None else 0, known.get(kind, 0))
    return min((limit for limit in limits if limit), default=0)
