"""
Retention: which jobs are archived, and which part of the log is then needed by nobody.

:class:`ArchiveRecord` is what the log says of the archive so far. :func:`expired` chooses the jobs that ended long ago,
and :func:`needed_from` says from where on the log's ranks, sizes and rounds are still about jobs that are known. Both
are pure; :mod:`penstock_gateway.archiver` does what they say.

A job stays as long as somebody may ask for it: it is open, or ended within the last ``keep_days``, or an open job
begins with its checkpoint, or it is a trial of a sweep that stays, or a sample of a workload of which a job stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock_gateway.totals_fold import with_jobs
from penstock_log import ARCHIVE, TERMINAL, Job, JobsArchived, LogCopied, LogTrimmed
from penstock_log.records import compose
from penstock_log.usage import DayUsage, Usage, UsageKey

if TYPE_CHECKING:
    from penstock_gateway.machine import GatewayState

MOST_IDS: Final = 5_000
"""Jobs of one fact, which has to fit in a message of the log."""
MOST_ROWS: Final = 1_000
"""Groups whose usage one fact has, for the same reason, unless a single job has more."""


MOST_UNTRIMMED: Final = 200
"""Facts that are remembered where nothing can be removed from the log: it is one of an earlier version."""


class Untrimmed(msgspec.Struct, frozen=True):
    """A fact of archived jobs that are still in the log, and its sequence."""

    seq: int
    fact: JobsArchived


class ArchiveRecord(msgspec.Struct, kw_only=True):
    """
    What was copied, forgotten and removed.

    Attributes
    ----------
    copied_seq, copied_until_s
        Up to where the log is in files, and the time up to which all that was stored is.
    files, jobs : int
        Files that were written, and jobs that were archived.
    untrimmed : list of Untrimmed
        What is archived and may still be in the log.
    trimmed_before : int
        Where the log's ranks, sizes and rounds begin.
    """

    copied_seq: int = 0
    copied_until_s: float = 0.0
    files: int = 0
    jobs: int = 0
    untrimmed: list[Untrimmed] = msgspec.field(default_factory=list)
    trimmed_before: int = 0

    def note(self, event: LogCopied | LogTrimmed) -> None:
        """Note that a stretch was copied, or that archived facts were removed."""
        if isinstance(event, LogCopied):
            self.copied_seq, self.copied_until_s = max(self.copied_seq, event.last_seq), event.until_s
            self.files += 1
        else:
            self.untrimmed = [one for one in self.untrimmed if one.seq > event.archived_seq]
            self.trimmed_before = max(self.trimmed_before, event.before_seq)

    def archive(self, event: JobsArchived, seq: int) -> None:
        """Note that jobs were archived."""
        self.jobs += len(event.job_ids)
        self.untrimmed.append(Untrimmed(seq, msgspec.structs.replace(event, learnt={}, usage=(), totals=None)))
        del self.untrimmed[:-MOST_UNTRIMMED]


def expired(state: GatewayState, before_s: float, now_s: float, most: int = MOST_IDS) -> list[JobsArchived]:
    """
    Return the jobs that are to be archived, the oldest first, as one fact for so many of them.

    The first fact has what finished jobs have taught: then nothing is removed before that is in the log. The last one
    has the sweeps and workloads of which no job is left.

    Parameters
    ----------
    before_s : float
        Jobs that ended before this time are old.

    Notes
    -----
    O(jobs), some microseconds for each; the archiver asks once for every stretch that it has copied.
    """
    old = {job.id: job for job in state.jobs if _is_over(state, job, before_s)}
    _keep(old, {job.spec.begins_from for job in state.jobs if job.state not in TERMINAL})
    awaited = (state.members.get(target, ()) for target in state.dependents.of)
    _keep(old, (job_id for ids in awaited for job_id in ids))
    kept_sweeps = [ids for sweep_id, ids in state.children.items() if not _ends(state, sweep_id, before_s)]
    _keep(old, (job_id for ids in kept_sweeps for job_id in ids))
    used = {key_of(state, job) for job in state.jobs if job.sample is None and job.id not in old}
    _keep(old, (job_id for key in used for job_id in state.samples.get(key, ())))
    ids = sorted(old, key=lambda job_id: (state.histories[job_id].seq, job_id))
    sweeps = tuple(_empty_sweeps(state, old, before_s))
    if not ids and not sweeps:
        return []
    batches = list(_batches(state, ids, most)) or [()]
    facts = [JobsArchived(at_s=now_s, archive=ARCHIVE, job_ids=batch) for batch in batches]
    stale = tuple(sorted({key_of(state, job) for job in old.values()} - used))
    facts[-1] = msgspec.structs.replace(facts[-1], sweep_ids=sweeps, workloads=stale)
    learnt = {pool: lengths.as_fact(state.finished_s.get(pool, ())) for pool, lengths in state.lengths.items()}
    facts[0] = msgspec.structs.replace(facts[0], learnt=learnt)
    return facts


def still_due(state: GatewayState, fact: JobsArchived) -> JobsArchived:
    """Return a fact of :func:`expired` with the sums of by now, without what somebody has come to need since."""
    origins = {job.spec.begins_from for job in state.jobs if job.state not in TERMINAL}
    used = set(state.keys.values())
    job_ids = tuple(job_id for job_id in fact.job_ids if job_id not in origins)
    return msgspec.structs.replace(
        fact,
        job_ids=job_ids,
        totals=with_jobs(state.totals, [(state.jobs[job_id], state.histories[job_id].tally) for job_id in job_ids]),
        workloads=tuple(key for key in fact.workloads if key not in used),
        usage=archived_usage(state, job_ids),
    )


def archived_usage(state: GatewayState, job_ids: Iterable[str]) -> tuple[DayUsage, ...]:
    """Return what accounts are to know of jobs that are over: sums by UTC day, user, team, pool, model and kind."""
    sums: dict[tuple[str, UsageKey], Usage] = {}
    for job_id in job_ids:
        for day, key, found in _days(state, job_id):
            sums.setdefault((day, key), Usage()).add(found)
    return tuple(compose(DayUsage, key, day=day, usage=found) for (day, key), found in sums.items())


def owners(state: GatewayState, fact: JobsArchived) -> Iterator[tuple[str, str]]:
    """Yield ``(id, user)`` of the jobs and sweeps that a fact archives; the profiler's samples are nobody's."""
    for job_id in fact.job_ids:
        if (job := state.jobs.get(job_id)) is not None and job.sample is None:
            yield job_id, job.spec.user
    for sweep_id in fact.sweep_ids:
        if (sweep := state.sweeps.get(sweep_id)) is not None:
            yield sweep_id, sweep.spec.job.user


def key_of(state: GatewayState, job: Job) -> str:
    """Return the key of a job's workload."""
    return job.profile_key or state.histories[job.id].key


