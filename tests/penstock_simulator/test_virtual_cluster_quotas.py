"""Quotas of virtual clusters: what they are in a file, and what becomes of jobs with and without borrowing."""

from __future__ import annotations

import csv
import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outcome_rows import random_trace, trace_of
from published import TRACES, large_trace, reference

from penstock_simulator import fast, virtual_cluster
from penstock_simulator.engine.simulation import simulate
from penstock_simulator.outcome import summary
from penstock_simulator.trace import Trace
from penstock_simulator.traces import read
from penstock_simulator.virtual_cluster import VirtualClusterQuotas, merged, parse

JOBS = trace_of([(0, 2, 100), (0, 2, 100), (0, 1, 50), (5, 2, 10)], vcs=("a", "a", "b", "b"))


def test_a_file_names_gpus_and_says_whether_they_are_lent(tmp_path: Path) -> None:
    path = tmp_path / "quotas.toml"
    path.write_text("borrow = true\n[gpus]\n6214e9 = 512\nspeech = 0\n")
    assert virtual_cluster.read_quotas(path) == VirtualClusterQuotas(gpus={"6214e9": 512, "speech": 0}, borrow=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "missing required field `gpus`"),
        ("[gpus]\n", "Expected `object` of length >= 1"),
        ("[gpus]\na = -1\n", "Expected `int` >= 0"),
        ("lend = true\n[gpus]\na = 1\n", "unknown field `lend`"),
        ("[gpus", "expected a table"),
    ],
)
def test_what_is_no_file_of_quotas_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "q.toml").write_text(text)
    with pytest.raises(ValueError, match=r"quota file .*q\.toml") as caught:
        virtual_cluster.read_quotas(tmp_path / "q.toml")
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file or directory; name a file that can"):
        virtual_cluster.read_quotas(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("trace", "gpus", "said"),
    [
        (replace(JOBS, vcs=()), {"a": 1}, "names no virtual clusters"),
        (JOBS, {"a": 4, "b": 1}, "quotas add up to 5 GPUs and the cluster has 4"),
        (JOBS, {"a": 4}, "virtual cluster b has no quota"),
    ],
)
def test_quotas_that_cannot_be_kept_are_refused(trace: Trace, gpus: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        virtual_cluster.check(VirtualClusterQuotas(gpus=gpus), trace, parse("1x4"))


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 8)), min_size=1, max_size=3),
)
def test_every_gpu_is_dealt_to_one_virtual_cluster(wanted: list[int], groups: list[tuple[int, int]]) -> None:
    nodes = parse("+".join(f"{count}x{gpus}" for count, gpus in groups))
    given_ = VirtualClusterQuotas(gpus={f"v{at}": gpus for at, gpus in enumerate(wanted)})
    if sum(wanted) >= nodes.gpus:
        return
    trace = trace_of([(0, 1, 1)] * (len(wanted) + 1), vcs=(*given_.gpus, "other"))
    virtual_cluster.check(given_, trace, nodes)
    parts = virtual_cluster.divide(given_, trace, nodes)
    assert [part.nodes.gpus for part in parts] == [*wanted, nodes.gpus - sum(wanted)]
    assert sorted(row for part in parts for row in part.rows.tolist()) == list(range(len(trace)))


def test_without_borrowing_nobody_uses_what_another_leaves_idle() -> None:
    given_ = VirtualClusterQuotas(gpus={"a": 2, "b": 2})
    for found in (
        fast.simulate(JOBS, parse("1x4"), "fifo", quotas=given_),
        simulate(JOBS, parse("1x4"), "fifo", quotas=given_),
    ):
        assert found.end_s.tolist() == [100, 200, 50, 60]
        assert found.gpus == 4


def test_with_borrowing_what_is_idle_is_used_until_it_is_wanted() -> None:
    trace = trace_of([(0, 2, 100), (0, 2, 100), (20, 1, 50)], vcs=("a", "a", "b"))
    found = simulate(trace, parse("1x4"), "fifo", quotas=VirtualClusterQuotas(gpus={"a": 2, "b": 2}, borrow=True))
    assert found.start_s.tolist() == [0, 0, 20]
    assert found.end_s.tolist() == [100, 150, 70]  # its 80 s go on when b is done
    assert found.preemptions.tolist() == [0, 1, 0]


def test_jobs_whose_quota_is_nothing_never_start() -> None:
    found = fast.simulate(JOBS, parse("1x4"), "fifo", quotas=VirtualClusterQuotas(gpus={"a": 4, "b": 0}))
    assert np.isnan(found.start_s).tolist() == [False, False, True, True]


def test_a_single_virtual_cluster_is_the_whole_cluster() -> None:
    trace = replace(random_trace(60, seed=3), vcs=("all",) * 60)
    given_ = VirtualClusterQuotas(gpus={"all": 8})
    alone = fast.simulate(trace, parse("2x4"), "2d-las", timeline=True)
    divided = fast.simulate(trace, parse("2x4"), "2d-las", timeline=True, quotas=given_)
    assert divided.end_s.tolist() == alone.end_s.tolist()
    assert divided.timeline is not None
    assert alone.timeline is not None
    for name in ("at_s", "busy_gpus", "waiting_jobs"):
        whole, parts = getattr(alone.timeline, name), getattr(divided.timeline, name)
        assert parts[-1] == whole[-1]
        assert parts.max() == whole.max()


def test_counting_cannot_lend() -> None:
    with pytest.raises(ValueError, match="borrow"):
        fast.simulate(JOBS, parse("1x4"), "fifo", quotas=VirtualClusterQuotas(gpus={"a": 2, "b": 2}, borrow=True))


def test_nothing_is_merged_from_no_part() -> None:
    assert np.isnan(merged(JOBS, "fifo", 4, []).end_s).all()


@pytest.mark.slow
def test_the_quotas_of_the_philly_cluster_give_the_published_queueing() -> None:
    """Eleven virtual clusters of 8 GPUs a node; the twelfth has none, and its 63 jobs are left out."""
    trace = read(large_trace("philly_12vc_109532.csv.gz"), "auto")
    with gzip.open(TRACES / "philly_vc_nodes.orig.csv.gz", "rt") as file:
        gpus = {row["vc"]: 8 * int(row["node num"]) for row in csv.DictReader(file)}
    found = fast.simulate(trace, parse("352x8"), "fifo", quotas=VirtualClusterQuotas(gpus={**gpus, "51b7ef": 0}))
    figures = summary(found)
    assert figures.jobs - figures.finished == 63
    assert round(figures.avg_queue_s) == 3388


def test_the_quotas_of_a_part_of_philly_give_the_queueing_of_a_plain_loop() -> None:
    """Two GPUs for each published node; `ed69ec` has none, and its two jobs are left out (tests/data/README.md)."""
    expected = reference("philly_quotas.json")
    trace = read(TRACES / "bench_S3000_golden_256gpu.csv.gz")
    quotas = VirtualClusterQuotas(gpus=expected["gpus"])
    figures = summary(fast.simulate(trace, parse(f"{sum(expected['gpus'].values())}x1"), "fifo", quotas=quotas))
    assert figures.jobs - figures.finished == expected["never_started"]
    assert figures.avg_queue_s == pytest.approx(expected["avg_queue_s"])
