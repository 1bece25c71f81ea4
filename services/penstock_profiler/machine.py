"""
The profiler's pure part: sample an unseen workload on each kind of device, answer, and learn from real runs.

Every workload is answered, because its jobs wait for it: at once where there is nothing to measure, after the samples
where there is, and with predictions where samples fail or take too long.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import msgspec

from penstock_bus import Decider, Decision, Proposal
from penstock_events import (
    TERMINAL,
    AnyEvent,
    Device,
    Event,
    Job,
    Jobs,
    JobSubmitted,
    RunEnded,
    Sample,
    SamplesRequested,
    WorkloadProfiled,
    subjects,
    workload,
)
from penstock_policies.cluster import Cluster, fits
from penstock_profiler.answer import answer
from penstock_profiler.settings import Settings
from penstock_profiler.workload import Workload, lost_too_often


class State(msgspec.Struct):
    """
    Nodes, jobs that are not over, and all workloads ever seen.

    Attributes
    ----------
    offers : dict of str to tuple of Device
        By pool: one of each sort of device on the nodes that take jobs.
    unsettled : set of str
        Keys of workloads with something left to ask, to wait for or to say.
    """

    cluster: Cluster = msgspec.field(default_factory=Cluster)
    offers: dict[str, tuple[Device, ...]] = msgspec.field(default_factory=dict)
    jobs: Jobs = msgspec.field(default_factory=Jobs)
    workloads: dict[str, Workload] = msgspec.field(default_factory=dict)
    unsettled: set[str] = msgspec.field(default_factory=set)


def decider(settings: Settings | None = None, mine: Callable[[str], bool] = lambda _key: True) -> Decider[State]:
    """
    Return the profiler as the shell, the simulator and tests run it.

    Parameters
    ----------
    settings : Settings, optional
    mine : callable
        Says whether a workload's key belongs to this replica; by default all do.
    """
    return Decider(
        name="profiler",
        state=State,
        schema="profiler.3",
        apply=apply,
        decide=partial(decide, settings=settings or Settings(), mine=mine),
        leads=False,
    )


def apply(state: State, event: Event, seq: int) -> None:
    """Fold one fact in."""
    match event:
        case WorkloadProfiled():
            _note_answer(state, event)
        case JobSubmitted():
            _note_job(state, event, seq)
        case SamplesRequested():
            _note_request(state, event)
        case RunEnded():
            _note_run(state, event, seq)
        case _:
            _note_rest(state, event)


def decide(state: State, now_s: float, settings: Settings, mine: Callable[[str], bool]) -> Decision:
    """Return a request or an answer for each unsettled workload that is due, and when the next one is."""
    proposals, wake_at_s = [], []
    for key in filter(mine, sorted(state.unsettled)):
        known = state.workloads[key]
        fact = _next_fact(state, known, now_s, settings)
        if fact is not None:
            proposals.append(Proposal(subject=subjects.profile(key), facts=(fact,), cause=known.cause))
        else:
            wake_at_s.append(known.requested_s + settings.answer_within_s)
    return Decision(proposals, wake_at_s=min(wake_at_s, default=None))


def _next_fact(state: State, known: Workload, now_s: float, settings: Settings) -> AnyEvent | None:
    """Return what is to be said about a workload now; None while its samples are waited for."""
    kinds = _kinds_to_sample(state, known)
    if kinds:
        samples = tuple(sample for kind in kinds for sample in _samples(known.key, kind, settings))
        return SamplesRequested(at_s=now_s, key=known.key, spec=known.spec, samples=samples)
    if now_s < known.requested_s + settings.answer_within_s and _is_awaited(state, known):
        return None
    return answer(known, reversed(state.workloads.values()), _fitting_kinds(state, known), now_s)


def _is_awaited(state: State, known: Workload) -> bool:
    """Say whether an answer without the samples that are still open would be premature."""
    if known.announced is None:
        return bool(known.open_kinds())
    return not known.news() and bool(known.open_kinds() & _unsaid_kinds(state, known))


def _samples(key: str, kind: str, settings: Settings) -> list[Sample]:
    name = re.sub(r"[^a-z0-9_-]+", "-", kind.lower())[:45]  # an id is lower case and at most 63 characters long
    lengths = (settings.short_iterations, settings.long_iterations)
    return [
        Sample(sample_id=f"s-{key[:8]}-{name}-{number}", kind=kind, iterations=iterations)
        for number, iterations in enumerate(lengths, start=1)
    ]


def _fitting_kinds(state: State, known: Workload) -> list[str]:
    return sorted({device.kind for device in state.offers.get(known.spec.pool, ()) if fits(known.spec, device)})


def _kinds_to_sample(state: State, known: Workload) -> list[str]:
    """Return the kinds that an active workload was never measured on, if there is more than one kind to compare."""
    if known.spec.profile == "off" or not known.active or known.unsampleable():
        return []
    fitting = _fitting_kinds(state, known)
    seen = known.sampled_kinds() | known.iteration_s.keys()
    return [kind for kind in fitting if kind not in seen] if len(fitting) > 1 else []


def _unsaid_kinds(state: State, known: Workload) -> set[str]:
    """Return the kinds that an active workload fits and that nothing was said about."""
    return set(_fitting_kinds(state, known)) - (known.announced or {}).keys() if known.active else set()


def _settle(state: State, key: str) -> None:
    """Keep ``unsettled`` true to what is known about a workload."""
    known = state.workloads[key]
    unsaid = known.announced is None or known.news() or bool(_unsaid_kinds(state, known))
    if unsaid or _kinds_to_sample(state, known):
        state.unsettled.add(key)
    else:
        state.unsettled.discard(key)


def _note_answer(state: State, event: WorkloadProfiled) -> None:
    if event.key in state.workloads:
        known = state.workloads[event.key]
        known.announced, known.announced_skew = {speed.kind: speed for speed in event.speeds}, event.skew
        _settle(state, event.key)


def _note_request(state: State, event: SamplesRequested) -> None:
    if event.key in state.workloads:
        state.workloads[event.key].request(event.samples, event.at_s)
        state.jobs.apply(event)
        _settle(state, event.key)


def _note_job(state: State, event: JobSubmitted, seq: int) -> None:
    if state.jobs.get(event.job_id) is not None:
        return
    state.jobs.apply(event)
    key = workload.key(event.spec)
    known = state.workloads.setdefault(key, Workload(key=key, spec=event.spec))
    known.spec, known.cause = event.spec, seq
    known.active += 1
    _settle(state, key)


def _note_run(state: State, event: RunEnded, seq: int) -> None:
    job = state.jobs.get(event.job_id)
    kind = job.placement.kind if job is not None and job.placement is not None else ""
    for job in state.jobs.apply(event):
        known = state.workloads[_key(job)]
        known.describe(event)
        if job.sample is not None and job.state in TERMINAL:
            known.end_sample(job.id, event, job.reason)
            known.cause = seq
        elif job.sample is None and event.outcome == "completed" and _had_its_device_alone(job):
            known.refine(kind, event)
            known.cause = seq
        _note_progress(state, job)


def _had_its_device_alone(job: Job) -> bool:
    """Say whether a run's iterations tell how fast its workload is: no gang, and nobody beside it."""
    return job.spec.gpus == 1 and job.spec.sharing == "exclusive"


