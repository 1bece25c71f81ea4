"""
Accounts of device time, from the gateway's read model: who asked for how much, held it, and did what with it.

:func:`usage` sums the accounts of runs (:mod:`penstock_gateway.run_accounts`), and of archived jobs the sums that their
archiving has left.

Everybody may see the sums by team, pool and kind. By user, model and job, people see rows of the jobs that they may see
anyway; the others are one row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final

import msgspec

from penstock_gateway.answers import ReadModel
from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.endpoints import BAD, RequestRefused
from penstock_gateway.machine import GatewayState
from penstock_log import Job, request_bodies
from penstock_log.usage import DAY_S, RunAccount, RunReport, Usage, UsageKey, bounds_of
from penstock_log.usage import usage as usage_of
from penstock_log.views import UsageRowView, UsageView, WaitsView

_PRIVATE: Final = frozenset({"user", "model", "job"})
"""What a row is that people see of jobs that they may see, and of no others."""
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])")


class _Group(msgspec.Struct):
    """Sums of one row, and its jobs' waits."""

    name: str = ""
    title: str = ""
    user: str = ""
    others: bool = False
    usage: Usage = msgspec.field(default_factory=Usage)
    waits_s: list[float] = msgspec.field(default_factory=list)

    def add(self, other: _Group) -> None:
        self.usage.add(other.usage)
        self.waits_s += other.waits_s

    def view(self) -> UsageRowView:
        return UsageRowView.of(self, waits=_waits(sorted(self.waits_s)))


class _Groups:
    """The rows of an answer that is being made."""

    def __init__(self, by: str, caller: Caller) -> None:
        self._by, self._caller = by, caller
        self.found: dict[str | None, _Group] = {}

    def of(self, key: UsageKey, job: Job | None = None) -> _Group:
        """Return the group of what is known by this key; ``job`` is None where the job is archived."""
        if self._by in _PRIVATE and not self._caller.sees_jobs_of(key.user, key.team):
            return self._others()
        if self._by == "job":
            return self._others() if job is None else self._named(job.id, title=job.spec.name, user=job.spec.user)
        return self._named(getattr(key, self._by))

    def total(self) -> UsageRowView:
        """Return the sum of all groups; call this before :meth:`rows`."""
        whole = _Group()
        for group in self.found.values():
            whole.add(group)
        return whole.view()

    def rows(self, order: str, limit: int) -> Iterator[UsageRowView]:
        """Yield the rows in order; what is beyond the limit is added to the others."""
        others = self.found.pop(None, None)
        names = sorted(self.found.values(), key=lambda group: group.name)
        column = attrgetter("name" if order == "name" else f"usage.{order}_gpu_s")
        groups = names if order == "name" else sorted(names, key=column, reverse=True)
        for group in groups[:limit]:
            yield group.view()
        for group in groups[limit:]:
            others = others or _Group(others=True)
            others.add(group)
        if others is not None:
            yield others.view()

    def _named(self, name: str, title: str = "", user: str = "") -> _Group:
        return self.found.setdefault(name, _Group(name=name, title=title, user=user))

    def _others(self) -> _Group:
        return self.found.setdefault(None, _Group(others=True))


def usage(model: ReadModel, asked: request_bodies.UsageRequest, caller: Caller = SERVICE) -> UsageView:
    """
    Return device time by group within a window.

    Raises
    ------
    RequestRefused
        400 where the window is none.

    Notes
    -----
    O(runs) within the window and O(jobs) beside; 10,000 jobs of a run each take about 0.15 s.
    """
    since_s, until_s = window(asked, model.now_s)
    groups = _Groups(asked.by, caller)
    whole_days = set(_add_archived(groups, model, since_s, until_s))
    for job in model.state.jobs_since(since_s - DAY_S):  # on the day of their end, sums of jobs count as a whole
        whole_days.update(_add_job(groups, model, job, since_s, until_s))
    total = groups.total()
    rows = tuple(groups.rows(asked.order, asked.limit))
    return UsageView(
        by=asked.by,
        since_s=since_s if since_s > -math.inf else _first_s(model.state, until_s),
        until_s=until_s,
        rows=rows,
        total=total,
        seq=model.seq,
        whole_days=tuple(sorted(whole_days)),
    )


def window(asked: request_bodies.UsageRequest | request_bodies.TimelineRequest, now_s: float) -> tuple[float, float]:
    """
    Return the window that a request names, in seconds since the epoch; it ends at the present moment at the latest.

    Raises
    ------
    RequestRefused
        400 where a bound cannot be read, or the window ends before it begins.

    Examples
    --------
    >>> from penstock_log.request_bodies import UsageRequest
    >>> window(UsageRequest(since="1h", until="1970-01-02"), now_s=90_000.0), window(UsageRequest(), now_s=5.0)
    ((86400.0, 86400.0), (-inf, 5.0))
    """
    until_s = min(now_s, _bound("until", asked.until, now_s, now_s))
    since_s = _bound("since", asked.since, now_s, -math.inf)
    if since_s > until_s:
        raise RequestRefused(
            BAD,
            f"since={asked.since!r} is after the window's end, until={asked.until or 'now'!r}; name an earlier one",
        )
    return since_s, until_s


