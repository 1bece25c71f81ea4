"""
Why a job waits, and what is ruled out.

:class:`WaitExplainer` gives one dominant cause, its evidence, and what would change it. :func:`ruled_out_causes` lists
what one might suspect and what clears it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from penstock_gateway import dependencies, idle_runs, job_fit, job_sizes, time_limits
from penstock_gateway.dependencies import begin_text
from penstock_gateway.job_fit import NodeFit
from penstock_gateway.job_history import device_names
from penstock_gateway.machine import GatewayState
from penstock_gateway.past_tables import PastJobs
from penstock_gateway.pilot_outlooks import NO_NODE, PILOT, PilotOutlooks
from penstock_log import ACTIVE, TERMINAL, Job, JobTable, Wait, workload
from penstock_log.decision_facts import FOR_DEVICES
from penstock_log.job_state import JobState
from penstock_log.text import count, duration, gibibytes, listed
from penstock_log.views import RankView, WhyView
from penstock_scheduler import start_forecast, what_if
from penstock_scheduler.aggregation.aggregation_report import place_text, wait_text
from penstock_scheduler.pool.pool_settings import MatcherSettings, rules_of
from penstock_scheduler.pool.pool_view import PoolView
from penstock_scheduler.reservations import rules_at
from penstock_scheduler.round import borrowers_of
from penstock_scheduler.round_types import RoundRules
from penstock_scheduler.what_if import Alternatives

UNDECIDED: Final = "undecided"
_ENDINGS: Final = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
}

_NO_PLACE: Final = {*NO_NODE, PILOT, "held", "dependency", "array", "begin", "reservation", "class_quota"}
"""Causes with which it does not matter who stands before the job."""
_AGED: Final = {"fairness", "reservation", "class_quota"}
"""Causes that may be others' by now."""
_OF_THAT_MOMENT: Final = frozenset({"held", "dependency", "array", "begin", "backoff"})
_RULED_OUT_FOR_DEVICES: Final = {"capacity", "gang", "order"}


class StateCause(NamedTuple):
    """Why a job is in its state, and what would change that; of a waiting job, one of the causes of a round."""

    cause: str
    evidence: str
    remedy: str = ""


def _with_parked(view: WhyView, job: Job) -> WhyView:
    """Say where a waiting job's process is parked."""
    if (parked := job.parked) is None:
        return view
    where = f"its process is parked on {parked.node_id} ({gibibytes(parked.held_bytes)}), to go on without a load"
    return msgspec.structs.replace(view, evidence=f"{view.evidence}; {where}" if view.evidence else where)


def ruled_out_causes(
    job: Job, cause: str, pool: PoolView, rules: RoundRules, *, rank: RankView | None, borrowers: Collection[str] = ()
) -> Iterator[str]:
    """
    Yield the causes that are ruled out, the likeliest first.

    Parameters
    ----------
    rank : RankView or None
        The job's rank; None where it does not matter.
    borrowers : collection of str
        Jobs of the pool that no quota covers.
    """
    if cause != "held":
        yield "it is not held"
    if cause != "dependency" and job.spec.after:
        yield f"not what it was to wait for: {listed(job.spec.after)} has come"
    if rank is not None and not rank.ahead and cause in _RULED_OUT_FOR_DEVICES:
        yield "not its priority: no waiting job stands before it"
    yield from _what_it_asks_for(job, cause, pool)
    if cause in _RULED_OUT_FOR_DEVICES:
        yield f"not a quota: {_quota(job, rules, borrowers)}"
        yield f"not fairness: {_fairness(pool, rules)}"
    yield from _what_is_known(job, cause, pool)


def may_start(job: Job, now_s: float) -> bool:
    """Say whether neither a person, nor another job, nor the time it is to begin at keeps a job from being started."""
    return job.startable and (job.not_before_s <= now_s or job.failures > 0)


