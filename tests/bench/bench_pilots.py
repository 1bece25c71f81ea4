"""
Short jobs by Slurm's own queue, and by Penstock in pilots of the same Slurm, in one run.

``bench_pilots.py [JOBS] [SEED] [WAYS] [unsaved]`` starts a Slurm of its own with four nodes of one emulated GPU, which
schedules eagerly, and stops it at the end. The same programs, loops over ``penstock.session`` of lognormal lengths with
a median of 2.5 s, a seventh of them gangs of two, are submitted at the same times to each of these WAYS (all of them,
unless some are named, separated by commas). They save how far they are; with ``unsaved`` they do not, and begin again
after a preemption.

* ``slurm``: jobs of Slurm itself; a gang is a job of two nodes, whose tasks ``srun`` starts.
* ``bare``: Penstock with an executor of four devices, and no Slurm.
* ``cold``: Penstock with an allocation whose pilots are submitted as the jobs come; the start of the first ones counts.
* ``kept``: the same with ``min_pilots`` of four, which are there before the first job.

Penstock knows no lengths, and orders by 2D-LAS with thresholds that it learns. The ideal is 2D-LAS where starting,
stopping and going on take no time. Times to completion are in seconds; the utilisation is the part of the four devices'
time, from the first submission to the last end, in which the jobs' own work was done.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import running
from short_jobs import (
    DEVICES,
    JOBS,
    SAVING_SCRIPT,
    SCRIPT,
    SEED,
    SET,
    JobTimes,
    ShortJob,
    by_penstock,
    by_slurm,
    ideal_s,
    mean_s,
    workload,
)
from slurm import SlurmCluster, missing, running_slurm

import penstock
from penstock_log import AllocationSpec, views

GANG_SHARE = 1 / 7
NAME = "lab"
MOST_S = 120.0
PILOTS = AllocationSpec(
    provider="slurm",
    max_pilots=DEVICES,
    walltime_s=3600,
    devices="fast:1@1.0:4GiB",
    options=("--partition=main", "--gres=gpu:1"),
    environment={"PENSTOCK_EXECUTOR_RUN_AS": "executor"},
)
Work = Callable[[penstock.Client], Coroutine[object, object, list[JobTimes]]]


def by_executor(folder: Path, work: Work) -> tuple[list[JobTimes], list[str]]:
    """Return the jobs' times on an executor of four devices."""

    async def asked(client: penstock.Client) -> tuple[list[JobTimes], list[str]]:
        return await work(client), []

    return _on_cluster(folder, asked, "--emulate", f"fast:{DEVICES}@1.0:4GiB")


def in_pilots(folder: Path, slurm: SlurmCluster, work: Work, *, kept: bool) -> tuple[list[JobTimes], list[str]]:
    """Return the jobs' times in pilots, and how many there were."""

    async def asked(client: penstock.Client) -> tuple[list[JobTimes], list[str]]:
        await client.add_allocation(NAME, msgspec.structs.replace(PILOTS, min_pilots=DEVICES if kept else 0))
        if kept:
            await _until(client, lambda view: sum(pilot.state == "running" for pilot in view.pilots) == DEVICES)
        times = await work(client)
        found = (await client.allocations()).allocations[0]
        assert not found.failure, found
        await client.remove_allocation(NAME)
        await _until(client, None)
        return times, [f"{found.made} pilots"]

    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.environment.items():
            patch.setenv(name, value)
        patch.setenv("PENSTOCK_EXECUTOR_DEVICES", "cpu")
        patch.setenv("TMPDIR", str(folder.parent))  # for what pilots leave that are killed
        return _on_cluster(folder, asked)


def _on_cluster(
    folder: Path,
    asked: Callable[[penstock.Client], Coroutine[object, object, tuple[list[JobTimes], list[str]]]],
    *options: str,
) -> tuple[list[JobTimes], list[str]]:
    async def ask() -> tuple[list[JobTimes], list[str]]:
        async with cluster.client() as client:
            return await asked(client)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_DASHBOARD_PORT", "0")
        with running(folder, *options) as cluster:
            found = asyncio.run(ask())
            cluster.down()
            return found


