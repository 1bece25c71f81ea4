"""
A job's story and its facts, asked of the gateway no more often than they change.

A story is read from the log, all rounds of the job's pool among it: of a job that waits for long in a busy pool that
takes a while. :class:`JobStories` keeps the last answers. It asks again once the job has changed, and at times for what
others say of it; after a slow answer it waits for longer, whatever has changed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from penstock_dashboard.gateway_port import GatewayPort, PageRefused, Visitor
from penstock_log import Event, RunCheckpointed, request_bodies, tag_of
from penstock_log.job_state import TERMINAL, JobState
from penstock_log.views import EventsView, EventView, JobDetail, StoryView

E = TypeVar("E", bound=Event)
_KEPT: Final = 500
_AGAIN_S: Final = 2.0
_TIMES: Final = 10.0
_LEAST_TIMES: Final = 3.0
"""So many times as long as an answer took, nothing is asked again: at most a quarter of the time goes into asking."""
_MOST_FACTS: Final = 1000


class JobPast(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the log says of a job.

    Attributes
    ----------
    story : StoryView or None
        None where it could not be read.
    facts : tuple of EventView
        The newest facts about it, oldest first.
    trouble : str
        Why a part is missing.
    """

    story: StoryView | None
    facts: tuple[EventView, ...]
    trouble: str = ""


class _Known(msgspec.Struct, frozen=True):
    of: tuple[Any, ...]
    least_until: float
    until: float
    past: JobPast


class _Asking(msgspec.Struct):
    """How many wait for one answer, for which the gateway is asked once."""

    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    waiting: int = 0


class JobStories:
    """
    The stories of the jobs that were looked at last.

    Parameters
    ----------
    ticks : callable
        Seconds that never jump.
    """

    def __init__(self, gateway: GatewayPort, ticks: Callable[[], float]) -> None:
        self._gateway, self._ticks = gateway, ticks
        self._known: OrderedDict[tuple[str, str, str], _Known] = OrderedDict()
        self._asking: dict[tuple[str, str, str], _Asking] = {}

    async def of(self, visitor: Visitor, detail: JobDetail, at: str) -> JobPast:
        """Return the past of a job that a visitor may see, as of a moment, or now where ``at`` is empty."""
        name = visitor.name, detail.job.id, at
        asking = self._asking.setdefault(name, _Asking())
        asking.waiting += 1
        try:
            async with asking.lock:
                return self._fresh(name, detail) or await self._ask(name, visitor, detail, at)
        finally:  # also where the visitor is gone before the answer is there
            asking.waiting -= 1
            if not asking.waiting:
                del self._asking[name]

    def _fresh(self, name: tuple[str, str, str], detail: JobDetail) -> JobPast | None:
        known, now = self._known.get(name), self._ticks()
        if known is None or now >= known.least_until:
            is_same = known is not None and known.of == _signature(detail)
            is_over = JobState(detail.job.state) in TERMINAL and bool(detail.last_seq)
            return known.past if known is not None and is_same and (is_over or now < known.until) else None
        return known.past

    async def _ask(self, name: tuple[str, str, str], visitor: Visitor, detail: JobDetail, at: str) -> JobPast:
        begin = self._ticks()
        one = request_bodies.OneRequest(id=detail.job.id, at=at or None)
        facts = request_bodies.EventsRequest(id=detail.job.id, limit=_MOST_FACTS, at=at or None)
        story, events = await asyncio.gather(
            self._gateway.query(visitor, "story", one, StoryView),
            self._gateway.query(visitor, "events", facts, EventsView),
            return_exceptions=True,
        )
        for answer in (story, events):
            if isinstance(answer, BaseException) and not isinstance(answer, PageRefused):
                raise answer
        past = JobPast(
            story=story if isinstance(story, StoryView) else None,
            facts=events.events if isinstance(events, EventsView) else (),
            trouble="; ".join(str(answer) for answer in (story, events) if isinstance(answer, PageRefused)),
        )
        now = self._ticks()
        took_s = now - begin
        of = _signature(detail) if not past.trouble else ()
        self._known[name] = _Known(of, now + _LEAST_TIMES * took_s, now + max(_AGAIN_S, _TIMES * took_s), past)
        self._known.move_to_end(name)
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return past


def _signature(detail: JobDetail) -> tuple[Any, ...]:
    job = detail.job
    return detail.last_seq, job.state, job.epoch, job.queue, detail.why.cause, job.held


def checkpoints_of(facts: Iterable[EventView]) -> list[RunCheckpointed]:
    """Return a job's checkpoints, newest first; one that reached a disk after memory is listed for both."""
    found = [fact for view in facts if (fact := _fact(view, RunCheckpointed)) is not None]
    return found[::-1]


def _fact(view: EventView, type_: type[E]) -> E | None:
    """Return a fact as its type; None for one of another type, or of a form that this version does not know."""
    if view.type != tag_of(type_):
        return None
    try:
        return msgspec.convert({**view.fact, "type": view.type, "at_s": view.at_s}, type=type_)
    except msgspec.ValidationError:
        return None
