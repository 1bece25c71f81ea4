"""What would happen to a job if it were submitted now."""

from __future__ import annotations

from penstock_events import JobSpec, workload
from penstock_events.views import DryRunView
from penstock_gateway import fit
from penstock_gateway.machine import State
from penstock_gateway.when import Estimate, ahead, expected_start, speed_of
from penstock_policies.waiting import Reason, Scene, capacity, impossible


def dry_run(state: State, spec: JobSpec, now_s: float) -> DryRunView:
    """
    Return where and when the job would start, or why it would wait and for how long about.

    Known shortcut: idle devices count as its own, although the matcher may keep them for a job that waits longer;
    asking the matcher's own round would lift it.
    """
    warnings = fit.unknown_kinds(state.cluster, spec)
    scene = fit.pool_now(state, spec.pool)
    whole = [kind for kind, number in scene.idle.kinds(spec).items() if number >= spec.gpus]
    if (reason := _held(spec) or impossible(spec, scene)) is not None:
        return _waits(reason, (None, ""), warnings)
    if not whole:
        reason = capacity(spec, scene, _ahead(state, spec.pool, scene))
        return _waits(reason, expected_start(state, spec, scene, now_s), warnings)
    kind = min(whole, key=lambda kind: (-speed_of(state, spec, kind), kind))
    return DryRunView(
        starts=True,
        start_in_s=0.0,
        kind=kind,
        devices=_devices(scene, spec, kind),
        warnings=(*warnings, *_sampled_first(state, spec)),
    )


def _ahead(state: State, pool: str, scene: Scene) -> int:
    """Count those whom people know of and who could start: neither samples nor what can never fit."""
    return sum(job.sample is None and impossible(job.spec, scene) is None for job in ahead(state, pool))


def _held(spec: JobSpec) -> Reason | None:
    return Reason("held", "it asks to be held", "leave `hold` out") if spec.hold else None


def _waits(reason: Reason, estimate: Estimate, warnings: tuple[str, ...]) -> DryRunView:
    start_in_s, basis = estimate
    return DryRunView(
        starts=False,
        start_in_s=start_in_s,
        basis=basis,
        cause=reason.cause,
        evidence=reason.evidence,
        remedy=reason.remedy,
        warnings=warnings,
    )


def _devices(scene: Scene, spec: JobSpec, kind: str) -> tuple[str, ...]:
    chosen = scene.idle.choose(spec, kind, spec.gpus)
    return tuple(f"{node_id}/{device.kind}{device.index}" for node_id, device in chosen)


def _sampled_first(state: State, spec: JobSpec) -> tuple[str, ...]:
    if spec.profile == "off" or workload.key(spec) in state.profiles:
        return ()
    return ("its workload is new: the profiler may run short samples of it first",)
