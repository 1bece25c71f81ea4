"""
The gateway's settings, state, apply, decide.

:class:`GatewayState` is the read model: everything that people ask about, folded from all facts. What people command is
decided in :mod:`penstock_gateway.acceptance`. By itself the gateway announces the end of each job,
cancels the trials of a cancelled sweep, unblocks jobs that wait for others, and ends those whose time is over or that
are idle for too long.

The announcement is a fact for the outside world: it says that a job has ended, and nothing else that the gateway knows.
:class:`AnnouncementState` and :func:`announcer` are the same decision without the read model, for a simulation that
writes a log. :class:`GatewaySettings` come from ``[gateway]`` in TOML and ``PENSTOCK_GATEWAY_…`` in the environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_network
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock_bus import Decider, Decision, Proposal
from penstock_cluster.allocations import AllocationTable
from penstock_cluster.nodes import OF_NODES
from penstock_gateway import dependencies, idle_runs, job_sizes, node_history, sweep_table, time_limits
from penstock_gateway.dependencies import DependencyProgress, Dependents
from penstock_gateway.job_history import JobHistory
from penstock_gateway.node_history import NodeHistory
from penstock_gateway.notifications import Notifications
from penstock_gateway.open_jobs import OpenJobs
from penstock_gateway.past_tables import PastJobs, PastTable
from penstock_gateway.retention import ArchiveRecord
from penstock_gateway.run_accounts import LaneGrants
from penstock_gateway.sweep_table import SweepRecord
from penstock_gateway.totals_fold import TotalsRecord
from penstock_log import (
    TERMINAL,
    Event,
    Job,
    JobCancelled,
    JobFinished,
    JobsArchived,
    JobsRanked,
    JobSubmitted,
    JobTable,
    LogCopied,
    LogTrimmed,
    NodeJoined,
    NotificationRuleRemoved,
    NotificationRuleSet,
    NotificationSent,
    RoundDecided,
    RunBusyAgain,
    RunCheckpointed,
    RunIdle,
    RunRewound,
    RunStarted,
    RunWarned,
    ScaleDecided,
    SweepCancelled,
    SweepFinished,
    SweepSubmitted,
    TrialsMeasured,
    UserRemoved,
    UserSet,
    Wait,
    WorkloadProfiled,
    WorkloadScaled,
    lifecycle,
    subjects,
)
from penstock_log.job_state import ENDINGS, JobState
from penstock_log.records import compose
from penstock_log.usage import DayUsage, total
from penstock_log.users import Users
from penstock_policies.idleness import IdleRun, note_idleness
from penstock_policies.job_lengths import Lengths
from penstock_scheduler.aggregation.aggregation_table import AggregationTable
from penstock_scheduler.pool.scheduler_state import SchedulerState, fold

MOST_MODELS: Final = 200
"""Models of archived jobs that are told apart on one day; all others are summed as :data:`OTHER_MODELS`."""
OTHER_MODELS: Final = "other"
NOTIFY_SCHEMES: Final = (
    *(
        "mailto",
        "mailtos",
        "json",
        "jsons",
        "form",
        "forms",
        "slack",
        "discord",
        "mmost",
        "mmosts",
        "rocket",
        "rockets",
    ),
    *("ntfy", "ntfys", "gotify", "gotifys", "tgram", "pover", "pbul", "zulip", "gchat", "matrix", "matrixs"),
)
"""Kinds of addresses that say nothing on the gateway's machine itself."""
NOTIFY_REFUSED: Final = ("127.0.0.0/8", "::1/128", "0.0.0.0/8", "::/128", "169.254.0.0/16", "fe80::/10")
"""Networks to which no message goes: the gateway's machine, and what is on its link."""
SCHEMA: Final = "gateway.v44"


