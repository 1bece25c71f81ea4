"""
Why a job waits, what is ruled out, when it may start.

:class:`WaitExplainer` gives one dominant cause, its evidence, and what would change it. :func:`ruled_out_causes` lists
what one might suspect and what clears it. :func:`expected_start` estimates when the job starts, from run times that are
declared or were measured in its pool: :func:`start_in_s` lets the jobs before it take devices as these become free.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec
import numpy as np

from penstock_gateway import job_fit, job_history
from penstock_gateway.job_history import device_names
from penstock_gateway.machine import GatewayState
from penstock_log import ACTIVE, TERMINAL, Job, JobSpec, workload
from penstock_log.job_state import JobState
from penstock_log.text import count, duration, listed
from penstock_log.views import RankView, WhyView
from penstock_policies import job_lengths
from penstock_scheduler import what_if
from penstock_scheduler.pool.pool_index import PoolIndex
from penstock_scheduler.pool.pool_settings import MatcherSettings, rules_of
from penstock_scheduler.pool.pool_view import PoolView
from penstock_scheduler.round import borrowers_of
from penstock_scheduler.round_types import PreemptibleRun, RoundRules
from penstock_scheduler.what_if import Alternatives

UNDECIDED: Final = "undecided"
_ENDINGS: Final = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
}

_NEVER: Final = {"never_fits", "no_nodes"}
_NO_PLACE: Final = {*_NEVER, "held"}
"""Causes with which it does not matter who stands before the job."""
_FOR_DEVICES: Final = {"capacity", "gang", "host_cpus", "host_memory", "later_place", "order", "fairness"}

Said = tuple[str, str, str]
"""Cause, evidence and remedy."""


@dataclass(frozen=True)
class WaitingPosition:
    """
    A waiting job's position in its pool.

    Attributes
    ----------
    pool : PoolView
    rules : RoundRules
        The rules of the pool's rounds.
    rank : RankView or None
        The job's rank; None where it does not matter.
    borrowers : collection of str
        Jobs of the pool that no quota covers.
    """

    pool: PoolView
    rules: RoundRules
    rank: RankView | None
    borrowers: Collection[str] = ()


def ruled_out_causes(job: Job, cause: str, place: WaitingPosition) -> Iterator[str]:
    """Yield the causes that are ruled out, the likeliest first."""
    if cause != "held":
        yield "it is not held"
    if place.rank is not None and not place.rank.ahead and cause in _RULED_OUT_FOR_DEVICES:
        yield "not its priority: no waiting job stands before it"
    yield from _what_it_asks_for(job, cause, place.pool)
    if cause in _RULED_OUT_FOR_DEVICES:
        yield f"not a quota: {_quota(job, place)}"
        yield f"not fairness: {_fairness(place)}"
    yield from _what_is_known(job, cause, place.pool)


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
        self._nodes = cache(lambda pool: job_fit.nodes_of(state.cluster, pool))

    def explain(self, job: Job) -> WhyView:
        """Return the explanation of a job's present state."""
        said, past = self._said(job), self._state.histories[job.id]
        view = WhyView(
            id=job.id,
            name=job.spec.name,
            state=job.state,
            cause=said[0],
            evidence=said[1],
            remedy=said[2],
            not_causes=(),
            since_s=past.since_s,
            rank=None,
            size=job_history.words(job.spec),
            resized=past.sizing.resizes[-1] if past.sizing is not None and past.sizing.resizes else None,
            freed=past.freed if job.state is JobState.PENDING else {},
        )
        return self._of_waiting(job, view) if job.state is JobState.PENDING else view

    def _of_waiting(self, job: Job, view: WhyView) -> WhyView:
        """Ask the matcher's round what would start the job, and what it does not wait for."""
        rules = rules_of(self._state, job.spec.pool, self._settings)
        pool = self._state.pool(job.spec.pool, self._state.jobs, rules.topology)
        decided = self._state.explained.get(job.spec.pool)
        unsaid = view.cause == UNDECIDED and decided is not None and decided.at_s >= job.pending_since_s
        aged = view.cause == "fairness" or (bool(rules.quotas) and view.cause in _FOR_DEVICES)
        if unsaid or aged:  # the round spoke of the first in the order alone; or others may be stopped by now
            view = self._asked(job, view, pool, rules)
        best = Alternatives(pool, self._now_s, rules).best(job)
        rank = self._rank(job, pool) if view.cause not in _NO_PLACE else None
        borrowers = borrowers_of(pool, self._now_s, rules) if rules.quotas else ()
        start_in_s, basis = None, ""
        if best is None and view.cause in _FOR_DEVICES:
            start_in_s, basis = expected_start(self._state, pool, job.id, self._now_s)
        return msgspec.structs.replace(
            view,
            remedy=best.text if best is not None and view.cause in _FOR_DEVICES else view.remedy,
            not_causes=tuple(ruled_out_causes(job, view.cause, WaitingPosition(pool, rules, rank, borrowers))),
            rank=rank,
            alternative=best,
            start_in_s=start_in_s,
            basis=basis,
        )

    def _asked(self, job: Job, view: WhyView, pool: PoolView, rules: RoundRules) -> WhyView:
        wait = what_if.wait_of(pool, job.id, self._now_s, rules)
        if wait is None:
            return view
        return msgspec.structs.replace(view, cause=wait.cause, evidence=wait.evidence, remedy=wait.remedy)

    def cause(self, job: Job) -> str:
        """Return the cause why a job waits, in one word; empty if it does not wait."""
        return self._waiting(job)[0] if job.state is JobState.PENDING else ""

    def _said(self, job: Job) -> Said:
        if job.state in TERMINAL:
            return "finished", _ending(job), ""
        if job.state is JobState.RUNNING:
            return "running", _running(job, self._now_s) + self._beside(job), ""
        return _stopping(job) if job.state in ACTIVE else self._waiting(job)

    def _beside(self, job: Job) -> str:
        """Say with whom a running job shares its devices."""
        if job.spec.sharing == "exclusive" or job.placement is None:
            return ""
        own = ((slot.node_id, index) for slot in job.placement.slots for index in slot.devices)
        others = job_fit.beside(self._state.jobs, job.id, own)
        what = f"beside {listed(others)}" if others else "beside nobody else"
        return f", {what}, with {job.share:.0%} of the time"

    def _waiting(self, job: Job) -> Said:
        """Return the job's own cause; otherwise the last round's; otherwise what the gateway sees itself."""
        if (own := _own(job, self._now_s)) is not None:
            return own
        said = self._state.wait_of(job)
        if said is not None and said.cause not in {"held", "backoff"}:  # which was so then, and is no more
            return said.cause, said.evidence, said.remedy
        reason = job_fit.never(job, self._nodes(job.spec.pool))
        if reason is not None:
            return reason.cause, reason.evidence, reason.remedy
        return _without_a_round(self._state, job)

    def _rank(self, job: Job, pool: PoolView) -> RankView | None:
        """
        Return how many waiting jobs come before this one, without those that the present nodes could never start.

        The order is the pool's own: a job that the ranker has not seen yet has its place there, too.
        """
        own = self._state.histories[job.id].rank
        if own is None:
            return None
        key = pool.roster.entries[job.id].key
        before = pool.roster.ranked(takewhile(lambda other: other < key, pool.roster.waiting))
        jobs = (ranked.job for ranked in before if not ranked.sample and not ranked.job.held)
        return RankView(queue=own.queue, ahead=sum(self.cause(other) not in _NEVER for other in jobs))


