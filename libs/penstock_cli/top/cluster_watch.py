"""
What is asked of the gateway, and how often.

:class:`JobList` gives windows of the list of jobs: only the rows that are seen are asked for, and how many there are.
Where a filter or an order needs to look at all jobs, it loads them in pages, seldom, and asks for the rows that are
seen by their ids in between. :class:`JobWatch` gives one job in full, and asks anew what is dear only where something
has changed. What is asked of the past is asked once: it does not change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock_cli.top.job_columns import NATURAL, JobFilter, JobOrder
from penstock_cli.top.metric_plot import MetricHistory
from penstock_log import TERMINAL, JobState, request_bodies

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_log import views

PAGE: Final = 1_000
"""The gateway's bound for one answer."""
LEAST_RELOAD_S: Final = 5.0
DUTY: Final = 20
"""What takes a second is asked for every twenty seconds, so that one person takes at most 5 % of a gateway."""
Clock = Callable[[], float]


class JobWindow(NamedTuple):
    """
    A part of the list of jobs.

    Attributes
    ----------
    first : int
        Place of the first of them in the list, from 0.
    known : int
        How many jobs the list has.
    total : int
        How many jobs match; those beyond what is known are older, and a filter has to be narrower to show them.
    """

    first: int
    jobs: tuple[views.JobView, ...]
    known: int
    total: int


class JobList:
    """
    The list of jobs, a window of it at a time.

    Parameters
    ----------
    at : int, float, str or None
        Of which moment; None is now.
    clock : callable
        Seconds that only grow.
    """

    def __init__(self, client: Client, at: request_bodies.At, clock: Clock) -> None:
        self._client, self._at, self._clock = client, at, clock
        self._loaded: dict[str, views.JobView] = {}
        self._loaded_of: tuple[object, ...] = ()
        self._loaded_total, self._reload_at = 0, 0.0
        self._sorted: list[views.JobView] = []
        self._sorted_by: tuple[object, ...] = ()

    async def window(self, wanted: JobFilter, order: JobOrder, first: int, count: int) -> JobWindow:
        """Return the jobs from one place on that match a filter, in an order."""
        if self._at is None and order.title == NATURAL and not (wanted.text or wanted.pool):
            return await self._paged(wanted, first, count)
        return await self._searched(wanted, order, first, count)

    async def _paged(self, wanted: JobFilter, first: int, count: int) -> JobWindow:
        jobs: list[views.JobView] = []
        known = total = 0
        for states in wanted.sections:
            begin, end = max(0, first - known), min(first + count - known, PAGE)
            found = await self._ask(states, wanted.user, max(end, 1))
            jobs += list(reversed(found.jobs))[begin:end] if end > 0 else []
            known, total = known + min(found.total, PAGE), total + found.total
        return JobWindow(first, tuple(jobs), known, total)

    async def _searched(self, wanted: JobFilter, order: JobOrder, first: int, count: int) -> JobWindow:
        is_fresh = await self._load(wanted)
        found = self._in_order(wanted, order)
        seen = found[first : first + count]
        if seen and not is_fresh and self._at is None:
            fresh = {job.id: job for job in (await self._client.jobs(ids=[job.id for job in seen])).jobs}
            self._loaded.update(fresh)
            seen = [fresh.get(job.id, job) for job in seen]
        left_out = max(0, self._loaded_total - len(self._loaded))
        return JobWindow(first, tuple(seen), len(found), len(found) + left_out)

    async def _load(self, wanted: JobFilter) -> bool:
        """Load all jobs that a filter may match, unless they were loaded a moment ago; say whether they were now."""
        of = (wanted.group, wanted.user)
        if of == self._loaded_of and (self._at is not None or self._clock() < self._reload_at):
            return False
        began_s = self._clock()
        answers = [await self._ask(states, wanted.user, PAGE) for states in wanted.sections]
        self._loaded = {job.id: job for answer in answers for job in answer.jobs}
        self._loaded_total = sum(answer.total for answer in answers)
        now_s = self._clock()
        self._loaded_of, self._reload_at = of, now_s + max(LEAST_RELOAD_S, DUTY * (now_s - began_s))
        self._sorted_by = ()
        return True

    def _in_order(self, wanted: JobFilter, order: JobOrder) -> list[views.JobView]:
        """Return the loaded jobs that match; rows keep their places until all are loaded anew."""
        by = (self._reload_at, wanted, order)
        if by != self._sorted_by:
            self._sorted = order.sorted(filter(wanted.matches, self._loaded.values()))
            self._sorted_by = by
        return [self._loaded[job.id] for job in self._sorted]

    def _ask(self, states: Iterable[JobState], user: str, limit: int) -> asyncio.Future[views.JobsView]:
        asking = self._client.jobs(state=tuple(map(str, states)), user=user, limit=limit, at=self._at)
        return asyncio.ensure_future(asking)


class HolderList:
    """Who the jobs on devices belong to: a job's user never changes, so each is asked for once."""

    def __init__(self, client: Client, at: request_bodies.At) -> None:
        self._client, self._at = client, at
        self.by_job: dict[str, views.JobView] = {}

    async def learn(self, job_ids: Sequence[str]) -> None:
        """Ask for the jobs that were not asked for yet, and drop those that are not named."""
        named = set(job_ids)
        self.by_job = {job_id: job for job_id, job in self.by_job.items() if job_id in named}
        new = sorted(named - self.by_job.keys())
        for begin in range(0, len(new), PAGE):
            part = new[begin : begin + PAGE]
            answer = await self._client.jobs(ids=part, limit=PAGE, at=self._at)
            self.by_job.update((job.id, job) for job in answer.jobs)


@dataclass
class JobWatch:
    """
    One job as it is seen: in full, with its story and what its metrics were since it is looked at.

    Attributes
    ----------
    detail, story
        As the gateway answered last; None before it has.
    """

    client: Client
    at: request_bodies.At
    clock: Clock
    job_id: str
    detail: views.JobDetail | None = None
    story: views.StoryView | None = None
    history: MetricHistory = field(default_factory=MetricHistory)
    _changed: tuple[object, ...] = ()
    _again_at: float = 0.0

    async def refresh(self) -> None:
        """Ask what has become of the job; its causes and its story only where something has changed, or seldom."""
        if self.detail is not None and self.at is not None:
            return
        job = self.detail.job if self.detail is not None else None
        if job is not None:
            found = (await self.client.jobs(ids=[job.id])).jobs
            job = found[0] if found else job
        if self.detail is None or job is None or _marks(job) != self._changed or self.clock() >= self._again_at:
            job = await self._refresh_all()
        else:
            self.detail = _with_job(self.detail, job)
        self.history.add_report(job.steps, job.metrics)

    async def _refresh_all(self) -> views.JobView:
        began_s = self.clock()
        self.detail = await self.client.job(self.job_id, at=self.at)
        self.story = await self.client.story(self.job_id, at=self.at)
        now_s = self.clock()
        is_over = self.detail.job.state in TERMINAL
        self._again_at = now_s + max(LEAST_RELOAD_S, DUTY * (now_s - began_s)) * (6 if is_over else 1)
        self._changed = _marks(self.detail.job)
        return self.detail.job


def _marks(job: views.JobView) -> tuple[object, ...]:
    """Return what tells that a job's story has gone on."""
    return (
        job.state,
        job.epoch,
        job.attempts,
        job.preemptions,
        job.held,
        job.cause,
        job.placed_on,
        job.reason,
        job.gpus,
    )


def _with_job(detail: views.JobDetail, job: views.JobView) -> views.JobDetail:
    import msgspec

    return msgspec.structs.replace(detail, job=job)