class GatewayState(SchedulerState):
    """
    The read model: the state that rounds are decided from, and what people ask about beside it.

    Attributes
    ----------
    jobs : JobTable
        All jobs that are not archived, samples among them.
    allocations : AllocationTable
    children : dict of str to list of str
        Sweep id → ids of its trials' jobs.
    members : dict of str to list of str
        Array id → ids of its jobs, in order of submission.
    samples : dict of str to list of str
        Workload key → ids of its samples.
    scaled : dict of str to WorkloadScaled
        Workload key → its speed by batch size and number of devices.
    measured : dict of str to TrialsMeasured
        Workload key → its speed as trials of sweeps have shown it.
    waits : dict of str to dict of str to Wait
        Pool → job id → why the job waits, from the pool's last round.
    prices : dict of str to dict of str to float
        Pool → kind → what one more device would save, from the last round that worked it out.
    to_announce, to_cancel : dict of str to int
        Job id → sequence of the commit that calls for the announcement or the cancellation.
    dependents : Dependents
        The jobs that wait for others.
    limits : dict of str to float
        Job → when its time is over, if it goes on as it does.
    open_jobs : OpenJobs
        What each user has open.
    lengths : dict of str to Lengths
        Pool → GPU-times of its jobs that completed, as the ranker has them.
    archive : ArchiveRecord
        What was copied, forgotten and removed.
    aggregation : AggregationTable
        Agents, aggregators, and the runs that have parts on them.
    idle : dict of str to IdleRun
        Job → its run, where that is idle on any of its nodes.
    gone_seq : dict of str to int
        Node that was lost and is still away, or was forgotten → sequence of the round that said so.
    node_histories : dict of str to NodeHistory
        Node → when it was up, drained or gone, of those that are known.
    lane_grants : LaneGrants
        Who shares which device.
    archived_usage : dict of str to dict of str to DayUsage
        UTC day → group → what is left of archived jobs in accounts.
    totals : TotalsRecord
        What has happened since the log began.
    notifications : Notifications
        Of what people are told, and what is still to be told them.
    """

    jobs: JobTable = msgspec.field(default_factory=JobTable)
    allocations: AllocationTable = msgspec.field(default_factory=AllocationTable)
    histories: dict[str, JobHistory] = msgspec.field(default_factory=dict)
    sweeps: dict[str, SweepRecord] = msgspec.field(default_factory=dict)
    children: dict[str, list[str]] = msgspec.field(default_factory=dict)
    members: dict[str, list[str]] = msgspec.field(default_factory=dict)
    samples: dict[str, list[str]] = msgspec.field(default_factory=dict)
    profiles: dict[str, WorkloadProfiled] = msgspec.field(default_factory=dict)
    scaled: dict[str, WorkloadScaled] = msgspec.field(default_factory=dict)
    measured: dict[str, TrialsMeasured] = msgspec.field(default_factory=dict)
    waits: dict[str, dict[str, Wait]] = msgspec.field(default_factory=dict)
    prices: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    to_announce: dict[str, int] = msgspec.field(default_factory=dict)
    to_cancel: dict[str, int] = msgspec.field(default_factory=dict)
    dependents: Dependents = msgspec.field(default_factory=Dependents)
    limits: dict[str, float] = msgspec.field(default_factory=dict)
    open_jobs: OpenJobs = msgspec.field(default_factory=OpenJobs)
    lengths: dict[str, Lengths] = msgspec.field(default_factory=dict)
    archive: ArchiveRecord = msgspec.field(default_factory=ArchiveRecord)
    aggregation: AggregationTable = msgspec.field(default_factory=AggregationTable)
    idle: dict[str, IdleRun] = msgspec.field(default_factory=dict)
    gone_seq: dict[str, int] = msgspec.field(default_factory=dict)
    node_histories: dict[str, NodeHistory] = msgspec.field(default_factory=dict)
    lane_grants: LaneGrants = msgspec.field(default_factory=LaneGrants)
    archived_usage: dict[str, dict[str, DayUsage]] = msgspec.field(default_factory=dict)
    totals: TotalsRecord = msgspec.field(default_factory=TotalsRecord)

    users: Users = msgspec.field(default_factory=Users)
    notifications: Notifications = msgspec.field(default_factory=Notifications)

    def jobs_since(self, since_s: float) -> list[Job]:
        """Return the jobs that are not over, and those that ended since a time, in order of submission."""
        if isinstance(self.jobs, PastJobs) and isinstance(self.histories, PastTable):
            return self.jobs.since(since_s, self.histories)
        return [job for job in self.jobs if job.state not in TERMINAL or job.finished_s >= since_s]

    def progress_of(self, entity_id: str) -> DependencyProgress | None:
        """Return how far a job, a sweep or an array has come; None where there is no such thing."""
        if (job := self.jobs.get(entity_id)) is not None:
            return dependencies.progress_of_job(job)
        if (sweep := self.sweeps.get(entity_id)) is None:
            if not (members := self.members.get(entity_id)):
                return None
            return dependencies.progress_of_array(dependencies.progress_of_job(self.jobs[one]) for one in members)
        ended = sweep.finished.state if sweep.finished is not None else ""
        return DependencyProgress(sweep.begun, ended)

    def wait_of(self, job: Job) -> Wait | None:
        """Return why a job waits by the last round; None where the round does not say."""
        return self.waits.get(job.spec.pool, {}).get(job.id)


