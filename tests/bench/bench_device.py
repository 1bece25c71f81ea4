"""
One device, many jobs: ``bench_device.py [jobs|sweep]``.

``jobs``: the average JCT of 20 training jobs of mixed lengths that come within some seconds: one at a time in the order
they came, and in turns under each in-lane policy, and in lanes side by side. ``sweep``: 50 trials, one at a time and
packed, and for what part of the time the device was in anybody's iteration. A real ``penstock up``, real processes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster

import penstock
from penstock_log import JobSpec, MemoryNeed

JOB = Path(__file__).with_name("device_job.py")
DEVICE = "fast:1@1.0:16GiB"
MIB = 2**20
NEED = MemoryNeed(120 * MIB, 0, 60 * MIB)
SEED = 1


class Load(NamedTuple):
    """A job: when it comes, in seconds, the network's width, the batch, and iterations."""

    at_s: float
    width: int
    batch: int
    steps: int


class Way(NamedTuple):
    """How a device is used."""

    name: str
    sharing: str = "lane"
    settings: dict[str, str] = {}


class Seen(NamedTuple):
    """What came of it: completion times in seconds, of the whole too, and the part of the time in iterations."""

    jct_s: np.ndarray
    makespan_s: float
    utilisation: float


def turns(policy: str) -> Way:
    """One lane, so that it is the policy alone that tells."""
    return Way(f"in turns, {policy}", settings={"EXECUTOR_LANE_POLICY": policy, "EXECUTOR_LANE_MOST": "1"})


ALONE = Way("one at a time, FIFO", sharing="exclusive", settings={"RANKER_ORDER": "fifo"})
SIDE_BY_SIDE = Way("fair, lanes side by side")


def mixed(count: int) -> list[Load]:
    """Most are short and some are long, as in every trace; each has a model of its own."""
    rng = np.random.default_rng(SEED)
    at_s = np.cumsum(rng.exponential(0.5, count))
    steps = np.clip(rng.lognormal(np.log(250), 1.2, count), 60, 4000).astype(int)
    widths, batches = rng.choice([128, 256, 512], count), rng.choice([64, 128, 256], count)
    return [Load(*map(float, at_s[i : i + 1]), int(widths[i]), int(batches[i]), int(steps[i])) for i in range(count)]


def trials(count: int) -> list[Load]:
    """Trials of one sweep: they come at once and are equally long, with networks of different widths."""
    widths = np.random.default_rng(SEED).choice([32, 64, 128, 256], count)
    return [Load(0.0, int(width), 128, 300) for width in widths]


def alone_s(folder: Path, loads: Sequence[Load]) -> dict[tuple[int, int], float]:
    """Return the seconds of an iteration of each kind, without Penstock."""
    import subprocess  # noqa: PLC0415

    found = {}
    for width, batch in {(load.width, load.batch) for load in loads}:
        notes = folder / f"alone-{width}-{batch}"
        subprocess.run([sys.executable, str(JOB), str(notes), str(width), str(batch), "60"], check=True)
        found[width, batch] = float(np.median([(end - begin) / 1e9 for begin, end in iterations(notes)]))
    return found


def iterations(notes: Path) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each."""
    for line in notes.read_text().splitlines():
        begin, end = line.split()
        yield int(begin), int(end)


def covered_s(spans: Sequence[tuple[int, int]]) -> float:
    """Return for how long there was at least one, in seconds."""
    covered, until = 0, 0
    for begin, end in sorted(spans):
        covered += max(0, end - max(begin, until))
        until = max(until, end)
    return covered / 1e9


async def run(client: penstock.Client, way: Way, loads: Sequence[Load], notes: Path, step_s: dict) -> Seen:
    """Send the jobs as they come, and wait for all."""

    async def one(load: Load) -> float:
        await asyncio.sleep(load.at_s)
        spec = JobSpec(
            name=f"mlp-{load.width}",
            command=(sys.executable, str(JOB), str(notes), str(load.width), str(load.batch), str(load.steps)),
            profile="off",
            sharing=way.sharing,  # type: ignore[arg-type]
            memory=NEED if way.sharing == "lane" else None,
            duration_s=load.steps * step_s[load.width, load.batch],
        )
        job = await client.wait((await client.submit(spec)).id)
        if job.state != "CD" or job.steps != load.steps or job.jct_s is None:
            raise SystemExit(f"{job.id} ended as {job.state} after {job.steps} of {load.steps} steps: {job.reason}")
        return job.jct_s

    jct_s = np.array(await asyncio.gather(*map(one, loads)))
    makespan_s = float((jct_s + [load.at_s for load in loads]).max())
    return Seen(jct_s, makespan_s, covered_s(list(iterations(notes))) / makespan_s)


def measure(way: Way, loads: Sequence[Load], step_s: dict) -> Seen:
    """Have a cluster of its own for it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, value in way.settings.items():
            os.environ[f"PENSTOCK_{name}"] = value
        cluster = Cluster(Path(folder) / "data", "--emulate", DEVICE)
        cluster.up()

        async def whole() -> Seen:
            async with cluster.client() as client:
                return await run(client, way, loads, Path(folder) / "notes", step_s)

        try:
            return asyncio.run(whole())
        finally:
            cluster.kill_all()
            for name in way.settings:
                del os.environ[f"PENSTOCK_{name}"]


def show(ways: Sequence[Way], loads: Sequence[Load]) -> None:
    """Print a line for each way, and its ratios to the first."""
    with tempfile.TemporaryDirectory() as folder:
        step_s = alone_s(Path(folder), loads)
    work_s = sum(load.steps * step_s[load.width, load.batch] for load in loads)
    print(f"{len(loads)} jobs on one device, {work_s:.1f} s of iterations")
    columns = ("mean JCT", "ratio", "median", "p95", "makespan", "ratio", "in iterations")
    print(f"{'':26} " + " ".join(f"{column:>9}" for column in columns))
    first: Seen | None = None
    for way in ways:
        seen = measure(way, loads, step_s)
        first = first or seen
        mean_s, of_first = seen.jct_s.mean(), first.jct_s.mean()
        times = (mean_s, mean_s / of_first, *np.percentile(seen.jct_s, [50, 95]), seen.makespan_s)
        figures = [f"{each:9.2f}" for each in (*times, seen.makespan_s / first.makespan_s)]
        print(f"{way.name:26} {' '.join(figures)} {seen.utilisation:9.0%}", flush=True)


def main() -> None:
    """Print both tables, or one."""
    wanted = sys.argv[1:]
    if "sweep" not in wanted:
        show([ALONE, *map(turns, ("fifo", "fair", "las", "srtf")), SIDE_BY_SIDE], mixed(20))
    if "jobs" not in wanted:
        show([ALONE, turns("fair"), SIDE_BY_SIDE], trials(50))


if __name__ == "__main__":
    main()
