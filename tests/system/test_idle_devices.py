"""Jobs that hold devices and do nothing, on the real thing."""

from __future__ import annotations

import sys

import pytest
from clusters import facts, running, until

from penstock_log import JobSpec

STOP = ("idle_after_s=1", "idle_grace_s=1", "idle_action=stop")
COMPUTES = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    sum(range(200_000))
    time.sleep(0.02)
"""
"""It takes about a tenth of a processor: ten times what makes it busy, and the rest is left to the services."""


@pytest.fixture
def cluster(tmp_path):
    with running(tmp_path / "data", "--emulate", "fast:2@0.1:4GiB") as it:
        yield it


@pytest.mark.thorough
async def test_a_job_that_sleeps_is_warned_and_stopped_and_its_neighbour_that_computes_is_not(cluster, tmp_path):
    enough = tmp_path / "enough"
    async with cluster.client() as client:
        sleeps = (await client.submit(JobSpec(name="sleeps", command=("sleep", "600"), profile="off"))).id
        command = (sys.executable, "-c", COMPUTES, str(enough))
        computes = (await client.submit(JobSpec(name="computes", command=command, profile="off"))).id
        await until(client, computes, "run.started.v1")
        cluster.run("policy", "set", "idle_after_s=1")
        await until(client, sleeps, "run.idle.v1")
        why = await client.why(sleeps)
        assert "its devices were not used, and almost no processor time was" in why.evidence
        assert (await client.job(sleeps)).job.state == "R"
        cluster.run("policy", "set", *STOP)
        job = await client.wait(sleeps)
        assert job.state == "CA"
        assert "pool default stops such runs" in job.reason
        assert "idle on " in cluster.run("show", sleeps).stdout
        assert await facts(client, computes, "run.idle.v1") == []
        enough.touch()
        assert (await client.wait(computes)).state == "CD"