def _add_archived(groups: _Groups, model: ReadModel, since_s: float, until_s: float) -> Iterator[str]:
    """Add what is left of archived jobs; yield the days that the window cuts."""
    for day, rows in model.state.archived_usage.items():
        touched, cut = _touches(day, since_s, until_s, model.now_s)
        if cut:
            yield day
        for row in rows.values() if touched else ():
            groups.of(row).usage.add(row.usage)


def _touches(day: str, since_s: float, until_s: float, now_s: float) -> tuple[bool, bool]:
    """Say whether a window touches a UTC day, and whether it cuts the part of it that is over."""
    begin_s, end_s = bounds_of(day)
    touched = since_s < end_s and begin_s < until_s
    return touched, touched and (begin_s < since_s or until_s < min(end_s, now_s))


def _first_s(state: GatewayState, otherwise: float) -> float:
    """Return since when there is anything in the accounts."""
    known = (past.account.runs[0].pending_s for past in state.histories.values())
    return min([*known, *_archived_since(state)], default=otherwise)


def _archived_since(state: GatewayState) -> Iterator[float]:
    if state.archived_usage:
        yield bounds_of(min(state.archived_usage))[0]


def _add_job(groups: _Groups, model: ReadModel, job: Job, since_s: float, until_s: float) -> Iterator[str]:
    """Add a job's runs; yield the days that are counted whole, though the window cuts them."""
    account = model.state.histories[job.id].account
    for kind, by_days in account.before.items():
        for day, found in by_days.items():
            touched, cut = _touches(day, since_s, until_s, model.now_s)
            if cut:
                yield day
            if touched:
                groups.of(_key(job, kind), job).usage.add(found)
    for run in account.runs:
        if run.pending_s >= until_s or run.end_by(model.now_s) < since_s:
            continue
        found = usage_of(
            run,
            model.now_s,
            since_s,
            until_s,
            measured=account.measured,
            counts=job.sample is None,
            report=None if run.is_over else _report(model, job),
        )
        group = groups.of(_key(job, run.kind), job)
        group.usage.add(found)
        if (wait_s := _first_wait_s(job, account.runs, run, left_out=account.left_out)) is not None and (
            since_s <= run.granted_s < until_s
        ):
            group.waits_s.append(wait_s)


def _key(job: Job, kind: str) -> UsageKey:
    spec = job.spec
    return UsageKey(user=spec.user, team=spec.team, pool=spec.pool, model=spec.model, kind=kind)


def _report(model: ReadModel, job: Job) -> RunReport | None:
    report = model.report_of(job)
    return RunReport(report.loop_s, report.loop_steps, report.waited_s) if report.loop_steps else None


def _first_wait_s(job: Job, runs: Sequence[RunAccount], run: RunAccount, *, left_out: int) -> float | None:
    """Return how long a job waited for its first devices, if this run had them."""
    if left_out or job.sample is not None or not run.is_granted:
        return None
    first = next(one for one in runs if one.is_granted)
    return max(0.0, run.granted_s - job.eligible_s) if first is run else None


def _waits(sorted_s: Sequence[float]) -> WaitsView:
    return WaitsView(jobs=len(sorted_s), median_s=quantile(sorted_s, 0.5), p90_s=quantile(sorted_s, 0.9))


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """
    Return a quantile of ordered values, between the two that are next to it; None where there is no value.

    Examples
    --------
    >>> quantile([1.0, 2.0, 4.0], 0.5), quantile([1.0, 2.0], 0.75), quantile([], 0.5)
    (2.0, 1.75, None)
    """
    if not ordered:
        return None
    place = part * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _bound(name: str, given: request_bodies.At, now_s: float, otherwise: float) -> float:
    """Return a bound of a window: seconds since the epoch, a span before now, a UTC day, or an RFC 3339 time."""
    if given is None or given == "":
        return otherwise
    if isinstance(given, int | float):
        found = float(given)
    elif span := _SPAN.fullmatch(given):
        found = now_s - float(span[1]) * _UNITS[span[2]]
    else:
        found = _time(name, given)
    if not math.isfinite(found):
        raise RequestRefused(BAD, f"{name}={given!r} is no time; expected seconds since the epoch")
    return found


def _time(name: str, text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise RequestRefused(
            BAD,
            f"{name}={text!r} is no time; expected a span before now (7d), a UTC day (2026-01-31), a time "
            "(2026-01-31T12:00:00Z), or seconds since the epoch",
        ) from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
