"""Quotas and reservations that are set while a real cluster runs: they hold at once, and outlive a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from clusters import Cluster, running

from penstock_testing import eventually

pytestmark = pytest.mark.thorough

BORROWERS_LEAVE_AT_ONCE = "[matcher]\nmin_run_s = 0.0\noverhead_share = 1.0\n"
"""Else a run that has just begun stays for some forty seconds, so that a preemption costs little beside it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("quotas")
    (folder / "penstock.toml").write_text(BORROWERS_LEAVE_AT_ONCE)
    with running(folder / "data", "--emulate", "fast:2", "--config", str(folder / "penstock.toml")) as one:
        yield one


async def test_a_team_gets_its_own_back_by_a_quota_that_is_set_while_the_cluster_runs(cluster: Cluster) -> None:
    assert "no team has a quota" in cluster.run("quota", "ls").stdout
    long = ["--profile", "off", "--", "sleep", "600"]
    other = [cluster.run("submit", "--team", "speech", *long).stdout.strip() for _ in range(2)]
    async with cluster.client() as client:
        for job in other:
            async for event in client.follow_events(job):
                if event.type == "run.started.v1":
                    break
    said = cluster.run("quota", "set", "vision=1", "speech=1", "--reason", "as agreed").stdout
    assert "quota.vision = 1" in said
    assert "quota.speech = 1" in said
    cluster.down()  # they are facts
    cluster.up()
    mine = cluster.run("submit", "--team", "vision", "--profile", "off", "--", "true").stdout.strip()
    async with cluster.client() as client:
        assert (await client.wait(mine)).state == "CD"  # a borrower has made way
    rows = [line.split() for line in cluster.run("quota", "ls").stdout.splitlines()]
    assert [row[:4] for row in rows[1:]] == [["default", "speech", "1", "yes"], ["default", "vision", "1", "yes"]]
    cluster.run("quota", "rm", "vision", "speech")
    assert "no team has a quota" in cluster.run("quota", "ls").stdout
    refused = cluster.tried("quota", "set", "vision=many")
    assert refused.returncode == 2
    refused = cluster.tried("policy", "set", "quota.vision=-1")
    assert "expected a number of devices from 0" in refused.stderr
    assert json.loads(cluster.run("policy", "show", "-o", "json").stdout)["pools"][0]["quotas"] == {}
    cluster.run("cancel", *other)


async def test_a_team_gets_its_devices_when_its_reservation_begins(cluster: Cluster) -> None:
    """Others run until it begins, then make way."""
    assert "nothing is reserved" in cluster.run("reservations").stdout
    assert "pool default has 2 devices" in cluster.tried("reserve", "vision", "--gpus", "3", "--until", "1h").stderr
    long = ["--profile", "off", "--", "sleep", "600"]
    first = cluster.run("submit", "--team", "speech", *long).stdout.strip()
    said = cluster.run("reserve", "vision", "--gpus", "2", "--from", "10m", "--until", "1h", "--reason", "course")
    assert said.stdout.startswith("reservation vision-1: 2 devices of pool default for team vision in ")
    cluster.down()  # it is a fact
    cluster.up()
    kept = cluster.run("submit", "--team", "speech", *long).stdout.strip()
    short = cluster.run("submit", "--team", "speech", "--time", "5m", "--profile", "off", "--", "true").stdout.strip()
    async with cluster.client() as client:
        assert (await client.wait(short)).state == "CD"  # it is over before the reservation begins

        async def waits_for_it() -> bool:
            return (await client.why(kept)).cause == "reservation"

        await eventually(waits_for_it)
    assert cluster.run("unreserve", "vision-1").stdout == "reservation vision-1 of pool default is cancelled\n"
    async with cluster.client() as client:
        for job in (first, kept):
            async for event in client.follow_events(job):
                if event.type == "run.started.v1":
                    break
    cluster.run("reserve", "vision", "--gpus", "1", "--from", "now+3", "--until", "1h")
    mine = cluster.run("submit", "--team", "vision", "--profile", "off", "--", "true").stdout.strip()
    async with cluster.client() as client:
        assert (await client.wait(mine)).state == "CD"  # a run of others has made way once it had begun
    assert "in force" in cluster.run("reservations").stdout
    assert "1 device of pool default reserved for team vision in" in cluster.run("story", kept).stdout
