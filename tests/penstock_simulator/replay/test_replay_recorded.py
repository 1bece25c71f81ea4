"""
The past of real clusters, run again: logs of `tests/support/mixed_streams.py`, without what they say of the machine.

Two emulated nodes, on a busy host of two cores; commands that say nothing, scripts with sessions, gangs, arrays,
sweeps, jobs in lanes and in fractions of devices, held ones and some that fail and are tried again, while nodes are
drained and resumed. Where a policy is meant to decide otherwise than it did, record new ones.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from penstock_simulator.replay.history import ClusterHistory, read_log
from penstock_simulator.replay.replay import replay

FOLDER = Path(__file__).parents[2] / "data" / "recorded"
TOLERANCE = 0.05


def recorded(name: str) -> ClusterHistory:
    return read_log(gzip.decompress((FOLDER / f"{name}.log.gz").read_bytes()).splitlines())


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".log.gz") for path in FOLDER.glob("*.log.gz")))
def test_the_replay_of_a_real_cluster_is_within_the_promised_tolerance(name: str) -> None:
    found = replay(recorded(name))
    was_s, now_s = found.average_jct_s()
    assert found.known.sum() >= 4
    assert now_s == pytest.approx(was_s, rel=TOLERANCE)
    late_s = np.abs(found.replayed.start_s - found.measured.start_s)
    assert np.median(late_s[found.known]) < 0.25


def test_commands_that_count_nothing_wait_for_no_samples_that_there_were_not() -> None:
    """A session job and, after it, three times `sh -c "sleep 2; echo N"`, each idle devices to begin with."""
    found = replay(recorded("three-commands"))
    assert list(found.names) == ["train", "sh", "sh", "sh"]
    assert found.replayed.start_s == pytest.approx(found.measured.start_s, abs=0.1)
    assert found.replayed.end_s == pytest.approx(found.measured.end_s, abs=0.1)
