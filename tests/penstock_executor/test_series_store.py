"""Series of a node's runs: when they are due, and what a later executor finds of them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock_executor.run_folders import SERIES, path_of
from penstock_executor.series_store import LEAST_S, MOST_S, SeriesStore
from penstock_log import run_series
from penstock_log.agent_protocol import LoopReport
from penstock_log.run_series import RunSeries

KEY = ("j1", 1)
LARGE = 1 << 20
UNEVEN = msgspec.msgpack.encode(RunSeries(job_id="j1", epoch=1, steps=[1, 2], times_s=[1.0]))


def report(step: int, **metrics: float) -> LoopReport:
    return LoopReport(step=step, loop_steps=step, loop_s=1.0, metrics=metrics)


def store(folder: Path) -> SeriesStore:
    path_of(folder, KEY).mkdir(parents=True, exist_ok=True)
    return SeriesStore(folder)


def test_a_series_is_due_after_a_part_of_the_runs_age_and_only_where_it_has_changed(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.add_report(KEY, report(1, loss=1.0), 0.0)
    assert kept.due(LEAST_S - 0.1) == []
    assert kept.due(LEAST_S) == [KEY]
    assert kept.give_out(KEY, LARGE, LEAST_S) is not None
    assert kept.due(1e6) == []
    assert kept.give_out(KEY, LARGE, LEAST_S) is None
    kept.add_report(KEY, report(2, loss=1.0), 400.0)
    kept.give_out(KEY, LARGE, 400.0)
    kept.add_report(KEY, report(3, loss=1.0), 401.0)
    assert (kept.due(419.0), kept.due(422.0)) == ([], [KEY])
    kept.give_out(KEY, LARGE, 1e5)
    kept.add_report(KEY, report(4, loss=1.0), 1e5)
    assert (kept.due(1e5 + MOST_S - 1), kept.due(1e5 + MOST_S)) == ([], [KEY])


def test_a_run_that_reports_no_metrics_has_no_series(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.add_report(KEY, report(1), 0.0)
    assert not kept.has_run(KEY)
    assert kept.give_out(KEY, LARGE, 9.0) is None


def test_what_was_not_published_is_due_again(tmp_path: Path) -> None:
    kept = store(tmp_path)
    kept.add_report(KEY, report(1, loss=1.0), 0.0)
    kept.give_out(KEY, LARGE, 5.0)
    kept.take_back(KEY)
    assert kept.due(10.0) == [KEY]


def test_the_next_executor_goes_on_with_the_series_of_a_run_that_goes_on(tmp_path: Path) -> None:
    first = store(tmp_path)
    for step in (1, 2):
        first.add_report(KEY, report(step, loss=1.0 / step), float(step))
    first.save_all()
    second = store(tmp_path)
    second.adopt_run(KEY, 10.0)
    second.add_report(KEY, report(3, loss=0.1), 11.0)
    body = second.give_out(KEY, LARGE, 12.0)
    assert body is not None
    assert run_series.decode(body).steps == [1, 2, 3]


def test_the_next_executor_publishes_the_series_of_a_run_that_ended_meanwhile(tmp_path: Path) -> None:
    first = store(tmp_path)
    first.add_report(KEY, report(1, loss=1.0), 1.0)
    first.save_all()
    second = store(tmp_path)
    second.adopt_run(KEY, 10.0)
    assert second.give_out(KEY, LARGE, 12.0) is not None
    second.adopt_run(("other", 1), 10.0)
    assert not second.has_run(("other", 1))


def test_a_damaged_file_is_as_good_as_none(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for body in (b"", b"\xc1", b"[1, 2]", UNEVEN):
        (path_of(tmp_path, KEY) / SERIES).write_bytes(body)
        kept.forget_run(KEY)
        kept.adopt_run(KEY, 1.0)
        kept.add_report(KEY, report(1, loss=1.0), 1.0)
        assert kept.give_out(KEY, LARGE, 9.0) is not None
