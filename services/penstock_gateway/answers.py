"""
The gateway's answers, from its read model.

A :class:`ReadModel` is what the gateway knows at one moment, with what was reported outside of the log. Each function
turns a part of it into a view of :mod:`penstock_log.views`, which takes over the records' fields by their names.
:func:`sweep` adds a sweep's rungs, its best trial so far, its time left, and what became of its device time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock_cluster.nodes import Node, taken_devices
from penstock_gateway import job_filter, job_fit, sweep_filter
from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.job_history import device_names
from penstock_gateway.machine import GatewayState
from penstock_gateway.past_tables import PastJobs
from penstock_gateway.sweep_table import SweepRecord, TrialRow
from penstock_gateway.why import WaitExplainer
from penstock_log import ACTIVE, TERMINAL, Job, ReservationMade, Trial, request_bodies, workload
from penstock_log.aggregation_messages import AggregatorReport
from penstock_log.allocation_spec import LABEL_PILOT
from penstock_log.memory_messages import SlabOffer
from penstock_log.records import compose
from penstock_log.request_bodies import RunProgress
from penstock_log.usage import RunReport
from penstock_log.validation import BadInput
from penstock_log.views import (
    ClassView,
    GoodputView,
    JobDetail,
    JobRow,
    JobsView,
    JobView,
    NodeMemoryView,
    NodesView,
    NodeView,
    NotificationRuleView,
    NotificationsView,
    PoliciesView,
    PolicyView,
    ProfileView,
    ReservationView,
    RungView,
    StatusView,
    SweepsView,
    SweepView,
    TrialView,
    UsersView,
    UserView,
)
from penstock_policies import search
from penstock_policies.queue_thresholds import learnt_thresholds_gpu_s
from penstock_policies.search.runs import SweepGoodput, TrialUse, account
from penstock_scheduler.pool import pool_settings
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.reservations import rules_at

_NAMES: Final = 5
_MOST_IN_FULL: Final = 1000
"""Jobs in full for which one message has room."""


@dataclass(frozen=True)
class ReadModel:
    """
    The read model at one moment: up to ``seq``, with the time, and with what was reported outside of the log.

    Of a moment in the past there are no such reports.

    Attributes
    ----------
    reports : mapping of str to RunProgress
        Job id → what its run last reported.
    heartbeats : mapping of str to float
        Node id → time of its last heartbeat.
    memory : mapping of str to (float, SlabOffer)
        Node id → when its memory agent was last heard, and what it offers.
    aggregators : mapping of str to (float, AggregatorReport)
        Aggregator → when its agent was last heard, and what that said of it.
    settings : MatcherSettings
        Settings of the matcher.
    """

    state: GatewayState
    now_s: float
    seq: int
    reports: Mapping[str, RunProgress] = field(default_factory=dict)
    heartbeats: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, tuple[float, SlabOffer]] = field(default_factory=dict)
    aggregators: Mapping[str, tuple[float, AggregatorReport]] = field(default_factory=dict)
    settings: MatcherSettings = field(default_factory=MatcherSettings)

    def report_of(self, job: Job) -> RunProgress:
        """Return what a job's present run has reported; reports of an earlier run do not count."""
        report = self.reports.get(job.id, RunProgress())
        return report if job.state in ACTIVE and report.epoch in (0, job.epoch) else RunProgress()

    @cached_property
    def why(self) -> WaitExplainer:
        """The explainer of this moment's waiting jobs."""
        return WaitExplainer(self.state, self.now_s, self.settings)


def job(model: ReadModel, job: Job) -> JobView:
    """Return one job as a line of the list of jobs."""
    past, spec = model.state.histories[job.id], job.spec
    report = model.report_of(job)
    over = job.state in TERMINAL
    return JobView.of(
        job,
        spec,
        started_s=job.first_started_s or None,
        finished_s=job.finished_s if over else None,
        wait_s=job.queued_by(model.now_s),
        eligible_s=job.eligible_s if job.eligible_s <= model.now_s else None,
        run_s=job.executed_by(model.now_s),
        jct_s=job.finished_s - job.submitted_s if over else None,
        devices=tuple(past.devices),
        placed_on=tuple(device_names(job.placement)) if job.placement is not None else (),
        steps=max(job.steps, report.step),
        metrics={**job.metrics, **report.metrics},
        queue=past.rank.queue if past.rank is not None else None,
        cause=model.why.cause(job),
        sample=job.sample is not None,
        warnings=tuple(past.warnings),
        batches=(spec.batch.min, spec.batch.max) if spec.batch is not None else None,
        samples=max(job.samples, report.samples),
    )


