"""
A workload in columns, its parts and figures.

A :class:`Trace` says who asked for how many devices, when, and for how long. Its rows are in the order of submission; a
change is a new trace. :func:`taken`, :func:`window` and :func:`sample` select jobs, :func:`scale_load` changes the
arrival rate, and :func:`anonymized` removes names, so that the trace can be given away. :func:`about` returns the
trace's figures. :class:`TraceError` says what is wrong with a trace, where, and what was expected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_log.validation import BadInput

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
STATES: Final = ("completed", "failed", "cancelled", "running")
"""Of a job that was cancelled, or still ran when the record was taken, the length is but the least it could be."""


@dataclass(frozen=True)
class Trace:
    """
    J jobs in columns, by submission; jobs of one time keep the order of the source.

    Attributes
    ----------
    name : str
        What people call it: the file's name.
    job_ids : sequence of str, (J,)
    submit_s : (J,) float array, seconds
        Rising, from any origin.
    num_gpus : (J,) int array
        Whole devices at once, at least 1.
    duration_s : (J,) float array, seconds
        Exclusive run time on that many devices, of the kind they ran on or, with ``speedups``, of the fastest kind.
    gpu_share : (J,) float array or None
        Share of one device, above 0 and at most 1, that a job asks for; None if all ask for whole devices.
    vcs, users, models : sequence of str, (J,), or empty
        Virtual cluster, user and model; empty where the source has none.
    kinds : sequence of str, (J,), or empty
        Device kind that a job asks for; an empty name takes any.
    batch_sizes : (J,) int array or None
        Samples of an iteration over all devices, as the user set it; 0 where the source does not say.
    states : sequence of str, (J,), or empty
        How each job ended where it was recorded: a name of :data:`STATES`, or empty.
    dropped : mapping of str to int
        Rows of the source that are no jobs here, by reason in words.
    """

    name: str
    job_ids: Sequence[str]
    submit_s: Floats
    num_gpus: Ints
    duration_s: Floats
    gpu_share: Floats | None = None
    batch_sizes: Ints | None = None
    vcs: Sequence[str] = ()
    users: Sequence[str] = ()
    models: Sequence[str] = ()
    kinds: Sequence[str] = ()
    states: Sequence[str] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.job_ids)


_WHOLE: Final = {"name", "dropped"}
"""What a trace has beside its columns."""


def taken(trace: Trace, rows: Ints) -> Trace:
    """Return some jobs of a trace, given by their rising rows; nothing counts as dropped."""
    chosen = rows.tolist()

    def part(column: Any) -> Any:
        return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in chosen] if column else column

    columns = {each.name: part(getattr(trace, each.name)) for each in fields(trace) if each.name not in _WHOLE}
    return replace(trace, **columns, dropped={})


def window(trace: Trace, from_s: float, to_s: float) -> Trace:
    """
    Return the jobs submitted in ``[from_s, to_s)``, seconds after the trace's first submission.

    Raises
    ------
    TraceError
        If there are none.
    """
    after_s = trace.submit_s - (trace.submit_s[0] if len(trace) else 0.0)
    rows = np.flatnonzero((after_s >= from_s) & (after_s < to_s))
    if not rows.size:
        span_s = float(after_s[-1]) if len(trace) else 0.0
        raise TraceError(f"no job was submitted from {from_s:g} s to {to_s:g} s; the trace spans 0 to {span_s:g} s")
    return taken(trace, rows)


def sample(trace: Trace, jobs: int, rng: np.random.Generator) -> Trace:
    """
    Return that many jobs drawn evenly without replacement, in their order; the load falls in proportion.

    Raises
    ------
    TraceError
        If the trace has fewer.
    """
    if not 1 <= jobs <= len(trace):
        raise TraceError(f"{jobs} jobs cannot be drawn from {len(trace)}; expected 1 to {len(trace)}")
    return taken(trace, np.sort(rng.choice(len(trace), jobs, replace=False)))


def scale_load(trace: Trace, factor: float) -> Trace:
    """
    Return the trace with the gaps between submissions divided by a factor: at 2 jobs come twice as fast.

    Raises
    ------
    TraceError
        If the factor is not above 0.
    """
    if not (factor > 0 and np.isfinite(factor)):
        raise TraceError(f"the load cannot be scaled by {factor:g}; expected a number above 0")
    first_s = trace.submit_s[:1]
    return replace(trace, submit_s=first_s + (trace.submit_s - first_s) / factor)


_BYTES: Final = 6


def anonymized(trace: Trace, key: bytes) -> Trace:
    """
    Return a trace without names: keyed hashes stand for jobs, users, virtual clusters and models, and time begins at 0.

    The same name under the same key gives the same hash, so that two traces can be put together; without the key
    nobody can find a name by hashing a list of likely ones. Kinds of devices, counts, lengths and the gaps between
    submissions stay.

    Parameters
    ----------
    key : bytes
        1 to 64; whoever has it can test guesses of names.

    Notes
    -----
    BLAKE2b with a key, 48 bits: two of a million names fall together with a probability of 0.2 %.
    """
    first_s = float(trace.submit_s[0]) if len(trace) else 0.0
    return replace(
        trace,
        name="anonymous",
        job_ids=_hashed(trace.job_ids, key, "j"),
        submit_s=trace.submit_s - first_s,
        vcs=_hashed(trace.vcs, key, "v"),
        users=_hashed(trace.users, key, "u"),
        models=_hashed(trace.models, key, "m"),
    )


def _hashed(names: Sequence[str], key: bytes, what: str) -> list[str]:
    def digest(name: str) -> str:
        return what + hashlib.blake2b(name.encode(), key=key, digest_size=_BYTES, person=what.encode()).hexdigest()

    known = {name: digest(name) if name else "" for name in set(names)}
    return [known[name] for name in names]


class TraceError(BadInput):
    """A trace, or a request about one, that makes no sense; the message says where, what is wrong, what is expected."""


def broken_row(path: str, line: int, wrong: str, expected: str) -> TraceError:
    """Return the error of one row, by its line in the (uncompressed) file."""
    return TraceError(
        f"{path}:{line}: {wrong}; expected {expected}; correct the row, "
        "or drop broken rows and count them (--lenient of `penstock trace`)"
    )


SHARES: Final = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
_MOST: Final = 10


class GangSizeShare(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one number of devices."""

    gpus: int
    jobs: int
    gpu_h: float


