"""
The fold of totals: what each job adds to :class:`~penstock_log.totals.ClusterTotals`, and how archived jobs stay in it.

:class:`TotalsRecord` has two parts: what jobs that are archived have added, and what those that are known have.
:class:`JobTally` says what one job has added so far, so that it can be moved from one part to the other. The fact that
archives jobs has the first part as it is then. So two gateways have the same totals, also where one has read a log
from which archived jobs were removed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock_log import TERMINAL, Job
from penstock_log.job_state import ENDINGS
from penstock_log.totals import ClusterTotals, DeviceTime, add_counts, milliseconds
from penstock_log.usage import RunAccount, usage


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

    def note(self, job: Job, tally: JobTally, runs: Sequence[RunAccount], *, measured: bool) -> None:
        """
        Count what a fact has changed about a job; the profiler's samples do not count.

        Parameters
        ----------
        runs : sequence of RunAccount
            The job's last runs, with the fact folded in.
        measured : bool
            Whether one of them has shown iterations.
        """
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
            outcome = job.run_outcome if not epoch else "lost"  # a round has said that it is lost, and placed it anew
            add_counts(tally.outcomes, {outcome: 1})
            pool = self.known.pool(job.spec.pool)
            add_counts(pool.runs, {outcome: 1})
            ended = [run for run in runs if run.epoch == tally.epoch and run.is_over]
            for run in ended:
                time = DeviceTime.of(usage(run, run.ended_s, measured=measured))
                tally.time.add(time)
                pool.team(job.spec.team).time.add(time)
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
        pool.completions.add(milliseconds(job.finished_s - job.submitted_s), sign)


def _wait_ms(job: Job) -> int:
    return milliseconds(job.first_started_s - job.eligible_s)