def needed_from(state: GatewayState) -> int:
    """
    Return the sequence from which on ranks, sizes and rounds are needed.

    Before it they are about jobs that are archived, and about nodes of which later facts say what they are.
    """
    known = (state.histories[job.id].seq for job in state.jobs)
    lost = (seq for node_id, seq in state.gone_seq.items() if node_id in state.cluster.nodes)
    return min((state.archive.copied_seq + 1, *lost, *known))


def forgotten_nodes(state: GatewayState, before_seq: int) -> dict[str, int]:
    """Return the nodes that were forgotten by rounds before a sequence, which their own facts must not outlive."""
    gone = state.gone_seq.items()
    return {node_id: seq for node_id, seq in gone if node_id not in state.cluster.nodes and seq < before_seq}


def _batches(state: GatewayState, ids: Sequence[str], most: int) -> Iterator[tuple[str, ...]]:
    """Yield jobs so many at a time, or fewer where their usage is of many groups."""
    batch: list[str] = []
    groups: set[tuple[str, UsageKey]] = set()
    for job_id in ids:
        own = {(day, key) for day, key, _ in _days(state, job_id)}
        if batch and (len(batch) >= most or len(groups | own) > MOST_ROWS):
            yield tuple(batch)
            batch, groups = [], set()
        batch.append(job_id)
        groups |= own
    if batch:
        yield tuple(batch)


def _days(state: GatewayState, job_id: str) -> Iterator[tuple[str, UsageKey, Usage]]:
    job, past = state.jobs.get(job_id), state.histories.get(job_id)
    if job is not None and past is not None:
        for day, kind, found in past.account.days(counts=job.sample is None):
            yield day, compose(UsageKey, job.spec, kind=kind), found


def _is_over(state: GatewayState, job: Job, before_s: float) -> bool:
    past = state.histories[job.id]
    if job.state not in TERMINAL or job.finished_s >= before_s:
        return False
    return past.end_seq <= state.archive.copied_seq and (past.announced or job.sample is not None)


def _keep(old: dict[str, Job], ids: Iterable[str]) -> None:
    for job_id in ids:
        old.pop(job_id, None)


def _ends(state: GatewayState, sweep_id: str, before_s: float) -> bool:
    """Say whether a sweep is no reason to keep its trials."""
    sweep = state.sweeps.get(sweep_id)
    return sweep is None or (sweep.finished is not None and sweep.finished.at_s < before_s)


def _empty_sweeps(state: GatewayState, old: dict[str, Job], before_s: float) -> Iterable[str]:
    """Yield the sweeps that are old, and of which no trial stays."""
    for sweep_id, sweep in state.sweeps.items():
        is_old = _ends(state, sweep_id, before_s) and sweep.seq <= state.archive.copied_seq
        if is_old and all(job_id in old for job_id in state.children.get(sweep_id, ())):
            yield sweep_id
