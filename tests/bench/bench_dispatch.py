"""
Jobs that do nothing, by Penstock, HyperQueue and Slurm in one run: ``bench_dispatch.py [JOBS] [RUNS]``.

How many a second on four slots, from one submission of all to the end of the last; and how long from a submission to
the started process, one job at a time. HyperQueue is run by the Python that ``HYPERQUEUE_PYTHON`` names, in an
environment with the package ``hyperqueue``; Slurm is the one that ``SLURM_CONF`` names, with four devices. Where one of
them is not there, this benchmark says so. For Penstock it prints where the processor time goes, service by service.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster, until

import penstock
from penstock_log import JobSpec

JOBS, RUNS = 300, 3
SINGLE = 60
SLOTS = 4
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
HYPERQUEUE = f"""
import os, sys, tempfile, time
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

jobs, runs, single = map(int, sys.argv[1:])
with LocalCluster() as cluster, tempfile.TemporaryDirectory() as folder:
    cluster.start_worker(WorkerConfig(cores={SLOTS}))
    client = cluster.client()
    marks = os.path.join(folder, "mark")

    def mark(number):
        job = Job()
        job.program(["sh", "-c", "date +%s.%N >> " + marks + str(number)], stdout=None, stderr=None)
        return client.submit(job)

    for run in range(runs + 1):
        job = Job()
        for _ in range(jobs):
            job.program(["true"], stdout=None, stderr=None)
        before = time.time()
        done = client.submit(job)
        client.wait_for_jobs([done])
        if run:
            print("rate", jobs / (time.time() - before), file=sys.stderr)
    for number in range(single):
        before = time.time()
        done = mark(number)
        while not os.path.exists(marks + str(number)) or not open(marks + str(number)).read().strip():
            time.sleep(0.0005)
        print("start", float(open(marks + str(number)).read()) - before, file=sys.stderr)
        client.wait_for_jobs([done])
"""


def processor_s(pid: int) -> float:
    """Return the seconds of processor time of a process so far; of its children that have ended too."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    fields = stat[stat.rindex(")") + 2 :].split()
    return sum(map(int, fields[11:15])) / TICKS_PER_S


async def burst(client: penstock.Client, count: int) -> float:
    """Return how many jobs a second came to their end, of so many that were submitted at once."""
    specs = [JobSpec(name=f"noop{number}", command=("true",), profile="off") for number in range(count)]
    before = time.perf_counter()
    answers = await client.submit_all(specs)
    left = {answer.id for answer in answers}
    async for event in client.follow_events(after=min(answer.seq for answer in answers) - 1):
        if event.type == "run.ended.v1":
            left.discard(event.fact["job_id"])
            if not left:
                break
    return count / (time.perf_counter() - before)


async def single(client: penstock.Client, count: int, marks: Path) -> tuple[list[float], list[float]]:
    """Return the seconds from a submission until the program runs, and until the client knows, one job at a time."""
    ran_s, known_s = [], []
    for number in range(count):
        mark = marks / str(number)
        command = ("sh", "-c", f"date +%s.%N > {mark}")
        before, before_wall = time.perf_counter(), time.time()  # noqa: TID251 - the programs' own clock
        answer = await client.submit(name="start", command=command, profile="off")
        await until(client, answer.id, "run.started.v1", after=answer.seq)
        known_s.append(time.perf_counter() - before)
        await client.wait(answer.id)
        ran_s.append(float(mark.read_text(encoding="utf-8")) - before_wall)
    return ran_s, known_s


async def measure(cluster: Cluster, jobs: int, runs: int, folder: Path) -> None:
    """Print what Penstock does."""
    marks = folder / "marks"
    marks.mkdir()
    async with cluster.client() as client:
        await burst(client, jobs)
        pids = {name: entry["pid"] for name, entry in cluster.running["processes"].items()}
        before = {name: processor_s(pid) for name, pid in pids.items()}
        rates = [await burst(client, jobs) for _ in range(runs)]
        spent = {name: (processor_s(pid) - before[name]) * 1e3 / jobs / runs for name, pid in pids.items()}
        ran_s, known_s = await single(client, SINGLE, marks)
    print(f"Penstock: {statistics.median(rates):.0f} jobs a second ({min(rates):.0f} to {max(rates):.0f})")
    parts = ", ".join(f"{name.removesuffix('-1')} {ms:.1f}" for name, ms in spent.items() if ms >= 0.1)
    print(f"  processor time for each, ms: {parts}; together {sum(spent.values()):.1f}")
    print(f"  submit -> program runs: p50 {statistics.median(ran_s) * 1e3:.1f} ms", end="; ")
    print(f"-> client knows that it has started: p50 {statistics.median(known_s) * 1e3:.1f} ms", flush=True)


def hyperqueue(jobs: int, runs: int, folder: Path) -> None:
    """Print what HyperQueue does."""
    python = os.environ.get("HYPERQUEUE_PYTHON", "")
    if not python:
        print("HyperQueue: not measured; HYPERQUEUE_PYTHON names no Python that has it")
        return
    script = folder / "hyperqueue_jobs.py"
    script.write_text(HYPERQUEUE, encoding="utf-8")
    command = (python, str(script), str(jobs), str(runs), str(SINGLE))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [line.split() for line in done.stderr.splitlines() if line.startswith(("rate ", "start "))]
    rates = [float(value) for what, value in found if what == "rate"]
    starts_s = [float(value) for what, value in found if what == "start"]
    print(f"HyperQueue: {statistics.median(rates):.0f} jobs a second ({min(rates):.0f} to {max(rates):.0f})")
    print(f"  submit -> program runs: p50 {statistics.median(starts_s) * 1e3:.1f} ms", flush=True)


def slurm(jobs: int, folder: Path) -> None:
    """Print what Slurm does: one job array, and single jobs."""
    if "SLURM_CONF" not in os.environ or shutil.which("sbatch") is None:
        print("Slurm: not measured; SLURM_CONF names none")
        return
    options = ("sbatch", "--gres=gpu:1", "-n", "1", "-o", "/dev/null")
    before = time.perf_counter()
    subprocess.run([*options, f"--array=1-{jobs}", "--wrap", "true"], capture_output=True, check=True)
    while subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout.strip():
        time.sleep(0.05)
    print(f"Slurm: {jobs / (time.perf_counter() - before):.1f} jobs a second, one array")
    starts_s = []
    for number in range(10):
        mark = folder / f"slurm{number}"
        began_s = time.time()  # noqa: TID251
        subprocess.run([*options, "--wrap", f"date +%s.%N > {mark}"], capture_output=True, check=True)
        while not (mark.exists() and mark.read_text(encoding="utf-8").strip()):
            time.sleep(0.001)
        starts_s.append(float(mark.read_text(encoding="utf-8")) - began_s)
    print(f"  submit -> program runs: p50 {statistics.median(starts_s) * 1e3:.0f} ms", flush=True)


def main() -> None:
    """Print all three."""
    given = [int(word) for word in sys.argv[1:3]]
    jobs, runs = (*given, *(JOBS, RUNS)[len(given) :])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = Cluster(folder / "data", "--emulate", f"fast:{SLOTS}@1.0:4GiB")
        cluster.up()
        try:
            asyncio.run(measure(cluster, jobs, runs, folder))
        finally:
            cluster.down()
        hyperqueue(jobs, runs, folder)
        slurm(jobs, folder)


if __name__ == "__main__":
    main()
