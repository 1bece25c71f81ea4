"""Which elastic jobs of each pool are to have another size now."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from penstock_autoscaler.settings import Settings
from penstock_autoscaler.state import Because, State
from penstock_bus import Decision, Proposal
from penstock_events import Demand, Job, ScaleDecided, Size, subjects
from penstock_policies import elastic
from penstock_policies.autoscale import Sized, Sizing, Wish
from penstock_policies.autoscale.asking import Asked, asked

MOST_DEMANDS: Final = 1_000
"""In one fact, which has to fit in a message of the log: the others follow in the next ones."""


def remembering(settings: Settings) -> Callable[[State, float], Decision]:
    """
    Return a decision that looks at a pool again only once something has changed there, or its time has come.

    Forgetting that changes nothing: a pool that is at rest is found to be so again.
    """
    seen: dict[str, int] = {}
    again_s: dict[str, float] = {}

    def decide_now(state: State, now_s: float) -> Decision:
        proposals, wake_s = [], math.inf
        for name, pool in sorted(state.pools.items()):
            if not pool.elastic:
                continue
            news = seen.get(name) != pool.change.seq
            if news or again_s[name] <= now_s:
                because = pool.change.because if news else "interval"
                fact, again_s[name] = _pool(state, name, now_s, because, settings)
                if fact is not None:
                    proposals.append(Proposal(subject=subjects.scale(name), facts=(fact,), cause=pool.change.seq))
                    continue
                seen[name] = pool.change.seq
            wake_s = min(wake_s, again_s[name])
        return Decision(proposals, wake_at_s=None if math.isinf(wake_s) else wake_s)

    return decide_now


def _pool(
    state: State, name: str, now_s: float, because: Because, settings: Settings
) -> tuple[ScaleDecided | None, float]:
    """Return what is to be changed in a pool, and when to look again if that is nothing."""
    pool = state.pools[name]
    wanted = asked(state, (state.jobs[job_id] for job_id in pool.jobs), name, now_s, settings)
    sizing = wanted.sizing(settings, pool.manner)
    dropped = tuple(job_id for job_id in sizing.dropped if job_id not in wanted.mute and wanted.devices)
    demands = tuple(islice(_demands(state, wanted, sizing, set(dropped)), MOST_DEMANDS))
    if not demands and not dropped:
        return None, min(wanted.again_s, now_s + settings.interval_s)
    if because == "interval" and any(not state.jobs[demand.job_id].epoch for demand in demands):
        because = "arrival"  # it has waited long enough for its profile
    fact = ScaleDecided(
        at_s=now_s,
        pool=name,
        demands=demands,
        because=because,
        dropped=dropped[:MOST_DEMANDS],
        scaling=sizing.scaling,
    )
    return fact, now_s


def _demands(state: State, wanted: Asked, sizing: Sizing, dropped: set[str]) -> Iterator[Demand]:
    for wish in wanted.order:
        if not isinstance(wish, Wish) or wish.job_id in wanted.mute or wish.job_id in dropped:
            continue
        job, sized = state.jobs[wish.job_id], sizing.jobs[wish.job_id]
        if job.placement is not None and (not wish.movable or not sized.gpus):
            continue  # whom a run makes way for altogether is for the matcher to say
        accepted = wanted.kinds[job.id]
        demand = _demand(state, job, wish, sized, accepted)
        if (wish.fresh or not _has(job, demand, accepted)) and state.void.get(job.id) != demand:
            yield demand


def _demand(state: State, job: Job, wish: Wish, sized: Sized, accepted: Sequence[str]) -> Demand:
    used = state.shown.stubborn.get(job.id, 0)
    size = Size(sized.gpus, sized.batch_size) if sized.gpus else _least(job, wish)
    reason = sized.reason
    if used:
        reason += f"; its script uses a batch of {used} whatever it is given"
    return Demand(
        job_id=job.id,
        epoch=job.epoch,
        gpus=size.gpus,
        batch_size=0 if used else size.batch_size,
        kinds=(sized.kind,) if sized.kind and len(accepted) > 1 else (),
        gives=sized.gives,
        reason=reason,
    )


def _least(job: Job, wish: Wish) -> Size:
    """Return the size that a job asks for while there is no room for it: the smallest that may do."""
    for gpus in wish.widths:
        for profile in wish.profiles.values():
            batch = elastic.best_batch(profile, gpus)
            if batch is not None and not job.is_unfit(size := Size(gpus, batch)):
                return size
    return job.size


def _has(job: Job, demand: Demand, accepted: Sequence[str]) -> bool:
    """Say whether a job has, or asks for, what it would be told to."""
    same = (job.spec.gpus, job.spec.batch_size) == (demand.gpus, demand.batch_size or job.spec.batch_size)
    if not same:
        return False
    if job.placement is not None:
        return not demand.kinds or demand.kinds == (job.placement.kind,)
    asks = tuple(kind for kind in accepted if not job.spec.kinds or kind in job.spec.kinds)
    return asks == (demand.kinds or tuple(accepted))
