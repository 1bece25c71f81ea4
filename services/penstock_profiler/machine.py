"""
The profiler's settings, state, apply, decide.

The profiler samples an unseen workload on each kind of device, answers, and learns from real runs. It samples a
workload whose user names it, searches over it, leaves its size open, or asks for samples; of all others it measures the
real runs.

Jobs wait for the answer, so every workload gets one: at once if there is nothing to sample, otherwise after the
samples, and with predictions if samples fail or take too long. An elastic workload gets two: its speed on each kind,
and how this depends on batch size and devices.

:func:`of_cluster` says which devices a pool has for samples: one of each sort, and how many.
:class:`ProfilerSettings` come from the table ``[profiler]`` or ``PENSTOCK_PROFILER_…``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial

import msgspec

from penstock_bus import UNHURRIED_S, Decider, Decision, Proposal
from penstock_cluster.nodes import Cluster, fits
from penstock_log import (
    TERMINAL,
    AnyEvent,
    Device,
    Event,
    Job,
    JobsArchived,
    JobSpec,
    JobSubmitted,
    JobTable,
    RunEnded,
    SamplesRequested,
    WorkloadProfiled,
    WorkloadScaled,
    subjects,
    workload,
)
from penstock_policies import sample_plan
from penstock_policies.sample_plan import SamplePoint, Wanted, between, is_sampled, missing
from penstock_profiler.answer import answer, differs, judge, scalability, scaled
from penstock_profiler.workload_record import ScalingCurve, WorkloadRecord, lost_too_often


class ProfilerState(msgspec.Struct):
    """
    Nodes, jobs that are not over, and all workloads ever seen.

    Attributes
    ----------
    offers : dict of str to list of DeviceOffer
        Pool → one of each sort of device on the nodes that take jobs, and how many there are.
    unsettled : set of str
        Keys of workloads with something left to request, to wait for or to say.
    loops : dict of str to RunEnded
        Gang over several nodes of which some have ended → how the node with the first process ended its run.
    """

    cluster: Cluster = msgspec.field(default_factory=Cluster)
    offers: Offers = msgspec.field(default_factory=dict)
    jobs: JobTable = msgspec.field(default_factory=JobTable)
    workloads: dict[str, WorkloadRecord] = msgspec.field(default_factory=dict)
    unsettled: set[str] = msgspec.field(default_factory=set)
    loops: dict[str, RunEnded] = msgspec.field(default_factory=dict)


def decider(
    settings: ProfilerSettings | None = None, mine: Callable[[str], bool] = lambda _key: True
) -> Decider[ProfilerState]:
    """
    Return the profiler as the shell, the simulator and tests run it.

    Parameters
    ----------
    settings : ProfilerSettings, optional
    mine : callable
        Says whether a workload's key belongs to this replica; by default all do.
    """
    return Decider(
        name="profiler",
        state=ProfilerState,
        schema="profiler.11",
        apply=apply,
        decide=partial(decide, settings=settings or ProfilerSettings(), mine=mine),
        leads=False,
        gather_s=lambda state: 0.0 if state.unsettled else UNHURRIED_S,
    )


def apply(state: ProfilerState, event: Event, seq: int) -> None:
    """Fold one fact in."""
    match event:
        case WorkloadProfiled():
            _note_answer(state, event)
        case WorkloadScaled():
            _note_scaled(state, event)
        case JobSubmitted():
            _note_job(state, event, seq)
        case SamplesRequested():
            _note_request(state, event)
        case RunEnded():
            _note_run(state, event, seq)
        case JobsArchived():
            _forget_workloads(state, event)
        case _:
            _note_rest(state, event)


def decide(state: ProfilerState, now_s: float, settings: ProfilerSettings, mine: Callable[[str], bool]) -> Decision:
    """Return a request or an answer for each unsettled workload that is due, and when the next one is."""
    proposals, wake_at_s = [], []
    for key in filter(mine, sorted(state.unsettled)):
        known = state.workloads[key]
        facts = _next_facts(state, known, now_s, settings)
        if facts:
            proposals.append(Proposal(subject=subjects.profile(key), facts=facts, cause=known.cause))
        else:
            wake_at_s.append(_until_s(state, known, settings))
    return Decision(proposals, wake_at_s=min(wake_at_s, default=None))


def _next_facts(
    state: ProfilerState, known: WorkloadRecord, now_s: float, settings: ProfilerSettings
) -> tuple[AnyEvent, ...]:
    if asked := _wanted(state, known):
        chosen = sample_plan.samples(known.key, asked, (settings.short_iterations, settings.long_iterations))
        sized = known.elastic if any(size for _, size in asked) else None
        spec = sized or known.sampled or known.spec
        return (SamplesRequested(at_s=now_s, key=known.key, spec=spec, samples=chosen),)
    late = now_s >= _until_s(state, known, settings)
    facts: list[AnyEvent] = []
    if _is_unannounced(state, known) and (late or not _is_awaited(state, known)):
        facts.append(
            answer(known, reversed(state.workloads.values()), sorted(fitting(state.offers, known.spec)), now_s)
        )
    if known.elastic is not None and _scales_differently(state, known, late=late):
        facts.append(scaled(known, known.elastic, fitting(state.offers, known.elastic), now_s))
    return tuple(facts)


def _until_s(state: ProfilerState, known: WorkloadRecord, settings: ProfilerSettings) -> float:
    """Return until when a workload waits for its samples: not long if only gangs are open and find no devices."""
    latest_s = known.requested_s + settings.answer_within_s
    waiting = [job_id for job_id, sample in known.samples.items() if not sample.over]
    gangs = all(known.samples[job_id].gpus > 1 and _waits(state.jobs.get(job_id)) for job_id in waiting)
    since_s = max(known.requested_s, known.sampled_s)
    return min(latest_s, since_s + settings.gangs_within_s) if gangs and known.sampled_s else latest_s


def _waits(job: Job | None) -> bool:
    return job is not None and job.placement is None


def _scales_differently(state: ProfilerState, known: WorkloadRecord, *, late: bool) -> bool:
    """Return whether there is news of how an elastic workload scales; unless ``late``, kinds with open samples wait."""
    if known.elastic is None:
        return False
    if known.scaled is None and known.open_kinds() and not late and not any(c.timings for c in known.curves.values()):
        return False  # jobs wait for the first answer, which would say nothing
    devices, announced = fitting(state.offers, known.elastic), known.scaled or {}
    if known.scaled is None and not devices and not known.curves:
        return True
    for kind in {*devices, *known.curves}:
        now, before = scalability(known, known.elastic, kind, devices.get(kind, 0)), announced.get(kind)
        overflowed = before is not None and before.timings and before.per_gpu_cap != now.per_gpu_cap
        if kind in known.open_kinds() and not late and not overflowed:
            continue
        if before is None or differs(before, now, known.curves.get(kind, ScalingCurve())):
            return True
    return False


def _is_awaited(state: ProfilerState, known: WorkloadRecord) -> bool:
    """Return whether an answer without the open samples would be premature."""
    if known.announced is None:
        return bool(known.open_kinds())
    return not known.differs() and bool(known.open_kinds() & _unannounced_kinds(state, known))


def _wanted(state: ProfilerState, known: WorkloadRecord) -> list[Wanted]:
    """
    Return the samples that a workload needs now: none unless an open job may have its workload sampled.

    An elastic workload is sampled at several sizes on each kind, even if there is only one kind. Any other workload is
    sampled on each of several kinds, to compare them.
    """
    if not known.sampled_active or known.unsampleable():
        return []
    devices, elastic = fitting(state.offers, known.sampled or known.spec), fitting(state.offers, known.elastic)
    sizes = {kind: _sizes(known, kind, elastic.get(kind, 0)) for kind in {*devices, *elastic}}
    compared = {sample.kind for sample in known.samples.values()} | (
        known.iteration_s.keys() if known.gpus <= 1 else set()
    )
    return sample_plan.wanted(devices, sizes, compared)


def _unannounced_kinds(state: ProfilerState, known: WorkloadRecord) -> set[str]:
    return set(fitting(state.offers, known.spec)) - (known.announced or {}).keys() if known.active else set()


def _is_unannounced(state: ProfilerState, known: WorkloadRecord) -> bool:
    return known.announced is None or known.differs() or bool(_unannounced_kinds(state, known))


def _settle(state: ProfilerState, key: str) -> None:
    known = state.workloads[key]
    unannounced = _is_unannounced(state, known) or _scales_differently(state, known, late=True)
    if unannounced or _wanted(state, known):
        state.unsettled.add(key)
    else:
        state.unsettled.discard(key)


def _note_answer(state: ProfilerState, event: WorkloadProfiled) -> None:
    if event.key in state.workloads:
        known = state.workloads[event.key]
        known.announced, known.announced_skew = {speed.kind: speed for speed in event.speeds}, event.skew
        _settle(state, event.key)


def _note_scaled(state: ProfilerState, event: WorkloadScaled) -> None:
    if event.key in state.workloads:
        known = state.workloads[event.key]
        known.scaled = {each.kind: each for each in event.kinds}
        for kind in known.curves:
            judge(known, kind)
        _settle(state, event.key)


def _note_request(state: ProfilerState, event: SamplesRequested) -> None:
    known = state.workloads.setdefault(event.key, WorkloadRecord(key=event.key, spec=event.spec))
    known.request(event.samples, event.at_s)  # the job for which it was asked may be archived by now
    state.jobs.apply(event)
    _settle(state, event.key)


def _forget_workloads(state: ProfilerState, event: JobsArchived) -> None:
    for key in event.workloads:
        if (known := state.workloads.get(key)) is not None and not known.active and not known.open_kinds():
            del state.workloads[key]
            state.unsettled.discard(key)


def _note_job(state: ProfilerState, event: JobSubmitted, seq: int) -> None:
    if state.jobs.get(event.job_id) is not None:
        return
    key = workload.key(event.spec)
    for job in state.jobs.apply(event):
        job.profile_key = key  # for good, whatever it asks for later
    known = state.workloads.setdefault(key, WorkloadRecord(key=key, spec=event.spec))
    known.enter(event.spec)
    known.cause = seq
    _settle(state, key)


def _note_run(state: ProfilerState, event: RunEnded, seq: int) -> None:
    job = state.jobs.get(event.job_id)
    kind = job.placement.kind if job is not None and job.placement is not None else ""
    had = job.spec if job is not None else None  # the fold may give it another size with its end
    before_s = job.executed_s if job is not None else 0.0
    for job in state.jobs.apply(event):
        known = state.workloads[job.profile_key]
        known.describe(event)
        whole = msgspec.structs.replace(
            _loop_of(state, job, event), outcome=job.outcome, out_of_memory=job.out_of_memory
        )
        if job.sample is not None and job.state in TERMINAL:
            known.end_sample(job.id, whole, job.reason)
            judge(known, job.sample.kind)
            known.cause = seq
        elif job.sample is None and had is not None and job.placement is None and _teaches(had, whole):
            known.learn(kind, had, whole, job.executed_s - before_s)
            judge(known, kind)
            known.cause = seq
        _note_progress(state, job)


def _loop_of(state: ProfilerState, job: Job, event: RunEnded) -> RunEnded:
    """Return the end that the node with a gang's first process reported: the other nodes know nothing of the loop."""
    earlier = state.loops.pop(job.id, event)
    if earlier.epoch == event.epoch and earlier.loop_steps > event.loop_steps:
        event = earlier
    if job.placement is not None:
        state.loops[job.id] = event
    return event


