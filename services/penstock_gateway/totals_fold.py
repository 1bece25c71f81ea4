"""
The fold of totals: what each job adds to :class:`~penstock_log.totals.ClusterTotals`, and how archived jobs stay in it.

:class:`TotalsRecord` has two parts: what jobs that are archived have added, and what those that are known have.
:class:`JobTally` says what one job has added so far, so that it can be moved from one part to the other. The fact that
archives jobs has the first part as it is then. So two gateways have the same totals, also where one has read a log
from which archived jobs were removed.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from penstock_log import TERMINAL, Job
from penstock_log.job_state import ENDINGS
from penstock_log.totals import ClusterTotals, DeviceTime, add_counts

_MOST_S: Final = 1e10


class JobTally(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    What a job has added to the totals.

    Attributes
    ----------
    epoch : int
        Of its run that holds devices; 0 where none does.
    started, ended : bool
        Whether its first start and its end are counted.
    outcomes : dict of str to int
        Outcome → runs that ended so.
    time : DeviceTime
        Of these runs.
    """

    epoch: int = 0
    started: bool = False
    ended: bool = False
    outcomes: dict[str, int] = msgspec.field(default_factory=dict)
    time: DeviceTime = msgspec.field(default_factory=DeviceTime)


class TotalsRecord(msgspec.Struct, kw_only=True):
    """
    The totals so far.

    Attributes
    ----------
    archived, known : ClusterTotals
        Of jobs that are archived, and of those that are known.
    """

    archived: ClusterTotals = msgspec.field(default_factory=ClusterTotals)
    known: ClusterTotals = msgspec.field(default_factory=ClusterTotals)

    @property
    def whole(self) -> ClusterTotals:
        """The totals since the log began."""
        whole = ClusterTotals()
        whole.add_all(self.archived)
        whole.add_all(self.known)
        return whole

    def note(self, job: Job, tally: JobTally) -> None:
        """Count what a fact has changed about a job; the profiler's samples do not count."""
        if job.sample is not None:
            return
        if job.first_started_s and not tally.started:
            tally.started = True
            self.known.pool(job.spec.pool).waits.add(_wait_ms(job), 1)
        if job.state in TERMINAL and not tally.ended:
            tally.ended = True
            _count_end(self.known, job, 1)
        epoch = job.placement.epoch if job.placement is not None else 0
        if tally.epoch and epoch != tally.epoch:
            outcome = job.outcome if not epoch else "lost"  # a round has said that it is lost, and placed it anew
            add_counts(tally.outcomes, {outcome: 1})
            add_counts(self.known.pool(job.spec.pool).runs, {outcome: 1})
        tally.epoch = epoch

    def archive_job(self, job: Job, tally: JobTally) -> None:
        """Move what a job has added to what archived jobs have."""
        _add_job(self.known, job, tally, -1)
        _add_job(self.archived, job, tally, 1)

    def take(self, archived: ClusterTotals) -> None:
        """Take over what archived jobs have added, as the fact that archives the last of them says."""
        self.archived = ClusterTotals()
        self.archived.add_all(archived)


def with_jobs(record: TotalsRecord, jobs: list[tuple[Job, JobTally]]) -> ClusterTotals:
    """Return what archived jobs have added once these are archived too."""
    found = ClusterTotals()
    found.add_all(record.archived)
    for job, tally in jobs:
        _add_job(found, job, tally, 1)
    return found


def _add_job(to: ClusterTotals, job: Job, tally: JobTally, sign: int) -> None:
    pool = to.pool(job.spec.pool)
    if tally.started:
        pool.waits.add(_wait_ms(job), sign)
    if tally.ended:
        _count_end(to, job, sign)
    add_counts(pool.runs, tally.outcomes, sign)
    pool.team(job.spec.team).time.add(tally.time, sign)
    to.drop_empty(job.spec.pool, job.spec.team)


def _count_end(to: ClusterTotals, job: Job, sign: int) -> None:
    ending, pool = ENDINGS[job.state], to.pool(job.spec.pool)
    add_counts(pool.team(job.spec.team).ended, {ending: sign})
    if ending == "completed":
        pool.completions.add(_ms(job.finished_s - job.submitted_s), sign)


def _wait_ms(job: Job) -> int:
    return _ms(job.first_started_s - job.submitted_s)


def _ms(time_s: float) -> int:
    """Return a time in milliseconds; what no clock can have said is kept within what snapshots can hold."""
    return 0 if math.isnan(time_s) else round(min(max(time_s, 0.0), _MOST_S) * 1000)
