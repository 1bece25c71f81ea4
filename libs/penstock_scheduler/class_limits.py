"""
Limits of priority classes: which waiting jobs would hold more devices than their class lets one user hold at once.

A user's runs of a class count with all devices that they hold, also while they stop. What is left of the limit goes to
the user's waiting jobs of the class in the pool's order, as far as they could start now and fit in; a job that does not
fit in is passed over, and a smaller one behind it may have the rest. A run that shares its devices counts as its part
of them, as for quotas. A limit that is lowered stops no run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from penstock_log import JobSpec
from penstock_log.text import count
from penstock_scheduler.pool.pool_view import PoolView
from penstock_scheduler.priority_classes import Classes
from penstock_scheduler.round_types import RankedJob

_ROUNDING = 1e-9
_Whose = tuple[str, str]
"""User and class."""


def is_bounded(classes: Classes) -> bool:
    """Say whether any class has a limit."""
    return any(rules.most_gpus for rules in classes.values())


def most_of(spec: JobSpec, classes: Classes) -> int:
    """Return how many devices a job's class lets its user hold at once; 0 where it has no limit."""
    own = classes.get(spec.priority_class)
    return own.most_gpus if own is not None else 0


def too_large(spec: JobSpec, classes: Classes) -> str:
    """Return why a job could never start within the limit of its class; empty where it could."""
    most, least = most_of(spec, classes), spec.least_gpus if spec.elastic else spec.gpus
    if not most or spec.sharing == "fraction" or least <= most:
        return ""
    needs = f"needs {least} at least" if spec.elastic else f"needs {least}"
    return f"class `{spec.priority_class}` lets a user hold {count(most, 'device')} at once, and it {needs}"


def beyond(pool: PoolView, classes: Classes, could_start: Callable[[RankedJob], bool]) -> dict[str, str]:
    """
    Return the waiting jobs that are not started because of the limit of their class, each with the reason in words.

    Parameters
    ----------
    could_start : callable
        Says whether nothing else keeps a job from being started, but for devices that others have.

    Notes
    -----
    O(J) for J jobs of the pool; O(1) where no class has a limit. Jobs for which others were preempted come first.
    """
    if not is_bounded(classes):
        return {}
    index = pool.index
    parts = index.sharing.parts()
    held, given, found = defaultdict[_Whose, float](float), defaultdict[_Whose, float](float), dict[str, str]()
    for key in index.granted:
        spec = index.entries[key[3]].ranked.job.spec
        if most_of(spec, classes):
            held[_whose(spec)] += parts.get(key[3], len(index.entries[key[3]].held))
    for key in _in_turn(pool):
        ranked = index.entries[key[3]].ranked
        spec, most = ranked.job.spec, most_of(ranked.job.spec, classes)
        if not most or ranked.sample:
            continue
        if never := too_large(spec, classes):
            found[ranked.job_id] = never
        elif could_start(ranked):
            whose, gpus = _whose(spec), parts.get(ranked.job_id, spec.gpus)
            if held[whose] + given[whose] + gpus <= most + _ROUNDING:
                given[whose] += gpus
            else:
                found[ranked.job_id] = _evidence(spec, most, gpus, held[whose], given[whose])
    return found


def _in_turn(pool: PoolView) -> Collection[tuple[int, float, float, str]]:
    """Return the keys of the waiting jobs, those first for which others were preempted."""
    index = pool.index
    ahead = sorted(key for job_id in pool.promised if (key := index.key_of_waiting(job_id)) is not None)
    return [*ahead, *(key for key in index.waiting if key not in ahead)] if ahead else index.waiting


def _whose(spec: JobSpec) -> _Whose:
    return spec.user, spec.priority_class


def _evidence(spec: JobSpec, most: int, gpus: float, held: float, given: float) -> str:
    whose = f"jobs of {spec.user}" if spec.user else "jobs of nobody"
    before = f", and {given:g} {'goes' if given == 1 else 'go'} to jobs before this one" if given else ""
    return (
        f"class `{spec.priority_class}` lets a user hold {count(most, 'device')} at once; {whose} in it hold {held:g}"
        f"{before}; this one needs {gpus:g}"
    )