def _own(job: Job, now_s: float) -> Said | None:
    """Return a cause that lies in the job itself, whatever the cluster is like."""
    if job.held:
        return "held", "it is on hold", f"penstock release {job.id}"
    if job.not_before_s > now_s:
        failed = f"{job.failures} of at most {count(job.spec.retries + 1, 'run')} failed"
        last = f" ({job.reason})" if job.reason else ""
        return "backoff", f"{failed}{last}; the next may start in {duration(job.not_before_s - now_s)}", ""
    return None


def _without_a_round(state: GatewayState, job: Job) -> Said:
    """Return the cause if the matcher has not given one."""
    key = workload.key(job.spec)
    samples = [state.jobs[sample_id] for sample_id in state.samples.get(key, ())]
    done = sum(sample.state in TERMINAL for sample in samples)
    if done < len(samples):
        evidence = f"{done} of {count(len(samples), 'sample')} of its workload {key} are done"
        return "profiling", evidence, "submit it with `--profile off`, and it is not sampled"
    evidence = "no round of the matcher has spoken of it yet"
    return UNDECIDED, evidence, "wait a moment; if it stays so, see with `penstock doctor` whether the matcher runs"


def _running(job: Job, now_s: float) -> str:
    where = listed(device_names(job.placement)) if job.placement is not None else "unknown devices"
    if not job.started_s:
        return f"it is placed on {where}, and its processes are being started"
    return f"it has been running on {where} for {duration(now_s - job.started_s)}"


def _stopping(job: Job) -> Said:
    what = "being preempted" if job.state is JobState.PREEMPTING else "being cancelled"
    reason = f" ({job.reason})" if job.reason else ""
    return "stopping", f"it is {what}{reason}; its processes have not all ended yet", ""


def _ending(job: Job) -> str:
    after = f"after {duration(job.finished_s - job.submitted_s)}"
    ran = f"{duration(job.executed_s)} of them running" if job.first_started_s else "it never ran"
    reason = f": {job.reason}" if job.reason else ""
    return f"it {_ENDINGS[job.state]} {after} ({ran}){reason}"