def apply(state: GatewayState, event: Event, seq: int) -> None:
    """Fold one fact in, in place."""
    changed, _ = fold(state, state.jobs, event)
    state.aggregation.apply(event, state.jobs, changed)
    if isinstance(event, ScaleDecided):
        _note_demands(state, changed, event)
    for job in changed:
        _note(state, job, event, seq)
        if (idle := state.idle.get(job.id)) is not None and not idle.is_of(job):
            del state.idle[job.id]
        sweep_table.follow(state.sweeps, job, event)
    _note_nodes(state, event, seq)
    _note_idle(state, event)
    sweep_table.apply(state.sweeps, event, seq)
    _note_dependents(state, changed, event, seq)
    _note_open_sweep(state, event)
    sweep_table.count_devices(state.sweeps, state.cluster, event)
    _note_rules(state, event, seq)
    match event:
        case JobFinished():
            _announced(state, event.job_id, seq)
        case UserSet() | UserRemoved():
            state.users.apply(event)
        case LogCopied() | JobsArchived() | LogTrimmed():
            _archive(state, event, seq)
        case SweepCancelled():
            for job_id in state.children.get(event.sweep_id, ()):
                _follow_up(state, state.jobs[job_id], seq)
        case _:
            _learn(state, event)


def _note_nodes(state: GatewayState, event: Event, seq: int) -> None:
    """Note what a fact says of nodes, and of allocations, from which some of them come."""
    state.allocations.apply(event)
    state.allocations.note_refusal(event, state.cluster, state.jobs)
    _note_gone(state, event, seq)
    if type(event) in OF_NODES:
        node_history.note(state.node_histories, event)


def decide(state: GatewayState, now_s: float) -> Decision:
    """Announce ends, cancel trials of cancelled sweeps, unblock jobs, end those that are idle or out of time."""
    announcements = [announcement(state.jobs[job_id], seq) for job_id, seq in state.to_announce.items()]
    cancellations = [_cancellation(state, state.jobs[job_id], seq, now_s) for job_id, seq in state.to_cancel.items()]
    unblocked = dependencies.proposals(state.dependents, state.jobs.get, now_s)
    stops, idle_s = idle_runs.stops(state.idle, state.jobs, state.policies, now_s)
    over, limit_s = time_limits.proposals(state.limits, state.jobs.get, now_s)
    wake_s = min((at_s for at_s in (idle_s, limit_s) if at_s is not None), default=None)
    return Decision([*announcements, *cancellations, *unblocked, *stops, *over], wake_at_s=wake_s)


def decider(settings: GatewaySettings) -> Decider[GatewayState]:  # noqa: ARG001 - all services are made alike
    """Return the gateway's decider; every replica may decide, and the log refuses all but the first."""
    return Decider(name="gateway", state=GatewayState, schema=SCHEMA, apply=apply, decide=decide, leads=False)


def _note_rules(state: GatewayState, event: Event, seq: int) -> None:
    """Note of what people are told, and that a job's end, which is known as a whole now, is to be told."""
    if isinstance(event, JobFinished):
        if (job := state.jobs.get(event.job_id)) is not None:
            state.notifications.note(job, event, seq)
    elif isinstance(event, SweepFinished) and event.sweep_id in state.sweeps:
        state.notifications.note_sweep(state.sweeps[event.sweep_id].spec, event, seq)
    elif isinstance(event, NotificationRuleSet | NotificationRuleRemoved | NotificationSent | UserRemoved):
        state.notifications.apply(event)
        if isinstance(event, NotificationSent):
            jobs = ((job_id, state.jobs.get(job_id)) for job_id in event.waiting)
            over = [job_id for job_id, job in jobs if job is None or job.state is not JobState.PENDING]
            state.notifications.forget_waits(event.rule, over)


