"""Jobs that are resized while they run, on the real thing: NATS, every service a process, real processes as jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, facts, identity, until

import penstock
from penstock_log import Batch, JobSpec

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parents[1] / "support" / "elastic_job.py"
EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLES = 1438
NOISE = 0.03
"""Beyond what the order of six epochs' samples, and the batch sizes, make of the final accuracy."""
SETTINGS = """
[autoscaler]
min_run_s = 0.0
interval_s = 1.0
unseen_cost_s = 0.0

[profiler]
short_iterations = 2
long_iterations = 6

[matcher]
node_timeout_s = 6.0
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes of two devices, on which the digits have been sampled at several batches and widths."""
    folder = tmp_path_factory.mktemp("elastic")
    (folder / "penstock.toml").write_text(SETTINGS)
    (folder / "notes").mkdir()
    options = ("--emulate", "fast:2@0.1:4GiB", "--replicas", "executor=2", "--config", str(folder / "penstock.toml"))
    it = Cluster(folder / "data", *options)
    it.up()
    asyncio.run(_learn(it, folder / "notes"))
    yield it
    it.kill_all()


async def _learn(cluster: Cluster, notes: Path) -> None:
    async with cluster.client() as client:
        job_id = (await client.submit(training(notes, epochs=1))).id
        async for event in client.follow_events():
            if event.type == "profile.scaled.v1":
                (known,) = event.fact["kinds"]
                break
        assert [timing.get("gpus", 1) for timing in known["timings"]] == [1, 1, 2, 4], known
        await client.wait(job_id)


@pytest.fixture
def notes(tmp_path):
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


def training(notes: Path, **params: int) -> JobSpec:
    """The digits, on as many devices and with as large a batch as the autoscaler chooses."""
    return JobSpec(
        name="digits",
        command=(sys.executable, str(SCRIPT), str(notes), str(notes.with_name("enough"))),
        env={"PYTHONPATH": str(EXAMPLES)},
        min_gpus=1,
        max_gpus=4,
        batch=Batch(min=64, max=256, step=64, per_gpu_max=64, lr="sqrt"),
        params=params,
        model="digits",
        checkpoint_s=0.3,
        grace_s=60.0,
    )


def by_hand(folder: Path, epochs: int) -> float:
    """Return the accuracy after so many epochs on one device with the smallest batch, without Penstock."""
    (folder / "by-hand").mkdir()
    command = [sys.executable, str(SCRIPT), str(folder / "by-hand"), str(folder / "never")]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES), "PENSTOCK_PARAMS": f'{{"epochs": {epochs}}}'}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=110)
    return float(done.stdout.split()[-1])


