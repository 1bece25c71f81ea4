"""
The rules of commands about reservations: devices of a pool that are a team's own for a time.

As in :mod:`penstock_gateway.acceptance`, all functions are pure: from the read model and a request to the fact that is
to be appended. Facts about a pool's reservations stand on one subject, so of two that together would be too many the
second is decided anew.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from penstock_gateway.acceptance import JobAction, check_pool, check_team
from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.endpoints import BAD, CONFLICT, NOT_FOUND, RequestRefused
from penstock_gateway.machine import GatewayState
from penstock_log import ReservationCancelled, ReservationMade, request_bodies, subjects
from penstock_log.text import count, duration, listed
from penstock_scheduler.reservations import most_reserved

MOST: Final = 200
"""Reservations of a pool that are not over: each round looks at all of them."""


def reserve(
    state: GatewayState,
    ask: request_bodies.ReserveRequest,
    now_s: float,
    caller: Caller = SERVICE,  # noqa: ARG001 - all commands are called alike
) -> JobAction:
    """Reserve devices for a team; 400 if the times are wrong or nobody is in the team, 409 if they are too many."""
    check_pool(state, ask.pool)
    from_s = max(ask.from_s, now_s)
    if not math.isfinite(ask.until_s) or not math.isfinite(ask.from_s):
        raise RequestRefused(BAD, "$.until_s: a reservation has a begin and an end; expected seconds since the epoch")
    if ask.until_s <= from_s:
        late = "it is over already" if ask.until_s <= now_s else "it ends before it begins"
        raise RequestRefused(BAD, f"$.until_s: {late}; expected an end after its begin and after now")
    check_team(state, ask.team, "$.team")
    others = [one for one in state.reservations(ask.pool) if one.until_s > now_s]
    if len(others) >= MOST:
        raise RequestRefused(CONFLICT, f"pool {ask.pool} has {MOST} reservations; cancel one of them first")
    _check_room(state, ask, most_reserved(others, from_s, ask.until_s))
    if ask.kind:
        _check_kind(state, ask, most_reserved(others, from_s, ask.until_s, ask.kind))
    made = state.reserved[ask.pool].made if ask.pool in state.reserved else 0
    fact = ReservationMade(
        pool=ask.pool,
        reservation_id=f"{ask.team}-{made + 1}",
        team=ask.team,
        gpus=ask.gpus,
        from_s=from_s,
        until_s=ask.until_s,
        by=ask.by,
        reason=ask.reason,
        kind=ask.kind,
        at_s=now_s,
    )
    begins = f"in {duration(from_s - now_s)}" if from_s > now_s else "from now on"
    what = f"{count(ask.gpus, f'{ask.kind} device'.strip())} of pool {ask.pool} for team {ask.team}"
    message = f"reservation {fact.reservation_id}: {what} {begins}, for {duration(ask.until_s - from_s)}"
    subject = subjects.policy(ask.pool)
    return JobAction(id=fact.reservation_id, state="reserved", message=message, subject=subject, fact=fact)


def _check_room(state: GatewayState, ask: request_bodies.ReserveRequest, reserved: int) -> None:
    """Refuse more than the pool has; drained devices count, because they may be back by then."""
    devices = sum(len(node.devices) for node in state.cluster.present(ask.pool))
    if reserved + ask.gpus > devices:
        taken = f", and {reserved} of them are reserved at some time in between" if reserved else ""
        left = devices - reserved
        raise RequestRefused(
            CONFLICT, f"$.gpus: pool {ask.pool} has {count(devices, 'device')}{taken}; expected at most {max(0, left)}"
        )


def _check_kind(state: GatewayState, ask: request_bodies.ReserveRequest, reserved: int) -> None:
    """Refuse more of a kind than the pool has, and a kind that it does not have."""
    there = Counter(device.kind for node in state.cluster.present(ask.pool) for device in node.devices)
    if ask.kind not in there:
        known = f"expected one of {listed(sorted(there))}" if there else "it has no device"
        raise RequestRefused(BAD, f"$.kind: pool {ask.pool} has no device of kind {ask.kind!r}; {known}")
    left = there[ask.kind] - reserved
    if ask.gpus > left:
        has = count(there[ask.kind], f"{ask.kind} device")
        taken = f", and {reserved} of them are reserved at some time in between" if reserved else ""
        raise RequestRefused(CONFLICT, f"$.gpus: pool {ask.pool} has {has}{taken}; expected at most {max(0, left)}")


def unreserve(
    state: GatewayState,
    ask: request_bodies.UnreserveRequest,
    now_s: float,
    caller: Caller = SERVICE,  # noqa: ARG001 - all commands are called alike
) -> JobAction:
    """Cancel a reservation, whether or not it has begun; 404 if there is none of this id, or it is over."""
    found = [
        one
        for pool in state.reserved
        if ask.pool in {"", pool}
        for one in state.reservations(pool)
        if one.reservation_id == ask.id and one.until_s > now_s
    ]
    if not found:
        where = f" of pool {ask.pool}" if ask.pool else ""
        raise RequestRefused(
            NOT_FOUND, f"no reservation{where} is called {ask.id!r}; `penstock reservations` lists all"
        )
    if len(found) > 1:
        pools = listed([one.pool for one in found])
        raise RequestRefused(CONFLICT, f"$.pool: pools {pools} have a reservation {ask.id}; expected one of them")
    pool = found[0].pool
    fact = ReservationCancelled(pool=pool, reservation_id=ask.id, by=ask.by, reason=ask.reason, at_s=now_s)
    message = f"reservation {ask.id} of pool {pool} is cancelled"
    return JobAction(id=ask.id, state="cancelled", message=message, subject=subjects.policy(pool), fact=fact)