def _note_dependents(state: GatewayState, changed: Iterable[Job], event: Event, seq: int) -> None:
    """Note jobs that wait for others, and look again at those that wait for what has started or ended."""
    further = [event.sweep_id] if isinstance(event, SweepFinished) else []
    for job in changed:
        if job.spec.after:
            state.dependents.note(job, state.progress_of, seq)
        if dependencies.moves(job, event):
            further += dependencies.moved(job)
    for target in further if state.dependents.of else ():
        state.dependents.follow(target, state.progress_of, seq)


def _note_gone(state: GatewayState, event: Event, seq: int) -> None:
    """Note which rounds still say what nodes are: those that said last that a node is lost, or forgotten."""
    match event:
        case RoundDecided() if event.lost_nodes or event.forgotten_nodes:
            state.gone_seq.update(dict.fromkeys((*event.lost_nodes, *event.forgotten_nodes), seq))
        case NodeJoined():
            state.gone_seq.pop(event.node_id, None)
        case _:
            pass


def _learn(state: GatewayState, event: Event) -> None:
    match event:
        case RoundDecided():
            _learn_round(state, event)
        case JobsRanked():
            for rank in event.ranks:
                if (past := state.histories.get(rank.job_id)) is not None:
                    past.rank = rank
        case RunWarned() | RunRewound():
            if (past := state.histories.get(event.job_id)) is not None:
                past.warn(event)
        case WorkloadProfiled():
            state.profiles[event.key] = event
        case WorkloadScaled():
            state.scaled[event.key] = event
        case TrialsMeasured():
            state.measured[event.key] = event
        case _:
            pass


def _learn_round(state: GatewayState, event: RoundDecided) -> None:
    if event.explains:
        state.waits[event.pool] = {wait.job_id: wait for wait in event.waits}
    else:  # what was said before holds on for those that do not start
        told = state.waits.get(event.pool, {})
        for placement in event.placements:
            told.pop(placement.job_id, None)
    if event.prices:  # a round that says nothing anew works none out
        state.prices[event.pool] = event.prices


def _note_idle(state: GatewayState, event: Event) -> None:
    """Note that a run is idle, with a warning, or that it is not."""
    if not isinstance(event, RunIdle | RunBusyAgain):
        return
    noted = note_idleness(state.idle, state.jobs.get(event.job_id), event)
    if noted and isinstance(event, RunIdle) and (past := state.histories.get(event.job_id)) is not None:
        past.warn(event)


def _note(state: GatewayState, job: Job, event: Event, seq: int) -> None:
    past = state.histories.get(job.id)
    if past is None:
        past = state.histories[job.id] = JobHistory.begin(job, event, seq)
        past.key = state.keys.get(job.id, "")
        _index(state, job)
    if job.state is JobState.COMPLETED and past.state is not JobState.COMPLETED and job.sample is None:
        state.lengths.setdefault(job.spec.pool, Lengths()).add(job.id, job.attained_gpu_s(job.finished_s))
    past.note(job, event, seq)
    _divide_devices(state, past.account.note(job, event, state.lane_grants), event.at_s)
    state.totals.note(job, past.tally, past.account.runs, measured=past.account.measured)
    state.open_jobs.note(job)
    time_limits.note(state.limits, job)
    if not isinstance(event, JobFinished):
        state.notifications.note(job, event, seq)
    _follow_up(state, job, seq)


def _divide_devices(state: GatewayState, job_ids: Iterable[str], at_s: float) -> None:
    """Give jobs their part of the devices that they share, after others have come or left."""
    for job_id in job_ids:
        if (past := state.histories.get(job_id)) is not None:
            past.account.divide(at_s, state.jobs[job_id], state.lane_grants)


def _note_open_sweep(state: GatewayState, event: Event) -> None:
    if isinstance(event, SweepSubmitted | SweepFinished | SweepCancelled) and event.sweep_id in state.sweeps:
        state.open_jobs.apply(event, state.sweeps[event.sweep_id].spec.job.user)


