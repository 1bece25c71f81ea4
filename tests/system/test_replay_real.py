"""A real small cluster's own past, run again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from clusters import Cluster

from penstock_log import JobSpec

TRAIN = """\
import sys
import time
import penstock

with penstock.session() as session:
    for _ in session.iterations(range(int(sys.argv[1]))):
        time.sleep(0.02)
"""


@pytest.mark.thorough
async def test_a_real_cluster_replayed_under_its_own_settings_is_close_to_what_happened(tmp_path: Path) -> None:
    """On a host as busy as one that runs tests; docs/simulation.md has figures of longer runs."""
    (tmp_path / "train.py").write_text(TRAIN)
    cluster = Cluster(tmp_path / "data", "--emulate", "fast:1@1.0:1GiB")
    cluster.up()
    try:
        async with cluster.client() as client:
            for number, steps in enumerate((40, 20, 30)):
                command = (sys.executable, str(tmp_path / "train.py"), str(steps))
                await client.submit(JobSpec(id=f"j{number}", name="train", command=command, profile="off"))
            states = [(await client.wait(f"j{number}")).state for number in range(3)]
        assert states == ["CD"] * 3
        body = json.loads(cluster.run("replay", "-p", "configured,srtf", "-o", "json").stdout)
    finally:
        cluster.down()
    same = body["changes"]["configured"]["all"]
    assert (body["jobs"], body["completed"], same["jobs"]) == (3, 3, 3)
    assert abs(same["avg_change_s"]) < max(0.15 * same["was_avg_s"], 0.5)
    assert same["was_avg_s"] > 1.0
    assert body["changes"]["srtf"]["all"]["jobs"] == 3
