"""
The commands of a shell, beside Slurm's in one run: ``python tests/bench/bench_shell.py [RUNS]``.

Whole processes, from outside: with 1,000 jobs pending, the list, one submission, 1,000 submissions, and the end of all.
Commands of both are run in turn, so that a busy machine slows both. Slurm is the one that ``SLURM_CONF`` names; without
it, this benchmark says so and compares ours with nothing but a Python that starts, and with bare appends to a log.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster

from penstock_bus import Append
from penstock_bus.nats import connect
from penstock_bus.servers.server import ServerSettings, running
from penstock_log import Commit, JobCancelled, JobSpec, subjects
from penstock_log.request_bodies import JobFilter

JOBS = 1_000
MANY = 10_000
RUNS = 20
PENSTOCK = (sys.executable, "-m", "penstock")
Command = Sequence[str]


def took_s(command: Command, environment: dict[str, str]) -> float:
    """Return the seconds of a whole process, which must end well."""
    before = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    after = time.perf_counter()
    assert done.returncode == 0, f"{command}: {done.stdout[-500:]}{done.stderr[-500:]}"
    return after - before


def processor_s(command: Command, environment: dict[str, str]) -> float:
    """Return the seconds of processor time of a whole process, on which other processes tell less."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s(command, environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def medians_s(commands: Sequence[Command], runs: int, environment: dict[str, str]) -> list[float]:
    """Return the median of each command; they are run in turn, once before that is counted."""
    for command in commands:
        took_s(command, environment)
    rounds = [[took_s(command, environment) for command in commands] for _ in range(runs)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def has_slurm() -> bool:
    """Say whether there is a Slurm that answers."""
    if "SLURM_CONF" not in os.environ or shutil.which("squeue") is None:
        return False
    return subprocess.run(["squeue"], capture_output=True, check=False, timeout=60).returncode == 0


def show(what: str, ours_s: float, theirs_s: float | None, whose: str) -> None:
    """Print a line: both times, and the ratio."""
    theirs = "" if theirs_s is None else f"; {whose} {theirs_s * 1e3:.0f} ms; ratio {ours_s / theirs_s:.2f}"
    print(f"{what}: {ours_s * 1e3:.0f} ms{theirs}", flush=True)


def show_processor(command: Command, runs: int, environment: dict[str, str]) -> None:
    """Print the median of a command's own processor time."""
    found_s = statistics.median(processor_s(command, environment) for _ in range(runs))
    print(f"    of its own processor time: {found_s * 1e3:.0f} ms", flush=True)


async def pend(cluster: Cluster, count: int) -> float:
    """Submit so many jobs by the client, and return the seconds that it took."""
    specs = [JobSpec(name=f"wait{i}", command=("true",), gpus=64, profile="off") for i in range(count)]
    async with cluster.client() as client:
        before = time.perf_counter()
        answers = await client.submit_all(specs)
        took = time.perf_counter() - before
    assert not any(answer.code for answer in answers), answers[0].error
    return took


async def clear(cluster: Cluster) -> None:
    """Cancel all jobs."""
    async with cluster.client() as client:
        await client.act_on_all("cancel", where=JobFilter(name="*"))


async def appends_s(folder: Path, count: int) -> float:
    """Return the seconds of so many bare appends to a log of the same settings, as many at a time as it takes."""
    async with running(ServerSettings(data_dir=folder), access={}) as server, connect(server.url) as bus:
        facts = [JobCancelled(job_id=f"j{i}", at_s=1.0) for i in range(count)]
        items = [
            Append(
                subject=subjects.job(fact.job_id),
                commit=Commit(id=f"c{i}", actor="bench", facts=(fact,)),
                expected=0,
            )
            for i, fact in enumerate(facts)
        ]
        before = time.perf_counter()
        await bus.append_many(items)
        return time.perf_counter() - before


def starts(runs: int, environment: dict[str, str]) -> None:
    """Print what a start costs by itself."""
    python, core = medians_s(
        [(sys.executable, "-c", "pass"), (sys.executable, "-c", "import msgspec, socket")], runs, environment
    )
    print(f"a Python that starts: {python * 1e3:.0f} ms; with msgspec and a socket: {core * 1e3:.0f} ms", flush=True)


def everyday(cluster: Cluster, runs: int, environment: dict[str, str], *, slurm: bool) -> None:
    """Print the commands that ask or change one thing."""
    asyncio.run(pend(cluster, JOBS))
    job = ["sbatch", "--hold", "--wrap", "true", "--output", "/dev/null"]
    if slurm:
        for _ in range(JOBS):
            took_s(job, environment)
    for what, ours, theirs in (
        ("the list of 1,000 pending jobs", "ps -s PD --limit 1000", ["squeue"]),
        ("one submission", "submit --gpus 64 --no-check -- true", job),
        ("the list of nodes", "nodes", ["sinfo"]),
    ):
        commands = [[*PENSTOCK, *ours.split()], *([theirs] if slurm else [])]
        found = medians_s(commands, runs, environment)
        show(f"{what} (`penstock {ours}`)", found[0], found[1] if slurm else None, theirs[0])
        show_processor(commands[0], runs, environment)
    job_id = asyncio.run(one_job(cluster))
    for words in ("status", "events", f"why {job_id}", f"show {job_id}", f"hold {job_id}", f"cancel {job_id}"):
        command = [*PENSTOCK, *words.split()]
        show(f"`penstock {words.split()[0]}`", medians_s([command], runs, environment)[0], None, "")
        show_processor(command, runs, environment)


async def one_job(cluster: Cluster) -> str:
    """Return the id of a job."""
    async with cluster.client() as client:
        return (await client.jobs(limit=1)).jobs[0].id


def many(cluster: Cluster, folder: Path, environment: dict[str, str], *, slurm: bool) -> None:
    """Print what is about a thousand jobs."""
    bare_s = asyncio.run(appends_s(folder / "bare", JOBS))
    whose = f"{JOBS:,} bare appends to a log that syncs each"
    ours_s = took_s([*PENSTOCK, "cancel", "--all", "--yes"], environment)
    show("cancel of 1,000 pending jobs (`penstock cancel --all`)", ours_s, bare_s, whose)
    if slurm:
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        theirs_s = took_s(["scancel", "--user", user], environment)
        show("the same", ours_s, theirs_s, "scancel")
    files = [folder / f"{i}.toml" for i in range(JOBS)]
    for file in files:
        file.write_text('name = "wait"\ncommand = ["true"]\ngpus = 64\nprofile = "off"\n')
    ours_s = took_s([*PENSTOCK, "submit", *map(str, files)], environment)
    show("submission of 1,000 files (`penstock submit *.toml`)", ours_s, bare_s, whose)
    show("submission of 1,000 jobs by `client.submit_all`", asyncio.run(pend(cluster, JOBS)), bare_s, whose)


def long_list(cluster: Cluster, runs: int, environment: dict[str, str]) -> None:
    """Print what the list of ten thousand costs."""
    asyncio.run(clear(cluster))
    for _ in range(MANY // JOBS):
        asyncio.run(pend(cluster, JOBS))
    command = [*PENSTOCK, "ps", "-s", "PD", "--limit", str(MANY)]
    found = medians_s([command], runs, environment)
    show(f"the list of {MANY:,} pending jobs (`penstock ps --limit {MANY}`)", found[0], None, "")
    show_processor(command, runs, environment)


def main() -> None:
    """Measure and print."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    slurm = has_slurm()
    if not slurm:
        print("NO SLURM: set SLURM_CONF to that of a slurmctld that runs; its commands are NOT compared", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = folder / "penstock.toml"
        settings.write_text(f"[gateway]\nopen_jobs = {4 * MANY}\n")
        cluster = Cluster(folder / "data", "--emulate", "fast:1@1.0:4GiB", "--config", str(settings))
        cluster.up()
        environment = {**os.environ, "NO_COLOR": "1", "PENSTOCK_URL": cluster.url}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # who installs Penstock has its byte code
        try:
            starts(runs, environment)
            everyday(cluster, runs, environment, slurm=slurm)
            many(cluster, folder, environment, slurm=slurm)
            long_list(cluster, runs, environment)
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