def _note_demands(state: GatewayState, changed: Iterable[Job], event: ScaleDecided) -> None:
    """Note decisions about sizes, with the jobs that give up devices, and for whom."""
    heeded = {job.id for job in changed}
    demands = {demand.job_id: demand for demand in event.demands if demand.job_id in heeded}
    takes = job_sizes.givers(demands.values())
    for job_id, demand in demands.items():
        past = state.histories.get(job_id)
        if past is not None and past.sizing is not None:
            past.sizing.note_demand(state.jobs[job_id], demand, event, takes.get(job_id, {}))
    for job_id, givers in takes.items():
        if (past := state.histories.get(job_id)) is not None:
            past.freed = givers


def _index(state: GatewayState, job: Job) -> None:
    if job.sample is not None:
        state.samples.setdefault(job.profile_key, []).append(job.id)
    elif job.spec.parent:
        state.children.setdefault(job.spec.parent, []).append(job.id)
    if job.spec.array is not None:
        state.members.setdefault(job.spec.array.id, []).append(job.id)


def _follow_up(state: GatewayState, job: Job, seq: int) -> None:
    """Note what the gateway itself has to do for the job: announce its end, or cancel it."""
    if job.sample is not None:
        return
    if job.state in TERMINAL and not state.histories[job.id].announced:
        state.to_announce.setdefault(job.id, seq)
    parent = state.sweeps.get(job.spec.parent)
    doomed = parent is not None and parent.cancelled is not None
    if doomed and job.state not in TERMINAL and job.state is not JobState.COMPLETING:
        state.to_cancel.setdefault(job.id, seq)
    else:
        state.to_cancel.pop(job.id, None)


def _announced(state: GatewayState, job_id: str, seq: int) -> None:
    state.to_announce.pop(job_id, None)
    if (past := state.histories.get(job_id)) is not None:
        past.announced, past.announced_seq = True, seq


def _archive(state: GatewayState, event: LogCopied | JobsArchived | LogTrimmed, seq: int) -> None:
    if isinstance(event, JobsArchived):
        _forget_archived(state, event)
        _keep_usage(state.archived_usage, event.usage)
        state.archive.archive(event, seq)
        return
    state.archive.note(event)
    for node_id in event.nodes if isinstance(event, LogTrimmed) else ():
        state.gone_seq.pop(node_id, None)


def _forget_archived(state: GatewayState, event: JobsArchived) -> None:
    """Forget jobs, sweeps and workloads; what was learnt from them stays."""
    gone = set(event.job_ids)
    parents, keys, arrays = set(event.sweep_ids), set(event.workloads), set[str]()
    for job_id in event.job_ids:
        job = state.jobs.get(job_id)
        if job is not None:
            parents.add(job.spec.parent)
            keys.add(job.profile_key)
            arrays |= {job.spec.array.id} if job.spec.array is not None else set()
            state.totals.archive_job(job, state.histories[job_id].tally)
            _divide_devices(state, state.histories[job_id].account.leave(job_id, state.lane_grants), event.at_s)
        state.jobs.forget(job_id)
        for of_jobs in (state.histories, state.to_announce, state.to_cancel, state.dependents.due, state.limits):
            of_jobs.pop(job_id, None)
    _drop_ids(state.children, parents, gone)
    _drop_ids(state.members, arrays, gone)
    _drop_ids(state.samples, keys, gone)
    for sweep_id in event.sweep_ids:
        state.sweeps.pop(sweep_id, None)
    sweeps = frozenset(event.sweep_ids)
    state.measured = {key: fact for key, fact in state.measured.items() if fact.sweep_id not in sweeps}
    for key in event.workloads:
        for of_keys in (state.profiles, state.scaled, state.measured):
            of_keys.pop(key, None)
    if event.totals is not None:
        state.totals.take(event.totals)
    state.lengths.update({pool: Lengths.of_fact(learnt) for pool, learnt in event.learnt.items()})


def _keep_usage(kept: dict[str, dict[str, DayUsage]], new: Iterable[DayUsage]) -> None:
    """Add the sums of archived jobs to those of the same day and group; beyond the most models, to those of others."""
    models: dict[str, set[str]] = {}
    for row in new:
        of_day = kept.setdefault(row.day, {})
        if row.day not in models:
            models[row.day] = {one.model for one in of_day.values()}
        if row.model not in models[row.day] and len(models[row.day]) >= MOST_MODELS:
            row = msgspec.structs.replace(row, model=OTHER_MODELS)  # noqa: PLW2901 - as one of many
        models[row.day].add(row.model)
        group = row.group
        if group in of_day:
            of_day[group].usage.add(row.usage)
        else:
            of_day[group] = msgspec.structs.replace(row, usage=total([row.usage]))  # the fact's own stays as it is


