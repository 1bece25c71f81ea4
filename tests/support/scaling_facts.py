"""Short words for the facts that scenarios of the autoscaler are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_autoscaler import machine
from penstock_log import (
    AnyEvent,
    Batch,
    Demand,
    Device,
    JobRank,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    NodeJoined,
    Placement,
    Preemption,
    RoundDecided,
    RunEnded,
    RunStarted,
    Scalability,
    ScaleDecided,
    Slot,
    Timing,
    WorkloadScaled,
    workload,
)
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_testing import Scenario

Autoscaler = Scenario[machine.AutoscalerState]
GIB = 2**30
LINEAR: Mapping[int, float] = {1: 0.4, 2: 0.21, 4: 0.11, 8: 0.06}
"""Devices → seconds of an iteration with a batch of 64: nearly in proportion."""


def autoscaler(**settings: Any) -> Autoscaler:
    return Scenario(machine.decider(SizingSettings(**settings)))


def node(node_id: str = "n1", at_s: float = 0.5, pool: str = "default", **kinds: int) -> NodeJoined:
    """A node with so many devices of each kind, numbered in the order of the arguments."""
    names = [kind for kind, count in kinds.items() for _ in range(count)]
    devices = [Device(index=i, kind=k, memory_bytes=8 * GIB, backend="emulated") for i, k in enumerate(names)]
    return NodeJoined(node_id=node_id, at_s=at_s, pool=pool, devices=tuple(devices))


def elastic(gpus: int = 1, most: int = 8, **fields: Any) -> JobSpec:
    """A job of 1 to 8 devices that divides a batch of 64 among them."""
    chosen = {"name": "train", "command": ("python", "train.py"), "gpus": gpus, "min_gpus": gpus, "max_gpus": most}
    return JobSpec(**{**chosen, "batch_size": 64, **fields})


def batched(least: int = 64, most: int = 512, **fields: Any) -> JobSpec:
    """The same with a batch that may change too, by steps of 64."""
    return elastic(batch=Batch(min=least, max=most, step=64), batch_size=least, **fields)


def fixed(gpus: int = 1, **fields: Any) -> JobSpec:
    return JobSpec(**{"name": "fixed", "command": ("python", "fixed.py"), "gpus": gpus, **fields})


def job(job_id: str, spec: JobSpec | None = None, at_s: float = 1.0) -> JobSubmitted:
    return JobSubmitted(job_id=job_id, at_s=at_s, spec=spec or elastic())


def scaled(
    of: JobSpec, at_s: float = 1.0, times_s: Mapping[int, float] = LINEAR, cap: int = 0, *kinds: str
) -> WorkloadScaled:
    """What is known of a workload: seconds of an iteration by width, its batch divided among the devices."""
    batch = of.batch_size
    timings = [Timing(gpus=k, local_batch=max(1, batch // k), iteration_s=t, runs=2) for k, t in times_s.items()]
    if not any(timing.gpus == 1 for timing in timings):
        raise ValueError("expected a time on one device")
    one = times_s[1]
    timings += [
        Timing(local_batch=b, iteration_s=one * (0.1 + 0.9 * b / batch), runs=2) for b in (batch // 2, batch * 2)
    ]
    known = [Scalability(kind=kind, timings=tuple(timings), per_gpu_cap=cap) for kind in kinds or ("fast",)]
    return WorkloadScaled(key=workload.key(of), at_s=at_s, kinds=tuple(known))


def ranked(at_s: float = 1.5, pool: str = "default", queue: int = 0, **positions: float) -> JobsRanked:
    """These jobs have these positions in a queue."""
    ranks = [JobRank(job_id=job_id, queue=queue, position=position) for job_id, position in positions.items()]
    return JobsRanked(at_s=at_s, pool=pool, ranks=tuple(ranks))


def placed(scenario: Autoscaler, job_id: str, at_s: float, *devices: int, node_id: str = "n1") -> list[AnyEvent]:
    """The matcher gives a job devices of a node, and it starts."""
    return spread(scenario, job_id, at_s, {node_id: devices})


def spread(scenario: Autoscaler, job_id: str, at_s: float, held: Mapping[str, tuple[int, ...]]) -> list[AnyEvent]:
    """The matcher gives a job devices of some nodes, and it starts on each of them."""
    found = scenario.state.jobs[job_id]
    epoch, nodes = found.epoch + 1, scenario.state.cluster.nodes
    kind = next(nodes[node_id].devices[devices[0]].kind for node_id, devices in held.items())
    slots = tuple(Slot(node_id=node_id, devices=devices) for node_id, devices in held.items())
    placement = Placement(job_id=job_id, epoch=epoch, kind=kind, slots=slots)
    starts = [
        RunStarted(job_id=job_id, epoch=epoch, node_id=node_id, at_s=at_s, devices=devices)
        for node_id, devices in held.items()
    ]
    return [RoundDecided(at_s=at_s, pool=found.spec.pool, placements=(placement,)), *starts]


def ended(scenario: Autoscaler, job_id: str, at_s: float, outcome: Any = "completed", **fields: Any) -> RunEnded:
    """The run of a job ends on one node; by default after some steps, with the batch that it was given."""
    found = scenario.state.jobs[job_id]
    about = {"steps": found.steps + 100, "loop_steps": 100, "loop_s": 1.0, "saves": True}
    about |= {"batch_size": found.spec.batch_size, "node_id": min(found.open_nodes, default="n1")}
    named = {"job_id": job_id, "epoch": found.epoch, "at_s": at_s, "outcome": outcome}
    return RunEnded(**{**named, **about, **fields})


def preempted(scenario: Autoscaler, job_id: str, at_s: float, for_job: str = "") -> list[AnyEvent]:
    """The matcher asks a run to stop, and it does."""
    found = scenario.state.jobs[job_id]
    asked = Preemption(job_id=job_id, epoch=found.epoch, reason="for another", for_job=for_job)
    return [
        RoundDecided(at_s=at_s, pool=found.spec.pool, preemptions=(asked,)),
        ended(scenario, job_id, at_s + 0.5, "preempted"),
    ]


def seasoned(devices: int = 4, spec: JobSpec | None = None, **settings: Any) -> Autoscaler:
    """
    A cluster on which job ``a`` runs on all devices, and has done so long enough to be resized.

    A run of its workload has ended before, and has said that it saves.
    """
    work = spec or elastic()
    it = autoscaler(**settings).given(node(fast=devices), scaled(work), job("before", work)).at(1.0)
    it.settle()
    it.given(*placed(it, "before", 1.0, *range(it.state.jobs["before"].spec.gpus)))
    it.given(ended(it, "before", 1.5), job("a", work, at_s=1.6)).at(1.6).settle()
    it.given(*placed(it, "a", 2.0, *range(it.state.jobs["a"].spec.gpus)))
    return it.at(100.0)


def decisions(facts: list[AnyEvent]) -> list[ScaleDecided]:
    return [fact for fact in facts if isinstance(fact, ScaleDecided)]


def demands(facts: list[AnyEvent]) -> dict[str, Demand]:
    """The last demand of each job."""
    return {demand.job_id: demand for fact in decisions(facts) for demand in fact.demands}


def widths(facts: list[AnyEvent]) -> dict[str, int]:
    return {job_id: demand.gpus for job_id, demand in demands(facts).items()}
