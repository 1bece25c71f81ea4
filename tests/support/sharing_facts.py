"""Short words for jobs that share devices."""

from __future__ import annotations

from typing import Any

from matcher_facts import GIB, Matcher, job, rounds, started

from penstock_log import JobSubmitted, MemoryNeed, RoundDecided, RunMeasured


def gib(persistent: float, ephemeral: float, framework: float = 0.0) -> MemoryNeed:
    """A need in GiB."""
    return MemoryNeed(int(persistent * GIB), int(framework * GIB), int(ephemeral * GIB))


def lane(job_id: str, persistent: float = 1.0, ephemeral: float = 1.0, **fields: Any) -> JobSubmitted:
    """A job that takes turns and knows what it needs, in GiB."""
    return job(job_id, **{"sharing": "lane", "memory": gib(persistent, ephemeral), "team": "vision", **fields})


def part(job_id: str, fraction: float, **fields: Any) -> JobSubmitted:
    """A job that takes a fraction."""
    return job(job_id, **{"sharing": "fraction", "fraction": fraction, "team": "vision", **fields})


def measured(job_id: str, need: MemoryNeed, at_s: float, epoch: int = 1) -> RunMeasured:
    return RunMeasured(job_id=job_id, epoch=epoch, node_id="n1", need=need, iterations=2, at_s=at_s)


def make_true(scenario: Matcher, at_s: float) -> list[RoundDecided]:
    """Let decisions come true until there are none, and start what they place."""
    found = rounds(scenario.at(at_s).settle())
    for fact in found:
        for placement in fact.placements:
            scenario.given(*started(placement, at_s))
    return found


def devices(scenario: Matcher) -> dict[str, set[str]]:
    """Device → the jobs that have it."""
    found: dict[str, set[str]] = {}
    for each in scenario.state.jobs:
        for slot in each.placement.slots if each.placement is not None else ():
            for index in slot.devices if slot.node_id in each.open_nodes else ():
                found.setdefault(f"{slot.node_id}/{index}", set()).add(each.id)
    return found


def preempted(found: list[RoundDecided]) -> set[str]:
    return {preemption.job_id for fact in found for preemption in fact.preemptions}
