"""
Fairness between users: each user's progress in a pool, and the users whose jobs enter a round.

Of ``n`` users with jobs that could start, the jobs of the ``ceil(alpha * n)`` least-progressed users enter a round.
Where nothing starts, ``alpha`` doubles. At 1 or above all users' jobs enter, and the round is the one without fairness.
A round that started something is followed by another, so no device stays idle for the sake of fairness. Two sorts of
jobs always enter. One is a job for which runs were preempted or for which devices are kept: what is freed for it must
not go to another. The other is a sample, which is of use to all users of its workload. :func:`turns` yields the tries.

:class:`FairnessProgress` is the fold of all users' progress. Progress does not depend on the kinds of device used. A
run of ``g`` devices of kind ``k`` advances its user's progress at the rate

    ``g / G * speed(k) / speed(f)``    seconds per second,

where ``f`` is the job's favourite kind (the fastest of those that it accepts; of equally fast ones the most numerous)
and ``G`` the number of the pool's devices of that kind that the job fits. This is the user's dominant share in the
favourite configuration. On a kind with half the speed it advances half as fast, as the job does, so the same work is
the same progress wherever it was done. Speeds and ``G`` are those at the start of the run. Samples advance nobody.

Progress fades with a half-life ``H`` (:data:`HALF_LIFE_S`): what a user had ``t`` seconds ago counts ``2**(-t / H)``.
So no progress exceeds ``H / ln 2`` seconds of all that a user could ever hold, and the past is not held against
anybody for long, nor in anybody's favour:

* a user who used devices while nobody wanted them is behind ``n`` others for ``H * log2(n + 1)`` at most. By then the
  others have caught up even if they share a full pool evenly. Without fading it would take as long as he was alone;
* a user who comes, or comes back, starts level with the least of those who are active, or with what he has left from
  before if that is more. He gets no credit for the time in which he asked for nothing, and none by leaving and coming
  back. This is the start of a flow in fair queueing, whose virtual time is the least progress. Equal users go by who
  has been active longer, so newcomers never overtake a waiting user.

All users fade alike, so time alone changes no order.

References
----------
Le et al., AlloX: compute allocation in hybrid clusters, EuroSys 2020. Goyal et al., Start-time fair queueing, SIGCOMM
1996. Half-life: as in Slurm's multifactor priority plug-in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_cluster.nodes import fits
from penstock_log import Device, JobSpec
from penstock_scheduler.placement import device_class, in_order
from penstock_scheduler.round_types import RankedJob

_ROUNDING: Final = 1e-9


class FairnessTry(msgspec.Struct, frozen=True):
    """
    One try of a round.

    Attributes
    ----------
    entering : sequence of RankedJob
        In rank order.
    alpha : float
        The share of users whose jobs enter.
    left_out : dict of str to int
        User whose jobs do not enter → how many users are behind him.
    """

    entering: Sequence[RankedJob]
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
    ready: Sequence[RankedJob], progress: FairnessProgress, exempt: Collection[str], alpha: float, now_s: float
) -> Iterator[FairnessTry]:
    """
    Yield the tries of a round, one after the other, until something starts; everybody's jobs enter the last one.

    Parameters
    ----------
    ready : sequence of RankedJob
        Waiting jobs that may start, in rank order.
    progress : FairnessProgress
        Of the pool's users.
    exempt : collection of str
        Jobs that enter whatever their users' progress.
    """
    if alpha >= 1.0:
        yield FairnessTry(ready)
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
        yield FairnessTry(
            [r for r in ready if r.sample or r.job_id in exempt or r.job.spec.user not in left_out], alpha, left_out
        )
        alpha *= 2.0
    yield FairnessTry(ready)


HALF_LIFE_S: Final = 3_600.0
"""After this time, progress counts half: fairness looks back over about so long."""

NOTHING_S: Final = 1e-3
"""Progress that is not worth remembering."""

_MEAN_LIFE_S: Final = HALF_LIFE_S / math.log(2)


class UserProgress(msgspec.Struct, kw_only=True):
    """
    One user's progress.

    Attributes
    ----------
    progress_s : float
        At ``since_s``.
    rate : float
        Of all runs under way, seconds per second.
    jobs, runs : int
        Jobs that are not over, and runs under way.
    active_s : float
        Since when the user has jobs.
    """

    progress_s: float
    since_s: float
    active_s: float
    rate: float = 0.0
    jobs: int = 0
    runs: int = 0

    def by(self, now_s: float) -> float:
        """Return the progress at a time."""
        past = math.exp2(-max(0.0, now_s - self.since_s) / HALF_LIFE_S)
        return self.progress_s * past + self.rate * _MEAN_LIFE_S * (1.0 - past)

    def settle(self, at_s: float) -> None:
        """Bring the progress up to a time, before the rate changes."""
        self.progress_s, self.since_s = self.by(at_s), max(at_s, self.since_s)


class UserStanding(NamedTuple):
    """What users are compared by, least first."""

    progress_s: float
    active_s: float


class FairnessProgress(msgspec.Struct):
    """
    The progress of a pool's users: a fold of what happens to its jobs.

    Attributes
    ----------
    active : dict of str to UserProgress
        Users with jobs that are not over.
    rested : dict of str to UserProgress
        Users without such jobs whose progress still counts; those who left last come last.
    rates : dict of str to float
        Job that executes → what it adds to its user's rate.

    Notes
    -----
    O(1) for each start and end; O(active users) where a user becomes active.

    Examples
    --------
    >>> progress = FairnessProgress()
    >>> for user in ("ann", "bob"):
    ...     progress.arrive(user, 0.0)
    >>> progress.start("j1", "ann", 0.5, 0.0)
    >>> round(progress.standing("ann", 10.0).progress_s, 2), progress.standing("bob", 10.0).progress_s
    (5.0, 0.0)
    """

    active: dict[str, UserProgress] = msgspec.field(default_factory=dict)
    rested: dict[str, UserProgress] = msgspec.field(default_factory=dict)
    rates: dict[str, float] = msgspec.field(default_factory=dict)

    def standing(self, user: str, now_s: float) -> UserStanding:
        """Return how far a user is, in seconds; users without jobs are at zero."""
        account = self.active.get(user)
        return UserStanding(account.by(now_s), account.active_s) if account else UserStanding(0.0, now_s)

    def arrive(self, user: str, at_s: float) -> None:
        """Note one more job of a user that is not over."""
        account = self.active.get(user)
        if account is None:
            level_s = min((other.by(at_s) for other in self.active.values()), default=0.0)
            account = self.rested.pop(user, None) or UserProgress(progress_s=0.0, since_s=at_s, active_s=at_s)
            account.settle(at_s)
            account.progress_s, account.active_s = max(account.progress_s, level_s), at_s
            self.active[user] = account
        account.jobs += 1

    def leave(self, user: str, at_s: float) -> None:
        """Note that a job of a user is over."""
        account = self.active[user]
        account.jobs -= 1
        if account.jobs:
            return
        account.settle(at_s)
        self.rested[user] = self.active.pop(user)
        while self.rested and (oldest := next(iter(self.rested.items())))[1].by(at_s) < NOTHING_S:
            del self.rested[oldest[0]]

    def start(self, job_id: str, user: str, rate: float, at_s: float) -> None:
        """Note that a job executes from now on; a second call changes nothing."""
        if job_id in self.rates:
            return
        account = self.active[user]
        account.settle(at_s)
        self.rates[job_id] = rate
        account.rate += rate
        account.runs += 1

    def stop(self, job_id: str, user: str, at_s: float) -> None:
        """Note that a job does not execute any more; a second call changes nothing."""
        rate = self.rates.pop(job_id, None)
        if rate is None:
            return
        account = self.active[user]
        account.settle(at_s)
        account.runs -= 1
        account.rate = max(0.0, account.rate - rate) if account.runs else 0.0


def rate(spec: JobSpec, kind: str, speed: Callable[[str], float], classes: Iterable[tuple[Device, int]]) -> float:
    """
    Return how fast a run on a kind advances its user.

    Parameters
    ----------
    speed : callable
        Of the job on a kind, relative.
    classes : iterable of (Device, int)
        Classes of equal devices of the pool, and how many there are.

    Returns
    -------
    float
        Seconds of all favourite devices per second, in (0, 1]; 0 where the pool has no device that the job fits.

    Examples
    --------
    >>> fast, slow = (Device(index=0, kind=k, memory_bytes=8, backend="emulated") for k in ("fast", "slow"))
    >>> spec = JobSpec(name="a", command=("true",), gpus=2)
    >>> [rate(spec, kind, {"fast": 1.0, "slow": 0.5}.__getitem__, [(fast, 8), (slow, 40)]) for kind in ("fast", "slow")]
    [0.25, 0.125]
    """
    counts = _counts(spec, classes)
    if not counts:
        return 0.0
    favourite = next(iter(counts))
    if len(counts) > 1:
        favourite = max(counts, key=lambda each: (speed(each), counts[each], each))
    return min(1.0, spec.gpus / counts[favourite]) * speed(kind) / speed(favourite)


def _counts(spec: JobSpec, classes: Iterable[tuple[Device, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for like, count in classes:
        if fits(spec, like):
            found[like.kind] = found.get(like.kind, 0) + count
    return found


def classes(devices: Iterable[Sequence[Device]]) -> list[tuple[Device, int]]:
    """Return the classes of equal devices of some nodes and how many devices each has, in order."""
    return list(in_order(Counter(device_class(device) for held in devices for device in held)))
