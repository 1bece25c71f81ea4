"""Facts with everything that a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from penstock_log import JobSpec, JobSubmitted, Placement, Preemption, RoundDecided, RunEnded, RunStarted, Slot


def submitted(job_id: str = "j1", at_s: float = 0.0, **spec: Any) -> JobSubmitted:
    return JobSubmitted(at_s=at_s, job_id=job_id, spec=JobSpec(**{"name": "job", "command": ("true",), **spec}))


def placed(job_id: str = "j1", *, epoch: int = 1, nodes: tuple[str, ...] = ("n1",), at_s: float = 1.0) -> RoundDecided:
    slots = tuple(Slot(node_id=node, devices=(0,)) for node in nodes)
    placement = Placement(job_id=job_id, epoch=epoch, kind="fast", slots=slots)
    return RoundDecided(at_s=at_s, pool="default", placements=(placement,))


def preempted(job_id: str = "j1", *, epoch: int = 1, at_s: float = 3.0) -> RoundDecided:
    return RoundDecided(at_s=at_s, pool="default", preemptions=(Preemption(job_id=job_id, epoch=epoch, reason="rank"),))


def started(job_id: str = "j1", *, epoch: int = 1, node: str = "n1", at_s: float = 2.0) -> RunStarted:
    return RunStarted(at_s=at_s, job_id=job_id, epoch=epoch, node_id=node, devices=(0,))


def ended(
    job_id: str = "j1", outcome: Any = "completed", *, epoch: int = 1, node: str = "n1", at_s: float = 5.0, **more: Any
) -> RunEnded:
    return RunEnded(at_s=at_s, job_id=job_id, epoch=epoch, node_id=node, outcome=outcome, **more)
