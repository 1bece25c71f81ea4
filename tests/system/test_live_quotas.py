"""Quotas that are set live, on a real cluster: from the next round on they hold, and they outlive a restart."""

from __future__ import annotations

import json
from pathlib import Path

from clusters import Cluster


async def test_a_team_gets_its_own_back_by_a_quota_that_is_set_while_the_cluster_runs(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data", "--emulate", "fast:2")
    cluster.up()
    try:
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
    finally:
        cluster.down()
