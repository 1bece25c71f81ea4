"""
What-if: the production round on a pool that is changed for a moment, and the alternatives of a waiting job.

The contexts below (:func:`changed`, :func:`submitted`, :func:`decided`, :func:`settled`) change a pool and change it
back; :func:`start_of` and :func:`wait_of` decide a round on it. So the answer is what the matcher's round would do.

Two things come before a new job's start, and :func:`followed` tries them with it: the samples that the profiler runs of
a new workload (:func:`first_samples`), and the first size of an elastic job (:func:`first_size`).

:class:`Alternatives` tries single changes of a waiting job with which it would start at once. It names an alternative
only if the job starts in the very next round when the user takes it, in both ways: he cancels the job and submits it
anew with the change, or he changes it in its place. Only what idle devices could hold is tried, so where nothing is
idle this costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock_cluster.device_backend import CAPABILITIES
from penstock_cluster.nodes import Cluster, fits
from penstock_log import (
    Alternative,
    Demand,
    Job,
    JobRank,
    JobSpec,
    JobState,
    JobTable,
    Placement,
    RoundDecided,
    SamplesRequested,
    Scalability,
    ScaleDecided,
    Wait,
    workload,
)
from penstock_log.text import gibibytes
from penstock_policies import sample_plan
from penstock_policies.queue_policies import newcomer
from penstock_scheduler.fairness import FairnessProgress
from penstock_scheduler.pool.pool_view import PoolView
from penstock_scheduler.reservations import reserved_kinds, rules_at
from penstock_scheduler.round import decide_pool
from penstock_scheduler.round_types import RoundRules
from penstock_scheduler.sizing.pool_sizes import ShownBehaviour, SizingKnowledge, asked, key_of
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_scheduler.wait_causes import less_of_a_host

TRIED: Final = "what-if"
"""Id of a job that is not there."""

MOST_ROUNDS: Final = 8
"""Rounds of one moment that are tried one after the other."""

_ALL_WAITS: Final = 1_000_000


def start_of(pool: PoolView, job_id: str, now_s: float, rules: RoundRules) -> Placement | None:
    """Return the placement of a job of the pool if a round is decided now; None if it does not start."""
    found, _ = decide_pool(pool, now_s, msgspec.structs.replace(rules, max_waits=0))
    placements = found.placements if found is not None else ()
    return next((placement for placement in placements if placement.job_id == job_id), None)


@contextmanager
def settled(
    pool: PoolView, job_id: str, now_s: float, rules: RoundRules
) -> Iterator[tuple[PoolView, Placement | None]]:
    """
    Give the pool after the rounds of this moment, with the placement of one of its jobs; None if it does not start.

    Notes
    -----
    A round may stop other runs for a job, which comes first from then on; the next round may start it on what is idle.
    """
    unexplained = msgspec.structs.replace(rules, max_waits=0)
    with ExitStack() as stack:
        for _ in range(MOST_ROUNDS):
            found, _again_s = decide_pool(pool, now_s, unexplained)
            if found is None:
                break
            if placed := next((each for each in found.placements if each.job_id == job_id), None):
                yield pool, placed
                return
            pool = stack.enter_context(decided(pool, found))
        yield pool, None


def wait_of(pool: PoolView, job_id: str, now_s: float, rules: RoundRules) -> Wait | None:
    """Return why a job of the pool waits if a round is decided now; None if it starts."""
    unsaid = msgspec.structs.replace(pool, explained={}, explained_s=0.0)
    rules = msgspec.structs.replace(rules, max_waits=_ALL_WAITS, explain_every_s=0.0)
    found, _ = decide_pool(unsaid, now_s, rules, only=job_id)
    waits = found.waits if found is not None else ()
    return next((wait for wait in waits if wait.job_id == job_id), None)


@contextmanager
def changed(pool: PoolView, *jobs: Job) -> Iterator[PoolView]:
    """
    Give the pool with these states of its jobs, or with these jobs beside its own, while the context lasts.

    Notes
    -----
    O(log J) a job: the pool's index is changed, and changed back.
    """
    before = [(job, pool.index.entries.get(job.id)) for job in jobs]
    for job in jobs:
        pool.index.note(job)
    keys = {job.id: job.profile_key or workload.key(job.spec) for job in jobs}
    try:
        yield pool if keys.items() <= pool.keys.items() else msgspec.structs.replace(pool, keys={**pool.keys, **keys})
    finally:
        for job, entry in before:
            pool.index.note(entry.ranked.job if entry is not None else _gone(job))


@contextmanager
def submitted(
    pool: PoolView,
    spec: JobSpec,
    now_s: float,
    instead_of: Job | None = None,
    *,
    key: str = "",
    sized: bool | None = None,
) -> Iterator[PoolView]:
    """
    Give the pool with one more job, called :data:`TRIED` and submitted now, and without the job ``instead_of``.

    Parameters
    ----------
    key : str
        The key of its workload, where this does not follow from its specification.
    sized : bool, optional
        Whether the job is tried as if the autoscaler had decided the size that it asks for; None: if it is elastic.

    Notes
    -----
    The job has the place that the ranker gives to a job that comes now.
    """
    job = Job(id=TRIED, spec=spec, submitted_s=now_s, pending_since_s=now_s, held=spec.hold, profile_key=key)
    job.limit_s = spec.time_limit_s
    job.blocked, job.not_before_s = bool(spec.after), spec.begin_s
    job.epoch = int(spec.elastic if sized is None else sized)
    position = newcomer(pool.mode.order, spec, now_s)
    rank = JobRank(job_id=TRIED, queue=0, position=position, since_s=None if position == now_s else now_s)
    progress = _with_user(pool.progress, spec.user, now_s, again=instead_of is not None)
    history = msgspec.structs.replace(pool.history, progress={**pool.history.progress, pool.name: progress})
    gone = [_gone(instead_of)] if instead_of is not None else []
    with _ranked(pool, rank), changed(msgspec.structs.replace(pool, history=history), *gone, job) as tried:
        yield tried


@contextmanager
def decided(pool: PoolView, found: RoundDecided) -> Iterator[PoolView]:
    """Give the pool as it is once a round of it is in the log."""
    touched = {p.job_id for p in found.placements} | {p.job_id for p in found.preemptions}
    jobs = JobTable({job_id: msgspec.structs.replace(pool.index.entries[job_id].ranked.job) for job_id in touched})
    jobs.apply(found)
    started = {placement.job_id for placement in found.placements}
    promised = {*pool.promised, *(p.for_job for p in found.preemptions)} - started
    history = msgspec.structs.replace(pool.history, reservations={**pool.history.reservations, pool.name: found.keeps})
    with changed(msgspec.structs.replace(pool, promised=promised, history=history), *jobs) as then:
        yield then


@contextmanager
def _ranked(pool: PoolView, rank: JobRank) -> Iterator[None]:
    """Give a job that is not there a rank while the context lasts."""
    before = pool.ranks.get(rank.job_id)
    pool.ranks[rank.job_id] = rank
    try:
        yield
    finally:
        if before is not None:
            pool.ranks[rank.job_id] = before
        else:
            del pool.ranks[rank.job_id]


def _gone(job: Job) -> Job:
    return msgspec.structs.replace(job, state=JobState.CANCELLED)


def _with_user(progress: FairnessProgress, user: str, now_s: float, *, again: bool) -> FairnessProgress:
    """Return the users' progress with a user active; if ``again``, he may have left and come back."""
    account = progress.active.get(user)
    if account is not None and not (again and account.jobs == 1):
        return progress
    found = FairnessProgress(active={**progress.active}, rested={**progress.rested}, rates=progress.rates)
    if account is not None:
        found.active[user] = msgspec.structs.replace(account)
        found.leave(user, now_s)
    elif user in found.rested:
        found.rested[user] = msgspec.structs.replace(found.rested[user])
    found.arrive(user, now_s)
    return found


