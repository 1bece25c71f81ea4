"""
Short jobs on four devices, by Penstock and by Slurm in one run: ``bench_short_jobs.py [JOBS] [SEED]``.

The same programs, loops over ``penstock.session``, are submitted at the same times to both; their lengths are lognormal
with a median of 2.5 s. Penstock orders them by 2D-LAS, once with thresholds that are set (3 and 12 GPU-s) and once with
those that it learns; the ideal is 2D-LAS where starting, stopping and going on take no time. Slurm is the one that
``SLURM_CONF`` names, with four devices; without it, this benchmark says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster

JOBS, SEED = 48, 4
DEVICES = 4
MEDIAN_S, SPREAD, LOAD = 2.5, 1.2, 1.2
STEP_S = 0.05
SET = (3.0, 12.0)
SCRIPT = f"""
import sys, time
import penstock
with penstock.session() as session:
    for step in session.iterations(range(round(float(sys.argv[1]) / {STEP_S}))):
        time.sleep({STEP_S})
"""


def workload(count: int, seed: int) -> list[tuple[float, float]]:
    """Return when each job comes and how long it takes, in seconds; (count,) pairs."""
    rng = np.random.default_rng(seed)
    lengths_s = np.maximum(STEP_S, rng.lognormal(np.log(MEDIAN_S), SPREAD, count))
    pause_s = lengths_s.mean() / DEVICES / LOAD
    return list(zip(np.cumsum(rng.exponential(pause_s, count)).tolist(), lengths_s.tolist(), strict=True))


def ideal_s(jobs: Sequence[tuple[float, float]], limits: Sequence[float]) -> float:
    """Return the mean completion time of 2D-LAS where nothing but the jobs' own work takes time, in seconds."""
    edges = (*limits, np.inf)
    ready: list[tuple[int, float, int]] = []
    done, took, now_s, came = [0.0] * len(jobs), [0.0] * len(jobs), 0.0, 0
    while came < len(jobs) or ready:
        while came < len(jobs) and jobs[came][0] <= now_s + 1e-9:
            heapq.heappush(ready, (0, jobs[came][0], came))
            came += 1
        if not ready:
            now_s = jobs[came][0]
            continue
        running = heapq.nsmallest(DEVICES, ready)
        ends_s = [now_s + min(jobs[job][1], edges[level]) - done[job] for level, _, job in running]
        until_s = min([*ends_s, jobs[came][0] if came < len(jobs) else np.inf])
        for level, _, job in running:
            done[job] += until_s - now_s
            entry = next(one for one in ready if one[2] == job)
            if done[job] >= jobs[job][1] - 1e-9:
                ready.remove(entry)
                took[job] = until_s - jobs[job][0]
            elif done[job] >= edges[level] - 1e-9:
                ready.remove(entry)
                ready.append((level + 1, until_s, job))
        heapq.heapify(ready)
        now_s = until_s
    return statistics.mean(took)


async def by_penstock(cluster: Cluster, script: Path, jobs: Sequence[tuple[float, float]]) -> float:
    """Return the mean completion time by Penstock, seconds."""
    async with cluster.client() as client:
        began_s = time.perf_counter()

        async def one(number: int, at_s: float, length_s: float) -> float:
            await asyncio.sleep(began_s + at_s - time.perf_counter())
            command = (sys.executable, str(script), str(length_s))
            submitted_s = time.perf_counter()
            answer = await client.submit(name=f"short{number}", command=command, profile="off")
            job = await client.wait(answer.id)
            assert job.state == "CD", job
            return time.perf_counter() - submitted_s

        return statistics.mean(await asyncio.gather(*(one(n, *job) for n, job in enumerate(jobs))))


async def by_slurm(script: Path, jobs: Sequence[tuple[float, float]], folder: Path) -> float:
    """Return the mean completion time by Slurm, seconds; each job notes its own end."""
    began_s, ends = time.time(), folder / "ends"  # noqa: TID251 - the programs' own clock
    ends.mkdir()

    async def one(number: int, at_s: float, length_s: float) -> float:
        await asyncio.sleep(began_s + at_s - time.time())  # noqa: TID251
        submitted_s = time.time()  # noqa: TID251
        command = f"{sys.executable} {script} {length_s} && date +%s.%N > {ends / str(number)}"
        sbatch = ("sbatch", "--gres=gpu:1", "-n", "1", "-o", "/dev/null", "--wrap", command)
        done = await asyncio.create_subprocess_exec(*sbatch, stdout=subprocess.DEVNULL)
        assert await done.wait() == 0
        return submitted_s

    starts_s = await asyncio.gather(*(one(n, *job) for n, job in enumerate(jobs)))
    await asyncio.to_thread(drained)
    found = [float((ends / str(number)).read_text()) - start_s for number, start_s in enumerate(starts_s)]
    return statistics.mean(found)


def drained() -> None:
    """Wait until Slurm has no job any more."""
    while subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout.strip():
        time.sleep(0.5)


def has_slurm() -> bool:
    """Say whether there is a Slurm that answers."""
    if "SLURM_CONF" not in os.environ or shutil.which("sbatch") is None:
        return False
    return subprocess.run(["squeue"], capture_output=True, check=False, timeout=60).returncode == 0


@contextlib.contextmanager
def cluster_of(folder: Path, *thresholds: str):
    """Give a cluster of four emulated devices."""
    cluster = Cluster(folder, "--emulate", f"fast:{DEVICES}@1.0:4GiB")
    cluster.up()
    try:
        for setting in thresholds:
            cluster.run("policy", "set", setting)
        yield cluster
    finally:
        cluster.down()


def main() -> None:
    """Print mean completion times and their ratios."""
    given = [int(word) for word in sys.argv[1:3]]
    count, seed = (*given, *(JOBS, SEED)[len(given) :])
    jobs = workload(count, seed)
    lengths_s = [length_s for _, length_s in jobs]
    print(f"{count} jobs: median {statistics.median(lengths_s):.1f} s, mean {statistics.mean(lengths_s):.1f} s")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "loop.py"
        script.write_text(SCRIPT)
        ideal = ideal_s(jobs, SET)
        print(
            f"ideal 2D-LAS, thresholds {SET}: mean {ideal:.2f} s; first come, first served: {ideal_s(jobs, ()):.2f} s"
        )
        slurm = asyncio.run(by_slurm(script, jobs, folder)) if has_slurm() else None
        print(f"Slurm: mean {slurm:.2f} s" if slurm else "no Slurm answers: SLURM_CONF names none", flush=True)
        limits = ",".join(map(str, SET))
        for what, thresholds in ((f"set, {limits}", (f"thresholds_gpu_s={limits}",)), ("learnt", ())):
            with cluster_of(folder / what.partition(",")[0], *thresholds) as cluster:
                ours = asyncio.run(by_penstock(cluster, script, jobs))
            beside = f"; ratio to Slurm {ours / slurm:.2f}" if slurm else ""
            print(
                f"Penstock, thresholds {what}: mean {ours:.2f} s; ratio to ideal {ours / ideal:.2f}{beside}", flush=True
            )


if __name__ == "__main__":
    main()
