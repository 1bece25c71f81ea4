"""
Whose jobs enter a round: those of the least-progressed users, as many as it takes until something starts.

Of ``n`` users with jobs that could start, the ``ceil(alpha * n)`` least-progressed ones' jobs enter. Where nothing
starts, ``alpha`` doubles; at 1 or above all are in, and the round is the one without fairness. Because a round that
started something is followed by another, no device stays idle for the sake of fairness.

Jobs for which runs were preempted, or for which devices are kept free, enter whatever their users' progress: what is
freed for one must not go to another. So do samples, which are of use to all users of a workload.

References
----------
Le et al., AlloX: compute allocation in hybrid clusters, EuroSys 2020.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_policies.order import Ranked
from penstock_policies.progress import Progress

_ROUNDING: Final = 1e-9


class Turn(msgspec.Struct, frozen=True):
    """
    One try of a round.

    Attributes
    ----------
    entering : sequence of Ranked
        In rank order.
    alpha : float
        The share of users that came in.
    left_out : dict of str to int
        User that did not → how many users are behind him.
    """

    entering: Sequence[Ranked]
    alpha: float = 1.0
    left_out: dict[str, int] = {}


def least_progressed(progress_s: npt.NDArray[np.float64], alpha: float) -> npt.NDArray[np.bool_]:
    """
    Say which users are among the least-progressed.

    Parameters
    ----------
    progress_s : (U,) float array
        Progress of each active user; of equal ones the first come first.
    alpha : float, above 0
        The share of users that enters.

    Returns
    -------
    (U,) bool array
        ``min(U, ceil(alpha * U))`` of them are true.

    Notes
    -----
    O(U log U).

    Examples
    --------
    >>> least_progressed(np.array([3.0, 1.0, 2.0, 1.0]), 0.25).tolist()
    [False, True, False, False]
    >>> least_progressed(np.array([3.0, 1.0, 2.0, 1.0]), 0.6).tolist()
    [False, True, True, True]
    """
    users = len(progress_s)
    found = np.zeros(users, dtype=np.bool_)
    found[np.argsort(progress_s, kind="stable")[: math.ceil(alpha * users - _ROUNDING)]] = True
    return found


def turns(
    ready: Sequence[Ranked], progress: Progress, exempt: Collection[str], alpha: float, now_s: float
) -> Iterator[Turn]:
    """
    Yield what is to be tried, one after the other, until something starts; the last one has everybody in.

    Parameters
    ----------
    ready : sequence of Ranked
        Waiting jobs that may start, in rank order.
    progress : Progress
        Of the pool's users.
    exempt : collection of str
        Jobs that enter in any case.
    """
    if alpha >= 1.0:
        yield Turn(ready)
        return
    users = dict.fromkeys(ranked.job.spec.user for ranked in ready if not ranked.sample)
    standing = {user: progress.standing(user, now_s) for user in users}
    ordered = sorted(users, key=standing.__getitem__)
    progress_s = np.array([standing[user].progress_s for user in ordered])
    while alpha < 1.0 and len(ordered) > 1:
        inside = least_progressed(progress_s, alpha)
        if inside.all():
            break
        left_out = {user: at for at, user in enumerate(ordered) if not inside[at]}
        yield Turn(
            [r for r in ready if r.sample or r.job_id in exempt or r.job.spec.user not in left_out], alpha, left_out
        )
        alpha *= 2.0
    yield Turn(ready)
