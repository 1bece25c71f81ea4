"""Figures as a table, as JSON and as CSV."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from outcome_rows import outcome_of, random_trace, trace_of

from penstock_simulator.outcome import OutcomeSummary
from penstock_simulator.report import page, policy_comparison
from penstock_simulator.report.policy_comparison import Comparison

TINY = trace_of([(0.0, 1, 100.0), (0.0, 1, 10.0)])
FIFO = outcome_of(TINY, 1, "fifo")
SHORTEST = outcome_of(TINY, 1, "srtf", key=lambda job: float(TINY.duration_s[job]))


def test_a_comparison_as_json_has_the_trace_the_cluster_and_the_figures_of_each_policy() -> None:
    body = msgspec.json.decode(msgspec.json.encode(Comparison(TINY, "1x1", [FIFO]).document))
    assert body == {
        "trace": "tiny.csv",
        "cluster": "1x1",
        "policies": {
            "fifo": {
                "jobs": 2,
                "finished": 2,
                "in_window": 2,
                "dropped": 0,
                "sum_jct_s": 210.0,
                "avg_jct_s": 105.0,
                "median_jct_s": 105.0,
                "p95_jct_s": 110.0,
                "p99_jct_s": 110.0,
                "avg_queue_s": 50.0,
                "makespan_s": 110.0,
                "utilisation": 1.0,
                "preemptions": 0,
                "promotions": 0,
                "events": 3,
                "wall_s": 0.25,
                "jobs_per_s": 8.0,
            }
        },
    }


def test_ratios_are_to_the_first_policy() -> None:
    rows = policy_comparison.rows(Comparison(TINY, "1x1", [FIFO, SHORTEST]), lambda seconds: f"{seconds:g}")
    assert rows[0] == ("fifo", "105", "1.00", "105", "110", "50", "110", "100%", "0")
    assert rows[1][:3] == ("srtf", "60", "0.57")


def test_averages_over_different_jobs_are_no_ratio() -> None:
    cut = replace(SHORTEST, end_s=np.array([np.nan, 10.0]))
    comparison = Comparison(TINY, "1x1", [FIFO, cut])
    assert comparison.ratio("srtf") is None
    assert "srtf: 1 of 2 jobs did not finish; JCTs leave them out" in policy_comparison.notes(comparison)


def test_the_wide_table_has_every_figure() -> None:
    comparison = Comparison(TINY, "1x1", [FIFO])
    assert set(policy_comparison.WIDE) == {
        "POLICY",
        "RATIO",
        *(name.upper() for name in OutcomeSummary.__struct_fields__),
    }
    assert all(len(row) == len(policy_comparison.WIDE) for row in policy_comparison.wide_rows(comparison))


def test_rows_that_are_no_jobs_are_told_with_their_reasons() -> None:
    trace = replace(TINY, dropped={"without an end": 1_200, "of zero GPUs": 3, "negative": 0})
    notes = policy_comparison.notes(Comparison(trace, "1x1", [outcome_of(trace, 1)]))
    assert notes == ["1,203 rows of the trace are no jobs: 1,200 without an end, 3 of zero GPUs"]


def test_jobs_as_csv_read_back_as_they_were(tmp_path: Path) -> None:
    trace = replace(random_trace(40, seed=5), vcs=[f"vc,{at % 3}" for at in range(40)])
    fractional = replace(trace, duration_s=trace.duration_s + 0.1)
    outcome = outcome_of(fractional, 4, until_s=float(trace.submit_s[-1]))
    assert not outcome.finished.all()
    page.write_jobs(outcome, tmp_path / "jobs.csv")
    with (tmp_path / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["job_id"] for row in rows] == list(trace.job_ids)
    assert [row["vc"] for row in rows] == list(trace.vcs)
    columns = {
        "submit_s": trace.submit_s,
        "num_gpus": trace.num_gpus,
        "duration_s": fractional.duration_s,
        "start_s": outcome.start_s,
        "end_s": outcome.end_s,
        "jct_s": outcome.end_s - trace.submit_s,
        "executed_s": outcome.executed_s,
    }
    for name, values in columns.items():
        read = np.array([float(row[name] or "nan") for row in rows])
        np.testing.assert_array_equal(read, values, err_msg=name)


def test_a_window_tells_how_many_jobs_finished_in_it() -> None:
    found = Comparison(
        trace_of([(10, 1, 100), (10, 1, 7)]), "1x1", [outcome_of(trace_of([(10, 1, 100), (10, 1, 7)]), 1)]
    )
    assert found.summaries["fifo"].in_window == 2
    assert not any("within" in note for note in policy_comparison.notes(found))
    short = replace(found, window_s=100.0)
    assert short.summaries["fifo"].in_window == 1  # the first ends 100 s after its submission, which was the first
    assert "jobs that finished within 1.7 min of the first submission: fifo 1" in policy_comparison.notes(short)


def test_jobs_that_were_dropped_are_told_apart_from_those_that_did_not_finish() -> None:
    trace = trace_of([(0, 1, 5), (0, 1, 5), (0, 1, 5)])
    some = replace(outcome_of(trace, 1, until_s=4), dropped=np.array([False, True, False]))
    notes = policy_comparison.notes(Comparison(trace, "1x1", [some]))
    assert "fifo: 2 of 3 jobs did not finish; JCTs leave them out" in notes
    assert "fifo: 1 of 3 jobs found no room and were dropped" in notes
