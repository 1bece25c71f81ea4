"""
Lengths of a pool's jobs: how long completed jobs were, and what follows for those that run.

:class:`Lengths` is a bounded sample of the GPU-times of the jobs that completed, folded from the log. A hash of a job's
id decides whether it is kept, so that two folds of the same log keep the same jobs and no random source is needed.
Later jobs are likelier to be kept than earlier ones: after ``FADING`` more of them, a job's chance has fallen to 1/e,
so what a cluster was used for last year fades.

Orders do not follow every job that completes: they use an *edition* of the sample. A new edition comes out when the
number of completed jobs has grown by a quarter. So positions in the order change now and then, and not with every
completion. :func:`blend` fills an early edition up from a prior.

The remaining service of a job follows from what it declared (:func:`declared_s`), or from the service that finished
jobs of its pool needed (:func:`remaining_s`).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_log.archive_facts import PoolLearnt

KEPT: Final = 1024
"""Most GPU-times that are kept; a quantile is then known to within about 1.5 % of the jobs."""

FADING: Final = 16 * KEPT
FIRST: Final = 8
"""The first edition comes out after so many jobs."""


class Lengths(msgspec.Struct):
    """
    The sample, and the edition in force.

    Attributes
    ----------
    count : int
        Jobs that completed so far.
    kept : list of (float, float)
        Priority and GPU-seconds, the lowest priority first.
    edition_gpu_s : list of float
        GPU-seconds, rising.
    edition_count : int
        What ``count`` was when the edition came out; 0 before the first.

    References
    ----------
    Efraimidis, Spirakis: Weighted random sampling with a reservoir, Information Processing Letters 97, 2006; the weight
    here is ``exp(count / FADING)``.

    Examples
    --------
    >>> lengths = Lengths()
    >>> [lengths.add(f"j{n}", 10.0 - n) for n in range(8)].index(True)
    7
    >>> lengths.edition_gpu_s
    [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    """

    count: int = 0
    kept: list[tuple[float, float]] = msgspec.field(default_factory=list)
    edition_gpu_s: list[float] = msgspec.field(default_factory=list)
    edition_count: int = 0

    def add(self, job_id: str, gpu_s: float) -> bool:
        """
        Count a job that completed after so many GPU-seconds; return whether a new edition came out.

        Notes
        -----
        O(log ``KEPT``), and O(``KEPT`` log ``KEPT``) for an edition.
        """
        if gpu_s <= 0:
            return False
        self.count += 1
        job = _priority(job_id, self.count), gpu_s
        if len(self.kept) < KEPT or job < self.kept[-1]:
            insort(self.kept, job)
            del self.kept[KEPT:]
        if self.count < self.edition_count + max(FIRST, min(self.edition_count, KEPT) // 4):
            return False
        self.edition_gpu_s = sorted([gpu_s for _, gpu_s in self.kept])
        self.edition_count = self.count
        return True

    @classmethod
    def of_fact(cls, learnt: PoolLearnt) -> Lengths:
        """Return the sample that a fact of the archive holds."""
        return cls(learnt.completed, list(learnt.kept), list(learnt.edition_gpu_s), learnt.edition_count)

    def as_fact(self, finished_s: Sequence[float]) -> PoolLearnt:
        """Return the sample as a fact of the archive holds it, with the service that the last jobs needed."""
        return PoolLearnt(
            finished_s=tuple(finished_s),
            completed=self.count,
            kept=tuple(self.kept),
            edition_gpu_s=tuple(self.edition_gpu_s),
            edition_count=self.edition_count,
        )


def blend(edition_gpu_s: Sequence[float], prior_gpu_s: Sequence[float]) -> list[float]:
    """
    Return an edition filled up from a prior, for the time when few jobs have completed.

    Parameters
    ----------
    edition_gpu_s : (N,) floats, GPU-seconds
    prior_gpu_s : (P,) floats, GPU-seconds, rising
        What is assumed on the first day. Each observed job takes the place of an assumed one, evenly over the
        quantiles; after P jobs nothing of the prior is left.

    Returns
    -------
    (max(N, P),) floats, rising

    Examples
    --------
    >>> blend([], [1.0, 2.0, 3.0, 4.0])
    [1.0, 2.0, 3.0, 4.0]
    >>> blend([9.0, 9.0], [1.0, 2.0, 3.0, 4.0])
    [2.0, 4.0, 9.0, 9.0]
    >>> blend([7.0, 8.0, 9.0], [1.0])
    [7.0, 8.0, 9.0]
    """
    left = max(0, len(prior_gpu_s) - len(edition_gpu_s))
    thinned = [prior_gpu_s[math.floor((number + 0.5) * len(prior_gpu_s) / left)] for number in range(left)]
    return sorted([*edition_gpu_s, *thinned])


def read_prior(text: str) -> list[float]:
    """
    Return the GPU-times in a file of one number a line, rising; a heading, empty lines and ``#`` comments are left out.

    Raises
    ------
    ValueError
        If there is no number, or a line is none, or not positive; the message has the line's number.

    Examples
    --------
    >>> read_prior("gpu_s\\n120\\n60.5\\n")
    [60.5, 120.0]
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        word = line.split("#", 1)[0].strip()
        if not word or (number == 1 and not word[0].isdigit()):
            continue
        try:
            found.append(float(word))
        except ValueError as error:
            raise ValueError(f"line {number} is {word!r}; expected one number of GPU-seconds a line") from error
        if not (found[-1] > 0 and math.isfinite(found[-1])):
            raise ValueError(f"line {number} is {word!r}; expected GPU-seconds above 0")
    if not found:
        raise ValueError("there is no number in it; expected one number of GPU-seconds a line")
    return sorted(found)


def _priority(job_id: str, count: int) -> float:
    drawn = int.from_bytes(blake2b(job_id.encode(), digest_size=8).digest(), "big") >> 12
    return math.log(-math.log((drawn + 0.5) / 2**52)) - count / FADING


Floats = npt.NDArray[np.float64]


class FinishedService:
    """
    Service that finished jobs needed, made ready for many questions once there is one.

    Parameters
    ----------
    finished_s : (N,) floats, seconds
        Not to be changed after the first question.
    """

    def __init__(self, finished_s: Sequence[float] = ()) -> None:
        self._finished_s = finished_s

    def __len__(self) -> int:
        return len(self._finished_s)

    @cached_property
    def samples(self) -> Floats:
        """In rising order."""
        return np.sort(np.asarray(self._finished_s, dtype=np.float64))

    @cached_property
    def sums(self) -> Floats:
        """Of each sample and all above it, and 0 above them all; (N + 1,) float array."""
        return np.append(np.cumsum(self.samples[::-1])[::-1], 0.0)


def remaining_s(attained_s: Floats, finished_s: Sequence[float] | FinishedService, prior_s: float) -> Floats:
    """
    Return the expected remaining service ``E[S - a | S > a]`` of jobs that did not declare their length.

    Parameters
    ----------
    attained_s : (J,) float array, seconds
        Service each job has had so far (``a``).
    finished_s : (N,) floats, seconds, or FinishedService
        Service that finished jobs needed (samples of ``S``).
    prior_s : float
        Assumed while there is no sample; it does not shrink with what a job has had.

    Returns
    -------
    (J,) float array, seconds
        A job that has outlived every sample, or the prior, is expected to take as long again as it has had. So a job
        that waits for its device does not wait for ever beside an idle one.

    Notes
    -----
    O(J log N), and O(N log N) where ``finished_s`` is not ready.

    Examples
    --------
    >>> remaining_s(np.array([0.0, 5.0, 20.0]), [4.0, 8.0, 12.0], prior_s=60.0).tolist()
    [8.0, 5.0, 20.0]
    >>> remaining_s(np.array([0.0, 5.0, 90.0]), [], prior_s=60.0).tolist()
    [60.0, 60.0, 90.0]
    """
    if not len(finished_s):
        return np.maximum(attained_s, prior_s)
    ready = finished_s if isinstance(finished_s, FinishedService) else FinishedService(finished_s)
    first = np.searchsorted(ready.samples, attained_s, side="right")
    above = len(ready) - first
    mean_s = ready.sums[first] / np.maximum(above, 1)
    return np.where(above > 0, mean_s - attained_s, attained_s)


def declared_s(duration_s: float, attained_s: float, least_s: float = 0.1) -> float:
    """
    Return the remaining service of a job that declared its length, at least ``least_s``.

    A job that has outlived its declared length is expected to go on as long again as it has exceeded it.

    Examples
    --------
    >>> declared_s(10.0, 4.0), declared_s(10.0, 10.0), declared_s(10.0, 12.0)
    (6.0, 0.1, 2.0)
    """
    return max(least_s, abs(duration_s - attained_s))


def left_s(declared_s: Floats, attained_s: Floats, expected_s: Floats, least_s: float = 0.1) -> Floats:
    """Return the remaining service of many jobs: what is left of a declared length above 0, else what is expected."""
    return np.where(declared_s > 0, np.maximum(least_s, np.abs(declared_s - attained_s)), expected_s)
