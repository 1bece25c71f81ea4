"""Why each waiting job waits: before the round, for reasons of its own; after it, for want of devices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock_events import Job, JobSpec, Wait
from penstock_policies import sampling
from penstock_policies import waiting as why
from penstock_policies.allox import Later
from penstock_policies.order import Ranked, Rules
from penstock_policies.rounds.pool import Pool
from penstock_policies.sharing import words
from penstock_policies.sharing.tenants import Tenant
from penstock_policies.waiting import Reason, Scene


class Hindered(msgspec.Struct):
    """
    The waiting jobs that no device could start now.

    Attributes
    ----------
    reasons : dict of str to Reason
    wake_s : float
        When the first of these reasons ends by itself.
    """

    reasons: dict[str, Reason] = {}
    wake_s: float = math.inf


class Moment(msgspec.Struct, frozen=True):
    """A pool as a round finds it."""

    pool: Pool
    scene: Scene
    now_s: float
    rules: Rules


@dataclass(frozen=True)
class Reasons:
    """
    What is known about those that a round did not start.

    Attributes
    ----------
    hindered : mapping of str to Reason
        Of those that nothing could have started.
    later : mapping of str to Later
        Of those that wait for a better device.
    scene : Scene
        How things stand after the round.
    """

    hindered: Mapping[str, Reason]
    later: Mapping[str, Later]
    scene: Scene


def hindered(waiting: Sequence[Ranked], moment: Moment) -> Hindered:
    """Return the waiting jobs that are held, can never fit, are backing off, or wait for their speeds or their size."""
    found = Hindered()
    impossible: dict[tuple[object, ...], Reason | None] = {}
    for _, _, job_id, job in waiting:
        tenant = moment.pool.roster.sharing.tenants.get(job_id)
        spec = job.spec
        demand = (spec.kinds, spec.memory_bytes, spec.gpus, spec.cpus, spec.host_memory_bytes, tenant)
        if demand not in impossible:
            impossible[demand] = _impossible(job.spec, tenant, moment)
        reason, until_s = _hindrance(job, impossible[demand], moment)
        if reason is not None:
            found.reasons[job_id] = reason
            found.wake_s = min(found.wake_s, until_s)
    return found


def waits(left: Sequence[Ranked], reasons: Reasons, most: int) -> tuple[Wait, ...]:
    """Return why the first ``most`` of the jobs that a round did not start wait, in rank order, held ones last."""
    found = []
    ahead, first = 0, ""
    for ranked in sorted(left, key=lambda ranked: ranked.job.held)[:most]:
        reason = reasons.hindered.get(ranked.job_id)
        if reason is None:
            reason = _for_devices(ranked.job, reasons, ahead, first)
            first = first or ranked.job_id
            ahead += ranked.job.sample is None  # whom people look for in `penstock ps`
        found.append(Wait(job_id=ranked.job_id, cause=reason.cause, evidence=reason.evidence, remedy=reason.remedy))
    return tuple(found)


def _impossible(spec: JobSpec, tenant: Tenant | None, moment: Moment) -> Reason | None:
    if tenant is None:
        return why.impossible(spec, moment.scene)
    return words.impossible(spec, tenant, moment.scene, moment.rules.lane_reserve_share)


def _hindrance(job: Job, impossible: Reason | None, moment: Moment) -> tuple[Reason | None, float]:
    now_s = moment.now_s
    if job.held:
        return Reason("held", "it is held", f"penstock release {job.id}"), math.inf
    if impossible is not None:
        return impossible, math.inf
    if job.not_before_s > now_s:
        tries = f"failed {job.failures} of {job.spec.retries + 1} times"
        return Reason("backoff", f"{tries}; its next try is in {job.not_before_s - now_s:.1f} s"), job.not_before_s
    until_s = job.submitted_s + moment.rules.await_profile_s
    if until_s > now_s and _is_being_sized(job):
        evidence = f"its first size is being worked out; it waits for that {until_s - now_s:.1f} s more at most"
        return Reason("profiling", evidence), until_s
    if until_s > now_s and _is_being_measured(job, moment.pool, moment.scene):
        kinds = " and ".join(moment.scene.whole.kinds(job.spec))
        sampled = f"its speeds on {kinds} are being measured by samples, since {sampling.why_sampled(job.spec)}"
        evidence = f"{sampled}; it waits for them {until_s - now_s:.1f} s more at most"
        return Reason("profiling", evidence), until_s
    return None, math.inf


def _is_being_measured(job: Job, pool: Pool, scene: Scene) -> bool:
    return sampling.awaits_speeds(job, scene.whole.kinds(job.spec), known=pool.speeds.knows(pool.keys[job.id]))


def _is_being_sized(job: Job) -> bool:
    """Say whether a job is for the autoscaler to size before it starts: a demand gives it an epoch."""
    return job.spec.elastic and job.sample is None and not job.epoch


def _for_devices(job: Job, reasons: Reasons, ahead: int, first: str) -> Reason:
    scene, later = reasons.scene, reasons.later.get(job.id)
    idle = {kind: count for kind, count in scene.idle.kinds(job.spec).items() if count >= job.spec.gpus}
    if idle and later is not None:
        return _later_place(later, idle)
    if idle:
        return why.passed_by(idle, scene, first)
    if scene.sharing is not None and (tenant := scene.sharing.tenants.get(job.id)) is not None:
        return words.capacity(job.spec, tenant, scene.sharing, scene, ahead)
    if reason := why.host(job.spec, scene, ahead):
        return reason
    if job.id in scene.kept:
        return why.keeping(job.spec, scene, scene.kept[job.id])
    return why.capacity(job.spec, scene, ahead)


def _later_place(later: Later, idle: Mapping[str, int]) -> Reason:
    kind = min(idle)
    evidence = f"`{later.kind}` is expected in {later.start_s:.1f} s and the job's end on it in {later.end_s:.1f} s"
    return Reason("later_place", f"{evidence}; {idle[kind]} `{kind}` idle, where it would end later")