def _drop_ids(index: dict[str, list[str]], names: Iterable[str], gone: set[str]) -> None:
    """Drop ids from the lists of these names, and the lists that are then empty."""
    for name in {name for name in names if name in index}:
        index[name] = [job_id for job_id in index[name] if job_id not in gone]
        if not index[name]:
            del index[name]


def _cancellation(state: GatewayState, job: Job, cause: int, now_s: float) -> Proposal:
    sweep = state.sweeps.get(job.spec.parent)  # one that is archived already is forgotten
    by = sweep.cancelled.by if sweep is not None and sweep.cancelled is not None else ""
    fact = JobCancelled(at_s=now_s, job_id=job.id, by=by, reason=f"its sweep {job.spec.parent} was cancelled")
    return Proposal(subject=subjects.job(job.id), facts=(fact,), cause=cause)


class AnnouncementState(msgspec.Struct):
    """
    The jobs whose end is not announced yet.

    Attributes
    ----------
    to_announce : dict of str to int
        Job id → sequence of the commit that ended it.
    """

    jobs: JobTable = msgspec.field(default_factory=JobTable)
    to_announce: dict[str, int] = msgspec.field(default_factory=dict)


def apply_announcement(state: AnnouncementState, event: Event, seq: int) -> None:
    """Fold one fact in."""
    if isinstance(event, JobFinished):
        state.to_announce.pop(event.job_id, None)
        state.jobs.forget(event.job_id)
        return
    for job in state.jobs.apply(event):
        if job.state not in TERMINAL:
            continue
        if job.sample is None:
            state.to_announce.setdefault(job.id, seq)
        else:
            state.jobs.forget(job.id)


def announce(state: AnnouncementState, now_s: float) -> Decision:  # noqa: ARG001 - all deciders are asked alike
    """Announce what has ended."""
    if not state.to_announce:
        return Decision()
    return Decision([announcement(state.jobs[job_id], seq) for job_id, seq in state.to_announce.items()])


def announcer() -> Decider[AnnouncementState]:
    """Return a decider that makes the gateway's announcements, and does nothing about cancelled sweeps."""
    return Decider(
        name="gateway",
        state=AnnouncementState,
        schema="announcer.v4",
        apply=apply_announcement,
        decide=announce,
        leads=False,
        reads=lifecycle.OF_JOBS | {JobFinished},
        ignores=frozenset({JobSubmitted, RunStarted, RunCheckpointed, JobFinished}),
    )


