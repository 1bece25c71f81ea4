"""When a job may expect to start."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_scheduler.start_forecast import QueuedNeed, start_in_s


def test_the_last_of_the_devices_that_a_gang_needs_decides():
    assert start_in_s({"fast": [9.0, 2.0, 5.0]}, [QueuedNeed(2, {"fast": 1.0})]) == 5.0


def test_jobs_before_it_take_their_turns_first():
    assert (
        start_in_s(
            {"fast": [2.0]}, [QueuedNeed(1, {"fast": 3.0}), QueuedNeed(1, {"fast": 4.0}), QueuedNeed(1, {"fast": 1.0})]
        )
        == 9.0
    )


def test_a_small_job_does_not_wait_for_a_gang_that_waits_for_more():
    assert (
        start_in_s({"fast": [0.0, 50.0], "slow": [1.0]}, [QueuedNeed(2, {"fast": 5.0}), QueuedNeed(1, {"slow": 1.0})])
        == 1.0
    )


def test_in_order_a_small_job_does_wait_for_the_gang_before_it_but_not_for_one_that_never_fits():
    ready_s, small = {"fast": [0.0, 50.0], "slow": [1.0]}, QueuedNeed(1, {"slow": 1.0})
    assert start_in_s(ready_s, [QueuedNeed(2, {"fast": 5.0}), small], in_order=True) == 50.0
    assert start_in_s(ready_s, [QueuedNeed(3, {"fast": 5.0}), small], in_order=True) == 1.0


@pytest.mark.parametrize(
    ("ready_s", "gpus"), [({}, 1), ({"slow": [0.0]}, 1), ({"fast": [0.0]}, 2), ({"fast": [0.0, math.inf]}, 2)]
)
def test_where_devices_are_lacking_or_nothing_tells_there_is_no_number(ready_s, gpus):
    assert start_in_s(ready_s, [QueuedNeed(gpus, {"fast": 1.0})]) == math.inf


def test_a_job_of_unknown_length_is_in_the_way_only_of_its_own_device():
    unknown = QueuedNeed(1, {"fast": math.inf})
    assert start_in_s({"fast": [0.0, 7.0]}, [unknown, QueuedNeed(1, {"fast": 1.0})]) == 7.0
    assert start_in_s({"fast": [0.0]}, [unknown, QueuedNeed(1, {"fast": 1.0})]) == math.inf


times = st.lists(st.floats(0, 100), min_size=1, max_size=5)


@given(times, st.lists(st.tuples(st.integers(1, 5), st.floats(0, 50)), max_size=6), st.integers(1, 5))
def test_on_one_kind_more_jobs_before_it_never_make_it_sooner(ready_s, before, gpus):
    own, queue = QueuedNeed(gpus, {"fast": 1.0}), [QueuedNeed(g, {"fast": run_s}) for g, run_s in before]
    starts = [start_in_s({"fast": ready_s}, [*queue[:n], own]) for n in range(len(queue) + 1)]
    assert starts == sorted(starts)
