"""Which moment a question is about, and the read model as it was then."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from penstock_bus import Bus, Timeout
from penstock_bus.decider import Decider
from penstock_bus.fold import Fold
from penstock_bus.live import LiveFold
from penstock_events import asks
from penstock_gateway import reading
from penstock_gateway.find import Refused
from penstock_gateway.machine import State
from penstock_gateway.show import Scene

FRESH_S: Final = 1.0
_LEAST_TIME: Final = 1e9  # as a sequence it is out of reach; as a time it is the year 2001
_BAD: Final = 400
_log = structlog.get_logger("penstock.gateway")


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The end of what counts: a stream sequence, or a time in seconds since the epoch."""

    seq: int | None = None
    time_s: float | None = None


def parse(at: asks.At) -> Moment | None:
    """
    Return the moment that ``at`` names; None for now.

    Raises
    ------
    Refused
        400 if it is none of: a sequence, seconds since the epoch, an RFC 3339 time.

    Examples
    --------
    >>> parse(120), parse(1.7e9), parse("120")
    (Moment(seq=120, time_s=None), Moment(seq=None, time_s=1700000000.0), Moment(seq=120, time_s=None))
    >>> parse("2023-11-14T22:13:20Z")
    Moment(seq=None, time_s=1700000000.0)
    """
    if at is None or at == "":
        return None
    number = float(at) if isinstance(at, int | float) or re.fullmatch(r"\d+(\.\d+)?(e\d{1,2})?", at) else None
    if number is None:
        return Moment(time_s=_rfc3339(str(at)))
    if number < 0:
        raise Refused(_BAD, f"at={at} is negative; expected a sequence or a time in seconds since the epoch")
    if number < _LEAST_TIME and number.is_integer() and not isinstance(at, float):
        return Moment(seq=int(number))
    return Moment(time_s=number)


async def catch_up(bus: Bus, live: LiveFold[State]) -> None:
    """
    Wait until the read model has all that the log holds now, :data:`FRESH_S` at most.

    So that whoever was answered by one replica of the gateway finds what he did at any other.
    """
    try:
        await live.reached(await bus.last_seq(), FRESH_S)
    except Timeout as error:
        _log.warning("answering_from_behind", error=str(error))


async def end_of(bus: Bus, moment: Moment | None) -> int:
    """
    Return the sequence of the last commit that counts at a moment; None is now.

    Raises
    ------
    Refused
        400 if the log has not come that far.
    """
    if moment is not None and moment.time_s is not None:
        return await reading.seq_at(bus, moment.time_s)
    last_seq = await bus.last_seq()
    if moment is None or moment.seq is None:
        return last_seq
    if moment.seq > last_seq:
        raise Refused(_BAD, f"at={moment.seq} is behind the end of the log, which is at {last_seq}")
    return moment.seq


async def scene_at(bus: Bus, decider: Decider[State], moment: Moment) -> Scene:
    """
    Fold the log up to a moment.

    Known shortcut: it always starts at the beginning of the log, at some 40,000 commits a second; snapshots of fixed
    ages would make it faster.

    Raises
    ------
    Refused
        400 if the log has not come that far.
    """
    until_seq = await end_of(bus, moment)
    fold, now_s = Fold(decider), 0.0
    async for delivery in reading.stretch(bus, 0, until_seq):
        fold.apply(delivery)
        now_s = delivery.stored_s
    return Scene(state=fold.state, now_s=moment.time_s if moment.time_s is not None else now_s, seq=fold.last_seq)


def _rfc3339(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Refused(
            _BAD, f"at={text!r} is no moment; expected a sequence (120), seconds (1.7e9) or 2026-01-31T12:00:00Z"
        ) from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