def announcement(job: Job, cause: int) -> Proposal:
    """Return the announcement of a job's end, caused by a commit."""
    end = {"at_s": job.finished_s, "state": ENDINGS[job.state], "run_s": job.executed_s}
    fact = compose(JobFinished, job, job.spec, job_id=job.id, gpu_s=job.attained_gpu_s(job.finished_s), **end)
    return Proposal(subject=subjects.job(job.id), facts=(fact,), cause=cause)


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    The gateway's settings.

    Attributes
    ----------
    max_spec_bytes : int
        Size of the largest job or sweep specification; the server's limit bounds it too.
    append_timeout_s : float
        How long a command waits for the log before it answers 503.
    query_timeout_s : float
        How long a query may take before it answers 503. The next query of its kind waits that long at most; commands
        never wait for queries.
    retry_s : float
        Pause between two tries to store a submission of the inbox while the log is away or full.
    concurrent_commands : int
        Commands of a kind that are stored at a time: submissions, acts, and what comes from the inbox. A slot that
        becomes free goes to the users in turn.
    waiting_commands, waiting_bytes : int
        What may wait for a slot of one user, of each kind; what comes beyond is refused with 429.
    waiting_queries : int
        Queries of a kind that may wait of one user; one of a kind is answered at a time, of all users in turn.
    commands_per_s : float
        How many commands each user may go on sending.
    commands_at_once : int
        How many commands each user may send at once after a while of silence.
    open_jobs : int
        The most jobs that a user may have open; an open sweep counts the trials that it may have open at a time.
    owner : str
        The person who is an admin whatever the log says: who runs ``penstock up``.
    inbox_ahead : int
        How many submissions of the inbox the gateway looks at before the first is stored: a user's single submission
        does not wait for so many others of another user.
    archive_dir : str
        Folder for the files of the archive, on a disk that lasts; empty: nothing is archived, and the log is kept for
        ever. `penstock up` takes ``archive`` in its data folder. Replicas on several machines need one that they share.
    keep_days : float
        Days for which jobs that have ended stay in the log, and people are told of them; then they are archived.
    history_dir : str
        Folder for the index of the past, from which questions with ``at`` are answered: about 150 bytes a fact, on a
        disk of the gateway's own; it may be removed at any time. `penstock up` takes ``history`` in its data folder.
        Empty: a temporary folder, from the first such question to the gateway's end.
    code_tree_bytes, code_tree_files : int
        The most that the folder of a job may have, in bytes and in files (docs/code.md).
    code_user_bytes : int
        The most that the folders of one user's jobs may take together, in bytes; what several have in common counts
        once.
    code_keep_days : float
        Days after a job's end for which its folder is kept, so that it may be submitted again; then it is removed.
    notify_dir : str
        Folder for the addresses of people's notifications, which the log must not have: one for all gateways. Empty:
        this gateway sends none. `penstock up` takes ``notify`` in its data folder.
    notify_schemes : tuple of str
        Where messages may go, as addresses of apprise begin.
    notify_refused : tuple of str
        Networks to which no message goes, whatever name leads there. As it is: the gateway's machine itself, and what
        is on its link alone, such as the metadata of cloud machines.
    notify_gather_s : float
        Seconds from the first thing that a person is to be told to the message, which tells of all until then.
    notify_every_s : float
        Least seconds between two messages of one rule.
    notify_timeout_s : float
        Seconds that sending one message may take.
    archive_every_s : float
        How long a stretch of the log one file of the archive has, in seconds; the next begins at a multiple of it.
    """

    max_spec_bytes: Annotated[int, Meta(gt=0)] = 256 * 1024
    append_timeout_s: Annotated[float, Meta(gt=0)] = 4.0
    query_timeout_s: Annotated[float, Meta(gt=0)] = 4.0
    retry_s: Annotated[float, Meta(gt=0, le=10)] = 1.0
    concurrent_commands: Annotated[int, Meta(ge=1, le=1024)] = 32
    waiting_commands: Annotated[int, Meta(ge=1)] = 10_000
    waiting_bytes: Annotated[int, Meta(ge=1)] = 64 << 20
    waiting_queries: Annotated[int, Meta(ge=1)] = 1_000
    commands_per_s: Annotated[float, Meta(gt=0)] = 200.0
    commands_at_once: Annotated[int, Meta(ge=1)] = 20_000
    open_jobs: Annotated[int, Meta(ge=1)] = 10_000
    owner: str = ""
    inbox_ahead: Annotated[int, Meta(ge=1, le=100_000)] = 40_000
    archive_dir: str = ""
    history_dir: str = ""
    notify_dir: str = ""
    notify_schemes: tuple[str, ...] = NOTIFY_SCHEMES
    notify_refused: tuple[str, ...] = NOTIFY_REFUSED
    notify_gather_s: Annotated[float, Meta(gt=0)] = 10.0
    notify_every_s: Annotated[float, Meta(gt=0)] = 60.0
    notify_timeout_s: Annotated[float, Meta(gt=0)] = 30.0
    keep_days: Annotated[float, Meta(gt=0)] = 90.0
    archive_every_s: Annotated[float, Meta(ge=1)] = 86_400.0
    code_tree_bytes: Annotated[int, Meta(ge=0)] = 1 << 30
    code_tree_files: Annotated[int, Meta(ge=0, le=100_000)] = 50_000
    code_user_bytes: Annotated[int, Meta(ge=0)] = 4 << 30
    code_keep_days: Annotated[float, Meta(ge=0)] = 7.0

    def __post_init__(self) -> None:
        """Refuse networks that are none."""
        for network in self.notify_refused:
            ip_network(network)
