"""The bench of aggregation on a machine like any other: equal bits, fewer aggregators, nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

BENCH = [sys.executable, "-m", "penstock", "aggregation", "bench", "-o", "json"]


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_aggregation_bench_kills_aggregators_and_loses_no_update() -> None:
    done = subprocess.run(BENCH, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    costs = json.loads(done.stdout)
    assert (costs["bitwise_equal"], costs["update_equal"]) == (True, True)
    assert (costs["kill_lost_updates"], costs["kill_doubled_updates"]) == (0, 0)
    assert costs["kills"] >= 3
    assert costs["servers_own"] == 4
    assert 1 <= costs["servers_shared"] < 4
    assert costs["iteration_ratio"] > 0
    assert costs["migration_pause_ms"]["moves"] == 20
    assert 0 < costs["migration_pause_ms"]["median"] <= costs["migration_pause_ms"]["p99"]
