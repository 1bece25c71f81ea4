"""2D-LAS against its definition and the published three-job example."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_policies.queue_policies import QUEUE_POLICIES
from penstock_policies.ranking import PoolRanking, QueueLadder

thresholds = st.lists(st.floats(0.5, 1e6), max_size=5, unique=True).map(sorted)


def running(limits, gpus, executed_s, since_s, knob=None):
    """Return a ranking with one job that has executed so long, and has run again since then."""
    ranking = PoolRanking(QueueLadder(QUEUE_POLICIES["2d-las"], limits, knob))
    ranking.add("a", gpus=gpus, submitted_s=0.0)
    ranking.note("a", "running", since_s, executed_s=executed_s, waited_s=0.0)
    return ranking


@given(thresholds, st.integers(1, 8), st.floats(0.0, 1e4), st.floats(0.0, 1e4))
def test_a_job_is_in_the_queue_of_its_attained_service_whenever_one_looks(limits, gpus, executed_s, run_s):
    ranking = running(limits, gpus, executed_s, 0.0)
    ranking.settle(run_s)
    attained = gpus * (executed_s + run_s)
    near = any(math.isclose(attained, limit, abs_tol=1e-6, rel_tol=1e-9) for limit in limits)
    assert near or ranking["a"].queue == np.searchsorted(limits, attained, side="right")


@given(thresholds, st.integers(1, 8), st.floats(0.0, 1e4), st.floats(0.0, 2e9))
def test_at_its_next_crossing_a_job_is_in_the_next_queue(limits, gpus, executed_s, now_s):
    ranking = running(limits, gpus, executed_s, now_s)
    ranking.settle(now_s)
    before, next_s = ranking["a"].queue, ranking.next_s(now_s)
    if math.isfinite(next_s):
        ranking.settle(next_s)
        assert ranking["a"].queue > before


def test_a_job_that_has_never_run_is_not_promoted():
    ranking = PoolRanking(QueueLadder(QUEUE_POLICIES["2d-las"], (4.0,), promote_knob=1.0))
    ranking.add("a", gpus=1, submitted_s=0.0)
    ranking.settle(0.0)
    assert ranking.next_s(0.0) == math.inf
    assert not ranking.due(1e9)


def test_the_published_three_jobs_end_after_35_thirds_on_average():
    """Two devices, a quantum of one time unit, least attained service first, ties by the longest wait, then number."""
    gpus, length = np.array([2, 1, 2]), np.array([2, 8, 6])
    executed, last, finish = np.zeros(3), np.full(3, -1.0), np.zeros(3)
    for now in range(40):
        free, attained = 2, gpus * executed
        for job in sorted(range(3), key=lambda j: (attained[j], last[j], j)):
            if executed[job] < length[job] and gpus[job] <= free:
                free -= gpus[job]
                executed[job] += 1
                last[job] = now
                finish[job] = now + 1 if executed[job] == length[job] else 0
    assert sorted(finish) == [5, 14, 16]
    assert finish.mean() == pytest.approx(35 / 3)