def jobs(model: ReadModel, ask: request_bodies.JobsRequest, caller: Caller = SERVICE) -> JobsView:
    """
    Return the jobs that match all filters; of those that may not be seen, only that they are there and for whom.

    Raises
    ------
    BadInput
        If more jobs in full are asked for than one answer has room for.
    """
    if ask.limit > _MOST_IN_FULL and not ask.rows:
        raise BadInput(f"$.limit: expected {_MOST_IN_FULL} at most, got {ask.limit}; ask for pages, or for `rows`")
    total, page = job_filter.page(model.state, ask, caller)
    if ask.rows:
        sees_all = caller.sees_all
        rows = tuple(_row(model, one, is_seen=sees_all or caller.sees(one.spec)) for one in page)
        return JobsView(jobs=(), rows=rows, total=total, seq=model.seq)
    shown = (job(model, one) if caller.sees(one.spec) else _outline(job(model, one)) for one in page)
    return JobsView(jobs=tuple(shown), total=total, seq=model.seq)


def _row(model: ReadModel, one: Job, *, is_seen: bool) -> JobRow:
    """Return one job as a line of a table; of one that may not be seen, what :func:`_outline` leaves."""
    spec, past = one.spec, model.state.histories[one.id]
    return JobRow(
        id=one.id,
        name=spec.name if is_seen else "",
        user=spec.user,
        state=one.state,
        gpus=spec.gpus,
        min_gpus=spec.min_gpus,
        max_gpus=spec.max_gpus,
        submitted_s=one.submitted_s,
        wait_s=round(one.queued_by(model.now_s), 3),
        run_s=round(one.executed_by(model.now_s), 3),
        steps=max(one.steps, model.report_of(one).step) if is_seen else 0,
        cause=model.why.cause(one),
        reason=one.reason if is_seen else "",
        held=one.held,
        placed_on=tuple(device_names(one.placement)) if one.placement is not None else (),
        devices=tuple(past.devices),
        batch_size=spec.batch_size if is_seen else 0,
        cpus=spec.cpus,
        host_memory_bytes=spec.host_memory_bytes,
        team=spec.team,
        pool=spec.pool,
        array=spec.array.id if spec.array is not None else "",
        array_count=spec.array.count if spec.array is not None else 0,
        priority_class=spec.priority_class,
    )


def _outline(view: JobView) -> JobView:
    """Return a job without what it computes: state, user, team, devices and times stay."""
    blank: dict[str, Any] = {"name": "", "model": "", "parent": "", "reason": "", "exit_code": None}
    return msgspec.structs.replace(
        view, **blank, metrics={}, warnings=(), steps=0, samples=0, batch_size=0, batches=None
    )


def detail(model: ReadModel, one: Job) -> JobDetail:
    """Return one job in full."""
    key, past = known_as(one), model.state.histories[one.id]
    profile, report = model.state.profiles.get(key), model.report_of(one)
    reported = RunReport(report.loop_s, report.loop_steps, report.waited_s) if report.loop_steps else None
    runs = past.account.views(model.now_s, reported)
    return JobDetail(
        job=job(model, one),
        spec=one.spec,
        why=model.why.explain(one),
        workload=key,
        speeds=profile.speeds if profile is not None else (),
        seq=model.seq,
        sizing=past.sizing.view(one, report, model.now_s) if past.sizing is not None else None,
        run_end=past.run_end,
        last_seq=past.end_seq,
        now_s=model.now_s,
        runs=tuple(runs),
        left_out=past.account.left_out,
        usage=past.account.sums(runs),
        time_limit_s=one.limit_s,
        parked=one.parked,
    )


def profile(model: ReadModel, key: str, caller: Caller = SERVICE) -> ProfileView:
    """
    Return what is known of a workload: figures of the program, whoever ran it, and names that the caller may see.

    All jobs of a workload are the same program, and the scheduler treats each by what all of them have shown.
    """
    state = model.state
    found, scaled, trials = state.profiles.get(key), state.scaled.get(key), state.measured.get(key)
    jobs = [job for job in _of_workload(state, key) if caller.sees(job.spec)]
    names = {job.spec.name for job in jobs}
    if trials is not None and not _sees_sweep(state, trials.sweep_id, caller):
        trials = msgspec.structs.replace(trials, sweep_id="")
    return ProfileView(
        workload=key,
        jobs=len([job for job in jobs if job.sample is None]),
        names=tuple(sorted(names)[:_NAMES]),
        speeds=found.speeds if found is not None else (),
        note=found.note if found is not None else "",
        need=state.needs.get(key),
        trials=trials,
        seq=model.seq,
        scaling=scaled.kinds if scaled is not None else (),
    )