def holding(gate: Path, gpus: int) -> JobSpec:
    """A gang that does nothing, until the file is there."""
    command = ("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
    return JobSpec(name="holding", command=command, gpus=gpus, profile="off")


async def until_on(client: penstock.Client, job_id: str, width: int, after: int = 0) -> int:
    """Wait until a run on so many devices has saved a checkpoint; return the sequence of that fact."""
    started: Counter[int] = Counter()
    async for event in client.follow_events(job_id, after=after):
        epoch = event.fact.get("epoch", 0)
        if event.type == "run.started.v1":
            started[epoch] += len(event.fact["devices"])
        if event.type == "run.checkpointed.v1" and started[epoch] == width:
            return event.seq
    raise AssertionError("a followed log does not end")


async def until_failed(client: penstock.Client, job_id: str) -> int:
    """Wait until a run has failed; return the sequence of that fact."""
    async for event in client.follow_events(job_id):
        if event.type == "run.ended.v1" and event.fact["outcome"] == "failed":
            return event.seq
    raise AssertionError("a followed log does not end")


async def sizes(client: penstock.Client, job_id: str) -> list[tuple[int, int]]:
    """Return devices and batch of the runs of a job that did anything, each once as long as they stayed the same."""
    widths: Counter[int] = Counter()
    for event in await facts(client, job_id, "run.started.v1"):
        widths[event.fact["epoch"]] += len(event.fact["devices"])
    ends = [event.fact for event in await facts(client, job_id, "run.ended.v1")]
    return [size for size, _ in groupby((widths[e["epoch"]], e["batch_size"]) for e in ends if e.get("loop_steps"))]


async def demands(client: penstock.Client, job_id: str, after: int = 0) -> list[dict[str, Any]]:
    """Return what the autoscaler has asked of a job, in order."""
    told = [event.fact["demands"] for event in await facts(client, "default", "scale.decided.v1") if event.seq > after]
    return [demand for each in told for demand in each if demand["job_id"] == job_id]


def seen(notes: Path) -> dict[int, Counter[int]]:
    """Return how often each sample was done in each epoch, by all processes of all runs."""
    epochs: dict[int, Counter[int]] = {}
    for path in notes.iterdir():
        for line in path.read_text().splitlines():
            epoch, *rows = map(int, line.split())
            epochs.setdefault(epoch, Counter()).update(rows)
    return epochs


def processes(*words: str) -> list[int]:
    """Return the programs of jobs in whose environment all these words are; of a program and its shim, the program."""
    found = []
    for entry in Path("/proc").iterdir():
        named = identity(entry) if entry.name.isdigit() else b""
        if named.startswith(os.fsencode(sys.executable)) and all(f"{word}\0".encode() in named for word in words):
            found.append(int(entry.name))
    parents = {parent_of(pid) for pid in found}
    return [pid for pid in found if pid not in parents]


def parent_of(pid: int) -> int:
    """Return a process's parent; 0 where it is gone."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat[stat.rindex(")") + 2 :].split()[1])
    return 0


async def test_the_digits_are_learnt_on_1_4_and_2_devices_with_each_sample_once_an_epoch(cluster, notes, tmp_path):
    async with cluster.client() as client:
        others = (await client.submit(holding(tmp_path / "first", 3))).id
        await until(client, others, "run.started.v1")
        job_id = (await client.submit(training(notes, least=6))).id
        seq = await until_on(client, job_id, 1)
        (tmp_path / "first").touch()
        seq = await until_on(client, job_id, 4, after=seq)
        gang = (await client.submit(holding(tmp_path / "second", 2))).id
        await until_on(client, job_id, 2, after=seq)
        notes.with_name("enough").touch()
        job = await client.wait(job_id)
        (tmp_path / "second").touch()
        first, *between, last = await sizes(client, job_id)
        assert (job.state, first, last) == ("CD", (1, 64), (2, 128))
        assert (4, 256) in between
        assert (await demands(client, job_id))[-1]["gives"] == {gang: 2}
    epochs = int(job.metrics["epochs"])
    assert job.samples == epochs * SAMPLES
    assert seen(notes) == {epoch: dict.fromkeys(range(SAMPLES), 1) for epoch in range(epochs)}
    assert job.metrics["accuracy"] == pytest.approx(by_hand(tmp_path, epochs), abs=NOISE)


async def test_a_gang_of_which_a_process_is_killed_goes_on_from_its_last_checkpoint(cluster, notes):
    async with cluster.client() as client:
        job_id = (await client.submit(training(notes))).id
        seq = await until_on(client, job_id, 4)
        (pid,) = processes(f"PENSTOCK_JOB_ID={job_id}", "PENSTOCK_RANK=3")
        os.kill(pid, signal.SIGKILL)
        await until(client, job_id, "run.checkpointed.v1", after=await until(client, job_id, "run.ended.v1", after=seq))
        notes.with_name("enough").touch()
        job = await client.wait(job_id)
        (killed,) = [e.fact for e in await facts(client, job_id, "run.ended.v1") if e.fact.get("killed")]
    assert killed["reason"].startswith("rank 3 of 4: signal SIGKILL")
    assert (job.state, job.samples) == ("CD", job.metrics["epochs"] * SAMPLES)
    assert_done(notes, job)


async def test_a_job_that_cannot_be_loaded_on_another_width_goes_back_and_on_to_a_third(cluster, notes, tmp_path):
    async with cluster.client() as client:
        others = (await client.submit(holding(tmp_path / "first", 3))).id
        await until(client, others, "run.started.v1")
        job_id = (await client.submit(training(notes, refuses=4))).id
        await until_on(client, job_id, 1)
        (tmp_path / "first").touch()
        failed = await until_failed(client, job_id)
        await until_on(client, job_id, 3, after=failed)
        notes.with_name("enough").touch()
        job = await client.wait(job_id)
        story = " ".join(line.text for line in (await client.story(job_id)).lines)
        assert (job.state, (await sizes(client, job_id))[-1]) == ("CD", (3, 192))
        assert {demand.get("gpus", 1) for demand in await demands(client, job_id, after=failed)} == {3}
    assert "no checkpoint is for 4 processes" in story
    assert job.samples == job.metrics["epochs"] * SAMPLES
    assert_done(notes, job)


async def test_a_gang_that_loses_a_node_goes_on_on_the_other(cluster, notes):
    async with cluster.client() as client:
        job_id = (await client.submit(training(notes))).id
        seq = await until_on(client, job_id, 4)
        nodes = sorted((await client.nodes()).nodes, key=lambda node: (len(node.id), node.id))
        executors = dict(zip((node.id for node in nodes), sorted(cluster.pids("executor")), strict=True))
        lost, executor = executors.popitem()
        os.kill(executor, signal.SIGSTOP)
        for pid in processes(f"PENSTOCK_JOB_ID={job_id}", f"PENSTOCK_NODE={lost}"):
            os.kill(pid, signal.SIGKILL)
        await until_on(client, job_id, 2, after=seq)
        notes.with_name("enough").touch()
        job = await client.wait(job_id)
        os.kill(executor, signal.SIGCONT)
        assert (await sizes(client, job_id))[-1] == (2, 128)
    assert (job.state, job.samples) == ("CD", job.metrics["epochs"] * SAMPLES)
    assert_done(notes, job)


def assert_done(notes: Path, job: Any) -> None:
    """Each sample was done in each epoch; of those since the last checkpoint some were done again."""
    done = seen(notes)
    assert sorted(done) == list(range(int(job.metrics["epochs"])))
    assert all(set(samples) == set(range(SAMPLES)) for samples in done.values())