class SampleHistory(msgspec.Struct, frozen=True, kw_only=True):
    """
    What is known of the samples of a new job's workload.

    Attributes
    ----------
    key : str
        The workload's key.
    samples : sequence of Job
        Its samples so far.
    measured : collection of str
        Kinds on which its iterations were measured.
    ran_alone : bool
        Whether it was measured on one device: times of gangs are no comparison.
    asking : JobSpec or None
        The latest open job for which it is sampled; None where there is none.
    """

    key: str
    samples: Sequence[Job] = ()
    measured: Collection[str] = ()
    ran_alone: bool = False
    asking: JobSpec | None = None


def first_samples(cluster: Cluster, spec: JobSpec, history: SampleHistory, now_s: float) -> list[Job]:
    """
    Return the samples that the profiler requests when a job is submitted, as waiting jobs; none for a known workload.

    Notes
    -----
    The search for the largest batch that a device holds is left out: its samples come one after the other.
    """
    own = sample_plan.is_sampled(spec)
    sampled = spec if own else history.asking
    if sampled is None or (not history.measured and any(job.state is JobState.FAILED for job in history.samples)):
        return []
    before = [job.sample for job in history.samples if job.sample is not None]
    devices = Counter(d.kind for node in cluster.usable(sampled.pool) for d in node.schedulable if fits(sampled, d))
    sizes: dict[str, list[sample_plan.SamplePoint]] = {}
    for kind, count in devices.items() if own and spec.elastic else ():
        same = [each for each in before if each.kind == kind and each.batch_size]
        points = [sample_plan.SamplePoint(each.gpus, each.batch_size) for each in same]
        sizes[kind] = sample_plan.missing(spec, count, points)
    compared = {each.kind for each in before} | (set(history.measured) if history.ran_alone else set())
    samples = sample_plan.samples(history.key, sample_plan.wanted(devices, sizes, compared))
    return JobTable().apply(SamplesRequested(at_s=now_s, key=history.key, spec=sampled, samples=samples))


