"""Series of a run's metrics: bounded, spanning the run, and joined over the runs of a job."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import run_series
from penstock_log.agent_protocol import LoopReport
from penstock_log.run_series import MOST_METRICS, MOST_ROWS, MOST_STEP, RunSeries, joined


def report(step: int, *diverged: str, loop_steps: int | None = None, **metrics: float) -> LoopReport:
    done = step if loop_steps is None else loop_steps
    return LoopReport(step=step, loop_steps=done, loop_s=1.0, metrics=metrics, diverged=diverged)


def series_of(steps: range, *, epoch: int = 1, begun_step: int = 0, most: int = MOST_ROWS, **value: float) -> RunSeries:
    made = RunSeries(job_id="j1", epoch=epoch)
    for step in steps:
        said = value or {"loss": float(step)}
        made.add(report(step, loop_steps=step - begun_step, **said), float(step), most=most)
    return made


@given(st.integers(3, 20), st.integers(1, 300))
def test_a_series_has_its_first_and_its_newest_report_and_never_more_rows_than_the_most(most: int, heard: int) -> None:
    series = RunSeries(job_id="j1", epoch=1)
    for step in range(1, heard + 1):
        series.add(report(step, loss=float(step)), float(step), most=most)
        assert len(series.steps) <= most
        assert (series.steps[0], series.steps[-1]) == (1, step)
        assert series.columns["loss"] == series.steps == series.times_s
    gaps = {later - step for step, later in zip(series.steps[1:-1], series.steps[2:-1], strict=False)}
    assert gaps <= {series.stride}
    assert series.steps[-1] - series.steps[-2] <= series.stride if len(series.steps) > 2 else True


def test_a_full_series_spans_all_that_was_reported() -> None:
    series = series_of(range(1, 100_001))
    assert MOST_ROWS / 2 <= len(series.steps) <= MOST_ROWS
    assert (series.steps[0], series.steps[-1]) == (1, 100_000)


def test_a_report_that_repeats_a_step_takes_the_place_of_the_one_before() -> None:
    series = series_of(range(1, 4))
    for _ in range(1000):
        series.add(report(3, loss=7.0), 9.0)
    assert (series.steps, series.columns["loss"], series.times_s[-1]) == ([1, 2, 3], [1.0, 2.0, 7.0], 9.0)


def test_reports_of_earlier_steps_or_without_metrics_or_with_steps_that_no_browser_holds_change_nothing() -> None:
    series = series_of(range(1, 4))
    assert not series.add(report(2, loss=9.0), 9.0)
    assert not series.add(report(4), 9.0)
    assert not series.add(report(MOST_STEP + 1, loss=1.0), 9.0)
    assert series.steps == [1, 2, 3]


def test_a_metric_that_comes_later_has_no_value_before_and_one_that_diverges_is_nan() -> None:
    series = RunSeries(job_id="j1", epoch=1)
    series.add(report(1, loss=1.0), 1.0)
    series.add(report(2, "loss", accuracy=0.5), 2.0)
    assert series.columns["accuracy"] == [None, 0.5]
    again = run_series.decode(series.encode(1 << 20))
    loss = again.columns["loss"]
    assert loss[0] == 1.0
    assert loss[1] is not None
    assert math.isnan(loss[1])


def test_metrics_beyond_the_most_are_left_out_and_counted() -> None:
    series = RunSeries(job_id="j1", epoch=1)
    series.add(report(1, **{f"m{i}": float(i) for i in range(MOST_METRICS + 3)}), 1.0)
    assert (len(series.columns), series.left_out) == (MOST_METRICS, 3)


def test_a_series_that_is_too_large_for_a_message_loses_rows_and_keeps_its_ends() -> None:
    series = series_of(range(1, 400))
    body = series.encode(2000)
    assert len(body) <= 2000
    again = run_series.decode(body)
    assert (again.steps[0], again.steps[-1]) == (1, 399)
    assert again.add(report(400, loss=1.0), 400.0)


@pytest.mark.parametrize("body", [b"", b"{}", msgspec.msgpack.encode({"job_id": "j", "epoch": 1, "steps": [1]})])
def test_what_is_no_series_is_refused(body: bytes) -> None:
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        run_series.decode(body)


def test_steps_that_a_later_run_did_anew_are_left_out() -> None:
    first, second = series_of(range(1, 11)), series_of(range(5, 8), epoch=2, begun_step=4)
    third = series_of(range(7, 13), epoch=3, begun_step=6)
    table = joined([third, first, second], most=100)
    assert table.steps == [*range(1, 13)]
    assert table.runs == [1] * 4 + [2] * 2 + [3] * 6
    assert table.superseded == 7


def test_a_run_that_began_from_nothing_supersedes_all_before_it() -> None:
    table = joined([series_of(range(1, 11)), series_of(range(1, 3), epoch=2)], most=100)
    assert (table.steps, table.runs, table.superseded) == ([1, 2], [2, 2], 10)


def test_a_metric_of_one_run_only_has_no_value_in_the_others() -> None:
    table = joined([series_of(range(1, 3), loss=1.0), series_of(range(3, 5), epoch=2, begun_step=2, f1=0.5)], most=9)
    assert table.columns == {"loss": [1.0, 1.0, None, None], "f1": [None, None, 0.5, 0.5]}


def test_the_table_of_a_job_with_fifty_runs_is_thinned_to_what_was_asked_for() -> None:
    runs = [series_of(range(100 * i + 1, 100 * i + 101), epoch=i + 1, begun_step=100 * i, most=64) for i in range(50)]
    table = joined(runs, most=200)
    assert len(table.steps) <= 200
    assert (table.steps[0], table.steps[-1]) == (1, 5000)
    assert table.columns["loss"] == table.steps
    assert joined([], most=1).steps == joined([RunSeries(job_id="j", epoch=1)], most=1).steps == []
    assert joined(runs, most=1).steps[0] == 1
