"""
What is asked of the gateway, and how often.

:class:`JobList` gives windows of the list of jobs: only the rows that are seen are asked for, and how many there are.
Where a filter or an order needs to look at all jobs, it loads them in pages, seldom, and asks for the rows that are
seen by their ids in between. :class:`JobWatch` gives one job in full, and asks anew what is dear only where something
has changed. What is asked of the past is asked once: it does not change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock_cli.top.job_columns import NATURAL, QueueFilter, QueueOrder
from penstock_cli.top.metric_plot import MetricHistory
from penstock_log import TERMINAL, JobState, request_bodies

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_log import views

PAGE: Final = 1_000
"""Jobs in full that one answer has room for."""
ROWS: Final = 2_500
"""The same of rows: some 130 bytes each."""
MOST_LOADED: Final = 50_000
"""So many jobs are searched and sorted at most, the newest."""
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
        How many there are; those beyond what is known are older, and were not looked at.
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
        self._rows: list[views.JobRow] = []
        self._rows_of: tuple[str, ...] = ()
        self._left_out, self._reload_at = 0, 0.0
        self._sorted: list[views.JobRow] = []
        self._sorted_by: tuple[object, ...] = ()

    async def window(self, wanted: QueueFilter, order: QueueOrder, first: int, count: int) -> JobWindow:
        """Return the jobs from one place on that match a filter, in an order."""
        if order.title == NATURAL and not wanted.text:
            return await self._paged(wanted, first, count)
        return await self._searched(wanted, order, first, count)

    async def _paged(self, wanted: QueueFilter, first: int, count: int) -> JobWindow:
        """Ask each section of the natural order for its part of the window, and for how many jobs it has."""
        jobs: list[views.JobView] = []
        known = 0
        for states in wanted.sections:
            begin, end = max(0, first - known), max(0, first + count - known)
            found = await self._ask(wanted, states, offset=begin, limit=min(max(end - begin, 1), PAGE))
            jobs += reversed(found.jobs) if end > begin else ()
            known += found.total
        return JobWindow(first, tuple(jobs), known, known)

    async def _searched(self, wanted: QueueFilter, order: QueueOrder, first: int, count: int) -> JobWindow:
        """Search and sort rows that are loaded now and then, and ask for those that are seen in full."""
        await self._load(wanted)
        by = (self._reload_at, wanted, order)
        if by != self._sorted_by:
            self._sorted, self._sorted_by = order.sorted(filter(wanted.matches, self._rows)), by
        ids = tuple(row.id for row in self._sorted[first : first + count])
        known = len(self._sorted)
        if not ids:
            return JobWindow(first, (), known, known + self._left_out)
        answer = await self._client.jobs_page(request_bodies.JobsRequest(ids=ids, limit=PAGE, at=self._at))
        by_id = {job.id: job for job in answer.jobs}
        jobs = tuple(by_id[job_id] for job_id in ids if job_id in by_id)
        return JobWindow(first, jobs, known, known + self._left_out)

    async def _load(self, wanted: QueueFilter) -> None:
        """Load the rows of all jobs that a filter may match, unless that was done a moment ago."""
        of = (wanted.group, wanted.user, wanted.pool)
        if of == self._rows_of and (self._at is not None or self._clock() < self._reload_at):
            return
        began_s = self._clock()
        rows: list[views.JobRow] = []
        left_out = 0
        for states in wanted.sections:
            own, total = await self._load_section(wanted, states, MOST_LOADED - len(rows))
            rows += own
            left_out += total - len(own)
        now_s = self._clock()
        self._rows, self._rows_of, self._left_out = rows, of, max(0, left_out)
        self._reload_at = now_s + max(LEAST_RELOAD_S, DUTY * (now_s - began_s))

    async def _load_section(
        self, wanted: QueueFilter, states: Sequence[JobState], most: int
    ) -> tuple[list[views.JobRow], int]:
        """Return the rows of a section, each once: jobs may come or change while its pages are asked for."""
        by_id: dict[str, views.JobRow] = {}
        offset = 0
        while True:
            page = await self._ask(wanted, states, offset=offset, limit=ROWS, rows=True)
            by_id.update((row.id, row) for row in page.rows)
            offset += len(page.rows)
            if not page.rows or offset >= min(page.total, most):
                return list(by_id.values()), page.total

    def _ask(
        self, wanted: QueueFilter, states: Sequence[JobState], *, offset: int, limit: int, rows: bool = False
    ) -> Awaitable[views.JobsView]:
        ask = request_bodies.JobsRequest(
            state=tuple(map(str, states)),
            user=wanted.user,
            pool=wanted.pool,
            offset=offset,
            limit=limit,
            rows=rows,
            at=self._at,
        )
        return self._client.jobs_page(ask)


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
