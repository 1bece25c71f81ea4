"""Priority classes on a real cluster: a run makes way for an urgent job, and the next one waits for the limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusters import Cluster

import penstock


async def until(client: penstock.Client, job: str, kind: str) -> None:
    """Wait for a fact about a job."""
    async for event in client.follow_events(job):
        if event.type == kind:
            return


@pytest.mark.thorough
async def test_an_urgent_job_has_a_run_make_way_and_the_next_one_waits_for_the_limit(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data", "--emulate", "fast:1")
    cluster.up()
    try:
        refused = cluster.tried("submit", "--class", "urgent", "--", "true")
        assert (refused.returncode, "has no class 'urgent'" in refused.stderr) == (2, True), refused.stderr
        words = ("--weight", "10", "--preempts", "--most-gpus", "1")
        assert cluster.run("class", "set", "urgent", *words).stdout == "pool default: class urgent is set\n"
        long = ["--profile", "off", "--", "sleep", "600"]
        plain = cluster.run("submit", *long).stdout.strip()
        async with cluster.client() as client:
            await until(client, plain, "run.started.v1")
            first, second = [cluster.run("submit", "--class", "urgent", *long).stdout.strip() for _ in range(2)]
            await until(client, first, "run.started.v1")
            why = await client.why(second)
            assert (why.cause, "lets a user hold 1 device at once" in why.evidence) == ("class_quota", True), why
            kept = cluster.tried("class", "rm", "urgent")
            assert (kept.returncode, "class urgent of pool default stays" in kept.stderr) == (5, True), kept.stderr
            await client.cancel(first)
            await until(client, second, "run.started.v1")
            assert (await client.job(plain)).job.state == "PD"
            for job in (second, plain):
                await client.cancel(job)
                await client.wait(job)
        told = cluster.run("story", plain).stdout
        assert f"for job {first} of class `urgent`; this one is of no class" in " ".join(told.split())
        cluster.run("class", "rm", "urgent")
        assert "no pool has a priority class" in cluster.run("class", "ls").stdout
    finally:
        cluster.down()