def first_size(
    pool: PoolView,
    spec: JobSpec,
    scaled: Mapping[str, tuple[Scalability, ...]],
    now_s: float,
    settings: SizingSettings | None = None,
    *,
    rules: RoundRules | None = None,
) -> Job:
    """
    Return a new elastic job with its first size, or with its smallest size if there is no room for it.

    A pool does not tell which jobs ignore the batch that they are given, nor what did not fit on a device.

    Parameters
    ----------
    pool : PoolView
        With the new job (:data:`TRIED`), tried at its smallest size, and its samples.
    spec : JobSpec
        The job as it is submitted.
    scaled : mapping of str to tuple of Scalability
        Workload key → its measured scaling on each kind of device.
    settings : SizingSettings, optional
        Settings of the autoscaler.
    rules : RoundRules, optional
        The rules of the pool's rounds now: quotas and classes bound sizes.
    """
    entries, chosen = pool.index.entries, settings or SizingSettings()
    smallest = entries[TRIED].ranked.job
    new = msgspec.structs.replace(smallest, spec=spec, epoch=0)
    jobs = [*(entry.ranked.job for job_id, entry in entries.items() if job_id != TRIED), new]
    shown = ShownBehaviour(saves={key_of(job): True for job in jobs if job.checkpoint is not None})
    costs = pool.history.costs
    known = SizingKnowledge(
        pool.cluster,
        pool.ranks,
        scaled,
        pool.speeds,
        costs,
        returning={},
        shown=shown,
        quotas=rules.quotas if rules is not None else {},
        of_kinds=reserved_kinds(pool.team_reservations, now_s),
        classes=pool.index.classes,
        mode=pool.mode,
    )
    problem = asked(known, jobs, pool.name, now_s, chosen)
    sized = problem.sizing(chosen, pool.mode).jobs.get(TRIED)
    if sized is None or not sized.gpus:
        return smallest
    kinds = (sized.kind,) if len(problem.kinds[TRIED]) > 1 else ()
    demand = Demand(job_id=TRIED, epoch=0, gpus=sized.gpus, batch_size=sized.batch_size, kinds=kinds)
    JobTable({TRIED: new}).apply(ScaleDecided(at_s=now_s, pool=pool.name, demands=(demand,)))
    return new


