"""2D-LAS against its definition and the published three-job example."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_policies import las

thresholds = st.lists(st.floats(0.5, 1e6), max_size=5, unique=True).map(sorted)


@given(thresholds, st.integers(1, 8), st.floats(0.0, 1e4), st.floats(0.0, 1e4))
def test_a_job_is_in_the_queue_of_its_attained_service_whenever_one_looks(limits, gpus, executed_s, run_s):
    crossings = las.crossings_s(gpus, executed_s, 0.0, limits)
    attained = np.array([gpus * (executed_s + run_s)])
    near = any(math.isclose(attained[0], limit, abs_tol=1e-6, rel_tol=1e-9) for limit in limits)
    assert near or las.queue_at(crossings, run_s) == las.queues(attained, limits)[0]


@given(thresholds, st.integers(1, 8), st.floats(0.0, 1e4), st.floats(0.0, 2e9))
def test_at_its_next_crossing_a_job_is_in_the_next_queue(limits, gpus, executed_s, now_s):
    crossings = las.crossings_s(gpus, executed_s, now_s, limits)
    next_s = min((crossing for crossing in crossings if crossing > now_s), default=math.inf)
    if math.isfinite(next_s):
        assert las.queue_at(crossings, next_s) > las.queue_at(crossings, now_s)


def test_a_job_that_has_never_run_is_not_promoted():
    assert las.promotion_s(0.0, 1e9, 0.0, knob=1.0) == math.inf


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