class GroupShare(msgspec.Struct, frozen=True, kw_only=True):
    """A user, a virtual cluster, a model or a state, with its share of the trace."""

    name: str
    jobs: int
    gpu_h: float


class LargestGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The number of users, virtual clusters, models or states, and the ten with most device time."""

    count: int
    largest: tuple[GroupShare, ...]


class TraceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """
    A trace in figures.

    Attributes
    ----------
    rows : int
        Rows of the source that are jobs, or were dropped for a reason.
    span_s : float
        Time from the first submission to the last.
    gpu_h : float
        Device time of all jobs, fractions as such.
    busy_gpus : float
        Device time over span: the number of devices that would be busy all the time.
    load : dict of str to float
        Number of devices → ``busy_gpus`` over this number; above 1 the queue grows.
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
    gpus: tuple[GangSizeShare, ...]
    fractional: int
    vcs: LargestGroups
    users: LargestGroups
    models: LargestGroups
    kinds: LargestGroups
    states: LargestGroups


def about(trace: Trace, clusters: Sequence[int] = ()) -> TraceStatistics:
    """
    Return a trace's figures.

    Parameters
    ----------
    clusters : sequence of int
        Numbers of devices for which the load is computed.
    """
    share = np.ones(len(trace)) if trace.gpu_share is None else trace.gpu_share
    gpu_s = trace.num_gpus * share * trace.duration_s
    span_s = float(trace.submit_s[-1] - trace.submit_s[0]) if len(trace) else 0.0
    busy = float(gpu_s.sum()) / span_s if span_s else 0.0
    return TraceStatistics(
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
        vcs=_groups(trace.vcs, gpu_s),
        users=_groups(trace.users, gpu_s),
        models=_groups(trace.models, gpu_s),
        kinds=_groups(trace.kinds, gpu_s),
        states=_groups(trace.states, gpu_s),
    )


def _quantiles(values: Floats) -> dict[str, float]:
    if not values.size:
        return {}
    found = np.quantile(values, SHARES, method="inverted_cdf")
    named = {f"p{round(share * 100)}": float(value) for share, value in zip(SHARES, found, strict=True)}
    return {"min": float(values.min()), **named, "max": float(values.max()), "mean": float(values.mean())}


def _sizes(trace: Trace, gpu_s: Floats) -> tuple[GangSizeShare, ...]:
    sizes, at = np.unique(trace.num_gpus, return_inverse=True)
    jobs, hours = np.bincount(at), np.bincount(at, gpu_s) / 3600.0
    columns = zip(sizes.tolist(), jobs.tolist(), hours.tolist(), strict=False)
    return tuple(GangSizeShare(gpus=gpus, jobs=count, gpu_h=gpu_h) for gpus, count, gpu_h in columns)


def _groups(names: Sequence[str], gpu_s: Floats) -> LargestGroups:
    if not names:
        return LargestGroups(count=0, largest=())
    unique = {name: i for i, name in enumerate(dict.fromkeys(names))}
    at = np.fromiter((unique[name] for name in names), np.int64, len(names))
    jobs, hours = np.bincount(at), np.bincount(at, gpu_s) / 3600.0
    largest = np.argsort(-hours, kind="stable")[:_MOST].tolist()
    every = list(unique)
    groups = [GroupShare(name=every[i], jobs=int(jobs[i]), gpu_h=float(hours[i])) for i in largest]
    return LargestGroups(count=len(every), largest=tuple(groups))