class WaitExplainer:
    """
    The explanations of why jobs wait at one moment.

    An explainer looks at each pool's nodes once: use it only while the state does not change.

    Parameters
    ----------
    state : GatewayState
        The state at ``now_s``.
    settings : MatcherSettings, optional
        Settings of the matcher.
    """

    def __init__(self, state: GatewayState, now_s: float, settings: MatcherSettings | None = None) -> None:
        self._state, self._now_s, self._settings = state, now_s, settings or MatcherSettings()
        self._fit = NodeFit(state.cluster)
        self._outlooks = PilotOutlooks(state, now_s, self._settings)
        self._rules = cache(lambda pool: rules_of(state, pool, self._settings))

    def explain(self, job: Job) -> WhyView:
        """Return the explanation of a job's present state."""
        past = self._state.histories[job.id]
        view = WhyView.of(
            job,
            past,
            name=job.spec.name,
            **self._present_cause(job)._asdict(),
            not_causes=(),
            rank=None,
            size=job_sizes.bounded_size_text(job.spec),
            resized=past.sizing.resizes[-1] if past.sizing is not None and past.sizing.resizes else None,
            freed=past.freed if job.state is JobState.PENDING else {},
        )
        return _with_parked(self._of_waiting(job, view), job) if job.state is JobState.PENDING else view

    def _of_waiting(self, job: Job, view: WhyView) -> WhyView:
        """Ask the matcher's round what would start the job, and what it does not wait for."""
        rules = self._rules(job.spec.pool)
        pool = self._state.pool(job.spec.pool, self._state.jobs, rules.topology, rules.classes)
        decided = self._state.explained.get(job.spec.pool)
        unexplained = view.cause == UNDECIDED and decided is not None and decided.at_s >= job.pending_since_s
        in_force = rules_at(rules, pool.team_reservations, self._now_s)  # a round adds what is reserved by itself
        lent = any(node.until_s for node in pool.cluster.usable(pool.name))  # they leave, and sooner by now
        aged = view.cause in _AGED or ((bool(in_force.quotas) or lent) and view.cause in FOR_DEVICES)
        asks = unexplained or aged  # the round spoke of the first in the order alone; or others may be stopped by now
        if asks and (wait := what_if.wait_of(pool, job.id, self._now_s, rules)) is not None:
            view = msgspec.structs.replace(view, cause=wait.cause, evidence=wait.evidence, remedy=wait.remedy)
        view = self._outlooks.told(view, job.spec)
        best = Alternatives(pool, self._now_s, rules).best(job)
        rank = self._rank(job, pool) if view.cause not in _NO_PLACE else None
        borrowers = borrowers_of(pool, self._now_s, rules) if in_force.quotas else ()
        start_in_s, basis = None, ""
        if best is None and view.cause in FOR_DEVICES:
            jobs: JobTable | list[Job] = self._state.jobs
            if isinstance(jobs, PastJobs):
                jobs = jobs.last_completed(job.spec.pool, start_forecast.FINISHED)
            start_in_s, basis = start_forecast.expected_start(pool, job.id, jobs, self._now_s)
        return msgspec.structs.replace(
            view,
            remedy=best.text if best is not None and view.cause in FOR_DEVICES else view.remedy,
            not_causes=tuple(ruled_out_causes(job, view.cause, pool, in_force, rank=rank, borrowers=borrowers)),
            rank=rank,
            alternative=best,
            start_in_s=start_in_s,
            basis=basis,
            prices=self._state.prices.get(job.spec.pool, {}),
        )

    def cause(self, job: Job) -> str:
        """Return the cause why a job waits; empty if it does not wait."""
        if job.state is not JobState.PENDING:
            return ""
        if job.startable and job.not_before_s <= self._now_s and (wait := self._explained(job)) is not None:
            found: str = wait.cause  # of thousands of jobs, nobody reads the evidence
        else:
            found = self.waiting(job).cause
        return PILOT if found in NO_NODE and self._outlooks.may_come(job.spec) else found

    def _present_cause(self, job: Job) -> StateCause:
        if job.state in TERMINAL:
            return StateCause("finished", _ending(job))
        if job.state is JobState.RUNNING:
            idle = idle_runs.why_text(self._state.idle.get(job.id), job, self._state.policies, self._now_s)
            limit = time_limits.why_text(job, self._now_s)
            what = (
                _running(job, self._now_s) + self._code(job) + self._beside(job) + self._aggregated(job) + limit + idle
            )
            return StateCause("running", what)
        return _stopping(job) if job.state in ACTIVE else self.waiting(job)

    def _code(self, job: Job) -> str:
        """Say what a job whose code was uploaded waits for before its processes are started."""
        if not job.spec.code or job.started_s:
            return ""
        warnings = self._state.histories[job.id].warnings
        last = f"; {warnings[-1]}" if warnings and warnings[-1].startswith("its code ") else ""
        return f", once its code ({job.spec.code[:12]}) has been fetched there{last}"

    def _beside(self, job: Job) -> str:
        """Say with whom a running job shares its devices."""
        if job.spec.sharing == "exclusive" or job.placement is None:
            return ""
        own = ((slot.node_id, index) for slot in job.placement.slots for index in slot.devices)
        others = job_fit.beside(self._state.jobs.not_over(), job.id, own)
        what = f"beside {listed(others)}" if others else "beside nobody else"
        return f", {what}, with {job.share:.0%} of the time"

    def _aggregated(self, job: Job) -> str:
        """Say which aggregators a running job has and why, or what it waits for."""
        table = self._state.aggregation
        run = table.runs.get(job.id)
        if run is None or run.epoch != job.epoch:
            return ""
        text = wait_text(table, self._state.cluster, run, self._now_s) or place_text(run, self._now_s)
        return f"; {text}" if text else ""

    def waiting(self, job: Job) -> StateCause:
        """Return a waiting job's own cause; otherwise the last round's; otherwise what the gateway sees itself."""
        if (own := _own(self._state, job, self._now_s)) is not None:
            return own
        if (wait := self._explained(job)) is not None:
            return StateCause(wait.cause, wait.evidence, wait.remedy)
        if (never := self._fit.never(job, self._rules(job.spec.pool))) is not None:
            return StateCause(*never)
        return _without_a_round(self._state, job)

    def _explained(self, job: Job) -> Wait | None:
        """Return what the last round said of a job, unless that was so then and is no more."""
        wait = self._state.wait_of(job)
        return wait if wait is not None and wait.cause not in _OF_THAT_MOMENT else None

    def _rank(self, job: Job, pool: PoolView) -> RankView | None:
        """
        Return how many waiting jobs come before this one, without those that may not start or that no node could start.

        The order is the pool's own: a job that the ranker has not seen yet has its place there, too.
        """
        own = self._state.histories[job.id].rank
        if own is None:
            return None
        key = pool.index.entries[job.id].key
        before = pool.index.ranked(takewhile(lambda other: other < key, pool.index.waiting))
        jobs = (ranked.job for ranked in before if not ranked.sample and may_start(ranked.job, self._now_s))
        return RankView(queue=own.queue, ahead=sum(self.cause(other) not in {*NO_NODE, PILOT} for other in jobs))