def _note_rest(state: State, event: Event) -> None:
    for job in state.jobs.apply(event):
        _note_progress(state, job)
    if state.cluster.apply(event) and (offers := _offers(state.cluster)) != state.offers:
        state.offers = offers
        for key, known in state.workloads.items():
            if known.active:
                _settle(state, key)


def _offers(cluster: Cluster) -> dict[str, tuple[Device, ...]]:
    sorts: defaultdict[str, dict[tuple[str, int, str], Device]] = defaultdict(dict)
    for node in cluster.usable():
        for device in node.devices:
            sorts[node.pool].setdefault((device.kind, device.memory_bytes, device.backend), device)
    return {pool: tuple(devices.values()) for pool, devices in sorts.items()}


def _note_progress(state: State, job: Job) -> None:
    """Give up on samples that cannot succeed, and forget jobs that are over."""
    known = state.workloads[_key(job)]
    over = job.state in TERMINAL
    if job.sample is not None:
        if not known.samples[job.id].over and (over or lost_too_often(job)):
            known.give_up(job.id, job.reason or "lost with its node")
    elif over and state.jobs.get(job.id) is not None:
        known.active -= 1
    if over:
        state.jobs.forget(job.id)
    _settle(state, known.key)


def _key(job: Job) -> str:
    return job.profile_key or workload.key(job.spec)
