"""Series of metrics: bounded, thinned out, and dropped by who was heard or looked at last."""

from __future__ import annotations

import math
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_dashboard.metric_series import (
    MOST_METRICS,
    MOST_POINTS,
    MOST_SERIES,
    SAMPLES_PER_S,
    STEPS_PER_S,
    JobSeries,
    MetricSeries,
    MetricTable,
    SeriesPoint,
)
from penstock_log.request_bodies import RunProgress


def report(step: int, *, epoch: int = 1, samples: int = 0, **metrics: float) -> RunProgress:
    return RunProgress(job_id="j1", epoch=epoch, step=step, samples=samples, metrics=metrics)


@given(st.integers(2, 20), st.integers(1, 300))
def test_a_series_keeps_its_first_and_its_newest_point_and_never_more_than_the_most(most: int, heard: int) -> None:
    series = MetricSeries(most)
    for step in range(heard):
        series.add(SeriesPoint(step, float(step), float(step)))
        assert len(series) <= most + 1
    steps = [point.step for point in series]
    assert (steps[0], steps[-1]) == (0, heard - 1)
    assert steps == sorted(set(steps))
    gaps = {later - step for step, later in pairwise(steps[:-1])}
    assert len(gaps) <= 1  # evenly, but for the newest


def test_a_full_series_spans_all_that_was_heard() -> None:
    series = MetricSeries()
    for step in range(100_000):
        series.add(SeriesPoint(step, float(step), 0.0))
    assert MOST_POINTS / 2 <= len(series) <= MOST_POINTS + 1


@pytest.mark.parametrize("step", [-1, 2**62, 2**70])
def test_a_step_that_no_browser_can_draw_is_left_out(step: int) -> None:
    series = JobSeries()
    series.add(report(step, loss=1.0), 0.0)
    assert not len(series)


def test_values_that_are_no_finite_number_are_left_out() -> None:
    series = JobSeries()
    series.add(report(1, loss=math.nan), 0.0)
    series.add(report(2, loss=2.0), 1.0)
    assert [point.value for point in series.by_name["loss"]] == [2.0]


def test_what_an_earlier_run_reports_late_is_left_out() -> None:
    series = JobSeries()
    series.add(report(5, epoch=2, loss=0.5), 0.0)
    series.add(report(90, epoch=1, loss=9.0), 1.0)
    assert [point.step for point in series.by_name["loss"]] == [5]


def test_rates_are_taken_over_some_seconds_and_begin_anew_with_a_run() -> None:
    series = JobSeries()
    for second in range(10):
        series.add(report(20 * second, samples=640 * second), float(second))
    series.add(report(100, epoch=2), 10.0)
    series.add(report(104, epoch=2), 12.0)
    rates = [point.value for point in series.by_name[STEPS_PER_S]]
    assert rates == pytest.approx([20.0] * 9 + [2.0])
    assert {point.value for point in series.by_name[SAMPLES_PER_S]} == {640.0}


def test_a_run_that_goes_on_from_further_back_shows_no_negative_rate() -> None:
    series = JobSeries()
    for second, step in enumerate([100, 120, 40, 60, 80]):
        series.add(report(step), float(second))
    assert min(point.value for point in series.by_name[STEPS_PER_S]) > 0


def test_of_very_many_metrics_the_first_are_kept() -> None:
    series = JobSeries()
    series.add(report(1, **{f"m{number}": 1.0 for number in range(MOST_METRICS + 5)}), 0.0)
    assert (len(series.by_name), series.left_out) == (MOST_METRICS, 5)


@pytest.mark.thorough
def test_very_many_short_jobs_take_bounded_memory() -> None:
    now = [0.0]
    tracemalloc.start()
    table = MetricTable(lambda: now[0])
    for number in range(20_000):
        now[0] += 0.5
        table.add(f"j{number}", report(1, **{f"metric {n}": float(n) for n in range(8)}))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 64 * 2**20
    assert len(table) <= MOST_SERIES // 9
    assert table.of_job("j19999") is not None
    assert table.of_job("j0") is None


def test_a_job_that_runs_and_is_rarely_heard_stays_before_those_that_have_ended() -> None:
    now = [0.0]
    table = MetricTable(lambda: now[0], most_series=8)
    table.add("ended", report(1, loss=1.0))
    now[0] = 100.0
    table.add("runs", report(1, loss=1.0))
    assert table.of_job("ended") is not None, "looked at last"
    for job_id in ("a", "b", "c"):
        now[0] += 1.0
        table.add(job_id, report(1, loss=1.0))
    assert [job_id for job_id in ("ended", "runs", "a", "b", "c") if table.of_job(job_id) is not None] == [
        "runs", "a", "b", "c",
    ]  # fmt: skip


def test_the_jobs_that_were_neither_heard_nor_looked_at_for_longest_go() -> None:
    table = MetricTable(lambda: 0.0, most_points=3)
    for job_id in ("a", "b", "c"):
        table.add(job_id, report(1, loss=1.0))
    assert table.of_job("a") is not None
    table.add("d", report(1, loss=1.0))
    assert [job_id for job_id in "abcd" if table.of_job(job_id) is not None] == ["a", "c", "d"]