_RULED_OUT_FOR_DEVICES = {"capacity", "gang", "order"}


def _quota(job: Job, place: WaitingPosition) -> str:
    if not place.rules.quotas:
        return "there is none"
    if job.id in place.borrowers:
        return "its team's is used up, and a larger one would not start it now"
    return "its team has one that covers it"


def _fairness(place: WaitingPosition) -> str:
    if place.rules.alpha >= 1.0:
        return "every user's jobs enter each round"
    if place.pool.alpha(place.rules) >= 1.0:
        return "its user is not kept back for others"
    return "it would not start now if every user's jobs entered the round"


def _what_it_asks_for(job: Job, cause: str, pool: PoolView) -> Iterator[str]:
    spec, idle, whole = job.spec, pool.index.free, pool.index.whole
    most = max(whole.kinds(spec).values(), default=0)
    if cause not in _NEVER and most >= spec.gpus:
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
    told = sorted(kind for kind in pool.speeds.by_key.get(key, {}) if kind in accepted)
    predicted = [kind for kind in told if kind in pool.speeds.predicted(key)]
    known = [kind for kind in told if kind not in predicted]
    if cause != "profiling" and told:
        said = [f"{how} on {listed(kinds)}" for how, kinds in (("known", known), ("predicted", predicted)) if kinds]
        yield f"not its profile: its speeds are {' and '.join(said)}"
    if cause != "backoff" and job.failures:
        yield "not its failures: the back-off is over"


FINISHED = 256
"""Jobs of a pool that finished last, whose run times tell those of the others."""

Estimate = tuple[float | None, str]
"""In how many seconds, None where nothing tells; and what that rests on."""


def expected_start(state: GatewayState, pool: PoolView, job_id: str, now_s: float) -> Estimate:
    """
    Return when a job of the pool that waits for devices is expected to have them.

    Measured run times count as they are, on whatever kind. Declared ones, and the job's own, are divided by the
    measured speed of the kind. The estimate leaves out jobs behind this one in the order, and preemption.
    """
    if job_id in pool.index.sharing.demands:
        return None, "no estimate: it shares devices, and nobody knows when there is room for it"
    before, spec = _ahead(pool, job_id), pool.index.entries[job_id].ranked.job.spec
    finished = _finished(state, spec.pool)
    measured_s = [job.executed_s for job in finished]
    held = pool.index.runs()
    runs = [run.ranked.job for run in held]
    left_s = _left_s([*runs, *before], measured_s, now_s)
    ready_s = _ready_s(state, pool.index, held, left_s[: len(runs)])
    waiting = [*before, pool.index.entries[job_id].ranked.job]
    queue = [_need(state, job, pool, left) for job, left in zip(waiting, [*left_s[len(runs) :], 0.0], strict=True)]
    start_s = start_in_s(ready_s, queue, in_order=not pool.mode.backfills)
    silent = sum(math.isinf(left) for left in left_s)
    if math.isinf(start_s):
        declares = "declares" if silent == 1 else "declare"
        why = f"{count(silent, 'job')} before it {declares} no duration, and none of pool `{spec.pool}` has finished"
        return None, f"no estimate: {why}" if silent else ""
    if start_s <= 0:  # it could start as far as this goes, but the round says that it has to wait
        return None, ""
    own = pool.index.entries[job_id].key[0]
    demoted = sum(run.ranked.queue > own for run in held)
    return start_s, "; ".join(_basis([*runs, *before], len(finished), demoted))


def _ahead(pool: PoolView, job_id: str) -> list[Job]:
    """Return the waiting jobs of a pool that come before a job, without those that are held or never fit."""
    own, index = pool.index.entries[job_id].key, pool.index
    before = takewhile(lambda key: key < own, index.waiting)
    jobs = (ranked.job for ranked in index.ranked(before) if ranked.job_id not in index.sharing.demands)
    return [
        job for job in jobs if not job.held and max(index.whole.kinds(job.spec).values(), default=0) >= job.spec.gpus
    ]


def _finished(state: GatewayState, pool: str) -> list[Job]:
    done = (job for job in state.jobs if job.state is JobState.COMPLETED and job.sample is None)
    return heapq.nlargest(FINISHED, (job for job in done if job.spec.pool == pool), key=lambda job: job.finished_s)


def _left_s(jobs: Sequence[Job], measured_s: Sequence[float], now_s: float) -> list[float]:
    had_s = [job.executed_by(now_s) for job in jobs]
    expected = job_lengths.remaining_s(np.array(had_s, dtype=np.float64), measured_s, math.inf)
    return [
        0.0  # a matter of seconds
        if job.sample is not None or job.stopping
        else job_lengths.declared_s(job.spec.duration_s, had)
        if job.spec.duration_s
        else float(left)
        for job, had, left in zip(jobs, had_s, expected, strict=True)
    ]