def _own(state: GatewayState, job: Job, now_s: float) -> StateCause | None:
    """Return a cause that lies in the job itself, whatever the cluster is like."""
    if job.held:
        return StateCause("held", "it is on hold", f"penstock release {job.id}")
    if job.blocked:
        return StateCause("dependency", dependencies.why_text(job.spec.after, state.progress_of))
    if job.in_line and (array := job.spec.array) is not None:
        most = f"{count(array.most, 'job')} of its array {array.id} {'runs' if array.most == 1 else 'run'} at a time"
        return StateCause("array", f"{most}, and so many come before it")
    if job.not_before_s > now_s and not job.failures:
        return StateCause("begin", f"{begin_text(job.not_before_s)}, in {duration(job.not_before_s - now_s)}")
    if job.not_before_s > now_s:
        failed = f"{job.failures} of at most {count(job.spec.retries + 1, 'run')} failed"
        last = f" ({job.reason})" if job.reason else ""
        return StateCause("backoff", f"{failed}{last}; the next may start in {duration(job.not_before_s - now_s)}")
    return None


def _without_a_round(state: GatewayState, job: Job) -> StateCause:
    key = workload.key(job.spec)
    samples = [state.jobs[sample_id] for sample_id in state.samples.get(key, ())]
    done = sum(sample.state in TERMINAL for sample in samples)
    if done < len(samples):
        evidence = f"{done} of {count(len(samples), 'sample')} of its workload {key} are done"
        return StateCause("profiling", evidence, "submit it with `--profile off`, and it is not sampled")
    remedy = "wait a moment; if it stays so, see with `penstock doctor` whether the matcher runs"
    return StateCause(UNDECIDED, "no round of the matcher has spoken of it yet", remedy)


