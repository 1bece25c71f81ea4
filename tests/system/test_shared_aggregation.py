"""Shared aggregation on the real thing: a gang that averages, whose aggregators are killed, and two that share one."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from clusters import Cluster, running, until

from penstock_log import JobSpec
from penstock_testing import eventually
from sweeps import sampled

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 330  # 30 epochs of 11 whole batches, over two processes
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("aggregation") / "data", "--emulate", "fast:4@1.0:4GiB") as it:
        yield it


def training(job_id: str, **params: object) -> JobSpec:
    """A gang of two that averages once in four steps; its last checkpoint is kept."""
    return JobSpec(
        id=job_id,
        name=job_id,
        command=(sys.executable, str(EXAMPLES / "digits_local_sgd.py")),
        gpus=2,
        profile="off",
        keep_checkpoint=True,
        params={"steps": STEPS, "width": 64, "every": 4, **params},  # type: ignore[dict-item]
    )


def weights(cluster: Cluster, job_id: str) -> dict[str, bytes]:
    """Return what was learnt, bit for bit."""
    with np.load(cluster.data / "checkpoints" / job_id / f"step-{STEPS}" / "state.npz") as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files if name.startswith("w_")}


def aggregators(cluster: Cluster) -> list[int]:
    """Return the processes of the cluster's aggregators."""
    found: list[int] = []
    for agent in cluster.pids("aggregator"):
        for task in Path(f"/proc/{agent}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


@pytest.mark.parametrize("rule", sampled(["momentum", "mean"]))
async def test_a_gang_whose_aggregators_are_killed_learns_what_it_learns_without_bit_for_bit(
    cluster: Cluster, rule: str
) -> None:
    async with cluster.client() as client:
        alone = await client.wait((await client.submit(training(f"alone-{rule}", rule=rule))).id)
        assert (alone.state, alone.steps) == ("CD", STEPS), alone.reason

        job_id = (await client.submit(training(f"killed-{rule}", rule=rule))).id
        for count in (1, 2):
            await until(client, job_id, "aggregation.assigned.v1", count)
            await eventually(lambda: bool(aggregators(cluster)), why="an aggregator runs")
            for pid in aggregators(cluster):
                os.kill(pid, signal.SIGKILL)
        killed = await client.wait(job_id)
        assert (killed.state, killed.steps, killed.attempts) == ("CD", STEPS, alone.attempts), killed.reason
        await until(client, job_id, "aggregation.assigned.v1", 3)  # after each kill the parts were assigned anew
    assert weights(cluster, job_id) == weights(cluster, f"alone-{rule}")


async def test_a_gang_whose_agent_is_killed_goes_on_with_the_next_one_bit_for_bit(cluster: Cluster) -> None:
    async with cluster.client() as client:
        alone = await client.wait((await client.submit(training("alone-agent", rule="momentum"))).id)
        job_id = (await client.submit(training("killed-agent", rule="momentum"))).id
        await until(client, job_id, "aggregation.assigned.v1", 1)
        await eventually(lambda: bool(aggregators(cluster)), why="an aggregator runs")
        for pid in cluster.pids("aggregator"):
            os.kill(pid, signal.SIGKILL)
        killed = await client.wait(job_id)
        assert (killed.state, killed.steps, killed.attempts) == ("CD", STEPS, alone.attempts), killed.reason
        await until(client, job_id, "aggregation.assigned.v1", 2)
    assert weights(cluster, job_id) == weights(cluster, "alone-agent")


async def test_a_preempted_gang_goes_on_with_its_optimizer_and_learns_the_same_bit_for_bit(cluster: Cluster) -> None:
    script = Path(__file__).parents[1] / "support" / "push_pull_job.py"
    command = (sys.executable, str(script))
    async with cluster.client() as client:
        for job_id in ("left-alone", "preempted"):
            await client.submit(JobSpec(id=job_id, name=job_id, command=command, gpus=2, profile="off"))
            if job_id == "preempted":
                await until(client, job_id, "aggregation.assigned.v1")
                node = (await client.nodes()).nodes[0].id
                await client.drain(node, preempt=True)
                await until(client, job_id, "run.ended.v1")
                await client.resume(node)
            job = await client.wait(job_id)
            assert (job.state, job.preemptions) == ("CD", int(job_id == "preempted")), job.reason
    said = [
        set(cluster.run("logs", job_id).stdout.replace("[1]", "[0]").splitlines())
        for job_id in ("left-alone", "preempted")
    ]
    assert said[0] == said[1]
    assert len(said[0]) == 1


async def test_two_gangs_come_to_share_an_aggregator_and_people_see_it(cluster: Cluster) -> None:
    async with cluster.client() as client:
        ids = [(await client.submit(training(f"shared-{number}", steps=100_000))).id for number in range(2)]
        for job_id in ids:
            await until(client, job_id, "aggregation.assigned.v1", 1)

        def packed() -> bool:
            found = json.loads(cluster.run("aggregation", "ls", "-o", "json").stdout)
            jobs = {job["id"]: job for job in found["jobs"]}
            return all(jobs.get(job_id, {}).get("phase") == "packed" for job_id in ids)

        await eventually(lambda: asyncio.to_thread(packed), why="both are packed", within_s=90)
        shown = cluster.run("aggregation", "ls").stdout
        assert all(job_id in shown for job_id in ids), shown
        why = cluster.run("why", ids[1]).stdout
        assert "aggregat" in why, why
        for job_id in ids:
            await client.cancel(job_id)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: DDP's hook is not tried")
@pytest.mark.parametrize(("world", "equal"), [(2, 12), (4, 0)])
async def test_the_hook_gives_ddp_the_gradients_of_gloo(cluster: Cluster, world: int, equal: int) -> None:
    script = Path(__file__).parents[1] / "support" / "ddp_hook_job.py"
    command = (sys.executable, str(script))
    async with cluster.client() as client:
        spec = JobSpec(id=f"ddp-{world}", name="ddp", command=command, gpus=world, profile="off")
        job = await client.wait((await client.submit(spec)).id)
    said = cluster.run("logs", spec.id).stdout
    assert job.state == "CD", said
    lines = [line for line in said.splitlines() if "steps equal" in line]
    assert len(lines) == world
    for line in lines:
        assert int(line.split(": ")[1].split()[0]) >= equal
        assert float(line.split(" equal, ")[1].split()[0]) < 1e-6