def _of_workload(state: GatewayState, key: str) -> list[Job]:
    if isinstance(state.jobs, PastJobs):
        rows = state.jobs.rows([("workload = ?", key)], lambda job: known_as(job) == key)
        return [state.jobs[row.id] for row in rows]
    return [job for job in state.jobs if known_as(job) == key]


def _sees_sweep(state: GatewayState, sweep_id: str, caller: Caller) -> bool:
    sweep = state.sweeps.get(sweep_id)
    return caller.sees_all if sweep is None else caller.sees(sweep.spec.job)


def known_as(one: Job) -> str:
    """Return the key of a job's workload."""
    return one.profile_key or workload.key(one.spec)


def nodes(model: ReadModel, *, sees_all: bool = False) -> NodesView:
    """Return all nodes by id, with who is on their devices; ``sees_all``: and whom they lend memory to."""
    holders, taken = job_fit.holders(model.state.jobs.not_over()), job_fit.taken(model.state, model.settings)
    found = []
    for node in sorted(model.state.cluster.nodes.values(), key=lambda node: node.id):
        held = ((each, holders.get((node.id, each.index), ())) for each in node.devices)
        devices = tuple(job_fit.device(node, each, jobs, taken) for each, jobs in held)
        state, heard_s = node_state(model.state, node), model.heartbeats.get(node.id)
        more = {"gone_s": node.gone_s if node.gone else None, "pilot": node.labels.get(LABEL_PILOT, "")}
        found.append(NodeView.of(node, state=state, devices=devices, heard_s=heard_s, **more))
    memory = [_memory(node_id, *heard, sees_all=sees_all) for node_id, heard in sorted(model.memory.items())]
    return NodesView(nodes=tuple(found), seq=model.seq, memory=tuple(memory))


def _memory(node_id: str, heard_s: float, offer: SlabOffer, *, sees_all: bool) -> NodeMemoryView:
    lent_to = offer.lent_to if sees_all else {}
    return NodeMemoryView.of(offer, id=node_id, heard_s=heard_s, lent_to=lent_to)


def policies(model: ReadModel) -> PoliciesView:
    """Return the settings that operators have set for each pool."""
    live = model.state.policies
    names = sorted(model.state.cluster.pools() | live.keys())
    reserved = {name: model.state.reservations(name) for name in names}
    rules = {
        name: rules_at(pool_settings.rules_of(model.state, name, model.settings), reserved[name], model.now_s)
        for name in names
    }
    lengths = model.state.lengths
    found = tuple(
        PolicyView(
            pool=name,
            settings=live.get(name, {}),
            quotas=dict(rules[name].quotas),
            classes={one: ClassView.of(of_class) for one, of_class in rules[name].classes.items()},
            alpha=rules[name].alpha,
            learnt_gpu_s=learnt_thresholds_gpu_s(lengths[name].edition_gpu_s if name in lengths else ()),
            reservations=tuple(_reservations(reserved[name], model.now_s)),
        )
        for name in names
    )
    return PoliciesView(pools=found, defaults=pool_settings.defaults(), seq=model.seq)


def _reservations(reserved: Iterable[ReservationMade], now_s: float) -> Iterator[ReservationView]:
    for one in sorted(reserved, key=lambda one: one.from_s):
        if one.until_s > now_s:
            yield ReservationView(
                id=one.reservation_id,
                team=one.team,
                gpus=one.gpus,
                pool=one.pool,
                state="in force" if one.from_s <= now_s else "to come",
                from_s=one.from_s,
                until_s=one.until_s,
                made_s=one.at_s,
                by=one.by,
                reason=one.reason,
                kind=one.kind,
            )


def status(model: ReadModel, last_seq: int) -> StatusView:
    """Return the cluster's counts; the caller adds the services that are there."""
    state = model.state
    return StatusView(
        jobs=_job_counts(state),
        devices=_device_counts(state),
        nodes=dict(Counter(node_state(state, node) for node in state.cluster.nodes.values())),
        sweeps=sweep_filter.count_by_state(state.sweeps),
        services=(),
        last_seq=last_seq,
        backlog=last_seq - model.seq,
    )