@contextmanager
def followed(
    pool: PoolView,
    spec: JobSpec,
    now_s: float,
    rules: RoundRules,
    samples: Sequence[Job],
    *,
    scaled: Mapping[str, tuple[Scalability, ...]] | None = None,
    settings: SizingSettings | None = None,
) -> Iterator[tuple[PoolView, Placement | None]]:
    """
    Give the pool once everything has followed from a submitted job, with the job's placement; None if it waits.

    Parameters
    ----------
    pool : PoolView
        With the new job (:data:`TRIED`), an elastic one at its smallest size.
    spec : JobSpec
        The job as it is submitted.
    samples : sequence of Job
        The samples that are requested for it (:func:`first_samples`).
    scaled, settings
        As for :func:`first_size`; with None for ``scaled`` an elastic job keeps its smallest size.
    """
    with ExitStack() as stack:
        placement: Placement | None = None
        if not spec.elastic:  # one that is starts when it has a size, and not before its samples
            pool, placement = stack.enter_context(settled(pool, TRIED, now_s, rules))
        if placement is None:
            pool = stack.enter_context(changed(pool, *samples))
            if spec.elastic and scaled is not None:
                in_force = rules_at(rules, pool.team_reservations, now_s)
                sized = first_size(pool, spec, scaled, now_s, settings, rules=in_force)
                pool = stack.enter_context(changed(pool, sized))
            pool, placement = stack.enter_context(settled(pool, TRIED, now_s, rules))
        yield pool, placement


MOST: Final = 16
"""Changes of one job that are tried when somebody asks."""

TRIED_JOBS: Final = 200
"""Bounds what a round spends on it: the changes that it tries, times the jobs of its pool."""

Value = str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True)
class SpecChange:
    """
    A single change of a specification.

    Attributes
    ----------
    gain : float
        The job's expected speed with the change, relative to all of its devices of the fastest kind.
    """

    fields: dict[str, Value]
    say: str
    gain: float


class Alternatives:
    """
    The search for changes with which jobs of one pool would start, at one moment.

    Parameters
    ----------
    pool : PoolView
        The pool as the next round finds it.
    tries : int
        The most changes to try, over all jobs.
    """

    def __init__(self, pool: PoolView, now_s: float, rules: RoundRules, tries: int = MOST) -> None:
        self._pool, self._now_s, self._rules, self._left = pool, now_s, rules, tries
        self._whole, self._idle = pool.index.whole, pool.index.free

    def best(self, job: Job) -> Alternative | None:
        """Return the change with which the job is fastest among those with which it starts at once."""
        if job.sample is not None or job.state is not JobState.PENDING or job.not_before_s > self._now_s:
            return None
        if job.blocked:
            return None  # no change of its own would start it
        if self._left <= 0:
            return None
        if job.held:
            return self._released(job)
        for change in sorted(self._changes(job), key=lambda change: -change.gain):
            if self._left <= 0:
                break
            spec = msgspec.structs.replace(job.spec, **change.fields)
            if self._holds(spec) and (placement := self._tried(job, spec)) is not None:
                return self._alternative(job, change, placement)
        return None

    def _released(self, job: Job) -> Alternative | None:
        if not self._holds(job.spec):
            return None
        self._left -= 1
        with changed(self._pool, msgspec.structs.replace(job, held=False)) as pool:
            placement = start_of(pool, job.id, self._now_s, self._rules)
        change = SpecChange({"hold": False}, f"penstock release {job.id}", 1.0)
        return self._alternative(job, change, placement) if placement is not None else None

    def _tried(self, job: Job, spec: JobSpec) -> Placement | None:
        self._left -= 1
        with submitted(self._pool, spec, self._now_s, instead_of=job) as pool:
            placement = start_of(pool, TRIED, self._now_s, self._rules)
        if placement is None:
            return None
        with changed(self._pool, msgspec.structs.replace(job, spec=spec)) as pool:
            return placement if start_of(pool, job.id, self._now_s, self._rules) is not None else None

    def _holds(self, spec: JobSpec) -> bool:
        return any(count >= spec.gpus for count in self._idle.kinds(spec).values())

    def _changes(self, job: Job) -> Iterator[SpecChange]:
        spec, accepted = job.spec, self._whole.kinds(job.spec)
        if job.accepts is None:  # else its kinds are not its user's, but those for which it has been sized
            yield from self._other_kinds(job, accepted)
        if len(accepted) > 1:
            for kind in self._idle.kinds(spec):
                yield SpecChange({"kinds": (kind,)}, f"accept kind `{kind}` only", self._speed(job, kind) or 1.0)
        for kind, count in self._idle.kinds(spec).items():
            if count < spec.widths[0]:  # within its widths, whoever sizes an elastic job chooses
                gain = (self._speed(job, kind) or 1.0) * count / spec.gpus
                yield _narrower(spec, count, gain)
        if self._idle.is_tight(spec) and not self._idle.kinds(spec):
            for fields, say in less_of_a_host(spec, self._idle):
                yield SpecChange({**fields}, say, 1.0)
        if spec.memory_bytes and not accepted.keys() & self._idle.kinds(spec).keys():
            yield from self._less_memory(spec)
        if sample_plan.awaits_speeds(job, accepted, known=self._pool.speeds.knows(self._pool.keys[job.id])):
            yield SpecChange({"profile": "off"}, "submit it with `--profile off`", 0.9)

    def _other_kinds(self, job: Job, accepted: dict[str, int]) -> Iterator[SpecChange]:
        spec = job.spec
        if spec.kinds:
            offered = self._idle.kinds(msgspec.structs.replace(spec, kinds=()))
            for kind in sorted(offered.keys() - set(spec.kinds)):
                gain = self._speed(job, kind) or 0.5
                yield SpecChange({"kinds": (*spec.kinds, kind)}, f"accept kind `{kind}` too", gain)
                yield SpecChange({"kinds": (kind,)}, f"accept kind `{kind}` instead", gain)
        elif not accepted:
            for kind in sorted({device.kind for _, device in self._idle if not CAPABILITIES[device.backend].unnamed}):
                yield SpecChange({"kinds": (kind,)}, f"ask for kind `{kind}` by name", self._speed(job, kind) or 0.1)

    def _less_memory(self, spec: JobSpec) -> Iterator[SpecChange]:
        any_size = msgspec.structs.replace(spec, memory_bytes=0)
        sizes = {device.memory_bytes for _, device in self._idle if fits(any_size, device)}
        for size in sorted((size for size in sizes if size < spec.memory_bytes), reverse=True):
            yield SpecChange({"memory_bytes": size}, f"ask for at most {gibibytes(size)} a device", 1.0)

    def _alternative(self, job: Job, change: SpecChange, placement: Placement) -> Alternative:
        speed = self._speed(job, placement.kind)
        gpus = sum(len(slot.devices) for slot in placement.slots)
        where = f" on {gpus} `{placement.kind}`" if gpus > 1 else f" on `{placement.kind}`"
        guess = "a predicted " if placement.kind in self._pool.speeds.predicted(self._pool.keys[job.id]) else ""
        pace = f", at {guess}{speed:.2g}x speed" if speed and speed != 1.0 else ""
        text = f"{change.say}: it starts now{'' if placement.kind in change.say else where}{pace}"
        return Alternative(change=change.fields, kind=placement.kind, speed=speed, text=text)

    def _speed(self, job: Job, kind: str) -> float:
        """Return the job's speed on a kind relative to the fastest that it accepts; 0 where it is not known."""
        measured = self._pool.speeds.by_key.get(self._pool.keys[job.id], {})
        accepted = [measured[kind] for kind in self._whole.kinds(job.spec) if kind in measured]
        return measured.get(kind, 0.0) / max(accepted, default=1.0)


