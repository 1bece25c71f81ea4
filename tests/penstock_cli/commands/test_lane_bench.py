from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_lanes_bench_measures_with_processes_of_its_own() -> None:
    command = [sys.executable, "-m", "penstock", "lanes", "bench", "--iterations", "100", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    costs = json.loads(done.stdout)
    assert costs["handovers"] >= 1
    assert 0 < costs["handover_us"]["median"] <= costs["handover_us"]["p99"]
    assert 0 < costs["uncontended_us"]["median"] < costs["handover_us"]["median"]
    assert costs["pipe_us"]["median"] > 0
    assert abs(costs["overhead_at_10ms"]) < 5
    assert 0 < costs["killed_ms"]["median"] <= costs["killed_ms"]["most"]
    assert 0 < costs["turn_handover_us"]["median"] <= costs["turn_handover_us"]["p99"]