def node_state(state: GatewayState, node: Node) -> str:
    """Return a node's state in one word; ``draining`` while a drained node still has running jobs."""
    if node.gone:
        return node.gone
    if node.leaving:
        return "leaving"
    if not node.drained:
        return "up"
    return "draining" if any(node.id in job.open_nodes for job in state.jobs.not_over()) else "drained"


def _job_counts(state: GatewayState) -> dict[str, int]:
    if isinstance(state.jobs, PastJobs):
        return state.jobs.count_by_state()
    return dict(Counter(str(job.state) for job in state.jobs if job.sample is None))


_DEVICE_STATES: Final = ("busy", "idle", "lost", "leaving", "drained", "failed")


def _device_counts(state: GatewayState) -> dict[str, dict[str, int]]:
    taken = taken_devices(state.jobs.not_over())
    counts: dict[str, dict[str, int]] = {}
    for node in state.cluster.nodes.values():
        idle = "lost" if node.gone else "leaving" if node.leaving else "drained" if node.drained else "idle"
        for device in node.devices:
            is_taken = (node.id, device.index) in taken
            if node.gone == "left" and not is_taken:  # in good order: nobody misses it
                continue
            of_kind = counts.setdefault(device.kind, dict.fromkeys(_DEVICE_STATES, 0))
            outage = node.outage(device.index) if not node.gone else None
            free = outage.state if outage is not None else idle
            of_kind["busy" if is_taken else free] += 1
    return counts


def sweep(model: ReadModel, sweep: SweepRecord, *, whole: bool = True) -> SweepView:
    """Return one sweep; if ``whole``, with its runs, rungs and goodput."""
    finished, best, plan = sweep.finished, sweep.best, _plan(sweep)
    counted = [row for row in sweep.trials.values() if not row.retried]
    failed = sorted((row for row in counted if row.failed), key=lambda row: row.ended_s)
    view = SweepView.of(
        sweep,
        sweep.spec,
        state=sweep.state,
        finished_s=finished.at_s if finished is not None else None,
        wanted=plan.runs if plan is not None else 0,
        done=sum(row.finished is not None for row in counted),
        opened=len({row.trial.number if row.trial.budget else row.trial.job_id for row in counted}),
        best_job_id=best.trial.job_id if best is not None else "",
        best_value=best.value if best is not None else None,
        reason=finished.reason if finished is not None else "",
        eta_s=_eta_s(model, sweep, plan),
        failed=len(failed),
        failed_promotions=sum(bool(row.trial.origin) for row in failed),
        first_failed=failed[0].trial.job_id if failed else "",
        first_error=failed[0].error if failed else "",
        makespan_s=sweep.end_by(model.now_s) - sweep.submitted_s,
        trials=(),
    )
    return _with_runs(model, sweep, view, counted) if whole else view


def _with_runs(model: ReadModel, sweep: SweepRecord, view: SweepView, counted: list[TrialRow]) -> SweepView:
    rows, there_gpu_s = list(sweep.trials.values()), sweep.there_by_gpu_s(model.now_s)
    spent = _account(model, sweep, rows)
    used_gpu_s = spent.allocated_gpu_s + spent.running_gpu_s
    return replace(
        view,
        trials=tuple(_trials(model, rows)),
        rungs=tuple(_rungs(sweep, counted)),
        goodput=GoodputView.of(spent),
        target_s=max(0.0, spent.target_s - sweep.submitted_s) if spent.target_s is not None else None,
        utilisation=min(1.0, used_gpu_s / there_gpu_s) if there_gpu_s else None,
    )


def sweeps(model: ReadModel, asked: request_bodies.SweepsRequest, caller: Caller = SERVICE) -> SweepsView:
    """Return the sweeps that match all filters and may be seen, without their trials."""
    total, page = sweep_filter.page(model.state.sweeps, asked, caller)
    return SweepsView(sweeps=tuple(sweep(model, one, whole=False) for one in page), total=total, seq=model.seq)


def notifications(model: ReadModel, caller: Caller) -> NotificationsView:
    """Return the rules of who asks, or of all for an operator, in the order in which they were made."""
    rules = (rule for rule in model.state.notifications.rules.values() if caller.sees_all or rule.user == caller.name)
    shown = tuple(NotificationRuleView.of(rule, tried_s=rule.tried_s or None) for rule in rules)
    return NotificationsView(rules=shown, seq=model.seq)


