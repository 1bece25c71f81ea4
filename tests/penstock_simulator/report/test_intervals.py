"""Intervals of a paired bootstrap."""

from __future__ import annotations

import numpy as np
import pytest

from penstock_simulator.report import intervals
from penstock_simulator.report.intervals import LEAST_JOBS, change


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_figures_are_those_of_the_jobs_themselves() -> None:
    was_s, is_s = np.arange(1.0, 101.0), np.arange(1.0, 101.0) / 2
    found = change(was_s, is_s, rng())
    assert (found.jobs, found.was_avg_s, found.avg_s) == (100, 50.5, 25.25)
    assert (found.avg_change_s, found.ratio) == (-25.25, 0.5)
    assert (found.was_p95_s, found.p95_s, found.p95_change_s) == (95.0, 47.5, -47.5)
    assert found.avg_interval_s is not None
    assert found.avg_change_s in found.avg_interval_s
    assert found.ratio_interval is not None
    assert found.ratio_interval.low == pytest.approx(found.ratio_interval.high) == pytest.approx(0.5)


def test_pairs_stay_together_so_that_what_is_equal_cancels() -> None:
    was_s = rng().lognormal(3.0, 2.0, 200)
    found = change(was_s, was_s + 1.0, rng())
    assert found.avg_interval_s is not None
    assert (found.avg_interval_s.low, found.avg_interval_s.high) == pytest.approx((1.0, 1.0))
    assert found.certain


def test_the_interval_covers_the_true_difference_about_as_often_as_it_says() -> None:
    draw = rng(5)
    covered = 0
    for _ in range(200):
        was_s = draw.exponential(10.0, 60)
        found = change(was_s, was_s + draw.normal(2.0, 5.0, 60), draw, resamples=400)
        assert found.avg_interval_s is not None
        covered += 2.0 in found.avg_interval_s
    assert 180 <= covered <= 198


def test_the_same_seed_gives_the_same_intervals_also_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    was_s, is_s = rng(2).exponential(1.0, 50), rng(3).exponential(1.0, 50)
    whole = change(was_s, is_s, rng())
    assert whole == change(was_s, is_s, rng())
    assert whole != change(was_s, is_s, rng(9))
    monkeypatch.setattr(intervals, "_CELLS", 50 * 7)
    assert change(was_s, is_s, rng()) == whole


def test_few_jobs_have_no_interval_and_none_have_zeros() -> None:
    few = change(np.ones(LEAST_JOBS - 1), np.ones(LEAST_JOBS - 1), rng())
    assert (few.avg_interval_s, few.p95_interval_s, few.ratio_interval, few.certain) == (None, None, None, False)
    none = change(np.empty(0), np.empty(0), rng())
    assert (none.jobs, none.avg_s, none.p95_s, none.ratio) == (0, 0.0, 0.0, None)


def test_a_job_that_did_not_finish_is_refused() -> None:
    with pytest.raises(ValueError, match="leave out jobs that did not finish in both"):
        change(np.array([1.0]), np.array([np.nan]), rng())
