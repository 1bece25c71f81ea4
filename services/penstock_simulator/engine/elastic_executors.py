"""
Executors of elastic jobs: the production autoscaler sizes the jobs, and their runs advance by their profiles.

The work of a job is in seconds at the size with which it was submitted; with another size it advances as much faster as
its profile says. The speed of each model is known from the beginning, as if the profiler had measured it without error.
A run reports a saved checkpoint after its first iteration, so that it may be resized from then on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from penstock_log import (
    AnyEvent,
    Batch,
    JobSubmitted,
    RunCheckpointed,
    Scalability,
    Timing,
    WorkloadScaled,
    subjects,
    workload,
)
from penstock_policies.elastic import ThroughputProfile
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_simulator.engine.cluster_script import Script
from penstock_simulator.engine.executors import VirtualExecutors, followed_jobs
from penstock_simulator.engine.tasks import VirtualRun, VirtualTask
from penstock_simulator.fast.fast_settings import FastSizingSettings, JobShape, Profiles, shapes

_ACTOR: Final = "profiler/sim"


@dataclass(frozen=True)
class ElasticTrace:
    """
    What makes the jobs of a trace elastic.

    Attributes
    ----------
    profiles : mapping of str to ThroughputProfile
        Model → its throughput; ``"*"`` stands for all others.
    most_gpus : int or None
        Most devices that a job may have; a job that asked for more may have as many as it asked for.
    settings : SizingSettings
        The autoscaler's.
    """

    profiles: Profiles
    most_gpus: int | None = None
    settings: SizingSettings = field(default_factory=SizingSettings)


def elastic(script: Script, how: ElasticTrace) -> tuple[Script, dict[str, JobShape]]:
    """Return the script with its jobs elastic and their workloads known, and the shape of each job."""
    found = shapes(script.trace, "elastic", FastSizingSettings(most_gpus=how.most_gpus), profiles=how.profiles)

    def submitted(row: int) -> JobSubmitted:
        return _submitted(script.submitted(row), found[row])

    facts = dict(_scaled(submitted(row), found[row].profile, script) for row in range(len(found)))
    known = [(subject, fact, _ACTOR) for subject, fact in facts.items()]
    return (
        replace(script, submitted=submitted, facts=[*script.facts, *known]),
        {task.id: shape for task, shape in zip(script.tasks, found, strict=True)},
    )


def _submitted(fact: JobSubmitted, shape: JobShape) -> JobSubmitted:
    profile, most = shape.profile, shape.widths[-1]
    batch = Batch(
        min=profile.b_min,
        max=profile.b_max,
        step=profile.batch_step,
        per_gpu_max=profile.per_gpu_cap,
        base=profile.b_min,
    )
    spec = msgspec.structs.replace(fact.spec, gpus=1, min_gpus=1, max_gpus=most, batch=batch, batch_size=profile.b_min)
    return msgspec.structs.replace(fact, spec=spec)


def _scaled(fact: JobSubmitted, profile: ThroughputProfile, script: Script) -> tuple[str, AnyEvent]:
    """Return the profiler's subject for a job's workload, and what it knows on each kind."""
    kinds = sorted({device.kind for joined in script.nodes for device in joined.devices})
    key = workload.key(fact.spec)
    known = tuple(
        Scalability(kind=kind, timings=tuple(_timings(profile)), per_gpu_cap=profile.per_gpu_cap) for kind in kinds
    )
    return subjects.profile(key), WorkloadScaled(at_s=0.0, key=key, kinds=known)


def _timings(profile: ThroughputProfile) -> Iterator[Timing]:
    full = max(batch for batch in profile.t_proc_s if batch <= profile.per_gpu_cap)
    for batch, time_s in sorted(profile.t_proc_s.items()):
        yield Timing(local_batch=batch, iteration_s=time_s)
    for gpus, time_s in sorted(profile.t_comm_s.items()):
        yield Timing(gpus=gpus, local_batch=full, iteration_s=profile.t_proc_s[full] + time_s)


class ElasticExecutors(VirtualExecutors):
    """Executors whose runs are as fast as the sizes of their jobs allow; ``shapes`` say how each job may be run."""

    def __init__(self, *parts: Any, shapes: Mapping[str, JobShape], **more: Any) -> None:
        super().__init__(*parts, **more)
        self._shapes, self._jobs = shapes, followed_jobs(self._engine)

    def _pace(self, task: VirtualTask, kind: str) -> float:
        return self.speed(task.model, kind) * self._shapes[task.id].progress(self._jobs[task.id].size)

    def _start(self, run: VirtualRun) -> None:
        before_s = run.begins_s
        super()._start(run)
        if math.isinf(before_s) and math.isfinite(run.begins_s):
            self._event_queue.at(run.begins_s + run.task.iteration_s / run.speed, self._checkpoint, run)

    def _checkpoint(self, run: VirtualRun) -> None:
        """Report a checkpoint, once in a run."""
        if not self._is_on(run) or run.halted:
            return
        now_s, task, node_id = self._engine.now_s, run.task, next(iter(run.open))
        step = task.steps(task.kept_s + run.worked_s(now_s))
        fact = RunCheckpointed(at_s=now_s, job_id=task.id, epoch=run.epoch, node_id=node_id, step=step)
        self._append(subjects.run(task.id), fact, f"executor/{node_id}")

    def _report(self, run: VirtualRun) -> dict[str, Any]:
        shape, task = self._shapes[run.task.id], run.task
        samples = round(task.kept_s * shape.submitted)
        return {"saves": True, "samples": samples, "batch_size": self._jobs[task.id].spec.batch_size}
