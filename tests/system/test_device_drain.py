"""A device that takes no jobs any more while a training is on it, on the real thing."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from clusters import facts, running, until

from penstock_log import JobSpec

SCRIPT = Path(__file__).parents[1] / "support" / "turning_job.py"
STEPS = 300


@pytest.fixture
def cluster(tmp_path):
    with running(tmp_path / "data", "--emulate", "fast:2@0.1:4GiB") as it:
        yield it


def training(notes: Path) -> JobSpec:
    command = (sys.executable, str(SCRIPT), str(notes), str(STEPS), "busy_ms=10")
    return JobSpec(name="training", command=command, profile="off", checkpoint_s=60.0, grace_s=60.0)


def steps_done(notes: Path) -> Counter[int]:
    """Return how often each step was done to its end."""
    lines = (line.split() for line in notes.read_text().splitlines())
    return Counter(int(step) for *_, end, step in lines if end != "0")


async def until_explained(client, job_id: str, cause: str) -> None:
    """Wait until a round has said why a job waits."""
    async for event in client.follow_events():
        if any(wait["job_id"] == job_id and wait["cause"] == cause for wait in event.fact.get("waits", ())):
            return


@pytest.mark.thorough
async def test_the_training_on_a_drained_device_goes_on_beside_it_and_loses_no_step(cluster, tmp_path):
    notes = tmp_path / "notes"
    notes.touch()
    async with cluster.client() as client:
        node = (await client.nodes()).nodes[0].id
        job_id = (await client.submit(training(notes))).id
        await until(client, job_id, "run.started.v1")
        (first,) = (await facts(client, job_id, "run.started.v1"))[0].fact["devices"]
        while len(steps_done(notes)) < 20:
            await client.nodes()
        drained = cluster.run("node", "drain", node, "--device", str(first), "--preempt", "--reason", "a loud fan")
        assert f"device {node}/fast{first} takes no new jobs; 1 running job is moved" in drained.stdout
        job = await client.wait(job_id)
        assert (job.state, job.preemptions, job.attempts) == ("CD", 1, 2), job.reason
        runs = [event.fact["devices"] for event in await facts(client, job_id, "run.started.v1")]
        assert runs == [[first], [1 - first]]
        ended = (await facts(client, job_id, "run.ended.v1"))[0].fact
        assert (ended["outcome"], ended["reason"]) == (
            "preempted",
            f"device {node}/fast{first} is drained: a loud fan",
        )
        assert steps_done(notes) == dict.fromkeys(range(STEPS), 1)
        assert f"fast{first} (drained: a loud fan)" in " ".join(cluster.run("nodes", "-o", "wide").stdout.split())

        pair = (await client.submit(JobSpec(name="pair", command=("true",), gpus=2, profile="off"))).id
        await until_explained(client, pair, "capacity")
        why = await client.why(pair)
        assert why.evidence == f"needs 2, 1 left that take jobs; devices drained: {node}/fast{first} (a loud fan)"
        cluster.run("node", "resume", node, "--device", str(first))
        assert (await client.wait(pair)).state == "CD"
