"""A cluster, jobs and samples for scenarios of the profiler, with what a test does not care about filled in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from penstock_log import (
    Batch,
    Device,
    JobSpec,
    JobSubmitted,
    KindSpeed,
    NodeJoined,
    Placement,
    ProfileSample,
    RoundDecided,
    RunEnded,
    SamplesRequested,
    Slot,
    WorkloadProfiled,
    workload,
)


def spec(**fields: Any) -> JobSpec:
    return JobSpec(**{"name": "train", "command": ("python", "train.py"), "profile": "on", **fields})


KEY = workload.key(spec())


def node(node_id: str = "n1", *kinds: str, at_s: float = 0.0, **more: Any) -> NodeJoined:
    devices = tuple(
        Device(index=i, kind=kind, memory_bytes=100, backend="cpu" if kind == "cpu" else "emulated")
        for i, kind in enumerate(kinds)
    )
    return NodeJoined(at_s=at_s, node_id=node_id, devices=devices, **more)


def submitted(job_id: str = "j1", at_s: float = 1.0, **fields: Any) -> JobSubmitted:
    return JobSubmitted(at_s=at_s, job_id=job_id, spec=spec(**fields))


def sample_id(kind: str, number: int, key: str = KEY) -> str:
    return f"s-{key[:8]}-{kind}-{number}"


def requested(*kinds: str, at_s: float = 1.0, **fields: Any) -> SamplesRequested:
    job = spec(**fields)
    key = workload.key(job)
    samples = tuple(
        ProfileSample(sample_id=sample_id(kind, number, key), kind=kind, iterations=iterations)
        for kind in kinds
        for number, iterations in ((1, 5), (2, 25))
    )
    return SamplesRequested(at_s=at_s, key=key, spec=job, samples=samples)


def placed(job_id: str, kind: str, epoch: int = 1, at_s: float = 2.0, node_id: str = "n1") -> RoundDecided:
    placement = Placement(job_id=job_id, epoch=epoch, kind=kind, slots=(Slot(node_id=node_id, devices=(0,)),))
    return RoundDecided(at_s=at_s, pool="default", placements=(placement,))


def lost(node_id: str = "n1", at_s: float = 3.0) -> RoundDecided:
    return RoundDecided(at_s=at_s, pool="default", lost_nodes=(node_id,))


def ended(job_id: str, outcome: Any = "completed", *, epoch: int = 1, at_s: float = 3.0, **more: Any) -> RunEnded:
    return RunEnded(at_s=at_s, job_id=job_id, epoch=epoch, node_id="n1", outcome=outcome, **more)


def ran(job_id: str, kind: str, steps: int, loop_s: float, **more: Any) -> list[Any]:
    return [placed(job_id, kind), ended(job_id, loop_steps=steps, loop_s=loop_s, **more)]


def sampled(kind: str, iteration_s: float, key: str = KEY) -> list[Any]:
    """Both samples of a kind, after a start-up of one second."""
    return [
        fact
        for number, steps in ((1, 5), (2, 25))
        for fact in ran(sample_id(kind, number, key), kind, steps, 1.0 + steps * iteration_s)
    ]


def failed(kind: str, reason: str = "opaque") -> list[Any]:
    ids = [sample_id(kind, number) for number in (1, 2)]
    return [fact for id_ in ids for fact in (placed(id_, kind), ended(id_, "failed", reason=reason))]


def profiled(*speeds: KindSpeed, at_s: float, note: str = "", key: str = KEY) -> WorkloadProfiled:
    return WorkloadProfiled(at_s=at_s, key=key, speeds=speeds, note=note)


# --- elastic workloads

ELASTIC: dict[str, Any] = {
    "model": "net",
    "batch_size": 64,
    "batch": Batch(min=64, max=1024, base=64),
    "min_gpus": 1,
    "max_gpus": 4,
}
ELASTIC_KEY = workload.key(spec(**ELASTIC))


def machine_s(gpus: int, local_batch: float, speed: float = 1.0) -> float:
    """Seconds of an iteration on a made-up machine: 10 ms and 1 ms for each sample, and a ring's communication."""
    return (0.010 + 0.001 * local_batch) / speed + (0.040 * (1 - 1 / gpus) if gpus > 1 else 0.0)


def ends(
    samples: Iterable[ProfileSample], time_s: Callable[[int, float], float] = machine_s, error_s: float = 1e-4
) -> list[Any]:
    """Return the facts of samples that end well, with the times of a machine."""
    return [
        fact for sample in samples for fact in ends_with(sample, iteration_s=_time(sample, time_s), error_s=error_s)
    ]


def ends_with(sample: ProfileSample, outcome: Any = "completed", **more: Any) -> list[Any]:
    fields = {"loop_steps": sample.iterations, "batch_size": sample.batch_size} | more
    return [placed(sample.sample_id, sample.kind), ended(sample.sample_id, outcome, **fields)]


def _time(sample: ProfileSample, time_s: Callable[[int, float], float]) -> float:
    return time_s(sample.gpus, math.ceil(sample.batch_size / sample.gpus))
