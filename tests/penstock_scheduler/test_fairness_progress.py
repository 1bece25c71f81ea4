"""How far users have got, wherever they ran, and how it fades."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import Device, JobSpec
from penstock_scheduler.fairness import HALF_LIFE_S, FairnessProgress, classes, rate

KINDS = {"fast": 8, "slow": 40}


def device(kind: str, index: int = 0, memory_bytes: int = 8) -> Device:
    return Device(index=index, kind=kind, memory_bytes=memory_bytes, backend="emulated")


POOL = [(device(kind), count) for kind, count in KINDS.items()]


def share(kind: str, gpus: int = 1, kinds: tuple[str, ...] = (), **speeds: float) -> float:
    return rate(JobSpec(name="a", command=("true",), gpus=gpus, kinds=kinds), kind, speeds.__getitem__, POOL)


@given(st.floats(0.01, 0.99), st.integers(1, 8))
def test_the_same_work_is_the_same_progress_on_every_kind(slow, gpus):
    on_fast, on_slow = (share(kind, gpus, fast=1.0, slow=slow) for kind in ("fast", "slow"))
    assert on_fast == pytest.approx(gpus / 8)
    assert on_slow / slow == pytest.approx(on_fast)  # a second's work takes 1 / slow seconds there


def test_the_favourite_of_equally_fast_kinds_is_the_most_numerous():
    assert share("fast", fast=1.0, slow=1.0) == share("slow", fast=1.0, slow=1.0) == 1 / 40


def test_a_kind_that_the_job_does_not_accept_is_nobodys_favourite():
    assert share("slow", kinds=("slow",), fast=1.0, slow=0.1) == pytest.approx(1 / 40)


def test_where_no_device_fits_nothing_advances():
    assert rate(JobSpec(name="a", command=("true",), memory_bytes=99), "fast", lambda _: 1.0, POOL) == 0.0


def test_devices_are_counted_by_class():
    nodes = [(device("b"), device("a", 1), device("a", 2)), (device("a", 0, 16),)]
    assert [(like.kind, like.memory_bytes, count) for like, count in classes(nodes)] == [
        ("a", 8, 2),
        ("a", 16, 1),
        ("b", 8, 1),
    ]


def two() -> FairnessProgress:
    progress = FairnessProgress()
    progress.arrive("ann", 0.0)
    progress.arrive("bob", 0.0)
    return progress


def had(progress: FairnessProgress, user: str, now_s: float) -> float:
    return progress.standing(user, now_s).progress_s


def test_progress_grows_while_jobs_run_and_fades_by_half_in_a_half_life():
    progress = two()
    progress.start("j", "ann", 0.5, 0.0)
    assert had(progress, "ann", 1.0) == pytest.approx(0.5, rel=1e-3)
    progress.stop("j", "ann", 100.0)
    left_s = had(progress, "ann", 100.0)
    assert had(progress, "ann", 100.0 + HALF_LIFE_S) == pytest.approx(left_s / 2)


def test_nobody_has_more_than_a_mean_life_of_all_that_he_could_hold():
    progress = two()
    progress.start("j", "ann", 1.0, 0.0)
    assert had(progress, "ann", 1e9) == pytest.approx(HALF_LIFE_S / math.log(2))


@given(st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0.0, 1.0)), min_size=1, max_size=8))
def test_when_it_is_looked_at_makes_no_difference(steps):
    plain, looked = two(), two()
    now_s = 0.0
    for i, (in_s, part) in enumerate(steps):
        for progress in (plain, looked):
            progress.start(f"j{i}", "ann", part, now_s)
        now_s += in_s
        looked.active["ann"].settle(now_s - in_s / 2)
        if i % 2:
            for progress in (plain, looked):
                progress.stop(f"j{i}", "ann", now_s)
    assert had(looked, "ann", now_s) == pytest.approx(had(plain, "ann", now_s))


def test_a_newcomer_starts_level_with_the_least_and_behind_whom_he_is_equal_to():
    progress = two()
    for user, part in (("ann", 0.9), ("bob", 0.1)):
        progress.start(user, user, part, 0.0)
    progress.arrive("cat", 100.0)
    assert had(progress, "cat", 100.0) == had(progress, "bob", 100.0) > 0.0
    assert progress.standing("bob", 100.0) < progress.standing("cat", 100.0)


def test_going_away_and_coming_back_changes_nothing_but_what_has_faded():
    progress = two()
    progress.start("j", "ann", 1.0, 0.0)
    progress.stop("j", "ann", 500.0)
    before_s = had(progress, "ann", 500.0)
    progress.leave("ann", 500.0)
    progress.arrive("ann", 501.0)
    assert had(progress, "ann", 501.0) == pytest.approx(before_s, rel=1e-3)
    progress.leave("bob", 501.0)
    progress.arrive("bob", 600.0)
    assert had(progress, "bob", 600.0) == had(progress, "ann", 600.0)  # no credit for having waited for nothing


def test_users_whose_progress_has_faded_are_forgotten():
    progress = two()
    for i in range(50):
        progress.arrive(f"u{i}", 0.0)
        progress.leave(f"u{i}", 0.0)
    progress.leave("ann", 1.0)
    assert progress.rested == {}
    assert set(progress.active) == {"bob"}


def test_rates_add_up_and_leave_nothing_behind():
    progress = two()
    for i in range(10):
        progress.start(f"j{i}", "ann", 0.1, float(i))
        progress.start(f"j{i}", "ann", 0.1, float(i))  # once more, as by a second node of a gang
    for i in range(10):
        progress.stop(f"j{i}", "ann", 20.0)
        progress.stop(f"j{i}", "ann", 20.0)
    account = progress.active["ann"]
    assert (account.rate, account.runs, progress.rates) == (0.0, 0, {})


@pytest.mark.parametrize("others", [1, 3, 31])
def test_who_has_had_all_there_is_is_caught_up_with_in_so_many_half_lives(others):
    """As the module says: H * log2(n + 1) for n others who share the pool evenly."""
    progress = FairnessProgress()
    progress.arrive("hog", 0.0)
    progress.start("all", "hog", 1.0, 0.0)
    begin_s = 100.0 * HALF_LIFE_S
    progress.arrive("u", begin_s)
    progress.stop("all", "hog", begin_s)
    progress.active["u"].progress_s = 0.0
    progress.start("part", "u", 1.0 / others, begin_s)
    bound_s = begin_s + HALF_LIFE_S * math.log2(others + 1)
    assert had(progress, "u", bound_s - 10.0) < had(progress, "hog", bound_s - 10.0)
    assert had(progress, "u", bound_s + 10.0) > had(progress, "hog", bound_s + 10.0)
