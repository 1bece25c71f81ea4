"""From a sweep to its trials: which points, how many devices each, and the job that each becomes."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final

import msgspec
import numpy as np

from penstock_events import JobSpec, SweepSpec, Trial
from penstock_policies import search, waterfill
from penstock_policies.cluster import Cluster, fits

GROUP: Final = 500
"""Trials opened in one fact, so that it stays well below a message's limit."""

_LONGEST: Final = 56  # of the part of a job's id or name before "-t00000"; 63 characters in all


def group(sweep_id: str, spec: SweepSpec, number: int, cluster: Cluster) -> tuple[Trial, ...]:
    """
    Return a group's trials: the same for the same sweep, and as wide as the cluster's present devices suggest.

    Raises
    ------
    BadSpace
        If the sweep's space makes no sense.
    """
    search.check(spec)
    rng = np.random.default_rng([spec.seed % 2**64, number])
    points = search.points(spec, number * GROUP, GROUP, rng)
    gpus = width(spec, cluster)
    return tuple(
        Trial(job_id=trial_id(sweep_id, number * GROUP + place), params=params, gpus=gpus)
        for place, params in enumerate(points)
    )


def width(spec: SweepSpec, cluster: Cluster) -> int:
    """
    Return how many devices each trial gets.

    Before anything has run, all trials are expected to take equally long, so water-filling gives all the same. No
    trial gets more than the devices of one kind, for a gang sits on one kind, nor less than its template asks for.
    """
    nodes = cluster.usable(spec.job.pool)
    by_kind = Counter(device.kind for node in nodes for device in node.devices if fits(spec.job, device))
    most = max(1, min(spec.max_gpus, max(by_kind.values(), default=1)))
    h1_s = np.ones(search.size(spec))
    shares = waterfill.allot(h1_s, by_kind.total(), packing_c=1, max_gpus_d=most)  # c is 1 while lanes hold one job
    return max(spec.job.gpus, int(shares[0]))


def trial_id(sweep_id: str, number: int) -> str:
    """
    Return the id of a sweep's trial; always the same, so that submitting it twice is submitting it once.

    Examples
    --------
    >>> trial_id("digits", 7)
    'digits-t007'
    """
    return f"{_shortened(sweep_id)}-t{number:03d}"


def job_spec(sweep_id: str, spec: SweepSpec, trial: Trial) -> JobSpec:
    """Return the job that a trial runs as: the template, overlaid with the trial's point and width."""
    number = trial.job_id.rpartition("-")[2]
    return msgspec.structs.replace(
        spec.job,
        id=trial.job_id,
        name=f"{spec.name[:_LONGEST]}-{number}",
        parent=sweep_id,
        gpus=trial.gpus,
        params={**spec.job.params, **trial.params},
    )


def _shortened(sweep_id: str) -> str:
    if len(sweep_id) <= _LONGEST:
        return sweep_id
    digest = hashlib.blake2b(sweep_id.encode(), digest_size=4).hexdigest()
    return f"{sweep_id[: _LONGEST - 9]}-{digest}"
