"""
What shared aggregators are worth to four trainings of two processes each: ``bench_aggregation_worth.py [rounds]``.

The trainings are those of ``examples/digits_local_sgd.py``, on a whole cluster with emulated devices. They run with
aggregators of their own, and then on shared ones, in turn. *Reserved* is a processor for each aggregator for as long as
its process lives; *used* is the processor time that it took. Bursts: averages once in 8 steps; steps: in each one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster

import penstock
from penstock_log import JobSpec

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "digits_local_sgd.py"
JOBS: Final = 4
LOOK_S: Final = 0.1
EVERY: Final = {"bursts": 8, "steps": 1}
STEPS: Final = {"bursts": 1600, "steps": 1200}
WIDTH: Final = 384


class Found(NamedTuple):
    """What a round has found: aggregators at most, their reserved and used processor seconds, and iterations."""

    most: int
    reserved_s: float
    used_s: float
    iteration_ms: float
    wall_s: float


def aggregators(cluster: Cluster) -> dict[int, float]:
    """Return the aggregators that live, and the processor seconds of each."""
    found: dict[int, float] = {}
    for agent in cluster.pids("aggregator"):
        for task in Path(f"/proc/{agent}/task").iterdir():
            for pid in map(int, (task / "children").read_text().split()):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


async def watched(cluster: Cluster, done: Callable[[], bool]) -> tuple[int, float, float]:
    """Look at the aggregators until something is done; return the most of them, reserved and used seconds."""
    used: dict[int, float] = {}
    most, reserved_s, before = 0, 0.0, perf_counter()
    while not done():
        await asyncio.sleep(LOOK_S)
        try:
            found = aggregators(cluster)
        except FileNotFoundError:  # one of them has ended between two looks at it
            continue
        now = perf_counter()
        reserved_s, before = reserved_s + len(found) * (now - before), now
        most = max(most, len(found))
        used |= found
    return most, reserved_s, sum(used.values())


async def trained(cluster: Cluster, mode: str, load: str, number: int) -> Found:
    """Train four jobs at the same time."""
    begun = perf_counter()
    async with cluster.client() as client:
        ids = []
        for job in range(JOBS):
            spec = JobSpec(
                id=f"{load}-{mode}-{number}-{job}",
                name=f"{mode}{job}",
                command=(sys.executable, str(EXAMPLE)),
                gpus=2,
                profile="off",
                aggregation=mode,  # type: ignore[arg-type]
                params={"steps": STEPS[load], "width": WIDTH, "every": EVERY[load], "seed": job},
            )
            ids.append((await client.submit(spec)).id)
        waiting = [asyncio.create_task(client.wait(job_id)) for job_id in ids]
        most, reserved_s, used_s = await watched(cluster, lambda: all(task.done() for task in waiting))
        jobs = [await each for each in waiting]
        assert all(job.state == "CD" for job in jobs), [job.reason for job in jobs]
        iterations = [await iteration_ms(client, job_id) for job_id in ids]
    return Found(most, reserved_s, used_s, median(iterations), perf_counter() - begun)


async def iteration_ms(client: penstock.Client, job_id: str) -> float:
    """Return the milliseconds of a job's iterations in the mean."""
    for event in (await client.events(job_id, after=0, limit=1000)).events:
        if event.type == "run.ended.v1":
            return 1000 * float(event.fact["loop_s"]) / max(1, int(event.fact["loop_steps"]))
    raise AssertionError(f"the log has no end of {job_id}")


async def main(rounds: int) -> None:
    """Run both in turn, and print the medians."""
    with tempfile.TemporaryDirectory(prefix="pen-worth-") as folder:
        cluster = Cluster(Path(folder) / "data", "--emulate", "fast:8@1.0:4GiB")
        os.environ["PENSTOCK_AGGREGATOR_MOST"] = str(JOBS)
        cluster.up()
        try:
            for load in EVERY:
                found: dict[str, list[Found]] = {"own": [], "shared": []}
                for number in range(rounds):
                    for mode, each in found.items():
                        each.append(await trained(cluster, mode, load, number))
                report(load, found)
        finally:
            cluster.kill_all()


def report(load: str, found: dict[str, list[Found]]) -> None:
    """Print what was found under one load, and the ratios."""
    load_1 = os.getloadavg()[0]
    print(f"{load}: medians of {len(found['own'])} rounds, load {load_1:.1f}")
    rows = {
        mode: [median(getattr(one, name) for one in each) for name in Found._fields] for mode, each in found.items()
    }
    for name, own, shared in zip(Found._fields, rows["own"], rows["shared"], strict=True):
        print(f"  {name:12} own {own:9.3f}   shared {shared:9.3f}   shared to own {shared / own if own else 0:5.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
