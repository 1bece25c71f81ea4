"""Every published figure and end time is reproduced, to the second."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from fast_path_cases import TIRESIAS, golden, trace_of

from penstock_simulator.fast import simulate
from penstock_simulator.outcome import summary
from penstock_simulator.traces import read
from penstock_simulator.virtual_cluster import parse
from sweeps import sampled

COMPAT = "tiresias-2019"
NAMES = {
    "fifo": ("fifo", {}),
    "fjf": ("fifo-backfill", {}),
    "sjf": ("fewest-gpus", {}),
    "shortest": ("srtf", {}),
    "shortest-gpu": ("srsf", {}),
    "dlas": ("las", {}),
    "dlas-gpu": ("2d-las", {}),
    "dlas-gpu-05": ("2d-las", {"promote_knob": 0.5}),
    "dlas-gpu-1": ("2d-las", {"promote_knob": 1.0}),
    "dlas-gpu-2": ("2d-las", {"promote_knob": 2.0}),
    "dlas-gpu-gittins": ("2d-gittins", {}),
}


def rows() -> list[dict[str, str]]:
    with (TIRESIAS / "expected.csv").open() as file:
        return list(csv.DictReader(file))


def label(row: dict[str, str]) -> str:
    return "-".join(row[name] for name in ("trace", "nodes", "policy", "placement"))


@pytest.mark.parametrize("row", rows(), ids=label)
def test_a_published_row_is_reproduced(row):
    trace = read(TIRESIAS / f"{row['trace']}.csv", "tiresias")
    samples = np.loadtxt(TIRESIAS / "gpu_time_s_1000.csv", skiprows=1)
    policy, settings = NAMES[row["policy"]]
    found = summary(
        simulate(
            trace,
            parse(f"{row['nodes']}x{row['gpus_per_node']}"),
            policy,
            settings=settings,
            placement=row["placement"],
            compat=COMPAT,
            gpu_time_samples=samples,
        )
    )
    figures = {
        "sum_jct_s": found.sum_jct_s,
        "avg_jct_s": round(found.avg_jct_s, 3),
        "median_jct_s": found.median_jct_s,
        "p95_jct_s": found.p95_jct_s,
        "makespan_s": found.makespan_s,
        "preemptions": found.preemptions,
        "events": found.events,
        "promotions": found.promotions,
    }
    assert figures == {name: float(row[name]) for name in figures}


def test_there_are_rows():
    assert len(rows()) == 63


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "policy"),
    sampled([("fifo", "fifo"), ("fjf", "fifo-backfill"), ("shortest", "srtf"), ("dlas_gpu", "2d-las")]),
)
def test_the_published_end_times_are_those_of_every_job(column, policy):
    trace, ends = golden()
    found = simulate(trace, parse("64x4"), policy, compat=COMPAT)
    assert np.array_equal(found.end_s, ends[f"tiresias_{column}_end"])


def test_yarn_fills_whole_idle_nodes_for_a_gang_larger_than_one():
    trace = trace_of([(0, 3, 10), (0, 3, 10), (0, 6, 10)])
    found = simulate(trace, parse("3x4"), "fifo", placement="yarn", compat=COMPAT)
    assert found.end_s.tolist() == [10, 10, 20]  # the third finds an idle node, and no rest of two on one node
    assert simulate(trace, parse("3x4"), "fifo", compat=COMPAT).end_s.tolist() == [10, 10, 10]
    trace = trace_of([(0, 2, 10), (0, 3, 10), (0, 6, 10)])
    assert simulate(trace, parse("3x4"), "fifo", placement="yarn", compat=COMPAT).end_s.tolist() == [10, 10, 10]
    apart = trace_of([(0, 3, 10), (0, 3, 10), (0, 2, 10)])
    assert simulate(apart, parse("2x4"), "fifo", placement="yarn", compat=COMPAT).end_s.tolist() == [10, 10, 20]
    assert simulate(apart, parse("2x4"), "fifo", compat=COMPAT).end_s.tolist() == [10, 10, 10]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"placement": "best"}, "expected one of count"),
        ({"compat": "tiresias"}, "expected one of tiresias-2019"),
        ({"policy": "sjf"}, "expected one of fifo"),
        ({"overhead_s": 3.0}, "knows none"),
        ({"settings": {"knob": 1}}, "settings are thresholds_gpu_s, promote_knob"),
        ({"settings": {"thresholds_gpu_s": "9,3"}}, "rising"),
        ({"settings": {"promote_knob": "often"}}, "promote_knob"),
    ],
)
def test_what_is_not_known_is_named(wrong, said):
    asked = {"policy": "fifo", "compat": COMPAT, **wrong}
    with pytest.raises(ValueError, match=said):
        simulate(trace_of([(0, 1, 1)]), parse("1x1"), asked.pop("policy"), **asked)


def test_parts_of_seconds_are_refused_in_compat_mode():
    with pytest.raises(ValueError, match="whole seconds"):
        simulate(trace_of([(0.5, 1, 1)]), parse("1x1"), "fifo", compat=COMPAT)


def test_the_makespan_counts_from_the_first_submission():
    for compat in (COMPAT, None):
        found = simulate(trace_of([(100, 1, 10), (105, 1, 10)]), parse("1x1"), "fifo", compat=compat)
        assert summary(found).makespan_s == 20


def test_a_job_larger_than_the_cluster_never_starts_and_is_in_nobodys_way():
    trace = trace_of([(0, 9, 10), (1, 1, 10)])
    for compat in (COMPAT, None):
        found = simulate(trace, parse("1x4"), "fifo", compat=compat)
        assert found.finished.tolist() == [False, True]
        assert found.end_s[1] == 11