def _teaches(had: JobSpec, run: RunEnded) -> bool:
    """Return whether a run shows how fast its workload is: it did not fail, and had its devices alone."""
    if had.sharing != "exclusive":
        return False
    return run.outcome in {"completed", "preempted", "cancelled"} or (had.elastic and run.out_of_memory)


def _note_rest(state: ProfilerState, event: Event) -> None:
    for job in state.jobs.apply(event):
        _note_progress(state, job)
    if state.cluster.apply(event) and (offers := of_cluster(state.cluster)) != state.offers:
        same_sorts = _sorts(offers) == _sorts(state.offers)
        state.offers = offers
        for key, known in state.workloads.items():
            if known.elastic_active or (known.active and not same_sorts):
                _settle(state, key)


def _note_progress(state: ProfilerState, job: Job) -> None:
    """Give up samples that cannot succeed, and drop jobs that are over."""
    known = state.workloads[job.profile_key]
    over = job.state in TERMINAL
    if job.placement is None:
        state.loops.pop(job.id, None)  # its other nodes were lost
    if job.sample is not None:
        if not known.samples[job.id].over and (over or lost_too_often(job)):
            known.give_up(job.id, job.reason or "lost with its node")
    elif over and state.jobs.get(job.id) is not None:
        known.leave(job.spec)
    if over:
        state.jobs.forget(job.id)
    _settle(state, known.key)


class ProfilerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """
    How workloads are sampled.

    Attributes
    ----------
    short_iterations, long_iterations : int
        Lengths of the two samples on each kind of device; a line through both gives the iteration time. A sample of an
        elastic workload at one size has the greater length.
    answer_within_s : float
        Seconds after which jobs no longer wait for samples: what is not measured by then is predicted, and corrected
        when the samples end after all.
    gangs_within_s : float
        Seconds after the end of the last other sample in which samples that are gangs find devices. After that the
        workload no longer waits for them: the job itself may have begun meanwhile, and hold the devices.
    """

    short_iterations: int = 5
    long_iterations: int = 25
    answer_within_s: float = 120.0
    gangs_within_s: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.short_iterations < self.long_iterations:
            found = f"short_iterations is {self.short_iterations}, long_iterations is {self.long_iterations}"
            raise ValueError(f"{found}; expected 1 <= short_iterations < long_iterations")
        for name in ("answer_within_s", "gangs_within_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a number of seconds above 0")


def _sizes(known: WorkloadRecord, kind: str, devices: int) -> list[SamplePoint]:
    spec = known.elastic
    asked = [each.point for each in known.samples.values() if each.kind == kind and each.point is not None]
    if spec is None or not known.elastic_active or not is_sampled(spec):
        return []
    curve = known.curves.get(kind, ScalingCurve())
    beyond = [
        size for size in missing(spec, devices, asked) if not curve.too_large or size.local_batch < curve.too_large
    ]
    if not beyond and not known.open_points(kind):
        beyond = between(curve.fits, curve.too_large, asked)
    return [size for size in beyond if size not in asked]


class DeviceOffer(msgspec.Struct, frozen=True):
    """A number of equal devices."""

    device: Device
    count: int


Offers = dict[str, list[DeviceOffer]]
"""By pool."""


def of_cluster(cluster: Cluster) -> Offers:
    """Return the devices of the nodes that take jobs, by pool and sort."""
    found: defaultdict[str, dict[tuple[str, int, str], list[Device]]] = defaultdict(dict)
    for node in cluster.usable():
        for device in node.schedulable:
            found[node.pool].setdefault((device.kind, device.memory_bytes, device.backend), []).append(device)
    return {pool: [DeviceOffer(alike[0], len(alike)) for alike in by_sort.values()] for pool, by_sort in found.items()}


def _sorts(offers: Offers) -> dict[str, list[Device]]:
    return {pool: [offer.device for offer in found] for pool, found in offers.items()}


def fitting(offers: Offers, spec: JobSpec | None) -> Counter[str]:
    """Return the devices that a job fits in its pool, by kind; none where there is no job."""
    count: Counter[str] = Counter()
    if spec is not None:
        for offer in (offer for offer in offers.get(spec.pool, ()) if fits(spec, offer.device)):
            count[offer.device.kind] += offer.count
    return count
