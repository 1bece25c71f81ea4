"""How long a job still takes: from what it declared, or from the service that finished jobs of its pool needed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Finished:
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


def remaining_s(attained_s: Floats, finished_s: Sequence[float] | Finished, prior_s: float) -> Floats:
    """
    Return the expected remaining service ``E[S - a | S > a]`` of jobs that did not declare their length.

    Parameters
    ----------
    attained_s : (J,) float array, seconds
        Service each job has had so far (``a``).
    finished_s : (N,) floats, seconds, or Finished
        Service that finished jobs needed (samples of ``S``).
    prior_s : float
        Assumed while there is no sample; it does not shrink with what a job has had.

    Returns
    -------
    (J,) float array, seconds
        A job that has outlived every sample, or the prior, is expected to take as long again as it has had. So who
        waits for its device does not do so for ever beside an idle one.

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
    ready = finished_s if isinstance(finished_s, Finished) else Finished(finished_s)
    first = np.searchsorted(ready.samples, attained_s, side="right")
    above = len(ready) - first
    mean_s = ready.sums[first] / np.maximum(above, 1)
    return np.where(above > 0, mean_s - attained_s, attained_s)


def declared_s(duration_s: float, attained_s: float, least_s: float = 0.1) -> float:
    """
    Return the remaining service of a job that declared its length, at least ``least_s``.

    One that has run over is expected to run over as long again: its word is not taken for ever.

    Examples
    --------
    >>> declared_s(10.0, 4.0), declared_s(10.0, 10.0), declared_s(10.0, 12.0)
    (6.0, 0.1, 2.0)
    """
    return max(least_s, abs(duration_s - attained_s))


def left_s(declared_s: Floats, attained_s: Floats, expected_s: Floats, least_s: float = 0.1) -> Floats:
    """Return the remaining service of many jobs: what is left of a declared length above 0, else what is expected."""
    return np.where(declared_s > 0, np.maximum(least_s, np.abs(declared_s - attained_s)), expected_s)