def named(pool: PoolView, found: RoundDecided, now_s: float, rules: RoundRules) -> RoundDecided:
    """
    Return a round with the best alternative of its first waiting jobs.

    Notes
    -----
    At most ``max_tries`` changes are tried, fewer in a large pool (:data:`TRIED_JOBS`), none in a very large one.
    There, the changes of one job are tried when somebody asks about it.
    """
    if not found.waits:
        return found
    tries = min(rules.max_tries, TRIED_JOBS // max(1, len(pool.index)))
    if tries < 1:
        return found
    with decided(pool, found) as then:
        looking = Alternatives(then, now_s, rules, tries)
        waits = [_with_best(wait, looking.best(then.index.entries[wait.job_id].ranked.job)) for wait in found.waits]
    return msgspec.structs.replace(found, waits=tuple(waits))


def _with_best(wait: Wait, best: Alternative | None) -> Wait:
    if best is None:
        return wait
    return msgspec.structs.replace(wait, alternative=best, remedy=wait.remedy or best.text)


def _narrower(spec: JobSpec, count: int, gain: float) -> SpecChange:
    devices = f"{count} device{'s' if count > 1 else ''}"
    if spec.max_gpus:
        return SpecChange(
            {"gpus": count, "min_gpus": count}, f'accept {devices} too (gpus = "{count}..{spec.max_gpus}")', gain
        )
    return SpecChange({"gpus": count}, f"ask for at most {devices}", gain)
