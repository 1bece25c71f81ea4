"""How alike a shadow's rounds are to the real ones: who was started, when, and on which kind of device."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock_bus.port import Delivery, Shadowed
from penstock_events import RoundDecided, codec
from penstock_shadow.plan import Plan, actor_of

WITHIN_S: Final = 5.0
"""Rounds that are at most this far apart can be the same."""


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """
    The real rounds that started jobs, beside the shadow's.

    Attributes
    ----------
    rounds, shadow_rounds : int
        Rounds that started a job, really and in the shadow.
    same : int
        Real ones for which the shadow has a round that starts the same jobs, at most ``within_s`` apart.
    starts : int
        Jobs that were started for the first time in both.
    same_starts : int
        Those of them whose first starts are at most ``within_s`` apart, on the same kind of device.
    preemptions, shadow_preemptions : int
    """

    rounds: int
    shadow_rounds: int
    same: int
    starts: int
    same_starts: int
    preemptions: int
    shadow_preemptions: int
    within_s: float = WITHIN_S


def real_rounds(log: Iterable[Delivery], plan: Plan) -> list[RoundDecided]:
    """Return the rounds of the log since a shadow's plan began, of the pools that it follows."""
    found = [fact for delivery in log if delivery.seq > plan.from_seq for fact in delivery.commit.facts]
    return [fact for fact in found if isinstance(fact, RoundDecided) and plan.pool in {"", fact.pool}]


def published_rounds(published: Iterable[Shadowed], plan: Plan) -> list[RoundDecided]:
    """Return the rounds that a shadow published since its plan began."""
    commits = [codec.decode(one.body) for one in published]
    facts = [fact for commit in commits if commit.actor == actor_of(plan) for fact in commit.facts]
    return [fact for fact in facts if isinstance(fact, RoundDecided)]


def agreement(real: list[RoundDecided], shadow: list[RoundDecided]) -> Agreement:
    """Compare rounds, each list by time; jobs of the profiler's samples count like others."""
    times_s: defaultdict[frozenset[str], list[float]] = defaultdict(list)
    for one in shadow:
        times_s[_started(one)].append(one.at_s)
    starting = [one for one in real if one.placements]
    first, first_shadow = _first_starts(real), _first_starts(shadow)
    both = first.keys() & first_shadow.keys()
    return Agreement(
        rounds=len(starting),
        shadow_rounds=sum(bool(one.placements) for one in shadow),
        same=sum(_is_near(one.at_s, times_s.get(_started(one), [])) for one in starting),
        starts=len(both),
        same_starts=sum(_alike(first[job_id], first_shadow[job_id]) for job_id in both),
        preemptions=sum(len(one.preemptions) for one in real),
        shadow_preemptions=sum(len(one.preemptions) for one in shadow),
    )


def _started(one: RoundDecided) -> frozenset[str]:
    return frozenset(placement.job_id for placement in one.placements)


def _first_starts(rounds: list[RoundDecided]) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}
    for one in rounds:
        for placement in one.placements:
            if placement.epoch == 1:
                found.setdefault(placement.job_id, (one.at_s, placement.kind))
    return found


def _alike(real: tuple[float, str], shadow: tuple[float, str]) -> bool:
    return abs(real[0] - shadow[0]) <= WITHIN_S and real[1] == shadow[1]


def _is_near(at_s: float, times_s: list[float]) -> bool:
    """Say whether a time is close to one of some rising times."""
    place = bisect_left(times_s, at_s - WITHIN_S)
    return place < len(times_s) and times_s[place] <= at_s + WITHIN_S
