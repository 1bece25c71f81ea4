"""
The rules of commands about people: who may use the cluster, as what, and how much of it.

As in :mod:`penstock_gateway.acceptance`, all functions are pure: from the read model and a request to the fact that is
to be appended.
"""

from __future__ import annotations

import math
from typing import TypeVar

from penstock_gateway import endpoints
from penstock_gateway.acceptance import JobAction
from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.endpoints import BAD, CONFLICT, NOT_FOUND, RequestRefused
from penstock_gateway.machine import GatewayState
from penstock_log import TERMINAL, UserRemoved, UserSet, request_bodies, subjects
from penstock_log.services import NO_PERSONS
from penstock_log.text import count, listed
from penstock_log.users import UserRecord

N = TypeVar("N", int, float)


def set_user(state: GatewayState, ask: request_bodies.UserRequest, now_s: float, caller: Caller = SERVICE) -> JobAction:
    """Let a person use the cluster, change role, teams and limits, or revoke all logins that were issued until now."""
    before = state.users.by_name.get(ask.user)
    if ask.user == caller.name and before is not None and ask.role not in {None, before.role}:
        raise RequestRefused(
            CONFLICT, f"nobody changes their own role; ask another admin to make {ask.user} {ask.role}"
        )
    if before is None and ask.user.casefold() in NO_PERSONS and ask.user != caller.name:
        raise RequestRefused(
            BAD, f"$.user: {ask.user} is what a service's login is called; give the person another name"
        )
    if both := [name for name in ask.unset if getattr(ask, name) is not None]:
        raise RequestRefused(BAD, f"$.unset: {listed(both)} cannot be set and unset at once; leave one of them out")
    after = _changed(before or UserRecord(name=ask.user, role="user"), ask)
    valid_from_s = _valid_from_s(state, ask, now_s)
    fact = UserSet(
        user=ask.user,
        role=after.role,
        teams=after.teams,
        valid_from_s=valid_from_s,
        by=ask.by,
        at_s=now_s,
        open_jobs=after.open_jobs,
        commands_per_s=after.commands_per_s,
    )
    said = _said(after)
    if before == after and valid_from_s == before.valid_from_s:
        return JobAction(id=ask.user, state=after.role, message=f"{said} already")
    what = f"{said}; logins that were issued until now count no more" if ask.revoke else said
    return JobAction(id=ask.user, state=after.role, message=what, subject=subjects.user(ask.user), fact=fact)


def remove_user(
    state: GatewayState, ask: request_bodies.ActRequest, now_s: float, caller: Caller = SERVICE
) -> JobAction:
    """Let a person not use the cluster any more; 404 for one who does not."""
    if ask.id not in state.users.by_name:
        endpoints.one(state.users.by_name, ask.id, "user")  # which says what there is, if not that
        raise RequestRefused(NOT_FOUND, f"no user {ask.id!r}; write the whole name")
    if ask.id == caller.name:
        raise RequestRefused(CONFLICT, "nobody removes themselves; ask another admin")
    own = sum(job.spec.user == ask.id and job.state not in TERMINAL for job in state.jobs)
    goes_on = f"; {count(own, 'open job')} of theirs {'goes' if own == 1 else 'go'} on" if own else ""
    fact = UserRemoved(user=ask.id, by=ask.by, reason=ask.reason, at_s=now_s)
    message = f"{ask.id} cannot log in any more{goes_on}"
    return JobAction(id=ask.id, state="removed", message=message, subject=subjects.user(ask.id), fact=fact)


def _valid_from_s(state: GatewayState, ask: request_bodies.UserRequest, now_s: float) -> float:
    """Return the last revocation of a person's logins: that of before, or another one, whatever the clock says."""
    last_s = state.users.valid_from_s(ask.user)
    if ask.revocation_s is not None and not ask.revoke:
        raise RequestRefused(BAD, "$.revocation_s: is the name of a revocation; expected revoke = true beside it")
    if ask.revocation_s is not None:
        if ask.revocation_s < last_s:
            raise RequestRefused(CONFLICT, f"the logins of {ask.user} were revoked meanwhile; rotate them again")
        return ask.revocation_s
    returns = ask.user in state.users.removed and ask.user not in state.users.by_name
    return max(now_s, math.nextafter(last_s, math.inf)) if ask.revoke or returns else last_s


def _changed(before: UserRecord, ask: request_bodies.UserRequest) -> UserRecord:
    return UserRecord(
        name=before.name,
        role=ask.role or before.role,
        teams=ask.teams if ask.teams is not None else before.teams,
        valid_from_s=before.valid_from_s,
        open_jobs=_limit(before.open_jobs, ask.open_jobs, unset="open_jobs" in ask.unset),
        commands_per_s=_limit(before.commands_per_s, ask.commands_per_s, unset="commands_per_s" in ask.unset),
    )


def _limit(before: N | None, asked: N | None, *, unset: bool) -> N | None:
    return None if unset else before if asked is None else asked


def _said(one: UserRecord) -> str:
    article = "an" if one.role[0] in "ao" else "a"
    limits = []
    if one.open_jobs is not None:
        limits.append(f"{one.open_jobs:,} open {'job' if one.open_jobs == 1 else 'jobs'}")
    if one.commands_per_s is not None:
        limits.append(f"{one.commands_per_s:g} commands a second")
    bounds = f", with {' and '.join(limits)} at most" if limits else ""
    return f"{one.name} is {article} {one.role} in {listed(one.teams) if one.teams else 'no team'}{bounds}"
