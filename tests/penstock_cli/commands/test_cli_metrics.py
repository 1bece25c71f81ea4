"""`penstock metrics` and `penstock show --plot`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable

import pytest
from fake_gateway import FakeGateway, job_view

from penstock_log.views import SeriesView

Run = Callable[..., tuple[int, str, str]]
HOSTILE = "<script>\x1b]0;mine\x07\n=cmd()"


@pytest.fixture
def gateway() -> FakeGateway:
    made = FakeGateway(job_view("j1", state="CD"), job_view("w1"), job_view("h1", state="R"))
    made.series["j1"] = SeriesView(
        id="j1",
        name="train",
        state="CD",
        steps=(1, 2, 3),
        times_s=(0.0, 1.5, 2.0),
        runs=(1, 1, 2),
        metrics={"loss": (4.0, 0.5, None), "acc": (None, 0.25, 0.5)},
        diverged={"loss": (2,)},
        left_out=3,
    )
    made.series["h1"] = SeriesView(
        id="h1", name="train", state="R", steps=(1, 2), times_s=(0.0, 1.0), runs=(1, 1), metrics={HOSTILE: (1.0, 2.0)}
    )
    return made


def test_a_table_has_a_row_for_each_stretch(penstock: Run) -> None:
    code, out, err = penstock("metrics", "j1")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["STEP", "TIME_S", "RUN", "LOSS", "ACC"],
        ["1", "1970-01-01T00:00:00Z", "1", "4", "-"],
        ["2", "1970-01-01T00:00:01Z", "1", "0.5", "0.25"],
        ["3", "1970-01-01T00:00:02Z", "2", "nan", "0.5"],
    ]
    assert "3 more are left out" in err


def test_csv_is_taken_by_a_reader_as_it_is(penstock: Run) -> None:
    code, out, _ = penstock("metrics", "j1", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert rows[0] == {"step": "1", "time_s": "0.0", "run": "1", "loss": "4.0", "acc": ""}
    assert rows[2]["loss"] == "nan"
    assert json.loads(penstock("metrics", "j1", "-o", "json")[1])["steps"] == [1, 2, 3]


def test_hostile_names_do_no_harm(penstock: Run) -> None:
    for arguments in (("metrics", "h1"), ("show", "h1", "--plot")):
        code, out, _ = penstock(*arguments)
        assert code == 0
        assert "\x1b" not in out
    rows = list(csv.reader(io.StringIO(penstock("metrics", "h1", "-o", "csv")[1])))
    assert [len(row) for row in rows] == [4, 4, 4]


def test_a_job_without_metrics_gets_a_sentence(penstock: Run) -> None:
    assert penstock("metrics", "w1")[:2] == (0, "w1 (train) has not reported any metrics: it waits\n")
    assert "has not reported any metrics" in penstock("show", "w1", "--plot")[1]
    assert penstock("metrics", "w1", "-o", "csv")[:2] == (0, "step,time_s,run\n")


def test_what_is_neither_a_job_nor_a_sweep_is_exit_code_4(penstock: Run) -> None:
    code, out, err = penstock("metrics", "nothing")
    assert (code, out) == (4, "")
    assert "no job 'nothing'" in err


def test_charts_are_drawn_of_all_metrics_or_of_those_that_are_named(penstock: Run) -> None:
    code, out, _ = penstock("show", "j1", "--plot")
    assert code == 0
    assert "loss: nan at step 3; from 0.5 to 4; no finite number at 1 row, first at step 3" in out
    assert "acc: 0.5 at step 3; from 0.25 to 0.5" in out
    assert max(map(len, out.splitlines())) <= 80
    code, out, _ = penstock("show", "j1", "acc", "--plot")
    assert code == 0
    assert "loss" not in out


def test_a_metric_without_plot_is_refused_with_the_reason(penstock: Run) -> None:
    code, _, err = penstock("show", "j1", "loss")
    assert code == 2
    assert "metrics are drawn with --plot" in err


def test_following_draws_the_end_of_a_job_that_is_over(penstock: Run) -> None:
    code, out, _ = penstock("show", "j1", "acc", "--plot", "--follow")
    assert code == 0
    assert "acc: 0.5 at step 3" in out
    for arguments in (("show", "j1", "-f"), ("show", "j1", "--plot", "-f", "--at", "3")):
        code, _, err = penstock(*arguments)
        assert code == 2
        assert "--follow goes with --plot and without --at" in err
