"""Data-parallel trainings on the real thing: NATS, every service a process, one process for each emulated device."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
from clusters import Cluster, facts, running, until

from penstock_log import JobSpec
from penstock_testing import eventually

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here"),
    pytest.mark.timeout(600),  # seconds of processor time, in up to eight processes that load torch
]

JOB = Path(__file__).parents[1] / "support" / "torch_job.py"
STEPS = 36  # 1,437 samples in batches of 128, three epochs
HOLD_AT = 20
LIKE_ONE = 1e-5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running(tmp_path_factory.mktemp("torch") / "data", "--emulate", "fast:4@1.0:4GiB") as it:
        yield it


def training(gpus: int, go: Path, **more: object) -> JobSpec:
    """Three epochs; the last rank waits in its step HOLD_AT until it is asked to stop, or the file is there."""
    spec = {"name": "torch", "command": (sys.executable, str(JOB)), "gpus": gpus, "batch_size": 128}
    held = {"GO": str(go), "HOLD_AT": str(HOLD_AT)}
    spec |= {"params": {"epochs": 3}, "env": held, "profile": "off", "keep_checkpoint": True}
    return JobSpec(**{**spec, **more})  # type: ignore[arg-type]


def losses(cluster: Cluster, job_id: str) -> list[float]:
    import torch  # noqa: PLC0415 - only where it is

    path = cluster.data / "checkpoints" / job_id / f"step-{STEPS}" / "state.pt"
    return list(torch.load(path, weights_only=True)["losses"])


@pytest.fixture(scope="module")
def alone(cluster, tmp_path_factory) -> list[float]:
    """The losses of a job on one device."""
    go = tmp_path_factory.mktemp("go") / "go"
    go.touch()

    async def train() -> str:
        async with cluster.client() as client:
            job = await client.wait((await client.submit(training(1, go))).id)
            assert (job.state, job.steps) == ("CD", STEPS), job.reason
            return job.id

    return losses(cluster, asyncio.run(train()))


@pytest.mark.parametrize("gpus", [2, 4])
async def test_a_gang_is_preempted_in_an_operation_and_does_every_step_of_one_device_once(
    cluster, alone, tmp_path, gpus
):
    async with cluster.client() as client:
        job_id = (await client.submit(training(gpus, tmp_path / "go"))).id
        await eventually((tmp_path / "held").exists)
        node = (await client.nodes()).nodes[0].id
        await client.drain(node, preempt=True)
        await until(client, job_id, "run.ended.v1")
        await client.resume(node)
        job = await client.wait(job_id)
        assert (job.state, job.preemptions, job.steps) == ("CD", 1, STEPS), job.reason
        first, second = [event.fact for event in await facts(client, job_id, "run.ended.v1")]
    assert (first["outcome"], second["outcome"]) == ("preempted", "completed")
    assert HOLD_AT < first["loop_steps"] == STEPS - second["loop_steps"]
    assert losses(cluster, job_id) == pytest.approx(alone, rel=LIKE_ONE)


async def test_a_rank_that_dies_ends_its_gang_which_goes_on_from_its_checkpoint(cluster, alone, tmp_path):
    go = tmp_path / "go"
    async with cluster.client() as client:
        job_id = (await client.submit(training(2, go, retries=1, backoff_s=0.01, checkpoint_s=0.001))).id
        await eventually((tmp_path / "held").exists)  # rank 0 waits for rank 1 in an operation, or will
        os.kill(program(cluster, job_id, rank=1), signal.SIGKILL)
        await until(client, job_id, "run.ended.v1")
        go.touch()
        job = await client.wait(job_id)
        assert (job.state, job.attempts) == ("CD", 2), job.reason
        first, second = [event.fact for event in await facts(client, job_id, "run.ended.v1")]
    assert (first["outcome"], second["outcome"]) == ("failed", "completed")
    assert STEPS - second["loop_steps"] in {HOLD_AT - 1, HOLD_AT}  # rank 0 may have been one step further
    assert losses(cluster, job_id) == pytest.approx(alone, rel=LIKE_ONE)


def program(cluster: Cluster, job_id: str, rank: int) -> int:
    """Return the process of a rank's program: the only child of the shell that notes its exit."""
    (noted,) = (cluster.data / "executor" / "runs" / job_id).glob(f"*/{rank}/pid")
    shim = noted.read_text().split(" ", 1)[0]
    return int(Path(f"/proc/{shim}/task/{shim}/children").read_text().split()[0])
