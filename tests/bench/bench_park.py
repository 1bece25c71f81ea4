"""
A preempted job with a costly load, parked and not: ``python tests/bench/bench_park.py [PREEMPTIONS] [LOAD_S]``.

On a real cluster of one emulated device, a job whose script takes seconds to begin is preempted by short ones, one
after the other, on a node that parks no run and on one that does. Printed are the seconds from the placement of the
job, after a short one has ended, to its next step, and what the short jobs waited.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster, facts

PREEMPTIONS, LOAD_S = 5, 3.0
STEP_S = 0.02
SCRIPT = f"""
import sys, time
import penstock
time.sleep(float(sys.argv[1]))  # imports, a data set, a compilation
with penstock.session() as session:
    session.on_checkpoint(lambda folder: (folder / "weights").write_bytes(b"w"), lambda folder: None)
    for step in session.iterations(range(10**6)):
        with open(sys.argv[2], "a") as file:
            file.write(f"{{time.time()}}\\n")
        time.sleep({STEP_S})
"""


class Resumes(NamedTuple):
    """Seconds from each placement to the next step, seconds that each short job waited, and how the runs began."""

    steps_s: list[float]
    waits_s: list[float]
    starts: list[str]


async def preempted(cluster: Cluster, folder: Path, preemptions: int, load_s: float) -> Resumes:
    """Have a job preempted again and again."""
    steps = folder / "steps"
    steps.touch()
    command = (sys.executable, str(folder / "load.py"), str(load_s), str(steps))
    waits_s, placed_s = [], []
    async with cluster.client() as client:
        long = (await client.submit(name="long", command=command, profile="off", checkpoint_s=0.0)).id
        for count in range(preemptions):
            await until_it_steps(steps)
            short = await client.submit(name=f"short{count}", command=("sleep", "0.5"), profile="off")
            done = await client.wait(short.id)
            assert done.state == "CD", done
            waits_s.append(done.wait_s)
            async for event in client.follow_events(long, after=0):
                if event.type == "run.started.v1" and event.fact["epoch"] == count + 2:
                    break
            detail = await client.job(long)
            placed_s.append(next(run.granted_s for run in detail.runs if run.epoch == count + 2))
        await until_it_steps(steps)
        started = await facts(client, long, "run.started.v1")
        await client.cancel(long)
        await client.wait(long)
    at_s = [float(line) for line in steps.read_text().split()]
    steps_s = [next(step_s for step_s in at_s if step_s > when) - when for when in placed_s]
    return Resumes(steps_s, waits_s, [fact.fact.get("start", "") for fact in started[1:]])


async def until_it_steps(steps: Path) -> None:
    """Wait until a job has done some steps more: it has run long enough to be preempted."""
    before = steps.stat().st_size
    while steps.stat().st_size == before:  # noqa: ASYNC110 - the file of another process
        await asyncio.sleep(STEP_S)
    await asyncio.sleep(1.0)


def main() -> None:
    """Print both ways."""
    preemptions = int(sys.argv[1]) if len(sys.argv) > 1 else PREEMPTIONS
    load_s = float(sys.argv[2]) if len(sys.argv) > 2 else LOAD_S
    found = {}
    for way, most_bytes in (("ends", "0"), ("parked", "-1")):
        os.environ["PENSTOCK_EXECUTOR_PARK_BYTES"] = most_bytes
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "load.py").write_text(SCRIPT)
            cluster = Cluster(folder / "data", "--emulate", "fast:1@1.0:4GiB")
            cluster.up()
            try:
                cluster.run("policy", "set", "thresholds_gpu_s=1,1000")
                found[way] = asyncio.run(preempted(cluster, folder, preemptions, load_s))
            finally:
                cluster.down()
        said = ", ".join(f"{start or 'cold'} {len(list(same))}" for start, same in itertools.groupby(found[way].starts))
        print(
            f"{way}: from placement to the next step, median of {preemptions}: "
            f"{statistics.median(found[way].steps_s):.3f} s, most {max(found[way].steps_s):.3f} s; "
            f"the short jobs waited {statistics.median(found[way].waits_s):.2f} s; starts: {said}",
            flush=True,
        )
    ratio = statistics.median(found["parked"].steps_s) / statistics.median(found["ends"].steps_s)
    print(f"a load of {load_s:g} s: ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
