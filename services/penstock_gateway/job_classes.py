"""
The rules of commands about priority classes: which one a job may name, and which may be removed.

As in :mod:`penstock_gateway.acceptance`, all functions are pure. What a class means to a round is told in
:mod:`penstock_scheduler.priority_classes`. A class that a job names which is not over is not removed; where it has gone
all the same, because a settings file was changed, its jobs count as jobs without a class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.endpoints import BAD, CONFLICT, RequestRefused
from penstock_gateway.machine import GatewayState
from penstock_gateway.sweep_table import open_sweeps
from penstock_log import JobSpec, Setting
from penstock_log.text import listed
from penstock_log.validation import BadInput
from penstock_scheduler import class_limits
from penstock_scheduler.pool import pool_settings
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.priority_classes import Classes
from penstock_scheduler.round_types import MOST_CLASSES

_NAMED: Final = 3


def check(
    state: GatewayState, spec: JobSpec, settings: MatcherSettings, caller: Caller = SERVICE, path: str = "$"
) -> None:
    """
    Refuse a job that may not be of its class.

    A trial is not looked at: its sweep was.

    Raises
    ------
    BadInput
        If its pool has no such class, it is not for the job's team, or the job is larger than its limit.
    """
    if not spec.priority_class or (spec.parent and caller.is_service):
        return
    name, classes = spec.priority_class, pool_settings.rules_of(state, spec.pool, settings).classes
    if name not in classes:
        there = f"expected one of {listed(sorted(classes))}" if classes else "there is none; leave it out"
        raise BadInput(f"{path}.priority_class: pool {spec.pool} has no class {name!r}; {there}")
    teams = classes[name].teams
    if teams and spec.team not in teams:
        whose = f"team {spec.team}" if spec.team else "jobs without a team"
        those = f"{'team' if len(teams) == 1 else 'teams'} {listed(sorted(teams))}"
        raise BadInput(
            f"{path}.priority_class: class {name} is for {those}, and not for {whose}{_others(classes, spec.team)}"
        )
    if never := class_limits.too_large(spec, classes):
        raise BadInput(f"{path}.gpus: {never}; ask for fewer, or for another class")


def _others(classes: Classes, team: str) -> str:
    """Return the classes that a team may use, in words; empty where there are none."""
    open_to = sorted(name for name, rules in classes.items() if not rules.teams or team in rules.teams)
    return f"; {listed(open_to)} {'is' if len(open_to) == 1 else 'are'} open to it" if open_to else ""


def check_change(state: GatewayState, pool: str, live: Mapping[str, Setting], settings: MatcherSettings) -> None:
    """
    Refuse live settings of a pool by which it would have too many classes, or would lose one that jobs name.

    Raises
    ------
    RequestRefused
        409 where a job or a sweep that is not over names a class that would go; 400 if there would be too many.
    """
    before = pool_settings.rules_of(state, pool, settings).classes
    after = settings.of(pool).classes.keys() | pool_settings.classes_named(live)
    if len(after) > MOST_CLASSES:
        raise RequestRefused(BAD, f"$.set: a pool has at most {MOST_CLASSES} classes, got {len(after)}; remove others")
    for name in sorted(before.keys() - after):
        if naming := list(_naming(state, pool, name)):
            more = f" and {len(naming) - _NAMED} more" if len(naming) > _NAMED else ""
            raise RequestRefused(
                CONFLICT,
                f"class {name} of pool {pool} stays: {listed(naming[:_NAMED])}{more} of it are not over; cancel them, "
                "or wait until they are over",
            )


def _naming(state: GatewayState, pool: str, name: str) -> Iterator[str]:
    """Yield the jobs and sweeps that are not over and name a class of a pool."""
    for job in state.jobs_of(pool, state.jobs):
        if job.spec.priority_class == name and job.sample is None and not job.spec.parent:
            yield job.id
    for sweep in open_sweeps(state.sweeps):
        if sweep.spec.job.pool == pool and sweep.spec.job.priority_class == name:
            yield sweep.id
