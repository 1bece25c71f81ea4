"""What bounds preemption and overtaking, in random histories of the production matcher."""

from __future__ import annotations

import pytest
from driven_matcher import Driven
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matcher_facts import job, matcher, node, rounds, run_all

from penstock_scheduler.pool.pool_settings import MatcherSettings
from sweeps import examples

MIN_RUN_S, SHARE, STOP_S, RESUME_S = 5.0, 0.2, 1.0, 2.0
PAYS_S = (STOP_S + RESUME_S) / SHARE


def busy(arrivals: list[tuple[float, float, int]]) -> Driven:
    """A pool in which jobs fall through three queues, and whoever comes new goes before whoever has run."""
    rules = MatcherSettings(min_run_s=MIN_RUN_S, overhead_share=SHARE, max_waits=0, prior_service_s=1000.0)
    pool = Driven({"fast": 3, "slow": 1}, rules, stop_s=STOP_S, resume_s=RESUME_S, thresholds_s=(4.0, 30.0))
    at_s = 1.0
    for number, (in_s, length_s, gpus) in enumerate(arrivals):
        at_s += in_s
        pool.submit(at_s, f"j{number}", length_s, gpus=gpus)
    pool.run(at_s + 400.0)
    return pool


def check_preemptions(pool: Driven) -> None:
    """
    Assert the bound: a job is preempted at most once for each ``max(min_run_s, overhead / share)`` of its service.

    Until a run of the workload has been stopped, its overhead is taken to be nothing; so each job may have one
    preemption more, after ``min_run_s``.
    """
    for job_id, runs_s in pool.preempted_s.items():
        assert min(runs_s) >= MIN_RUN_S
        assert all(run_s >= PAYS_S - 1e-6 for run_s in runs_s[1:])
        assert len(runs_s) <= 1 + (pool.executed_s[job_id] - MIN_RUN_S) / PAYS_S


arrivals = st.lists(
    st.tuples(st.floats(0.0, 12.0), st.floats(3.0, 90.0), st.sampled_from([1, 1, 1, 2, 3])), min_size=4, max_size=25
)


@settings(deadline=None, max_examples=examples(40))
@given(arrivals)
def test_a_job_is_preempted_no_more_often_than_its_service_allows(arrivals):
    check_preemptions(busy(arrivals))


def test_under_a_stream_of_new_jobs_long_ones_are_preempted_and_come_to_their_end():
    pool = busy([(0.0, 80.0, 1)] * 4 + [(8.0, 6.0, 1)] * 40)
    check_preemptions(pool)
    assert sum(map(len, pool.preempted_s.values())) >= 4
    assert all(pool.left_s[f"j{i}"] <= 1e-6 for i in range(4))


@st.composite
def streams(draw):
    """Kinds, a gang that one of them can hold, jobs that are under way when it comes, and a stream of small ones."""
    kinds = draw(st.fixed_dictionaries({"fast": st.integers(2, 5), "slow": st.integers(1, 5)}))
    gpus = draw(st.integers(2, max(kinds.values())))
    before = draw(st.lists(st.floats(5.0, 60.0), min_size=sum(kinds.values()), max_size=sum(kinds.values())))
    stream = draw(
        st.lists(st.tuples(st.floats(0.5, 3.0), st.floats(2.0, 40.0), st.integers(1, gpus)), min_size=30, max_size=60)
    )
    return kinds, gpus, before, stream


@pytest.mark.parametrize("assign", ["allox", "first-fit"])
@settings(deadline=None, max_examples=examples(30))
@given(streams())
def test_a_gang_starts_after_its_patience_and_the_runs_that_are_under_way_then(assign, drawn):
    kinds, gpus, before, stream = drawn
    patience_s = 20.0
    pool = Driven(kinds, MatcherSettings(patience_s=patience_s, max_waits=0, assign=assign))
    for number, length_s in enumerate(before):
        pool.submit(1.0, f"b{number}", length_s)
    pool.submit(2.0, "gang", 10.0, gpus=gpus)
    at_s = 2.0
    for number, (in_s, length_s, wanted) in enumerate(stream * 3):
        at_s += in_s
        pool.submit(at_s, f"s{number}", length_s, gpus=wanted)
    over_s = 2.0 + patience_s
    pool.run(over_s - 1e-9)
    if "gang" in pool.first_start_s:
        return
    under_way_s = max(pool.ends_s.values())
    pool.run(under_way_s + 1e-6)
    assert pool.first_start_s.get("gang", 1e9) <= max(over_s, under_way_s) + 1e-6


@settings(deadline=None, max_examples=examples(100))
@given(st.floats(3.0, 100.0), st.floats(0.5, 100.0))
@example(8.04856457515181, 8.0)  # 16.04… - 8.0 is less than 8.04…
def test_a_gang_keeps_what_is_free_at_the_time_at_which_the_matcher_wakes_for_it(since_s, patience_s):
    one = matcher(patience_s=patience_s).given(node("n1", fast=2), job("a"))
    run_all(one, 2.0)
    one.given(job("g", at_s=since_s, gpus=2)).at(since_s).settle()
    wake_s = one.decision().wake_at_s
    assert wake_s == since_s + patience_s
    assert [fact.keeps for fact in rounds(one.at(wake_s).settle())] == [{"g": "fast"}]


def test_without_patience_it_would_wait_for_as_long_as_small_jobs_come():
    pool = Driven({"fast": 2}, MatcherSettings(patience_s=1e6, max_waits=0))
    for number in range(200):
        pool.submit(1.0 + number, f"s{number}", 2.5)
    pool.submit(1.5, "gang", 10.0, gpus=2)
    pool.run(190.0)
    assert "gang" not in pool.first_start_s


def test_a_gang_stays_with_its_kind_though_another_has_more_for_it_later():
    """Otherwise what was kept of the first kind would go to small jobs, and the wait would begin anew."""
    pool = Driven({"fast": 3, "slow": 3}, MatcherSettings(patience_s=5.0, max_waits=0))
    for number, length_s in enumerate([10.0, 40.0, 40.0]):
        pool.submit(1.0, f"f{number}", length_s, kinds=("fast",))
    for number, length_s in enumerate([20.0, 20.0, 60.0]):
        pool.submit(1.0, f"s{number}", length_s, kinds=("slow",))
    pool.submit(2.0, "gang", 10.0, gpus=3)
    for number in range(60):
        pool.submit(3.0 + number, f"t{number}", 30.0)
    pool.run(41.0 + 1e-6)
    assert pool.first_start_s["gang"] == pytest.approx(41.0)
