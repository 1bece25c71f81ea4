"""What a trace is like, in figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from penstock_sim.trace import Floats, Trace

SHARES: Final = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_MOST: Final = 10


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one number of devices."""

    gpus: int
    jobs: int
    gpu_h: float


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """A user, a virtual cluster, a model or a state, and its part."""

    name: str
    jobs: int
    gpu_h: float


class Parties(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are, and the ten with most device time."""

    count: int
    largest: tuple[Party, ...]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """
    A trace in figures.

    Attributes
    ----------
    rows : int
        Rows of the source that are jobs, or were dropped for a reason.
    span_s : float
        From the first submission to the last.
    gpu_h : float
        Device time of all jobs, fractions as such.
    busy_gpus : float
        Device time over span: so many devices would be busy all the time.
    load : dict of str to float
        Number of devices to ``busy_gpus`` over it; above 1 the queue grows.
    duration_s : dict of str to float
        Quantiles, ``p5`` to ``p99``, least, most and mean.
    fractional : int
        Jobs that ask for less than one device.
    """

    name: str
    rows: int
    jobs: int
    dropped: dict[str, int]
    first_submit_s: float
    span_s: float
    jobs_per_h: float
    gpu_h: float
    busy_gpus: float
    load: dict[str, float]
    duration_s: dict[str, float]
    gpu_time_s: dict[str, float]
    gpus: tuple[Size, ...]
    fractional: int
    vcs: Parties
    users: Parties
    models: Parties
    kinds: Parties
    states: Parties


def about(trace: Trace, clusters: Sequence[int] = ()) -> About:
    """
    Return a trace's figures.

    Parameters
    ----------
    clusters : sequence of int
        Numbers of devices to tell the load for.
    """
    share = np.ones(len(trace)) if trace.gpu_share is None else trace.gpu_share
    gpu_s = trace.num_gpus * share * trace.duration_s
    span_s = float(trace.submit_s[-1] - trace.submit_s[0]) if len(trace) else 0.0
    busy = float(gpu_s.sum()) / span_s if span_s else 0.0
    return About(
        name=trace.name,
        rows=len(trace) + sum(trace.dropped.values()),
        jobs=len(trace),
        dropped=dict(trace.dropped),
        first_submit_s=float(trace.submit_s[0]) if len(trace) else 0.0,
        span_s=span_s,
        jobs_per_h=len(trace) * 3600.0 / span_s if span_s else 0.0,
        gpu_h=float(gpu_s.sum()) / 3600.0,
        busy_gpus=busy,
        load={str(gpus): busy / gpus for gpus in clusters},
        duration_s=_quantiles(trace.duration_s),
        gpu_time_s=_quantiles(gpu_s),
        gpus=_sizes(trace, gpu_s),
        fractional=int((share < 1).sum()),
        vcs=_parties(trace.vcs, gpu_s),
        users=_parties(trace.users, gpu_s),
        models=_parties(trace.models, gpu_s),
        kinds=_parties(trace.kinds, gpu_s),
        states=_parties(trace.states, gpu_s),
    )


def _quantiles(values: Floats) -> dict[str, float]:
    if not values.size:
        return {}
    found = np.quantile(values, SHARES, method="inverted_cdf")
    named = {f"p{round(share * 100)}": float(value) for share, value in zip(SHARES, found, strict=True)}
    return {"min": float(values.min()), **named, "max": float(values.max()), "mean": float(values.mean())}


def _sizes(trace: Trace, gpu_s: Floats) -> tuple[Size, ...]:
    sizes, at = np.unique(trace.num_gpus, return_inverse=True)
    jobs, hours = np.bincount(at), np.bincount(at, gpu_s) / 3600.0
    columns = zip(sizes.tolist(), jobs.tolist(), hours.tolist(), strict=False)
    return tuple(Size(gpus=gpus, jobs=count, gpu_h=gpu_h) for gpus, count, gpu_h in columns)


def _parties(names: Sequence[str], gpu_s: Floats) -> Parties:
    if not names:
        return Parties(count=0, largest=())
    unique = {name: i for i, name in enumerate(dict.fromkeys(names))}
    at = np.fromiter((unique[name] for name in names), np.int64, len(names))
    jobs, hours = np.bincount(at), np.bincount(at, gpu_s) / 3600.0
    largest = np.argsort(-hours, kind="stable")[:_MOST].tolist()
    every = list(unique)
    parties = [Party(name=every[i], jobs=int(jobs[i]), gpu_h=float(hours[i])) for i in largest]
    return Parties(count=len(every), largest=tuple(parties))
