"""
Short jobs of unknown lengths on four devices: the workload, the ideal, and how Penstock and Slurm are given it.

The jobs are loops over ``penstock.session`` whose lengths are lognormal with a median of 2.5 s; some may be gangs of
two. The same programs come at the same times to whoever runs them. ``bench_short_jobs.py`` and ``bench_pilots.py``
measure with it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

import penstock

JOBS, SEED = 48, 4
DEVICES: Final = 4
MEDIAN_S, SPREAD, LOAD = 2.5, 1.2, 1.2
STEP_S: Final = 0.05
SET: Final = (3.0, 12.0)
SCRIPT: Final = f"""
import sys, time
import penstock
with penstock.session() as session:
    for step in session.iterations(range(round(float(sys.argv[1]) / {STEP_S}))):
        time.sleep({STEP_S})
"""


SAVING_SCRIPT: Final = f"""
import sys, time
from pathlib import Path
import penstock

done = [0]

def save(folder):
    (folder / "done").write_text(str(done[0]))

def load(folder):
    done[0] = int((folder / "done").read_text())

with penstock.session() as session:
    session.on_checkpoint(save, load)
    for step in session.iterations(range(round(float(sys.argv[1]) / {STEP_S}))):
        time.sleep({STEP_S})
        done[0] = step
