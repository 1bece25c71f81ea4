"""What one might suspect to keep a job waiting, and does not: each with what clears it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import msgspec

from penstock_events import Job
from penstock_events.views import RankView
from penstock_gateway.words import count, listed
from penstock_policies.order import Rules
from penstock_policies.rounds.pool import Pool

_NEVER = {"never_fits", "no_nodes"}
_FOR_DEVICES = {"capacity", "gang", "order"}


@dataclass(frozen=True)
class Place:
    """
    Where a waiting job stands.

    Attributes
    ----------
    pool : Pool
    rules : Rules
        Of its rounds.
    rank : RankView or None
        None where it does not matter.
    borrowers : collection of str
        Jobs of the pool that no quota covers.
    """

    pool: Pool
    rules: Rules
    rank: RankView | None
    borrowers: Collection[str] = ()


def cleared(job: Job, cause: str, place: Place) -> Iterator[str]:
    """Yield what is not the cause, the likeliest suspects first."""
    if cause != "held":
        yield "it is not held"
    if place.rank is not None and not place.rank.ahead and cause in _FOR_DEVICES:
        yield "not its priority: no waiting job stands before it"
    yield from _what_it_asks_for(job, cause, place.pool)
    if cause in _FOR_DEVICES:
        yield f"not a quota: {_quota(job, place)}"
        yield f"not fairness: {_fairness(place)}"
    yield from _what_is_known(job, cause, place.pool)


def _quota(job: Job, place: Place) -> str:
    if not place.rules.quotas:
        return "there is none"
    if job.id in place.borrowers:
        return "its team's is used up, and a larger one would not start it now"
    return "its team has one that covers it"


def _fairness(place: Place) -> str:
    if place.rules.alpha >= 1.0:
        return "every user's jobs enter each round"
    if place.pool.alpha(place.rules) >= 1.0:
        return "its user is not kept back for others"
    return "it would not start now if every user's jobs entered the round"


def _what_it_asks_for(job: Job, cause: str, pool: Pool) -> Iterator[str]:
    spec, idle, whole = job.spec, pool.roster.free, pool.roster.whole
    most = max(whole.kinds(spec).values(), default=0)
    if cause not in _NEVER and most >= spec.gpus:
        there = f"there {'is' if most == 1 else 'are'} {most}"
        yield f"not its size: it asks for {count(spec.gpus, 'device')}, and {there} of one kind that it accepts"
    if cause not in _FOR_DEVICES or spec.sharing != "exclusive":  # who shares does not wait for idle devices alone
        return
    any_kind = msgspec.structs.replace(spec, kinds=())
    if spec.kinds and max(idle.kinds(any_kind).values(), default=0) < spec.gpus:
        yield f"not its kinds: no other has {_idle(spec.gpus)} for it either"
    any_memory = msgspec.structs.replace(spec, memory_bytes=0)
    if spec.memory_bytes and max(idle.kinds(any_memory).values(), default=0) < spec.gpus:
        yield f"not its memory: asking for less, there would not be {_idle(spec.gpus)} either"


def _idle(devices: int) -> str:
    return "an idle device" if devices == 1 else f"{devices} idle devices"


def _what_is_known(job: Job, cause: str, pool: Pool) -> Iterator[str]:
    key, accepted = pool.keys[job.id], pool.roster.whole.kinds(job.spec)
    told = sorted(kind for kind in pool.speeds.by_key.get(key, {}) if kind in accepted)
    predicted = [kind for kind in told if kind in pool.speeds.predicted(key)]
    known = [kind for kind in told if kind not in predicted]
    if cause != "profiling" and told:
        said = [f"{how} on {listed(kinds)}" for how, kinds in (("known", known), ("predicted", predicted)) if kinds]
        yield f"not its profile: its speeds are {' and '.join(said)}"
    if cause != "backoff" and job.failures:
        yield "not its failures: the back-off is over"
