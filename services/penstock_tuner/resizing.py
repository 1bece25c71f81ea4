"""Which trials are to be of another width: running ones, once nobody waits, and waiting ones that find no room."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock_events import Demand, Job, Jobs, State, Trial
from penstock_policies import waterfill
from penstock_policies.search import Wanted
from penstock_tuner.leases import Leases
from penstock_tuner.sweep import Sweep
from penstock_tuner.trials import Bounds, Devices, bounds, fill, is_alone, left_s

_LATE: Final = 0.5
"""A trial that has taken as long as was expected of it, or longer, is expected to take half as long again."""
_LEAST_S: Final = 1e-3


class Going(NamedTuple):
    """A trial that is not over, its job, and the seconds that are left of it on one device."""

    trial: Trial
    job: Job
    left_s: float
    width: float


def demands(
    sweep: Sweep, jobs: Jobs, leases: Leases, there: Devices, now_s: float, *, others_wait: bool
) -> tuple[tuple[Demand, ...], float]:
    """
    Return what trials are to have instead of what they have; nothing as long as any of them is on its way.

    And when to ask again although nothing happens: when those that run have taken twice as long, and there are idle
    devices. A trial that was expected to end soon may turn out to be a long one.

    Parameters
    ----------
    sweep : Sweep
    jobs : Jobs
        All that are not over.
    there : Devices
        What the sweep could use.
    others_wait : bool
        Whether jobs that are not of this sweep wait for devices: then what is idle is theirs.

    Notes
    -----
    As published: resized are running trials, where nothing waits. Ours beyond that: trials that wait are filled anew
    where they are wider than what is idle. A trial that has a device of its own because its neighbours have ended is
    as wide as that, and need not be moved.
    """
    bound = bounds(sweep, there)
    if not bound.mechanisms.dynamic or sweep.cancelled or not _settled(sweep, jobs) or sweep.paces.typical_s is None:
        return (), math.inf
    going = [_going(sweep, trial, jobs[trial.job_id], leases, now_s) for trial in sweep.running.values()]
    waiting = [one for one in going if one.job.state is State.PENDING]
    if not waiting and not sweep.measures.saves:
        return (), math.inf
    if waiting:
        return tuple(_refilled(sweep, bound, waiting, there)), math.inf
    room = _Room(there, leases, others_wait=others_wait)
    found, again_s = tuple(_resized(sweep, bound, going, room)), math.inf
    if there.idle and not others_wait and not found:
        again_s = now_s + max(sweep.measures.overhead_s, min(now_s - one.job.started_s for one in going))
    return found, again_s


def _settled(sweep: Sweep, jobs: Jobs) -> bool:
    """Say whether every trial runs or waits: none is to be submitted, starts, stops, or has yet to be reported."""
    if sweep.ended or not sweep.running:
        return False
    found = [jobs.get(job_id) for job_id in sweep.running]
    return all(job is not None and _rests(job) for job in found)


def _rests(job: Job) -> bool:
    if job.state is State.PENDING:
        return not job.held
    return job.state is State.RUNNING and not job.stopping and job.demand is None and job.started_s > 0


def _going(sweep: Sweep, trial: Trial, job: Job, leases: Leases, now_s: float) -> Going:
    width = float(job.spec.gpus)
    if job.spec.sharing == "lane" and (beside := leases.most_on(job.id)) > 1:
        width = 1.0 / beside
    origin = sweep.numbers.get(trial.origin, -1)
    wanted = Wanted(trial=trial.number, params=trial.params, budget=trial.budget, origin=origin)
    (whole_s,) = left_s(sweep, [wanted])
    done_s = sweep.paces.done_by(job.id, width, now_s)
    return Going(trial, job, max(_LEAST_S, whole_s - done_s if done_s < whole_s else _LATE * done_s), width)


# --- those that wait
def _refilled(sweep: Sweep, bound: Bounds, waiting: Sequence[Going], there: Devices) -> Iterator[Demand]:
    """Yield the widths of trials that are too wide for what is idle, filled anew."""
    widest = max(there.free.values(), default=0)
    if not widest or all(one.job.spec.gpus <= widest for one in waiting):
        return
    widths = fill(sweep, bound, [one.left_s for one in waiting], there.idle)
    idle = "1 device is" if there.idle == 1 else f"{there.idle} devices are"
    for one, width in zip(waiting, widths, strict=True):
        if (form := bound.form(sweep.spec, min(width, widest)))[0] < one.job.spec.gpus:
            yield _demand(one, form, f"{idle} idle, and it waits for {one.job.spec.gpus}")


# --- those that run
class _Room:
    """The devices that running trials may have."""

    def __init__(self, there: Devices, leases: Leases, *, others_wait: bool) -> None:
        self.leases = leases
        self.free: dict[str, int] = {} if others_wait else dict(there.free)

    @property
    def idle(self) -> int:
        return sum(self.free.values())

    def take(self, job: Job, gpus: int, alone: bool) -> bool:
        """Have a job move to so many devices of one kind, if there are as many; its own are free, if it is alone."""
        own = job.placement.kind if job.placement is not None else ""
        given = job.spec.gpus if alone else 0
        for kind in sorted(self.free.keys() | {own}, key=lambda kind: kind != own):
            if self.free.get(kind, 0) + given * (kind == own) >= gpus:
                self.free[own] = self.free.get(own, 0) + given
                self.free[kind] = self.free.get(kind, 0) - gpus
                return True
        return False


def _resized(sweep: Sweep, bound: Bounds, going: Sequence[Going], room: _Room) -> Iterator[Demand]:
    measures = sweep.measures
    held = {at for one in going for at in room.leases.of_job.get(one.job.id, ())}
    after = waterfill.resized(
        np.array([one.left_s for one in going]),
        np.array([one.width for one in going]),
        room.idle + len(held),
        bound.packing,
        bound.most,
        overhead_s=measures.overhead_s,
        alpha=measures.alpha,
        beta=measures.beta,
        mechanisms=bound.mechanisms,
    ).tolist()
    moved = {one.job.id: width for one, width in zip(going, after, strict=True) if width != one.width}
    stays = _staying(going, moved, room.leases)
    for one in sorted(going, key=lambda one: (moved.get(one.job.id, 0.0) > one.width, -one.left_s)):
        width = moved.get(one.job.id, one.width)
        if width == one.width or one.job.id in stays:
            continue
        form = bound.form(sweep.spec, width)
        if form[1] > 1 and (one.job.spec.sharing == "lane" or is_alone(one.trial)):
            continue  # it shares its device already with whoever comes, or must not
        if room.take(one.job, form[0], alone=room.leases.most_on(one.job.id) == 1):
            yield _demand(one, form, _why(sweep, one, width))


def _staying(going: Sequence[Going], moved: Mapping[str, float], leases: Leases) -> set[str]:
    """Return who is to have its device to itself and gets it by the others' leaving: the one with most left of each."""
    there: defaultdict[tuple[str, ...], list[Going]] = defaultdict(list)
    for one in going:
        if one.width < 1.0:
            there[leases.of_job[one.job.id]].append(one)
    stays = set()
    for at, ones in there.items():
        if len(ones) == leases.jobs_on[at[0]] and all(moved.get(one.job.id, 0.0) >= 1.0 for one in ones):
            best = max(ones, key=lambda one: (moved[one.job.id] == 1.0, one.left_s))
            if moved[best.job.id] == 1.0:
                stays.add(best.job.id)
    return stays


def _why(sweep: Sweep, one: Going, width: float) -> str:
    measures = sweep.measures
    now_s = one.left_s * measures.factor(one.width)
    then_s = one.left_s * measures.factor(width) + measures.overhead_s
    change = f"{_words(width)} instead of {_words(one.width)}"
    return f"{change}: {then_s:.1f} s left, moving included, instead of {now_s:.1f} s"


def _words(width: float) -> str:
    return f"1/{round(1 / width)} of a device" if width < 1 else f"{width:g} device{'s' if width > 1 else ''}"


def _demand(one: Going, form: tuple[int, int], reason: str) -> Demand:
    job, (gpus, packed) = one.job, form
    if packed > 1 and not is_alone(one.trial):
        return Demand(job_id=job.id, epoch=job.epoch, gpus=gpus, sharing="lane", sharers=packed, reason=reason)
    return Demand(job_id=job.id, epoch=job.epoch, gpus=gpus, reason=reason)