"""
"""As :data:`SCRIPT`, and it has something to save: a run that is preempted goes on where it was."""


class ShortJob(NamedTuple):
    """When a job comes, how long it takes, and on how many devices; seconds since the first one could come."""

    at_s: float
    length_s: float
    gpus: int = 1


class JobTimes(NamedTuple):
    """When a job was submitted, began for the first time, and ended: seconds since the epoch."""

    submitted_s: float
    began_s: float
    ended_s: float
    preemptions: int = 0

    @property
    def took_s(self) -> float:
        """Seconds from its submission to its end."""
        return self.ended_s - self.submitted_s


def workload(count: int, seed: int, gang_share: float = 0.0) -> list[ShortJob]:
    """
    Return the jobs in the order in which they come.

    Parameters
    ----------
    gang_share : float
        The part of them that are gangs of two devices.
    """
    rng = np.random.default_rng(seed)
    lengths_s = np.maximum(STEP_S, rng.lognormal(np.log(MEDIAN_S), SPREAD, count))
    pauses = rng.exponential(1.0, count)
    gpus = np.where(rng.random(count) < gang_share, 2, 1)
    pause_s = (lengths_s * gpus).mean() / DEVICES / LOAD
    return [ShortJob(*job) for job in zip((np.cumsum(pauses) * pause_s).tolist(), lengths_s.tolist(), gpus.tolist())]  # noqa: B905 - equally long


def ideal_s(jobs: Sequence[ShortJob], limits: Sequence[float]) -> list[float]:
    """
    Return each job's completion time under 2D-LAS where nothing but the jobs' own work takes time, in seconds.

    Parameters
    ----------
    limits : sequence of float
        The queues' thresholds, GPU-seconds; without any: first come, first served.
    """
    edges = (*limits, np.inf)
    ready: list[tuple[int, float, int]] = []
    done, took, now_s, came = [0.0] * len(jobs), [0.0] * len(jobs), 0.0, 0
    while came < len(jobs) or ready:
        while came < len(jobs) and jobs[came].at_s <= now_s + 1e-9:
            ready.append((0, jobs[came].at_s, came))
            came += 1
        if not ready:
            now_s = jobs[came].at_s
            continue
        running = _first_that_fit(sorted(ready), jobs)
        ends_s = [now_s + min(jobs[j].length_s, edges[level] / jobs[j].gpus) - done[j] for level, _, j in running]
        until_s = min([*ends_s, jobs[came].at_s if came < len(jobs) else np.inf])
        for entry in running:
            level, _, number = entry
            done[number] += until_s - now_s
            if done[number] >= jobs[number].length_s - 1e-9:
                ready.remove(entry)
                took[number] = until_s - jobs[number].at_s
            elif done[number] * jobs[number].gpus >= edges[level] - 1e-9:
                ready.remove(entry)
                ready.append((level + 1, until_s, number))
        now_s = until_s
    return took


def _first_that_fit(ready: Sequence[tuple[int, float, int]], jobs: Sequence[ShortJob]) -> list[tuple[int, float, int]]:
    free, running = DEVICES, []
    for entry in ready:
        if jobs[entry[2]].gpus <= free:
            free -= jobs[entry[2]].gpus
            running.append(entry)
    return running


async def by_penstock(client: penstock.Client, script: Path, jobs: Sequence[ShortJob]) -> list[JobTimes]:
    """Return the times of jobs that Penstock runs; each has ended when its client knows."""
    began_s = time.time()  # noqa: TID251 - the programs' own clock

    async def one(number: int, job: ShortJob) -> JobTimes:
        await asyncio.sleep(began_s + job.at_s - time.time())  # noqa: TID251
        command = (sys.executable, str(script), str(job.length_s))
        environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        submitted_s = time.time()  # noqa: TID251
        answer = await client.submit(
            name=f"short{number}", command=command, gpus=job.gpus, profile="off", env=environment
        )
        found = await client.wait(answer.id)
        assert found.state == "CD", found
        ended_s = time.time()  # noqa: TID251
        waited_s = (found.started_s or found.submitted_s) - found.submitted_s  # by the cluster's clock
        return JobTimes(submitted_s, submitted_s + waited_s, ended_s, found.preemptions)

    return await asyncio.gather(*(one(number, job) for number, job in enumerate(jobs)))


async def by_slurm(
    script: Path, jobs: Sequence[ShortJob], folder: Path, environment: Mapping[str, str]
) -> list[JobTimes]:
    """
    Return the times of jobs that Slurm runs; each notes its own begin and end.

    A gang is a job of one task on each of two nodes, which ``srun`` starts.

    Parameters
    ----------
    folder : Path
        A new one.
    environment : mapping of str to str
        With the ``SLURM_CONF``.
    """
    began_s = time.time()  # noqa: TID251 - the programs' own clock
    folder.mkdir()

    async def one(number: int, job: ShortJob) -> float:
        await asyncio.sleep(began_s + job.at_s - time.time())  # noqa: TID251
        submitted_s = time.time()  # noqa: TID251
        program = f"{'srun ' if job.gpus > 1 else ''}{sys.executable} {script} {job.length_s}"
        notes = folder / str(number)
        command = f"date +%s.%N > {notes}.began && {program} && date +%s.%N > {notes}.ended"
        size = (f"--nodes={job.gpus}", "--ntasks-per-node=1", "--gres=gpu:1")
        sbatch = ("sbatch", *size, "-o", f"{notes}.out", "--wrap", command)
        done = await asyncio.create_subprocess_exec(*sbatch, stdout=subprocess.DEVNULL, env=environment)
        assert await done.wait() == 0, sbatch
        return submitted_s

    starts_s = await asyncio.gather(*(one(number, job) for number, job in enumerate(jobs)))
    await asyncio.to_thread(_drained, environment)
    found = []
    for number, submitted_s in enumerate(starts_s):
        notes = [folder / f"{number}.{what}" for what in ("began", "ended")]
        assert all(note.exists() for note in notes), (folder / f"{number}.out").read_text()
        found.append(JobTimes(submitted_s, *(float(note.read_text()) for note in notes)))
    return found


def mean_s(times: Sequence[JobTimes]) -> float:
    """Return the mean completion time, seconds."""
    return statistics.mean(one.took_s for one in times)


def _drained(environment: Mapping[str, str]) -> None:
    """Wait until Slurm has no job any more."""
    while subprocess.run(["squeue", "-h"], capture_output=True, check=True, env=environment).stdout.strip():
        time.sleep(0.5)
