"""Logs of clusters for shadows to follow, and what becomes of a shadow that has followed one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock_bus import Delivery
from penstock_log import (
    AnyEvent,
    Device,
    JobSpec,
    JobState,
    JobSubmitted,
    NodeJoined,
    Placement,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
)
from penstock_simulator.engine.cluster_script import Failures, RunCosts
from penstock_simulator.engine.simulation import simulate
from penstock_simulator.shadow.live_work import LiveWork
from penstock_simulator.shadow.plan import ShadowPlan
from penstock_simulator.shadow.shadow_follower import ShadowFollower
from penstock_simulator.trace import Trace
from penstock_simulator.traces import log_file
from penstock_simulator.virtual_cluster import parse
from penstock_testing import delivery

SET: dict[str, Any] = {"thresholds_gpu_s": [60.0], "min_run_s": 5.0}
COSTS = RunCosts(start_s=3.0, stop_s=1.0, checkpoint_s=10.0, iteration_s=0.001)
SPEEDUPS = {"mlp": {"fast": 4.0, "slow": 1.0}, "cnn": {"fast": 1.5, "slow": 1.0}}
LONG_S = 1e5


def trace(jobs: int = 30) -> Trace:
    """Return a load with gangs, two models and two teams."""
    rng = np.random.default_rng(7)
    return Trace(
        name="test",
        job_ids=[f"j{row:03d}" for row in range(jobs)],
        submit_s=np.cumsum(rng.exponential(12.0, jobs)),
        num_gpus=rng.choice([1, 1, 1, 2], jobs).astype(np.int64),
        duration_s=rng.lognormal(3.0, 1.0, jobs),
        models=rng.choice(["mlp", "cnn"], jobs).tolist(),
        users=rng.choice(["ada", "bob"], jobs).tolist(),
        vcs=rng.choice(["speech", "vision"], jobs).tolist(),
    )


def recorded(
    folder: Path, failures: Failures | None = None, jobs: int = 30, settings: Mapping[str, Any] = SET
) -> list[Delivery]:
    """Return the log of a cluster run by its own policy, with samples, preemptions and gangs."""
    log, cluster = folder / "log", parse("1x2@fast+1x2@slow")
    options: dict[str, Any] = {"settings": settings, "costs": COSTS, "speedups": SPEEDUPS, "failures": failures}
    simulate(trace(jobs), cluster, "configured", profile=True, log=log, seed=3, **options)
    return list(log_file.decode(log.read_text().splitlines()))


def recorded_load(folder: Path, seed: int) -> list[Delivery]:
    """Return the log of a small load with bursts and equal lengths; those of odd seeds are profiled."""
    rng, log = np.random.default_rng(seed), folder / "log"
    jobs = int(rng.integers(3, 14))
    load = Trace(
        name="load",
        job_ids=[f"j{row:03d}" for row in range(jobs)],
        submit_s=np.cumsum(rng.choice([0.0, 0.5, 3.0, 40.0], jobs)),
        num_gpus=rng.choice([1, 1, 1, 2, 2], jobs).astype(np.int64),
        duration_s=rng.choice([1.0, 7.5, 30.0, 200.0], jobs),
        models=rng.choice(["mlp", "cnn"], jobs).tolist(),
    )
    options: dict[str, Any] = {"settings": SET, "costs": COSTS, "speedups": SPEEDUPS, "profile": bool(seed % 2)}
    simulate(load, parse("1x2@fast+1x2@slow"), "configured", log=log, **options)
    return list(log_file.decode(log.read_text().splitlines()))


def plan(policy: str = "configured", log: list[Delivery] | None = None, **settings: Any) -> ShadowPlan:
    """Return the plan of a shadow that begins with an empty log, or at the end of one."""
    seq, at_s = (log[-1].seq, log[-1].stored_s) if log else (0, 0.0)
    return ShadowPlan(name="test", policy=policy, settings=settings, from_seq=seq, from_s=at_s)


def followed(
    chosen: ShadowPlan, log: list[Delivery], lengths: LiveWork | None = None, until_s: float = LONG_S
) -> ShadowFollower:
    """Return a shadow that has followed a log, and has gone on for long after it."""
    follower = ShadowFollower(chosen, lengths)
    for one in log:
        follower.feed(one)
    follower.begin()
    follower.advance(until_s)
    return follower


def lengths_of(log: list[Delivery]) -> LiveWork:
    """Return how long the jobs of a log turned out to be."""
    measured = LiveWork()
    for one in log:
        for fact in one.commit.facts:
            measured.apply(fact)
    return measured


def jcts_s(follower: ShadowFollower) -> dict[str, float]:
    """Return each job's completion time in a shadow."""
    tasks = follower.executors.tasks
    jobs = [job for job in follower.measured.jobs if job.sample is None and job.id in tasks]
    return {job.id: tasks[job.id].end_s - job.submitted_s for job in jobs}


def measured_s(follower: ShadowFollower) -> dict[str, float]:
    """Return each completed job's real completion time."""
    return {
        job.id: job.finished_s - job.submitted_s for job in follower.measured.jobs if job.state is JobState.COMPLETED
    }


# --- small logs by hand
def commits(*facts: AnyEvent) -> list[Delivery]:
    """Return facts as a log, each in a commit of its own."""
    return [delivery(seq, fact) for seq, fact in enumerate(facts, start=1)]


def node(at_s: float = 1.0, node_id: str = "n1", devices: int = 1, **fields: Any) -> NodeJoined:
    gpus = tuple(Device(index=i, kind="fast", memory_bytes=8, backend="emulated") for i in range(devices))
    return NodeJoined(node_id=node_id, devices=gpus, incarnation="1", at_s=at_s, **fields)


def submitted(job_id: str, at_s: float, **fields: Any) -> JobSubmitted:
    spec = JobSpec(name=job_id, command=("x",), profile="off", **fields)
    return JobSubmitted(job_id=job_id, spec=spec, at_s=at_s)


def placed(job_id: str, at_s: float, epoch: int = 1, node_id: str = "n1") -> RoundDecided:
    slots = (Slot(node_id=node_id, devices=(0,)),)
    lease = Placement(job_id=job_id, epoch=epoch, kind="fast", slots=slots)
    return RoundDecided(pool="default", at_s=at_s, placements=(lease,))


def started(job_id: str, at_s: float, epoch: int = 1, node_id: str = "n1", step: int = 0) -> RunStarted:
    return RunStarted(job_id=job_id, epoch=epoch, node_id=node_id, devices=(0,), resumed_step=step, at_s=at_s)


def ended(job_id: str, at_s: float, epoch: int = 1, node_id: str = "n1", **fields: Any) -> RunEnded:
    how: dict[str, Any] = {"outcome": "completed", **fields}
    return RunEnded(job_id=job_id, epoch=epoch, node_id=node_id, at_s=at_s, **how)
