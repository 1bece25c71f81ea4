"""Short words for the facts that scenarios of the matcher are made of."""

from __future__ import annotations

from typing import Any

from penstock_log import (
    AnyEvent,
    Device,
    JobRank,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    KindSpeed,
    NodeJoined,
    Placement,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
    WorkloadProfiled,
    workload,
)
from penstock_matcher import machine
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_testing import Scenario

Matcher = Scenario[machine.MatcherState]
GIB = 2**30


def matcher(**settings: Any) -> Matcher:
    return Scenario(machine.decider(MatcherSettings(**settings)))


def device(index: int, kind: str, memory_bytes: int = 8 * GIB) -> Device:
    return Device(index=index, kind=kind, memory_bytes=memory_bytes, backend="cpu" if kind == "cpu" else "emulated")


def node(node_id: str, at_s: float = 0.5, pool: str = "default", **kinds: int) -> NodeJoined:
    """A node with so many devices of each kind, numbered in the order of the arguments."""
    names = [kind for kind, count in kinds.items() for _ in range(count)]
    return NodeJoined(node_id=node_id, at_s=at_s, pool=pool, devices=tuple(device(i, k) for i, k in enumerate(names)))


def spec(**fields: Any) -> JobSpec:
    return JobSpec(**{"name": "train", "command": ("python", "train.py"), "profile": "off", **fields})


def job(job_id: str, at_s: float = 1.0, **fields: Any) -> JobSubmitted:
    return JobSubmitted(job_id=job_id, at_s=at_s, spec=spec(**fields))


def profiled(of: JobSpec, at_s: float = 1.0, **speeds: float) -> WorkloadProfiled:
    known = tuple(KindSpeed(kind=kind, iteration_s=1 / speed, speed=speed) for kind, speed in speeds.items())
    return WorkloadProfiled(key=workload.key(of), at_s=at_s, speeds=known)


def queued(at_s: float = 2.0, pool: str = "default", **queues: int) -> JobsRanked:
    """These jobs are in these queues, entered in the order of the arguments."""
    ranks = tuple(
        JobRank(job_id=job_id, queue=queue, position=at_s + i) for i, (job_id, queue) in enumerate(queues.items())
    )
    return JobsRanked(pool=pool, at_s=at_s, ranks=ranks)


def started(placement: Placement, at_s: float) -> list[RunStarted]:
    return [
        RunStarted(
            job_id=placement.job_id, epoch=placement.epoch, node_id=slot.node_id, devices=slot.devices, at_s=at_s
        )
        for slot in placement.slots
    ]


def ended(job_id: str, at_s: float, node_id: str = "n1", epoch: int = 1, outcome: str = "completed") -> RunEnded:
    return RunEnded(job_id=job_id, epoch=epoch, node_id=node_id, outcome=outcome, at_s=at_s)  # type: ignore[arg-type]


def on(placement: Placement) -> tuple[str, str, int, tuple[tuple[str, tuple[int, ...]], ...]]:
    """A placement, briefly: job, kind, epoch, devices by node."""
    slots = tuple((slot.node_id, slot.devices) for slot in placement.slots)
    return placement.job_id, placement.kind, placement.epoch, slots


def where(facts: list[AnyEvent]) -> dict[str, str]:
    """Job → kind of all placements in rounds."""
    return {p.job_id: p.kind for fact in rounds(facts) for p in fact.placements}


def rounds(facts: list[AnyEvent]) -> list[RoundDecided]:
    return [fact for fact in facts if isinstance(fact, RoundDecided)]


def run_all(scenario: Matcher, at_s: float) -> dict[str, str]:
    """Make decisions true until there are none, and start what they placed; job → kind."""
    facts = scenario.at(at_s).settle()
    for fact in rounds(facts):
        for placement in fact.placements:
            scenario.given(*started(placement, at_s))
    return where(facts)


def causes(scenario: Matcher) -> dict[str, str]:
    """Job → cause as the last round said."""
    explained = scenario.state.explained.get("default")
    return explained.causes if explained else {}


def slot(node_id: str, *devices: int) -> Slot:
    return Slot(node_id=node_id, devices=devices)