async def _until(client: penstock.Client, enough: Callable[[views.AllocationView], bool] | None) -> None:
    """Wait until the allocation is so, or until it is gone."""
    async with asyncio.timeout(MOST_S):
        while found := (await client.allocations()).allocations:
            if enough is not None and enough(found[0]):
                return
            await asyncio.sleep(0.1)


def show(way: str, jobs: Sequence[ShortJob], times: Sequence[JobTimes], *more: str) -> None:
    """Print what became of the jobs."""
    took_s = [one.took_s for one in times]
    makespan_s = max(one.ended_s for one in times) - min(one.submitted_s for one in times)
    used = sum(job.length_s * job.gpus for job in jobs) / DEVICES / makespan_s
    words = (
        f"mean {statistics.mean(took_s):.2f} s",
        f"p95 {np.percentile(took_s, 95):.1f} s",
        f"makespan {makespan_s:.1f} s",
        f"utilisation {used:.0%}",
        *more,
    )
    print(f"{way}: {'; '.join(words)}", flush=True)


def real(times: Sequence[JobTimes], slurm_s: float | None) -> list[str]:
    """Return in words what only real runs have."""
    first_s = min(one.began_s for one in times) - min(one.submitted_s for one in times)
    found = [f"first run after {max(0.0, first_s):.2f} s", f"{sum(one.preemptions for one in times)} preemptions"]
    return [*found, *([f"mean {mean_s(times) / slurm_s:.2f} of Slurm's"] if slurm_s else [])]


def ideal_times(jobs: Sequence[ShortJob], limits: Sequence[float]) -> list[JobTimes]:
    """Return when jobs would end where nothing but their work takes time."""
    took_s = ideal_s(jobs, limits)
    return [JobTimes(job.at_s, job.at_s, job.at_s + one_s) for job, one_s in zip(jobs, took_s, strict=True)]


def main() -> None:
    """Print mean completion times and what they are made of."""
    if missing():
        print(f"Slurm is not installed here: there is no {missing()}")
        return
    given = [int(word) for word in sys.argv[1:3]]
    count, seed = (*given, *(JOBS, SEED)[len(given) :])
    ways = sys.argv[3].split(",") if len(sys.argv) > 3 else ["slurm", "bare", "cold", "kept"]
    jobs = workload(count, seed, GANG_SHARE)
    lengths_s = [job.length_s for job in jobs]
    gangs = sum(job.gpus > 1 for job in jobs)
    print(f"{count} jobs, {gangs} of two: median {statistics.median(lengths_s):.1f} s, load {os.getloadavg()[0]:.1f}")
    for way, limits in (("ideal, first come first served", ()), (f"ideal 2D-LAS, thresholds {SET}", SET)):
        show(way, jobs, ideal_times(jobs, limits))
    slurm_s = None
    with tempfile.TemporaryDirectory(prefix="pilots-") as name, running_slurm(nodes=DEVICES) as slurm:
        folder = Path(name)
        folder.chmod(0o755)
        script = folder / "loop.py"
        script.write_text(SCRIPT if "unsaved" in sys.argv[4:] else SAVING_SCRIPT)

        async def work(client: penstock.Client) -> list[JobTimes]:
            return await by_penstock(client, script, jobs)

        for way in ways:
            more: list[str] = []
            match way:
                case "slurm":
                    times = asyncio.run(by_slurm(script, jobs, folder / way, {**os.environ, **slurm.environment}))
                case "bare":
                    times, more = by_executor(folder / way, work)
                case "cold" | "kept":
                    times, more = in_pilots(folder / way, slurm, work, kept=way == "kept")
                case _:
                    raise SystemExit(f"no such way: {way}; expected slurm, bare, cold or kept")
            show(way, jobs, times, *real(times, slurm_s), *more)
            slurm_s = mean_s(times) if way == "slurm" else slurm_s


if __name__ == "__main__":
    main()