def _running(job: Job, now_s: float) -> str:
    where = listed(device_names(job.placement)) if job.placement is not None else "unknown devices"
    if not job.started_s:
        return f"it is placed on {where}, and its processes are being started"
    return f"it has been running on {where} for {duration(now_s - job.started_s)}"


def _stopping(job: Job) -> StateCause:
    if job.timed_out:
        return StateCause("stopping", f"{job.reason}: it is being stopped, and may save a checkpoint")
    what = "being preempted" if job.state is JobState.PREEMPTING else "being cancelled"
    reason = f" ({job.reason})" if job.reason else ""
    return StateCause("stopping", f"it is {what}{reason}; its processes have not all ended yet")


def _ending(job: Job) -> str:
    after = f"after {duration(job.finished_s - job.submitted_s)}"
    ran = f"{duration(job.executed_s)} of them running" if job.first_started_s else "it never ran"
    reason = f": {job.reason}" if job.reason else ""
    return f"it {_ENDINGS[job.state]} {after} ({ran}){reason}"


def _quota(job: Job, rules: RoundRules, borrowers: Collection[str]) -> str:
    if not rules.quotas:
        return "there is none"
    if job.id in borrowers:
        return "its team's is used up, and a larger one would not start it now"
    return "its team has one that covers it"


def _fairness(pool: PoolView, rules: RoundRules) -> str:
    if rules.alpha >= 1.0:
        return "every user's jobs enter each round"
    if pool.alpha(rules) >= 1.0:
        return "its user is not kept back for others"
    return "it would not start now if every user's jobs entered the round"


def _what_it_asks_for(job: Job, cause: str, pool: PoolView) -> Iterator[str]:
    spec, idle, whole = job.spec, pool.index.free, pool.index.whole
    most = max(whole.kinds(spec).values(), default=0)
    if cause not in NO_NODE and most >= spec.gpus:
        there = f"there {'is' if most == 1 else 'are'} {most}"
        yield f"not its size: it asks for {count(spec.gpus, 'device')}, and {there} of one kind that it accepts"
    if (
        cause not in _RULED_OUT_FOR_DEVICES or spec.sharing != "exclusive"
    ):  # who shares does not wait for idle devices alone
        return
    any_kind = msgspec.structs.replace(spec, kinds=())
    if spec.kinds and max(idle.kinds(any_kind).values(), default=0) < spec.gpus:
        yield f"not its kinds: no other has {_idle(spec.gpus)} for it either"
    any_memory = msgspec.structs.replace(spec, memory_bytes=0)
    if spec.memory_bytes and max(idle.kinds(any_memory).values(), default=0) < spec.gpus:
        yield f"not its memory: asking for less, there would not be {_idle(spec.gpus)} either"


def _idle(devices: int) -> str:
    return "an idle device" if devices == 1 else f"{devices} idle devices"


def _what_is_known(job: Job, cause: str, pool: PoolView) -> Iterator[str]:
    key, accepted = pool.keys[job.id], pool.index.whole.kinds(job.spec)
    kinds = sorted(kind for kind in pool.speeds.by_key.get(key, {}) if kind in accepted)
    predicted = [kind for kind in kinds if kind in pool.speeds.predicted(key)]
    measured = [kind for kind in kinds if kind not in predicted]
    if cause != "profiling" and kinds:
        found = [f"{how} on {listed(some)}" for how, some in (("known", measured), ("predicted", predicted)) if some]
        yield f"not its profile: its speeds are {' and '.join(found)}"
    if cause != "backoff" and job.failures:
        yield "not its failures: the back-off is over"
