"""Every published file: as many jobs as an independent count found (zcat and awk)."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_sim import traces

SHARED = Path(__file__).parents[3] / "shared"


def published(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"no {path}: the published traces are not here")
    return path


def test_philly_of_twelve_virtual_clusters() -> None:
    trace = traces.read(published("traces/philly_12vc_109532.csv.gz"))
    assert len(trace) == 109_532
    assert int(trace.num_gpus.sum()) == 183_836
    assert int(trace.duration_s.sum()) == 3_177_440_069
    assert len(set(trace.vcs)) == 12
    assert trace.dropped == {}
    assert (trace.name, trace.job_ids[0], trace.submit_s[0]) == ("philly_12vc_109532", "6214e9-0", 689220.0)