def _ready_s(
    state: GatewayState, index: PoolIndex, running: Sequence[PreemptibleRun], left_s: Sequence[float]
) -> dict[str, list[float]]:
    ready: defaultdict[str, list[float]] = defaultdict(list)
    for _, device in index.free:
        ready[device.kind].append(0.0)
    shared: dict[tuple[str, int], tuple[str, float]] = {}
    for run, left in zip(running, left_s, strict=True):
        in_s = left / _scale(state, run.ranked.job.spec, run.kind) / run.ranked.job.share
        for node_id, device in run.devices:
            if run.ranked.job_id in index.sharing.demands:  # free when the last is gone, if nobody joins
                last_s = max(in_s, shared.get((node_id, device.index), ("", 0.0))[1])
                shared[node_id, device.index] = device.kind, last_s
            else:
                ready[device.kind].append(in_s)
    for kind, in_s in shared.values():
        ready[kind].append(in_s)
    return ready


def _need(state: GatewayState, job: Job, pool: PoolView, left_s: float) -> QueuedNeed:
    """Return what a waiting job asks for; if devices are reserved for it, of their kind."""
    spec, kept = job.spec, pool.reservations.get(job.id)
    kinds = [kept] if kept else pool.index.whole.kinds(spec)
    return QueuedNeed(spec.gpus, {kind: left_s / _scale(state, spec, kind) for kind in kinds})


def _scale(state: GatewayState, spec: JobSpec, kind: str) -> float:
    """Return the speed by which a declared run time is divided."""
    return (speed_of(state, spec, kind) or 1.0) if spec.duration_s else 1.0


def speed_of(state: GatewayState, spec: JobSpec, kind: str) -> float:
    """Return the measured speed of a job on a kind relative to its fastest; 0 where it was not measured."""
    profile = state.profiles.get(workload.key(spec))
    speeds = {speed.kind: speed.speed for speed in profile.speeds} if profile is not None else {}
    return speeds.get(kind, 0.0)


def _basis(jobs: Sequence[Job], finished: int, demoted: int) -> Iterator[str]:
    declared = sum(job.spec.duration_s > 0 for job in jobs)
    silent = sum(not job.spec.duration_s and job.sample is None for job in jobs)
    if declared:
        yield f"{count(declared, 'job')} by declared duration"
    if silent and finished:
        yield f"{count(silent, 'job')} by the run times of the last {count(finished, 'job')} that finished"
    elif silent:
        yield f"{count(silent, 'job')} of unknown duration not in its way"
    if demoted:
        yield f"sooner if it preempts one of {count(demoted, 'run')} of a later queue"


class QueuedNeed(NamedTuple):
    """
    The devices and the run time of one waiting job.

    Attributes
    ----------
    gpus : int
        Devices that the job needs at once, all of one kind.
    run_s : mapping of str to float
        Kind that the job may run on → expected run time there, seconds; infinite where it is unknown.
    """

    gpus: int
    run_s: Mapping[str, float]


def start_in_s(ready_s: Mapping[str, Iterable[float]], queue: Sequence[QueuedNeed], *, in_order: bool = False) -> float:
    """
    Return in how many seconds the last job of a queue is expected to start.

    Parameters
    ----------
    ready_s : mapping of str to iterable of float
        Kind → in how many seconds each device is free: 0 for an idle device, infinite where it is unknown.
    queue : sequence of QueuedNeed
        The waiting jobs in order; not empty.
    in_order : bool
        Whether jobs start strictly in order.

    Returns
    -------
    float, seconds; infinite where no kind will ever have enough devices, as far as is known

    Notes
    -----
    List scheduling: each job in its turn takes the devices with which it ends first, or starts first where its run time
    is not known. O(J (T + m)) at worst, with T kinds and m devices. Preemption, which it leaves out, would only shorten
    the wait.

    Examples
    --------
    >>> ahead, own = QueuedNeed(1, {"fast": 10.0}), QueuedNeed(2, {"fast": 5.0, "slow": 8.0})
    >>> start_in_s({"fast": [0.0, 3.0], "slow": [1.0]}, [ahead, own])
    10.0
    """
    ready = {kind: sorted(times) for kind, times in ready_s.items()}
    start_s = floor_s = 0.0
    for need in queue:
        starts = {kind: ready[kind][need.gpus - 1] for kind in need.run_s if len(ready.get(kind, ())) >= need.gpus}
        if not starts:
            start_s = math.inf
            continue
        kind = min(starts, key=lambda kind: (starts[kind] + need.run_s[kind], starts[kind], kind))
        start_s = floor_s = max(starts[kind], floor_s if in_order else 0.0)
        del ready[kind][: need.gpus]
        for _ in range(need.gpus):
            insort(ready[kind], start_s + need.run_s[kind])
    return start_s