def users(model: ReadModel, owner: str) -> UsersView:
    """Return who may use the cluster, by name."""
    known = {name: UserView.of(record) for name, record in model.state.users.by_name.items()}
    if owner:
        there = known.get(owner, UserView(name=owner, role="admin"))
        known[owner] = msgspec.structs.replace(there, role="admin", is_owner=True)
    return UsersView(users=tuple(known[name] for name in sorted(known)), seq=model.seq)


def _plan(sweep: SweepRecord) -> search.SearchPlan | None:
    try:
        return search.planned(sweep.spec)
    except search.BadSpace:  # it was accepted by a gateway that knew more searches
        return None


def _eta_s(model: ReadModel, sweep: SweepRecord, plan: search.SearchPlan | None) -> float | None:
    """Return the seconds that are left if the rest starts and trains as fast as what is done."""
    over = [row for row in sweep.trials.values() if row.finished is not None and not row.retried]
    done = sum(_work(sweep, row) for row in over)
    if plan is None or not done or sweep.finished is not None:
        return None
    training_s = sum(row.spent.loop_gpu_s for row in over)
    starting_s = sum(row.spent.held_gpu_s for row in over) - training_s
    if training_s + starting_s > 0:
        whole_s = starting_s * plan.runs / len(over) + training_s * plan.work / done
        left = whole_s / (training_s + starting_s) - 1.0
    else:
        left = plan.work / done - 1.0
    return max(0.0, (model.now_s - sweep.submitted_s) * left)


def _work(sweep: SweepRecord, row: TrialRow) -> int:
    if not row.trial.budget:
        return 1
    origin = sweep.trials.get(row.trial.origin)
    return row.trial.budget - (origin.trial.budget if origin is not None else 0)


def _trials(model: ReadModel, rows: Iterable[TrialRow]) -> Iterable[TrialView]:
    rows = list(rows)
    origins = {row.trial.origin for row in rows}
    for row in rows:
        trial, finished, job = row.trial, row.finished, model.state.jobs.get(row.trial.job_id)
        yield TrialView.of(
            trial,
            gpus=job.spec.gpus if job is not None else trial.gpus,
            packed=_packed(job, trial),
            group=row.group,
            state=str(job.state) if job is not None else "",
            value=finished.value if finished is not None else None,
            promoted=trial.job_id in origins,
            problem=finished.problem if finished is not None else "",
            reason=row.error,
        )


def _packed(job: Job | None, trial: Trial) -> int:
    """Return how many trials may be on the trial's device: the number that it was opened with, or last moved to."""
    if job is None:
        return trial.packed
    return max(1, job.spec.sharers) if job.spec.sharing == "lane" else 1


def _rungs(sweep: SweepRecord, rows: list[TrialRow]) -> Iterable[RungView]:
    origins = {row.trial.origin for row in rows}
    better = max if sweep.spec.mode == "max" else min
    for bracket, rung in sorted({(row.trial.bracket, row.trial.rung) for row in rows if row.trial.budget}):
        of = [row for row in rows if (row.trial.bracket, row.trial.rung) == (bracket, rung)]
        values = [row.value for row in of if row.value is not None]
        yield RungView(
            bracket=bracket,
            rung=rung,
            budget=of[0].trial.budget,
            opened=len(of),
            over=sum(row.finished is not None for row in of),
            promoted=sum(row.trial.job_id in origins for row in of),
            best_value=better(values, default=None),
        )


def _account(model: ReadModel, sweep: SweepRecord, rows: list[TrialRow]) -> SweepGoodput:
    """Return what devices were held for, including the profiler's samples of the sweep's workload."""
    uses = [_use(model, row) for row in rows]
    ids = model.state.samples.get(workload.key(sweep.spec.job), ())
    samples = [job for job in map(model.state.jobs.get, ids) if job is not None]
    sampled_s = [job.executed_s for job in samples if sweep.submitted_s <= job.submitted_s <= sweep.end_by(model.now_s)]
    return account(uses, sweep.spec.mode, target=sweep.spec.target, profile_gpu_s=sum(sampled_s))


def _use(model: ReadModel, row: TrialRow) -> TrialUse:
    finished, job = row.finished, model.state.jobs.get(row.trial.job_id)
    spent = row.spent
    if finished is None and job is not None and job.started_s:
        held_gpu_s = row.devices * max(0.0, job.served_by(model.now_s) - row.served_s)
        spent = replace(spent, held_gpu_s=spent.held_gpu_s + held_gpu_s)
    ended_s = finished.at_s if finished is not None else None
    return compose(TrialUse, row.trial, key=row.trial.job_id, ended_s=ended_s, value=row.value, spent=spent)
