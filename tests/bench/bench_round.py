"""How long a matching round takes with many jobs waiting, against first-fit over the same jobs: ``bench_round.py``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from penstock_bus.fold import Fold
from penstock_events import (
    AnyEvent,
    Device,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    NodeJoined,
    Rank,
    RoundDecided,
    RunEnded,
    RunStarted,
)
from penstock_matcher import machine
from penstock_policies.placement import Free
from penstock_testing import delivery

REPEATS = 15


def cluster(nodes: int, waiting: int) -> Fold[machine.State]:
    """Return a matcher's fold of nodes with four fast and four slow devices, and of waiting jobs, one in ten a pair."""
    fold = Fold(machine.decider())
    kinds = ["fast"] * 4 + ["slow"] * 4
    devices = tuple(Device(index=i, kind=kind, memory_bytes=2**33, backend="emulated") for i, kind in enumerate(kinds))
    for n in range(nodes):
        tell(fold, NodeJoined(node_id=f"n{n}", at_s=0.5, devices=devices))
    for i in range(waiting):
        spec = JobSpec(name="a", command=("x", str(i % 7)), profile="off", gpus=2 if i % 10 == 3 else 1)
        tell(fold, JobSubmitted(job_id=f"j{i}", at_s=1.0 + i / 1000, spec=spec))
    return fold


def tell(fold: Fold[machine.State], fact: AnyEvent) -> None:
    """Fold a fact in."""
    fold.apply(delivery(fold.last_seq + 1, fact))


def decide(fold: Fold[machine.State], now_s: float) -> list[RoundDecided]:
    """Return the rounds that the matcher decides now."""
    return [fact for proposal in fold.decider.decide(fold.state, now_s).proposals for fact in proposal.facts]  # type: ignore[misc]


def fill(fold: Fold[machine.State], now_s: float) -> None:
    """Make rounds true until nothing more starts: one round looks at a bounded number of jobs."""
    while (found := decide(fold, now_s)) and found[0].placements:
        tell(fold, found[0])


def demote(fold: Fold[machine.State], at_s: float) -> None:
    """Let all placed jobs run, and rank them below those that wait."""
    placed = [job for job in fold.state.jobs if job.placement is not None]
    for job in placed:
        for node_id in job.open_nodes:
            tell(fold, RunStarted(job_id=job.id, epoch=1, node_id=node_id, devices=(0,), at_s=at_s))
    ranks = tuple(Rank(job_id=job.id, queue=1, position=at_s) for job in placed)
    tell(fold, JobsRanked(pool="default", at_s=at_s, ranks=ranks))


def first_fit(fold: Fold[machine.State]) -> None:
    """Place the waiting jobs in the order of their submission, wherever they fit first."""
    free = Free(fold.state.cluster.free(fold.state.jobs))
    for job in sorted(fold.state.jobs, key=lambda job: job.submitted_s):
        kind = next((k for k, count in free.kinds(job.spec).items() if count >= job.spec.gpus), None)
        if kind is not None and job.placement is None:
            free.take(free.choose(job.spec, kind, job.spec.gpus))


def median_ms(work: Callable[[], object]) -> float:
    """Return the median of the CPU time of a call."""
    times = []
    for _ in range(REPEATS):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return 1e3 * statistics.median(times)


def main() -> None:
    """Print rounds on an idle, a full and a nearly full cluster, and one in which everybody is preempted."""
    for nodes, waiting in ((4, 1000), (60, 1000), (250, 5000)):
        fold = cluster(nodes, waiting)
        print(f"{nodes * 8} devices, {waiting} jobs waiting")
        report("all devices idle", fold, 10.0)
        (fact,) = decide(fold, 10.0)
        fill(fold, 10.0)
        report("all devices busy", fold, 12.0)
        ended = fact.placements[0]
        slot = ended.slots[0]
        tell(fold, RunEnded(job_id=ended.job_id, epoch=1, node_id=slot.node_id, outcome="completed", at_s=12.5))
        report("one device freed", fold, 12.5)
        demote(fold, 13.0)
        report("all make room", fold, 60.0)


def report(what: str, fold: Fold[machine.State], now_s: float) -> None:
    """Print one line."""
    round_ms, plain_ms = median_ms(lambda: decide(fold, now_s)), median_ms(lambda: first_fit(fold))
    print(f"  {what}: round {round_ms:.1f} ms; first-fit {plain_ms:.1f} ms; ratio {round_ms / plain_ms:.2f}")


if __name__ == "__main__":
    main()
