"""When one that is next wakes up by itself, and for how long it spins."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_sharing.token.slot_wait import (
    FIRST_LATE_NS,
    MOST_SKIPPED,
    MOST_SPIN_NS,
    Outcome,
    Spin,
    SpinTuner,
    turn_ns,
)
from sweeps import examples

MS = 1_000_000
OUTCOMES: tuple[Outcome, ...] = ("came", "overslept", "in vain")


def planned(spinning: SpinTuner, length_ns: int = 10 * MS) -> Spin:
    spin = spinning.plan(0, 0, length_ns)
    assert spin is not None
    return spin


def tries(spinning: SpinTuner, turns: int, outcome: Outcome) -> list[bool]:
    """Go through turns that all end in one way; return in which of them it tried."""
    tried = []
    for _ in range(turns):
        tried.append(spinning.pays)
        if spinning.pays:
            spinning.ended(outcome)
        else:
            spinning.passed_over()
    return tried


@given(st.integers(1, 10**10), st.integers(0, 10**10), st.integers(1, 1000), st.integers(0, 10**10))
def test_a_turn_is_whole_iterations_and_ends_with_the_first_one_at_which_it_may(
    pace_ns: int, least_ns: int, iterations: int, most_ns: int
) -> None:
    def may_end(done: int) -> bool:
        return done * pace_ns >= least_ns and (done >= iterations or 0 < most_ns <= done * pace_ns)

    length_ns = turn_ns(pace_ns, least_ns, (iterations, most_ns))
    done = length_ns // pace_ns
    assert length_ns == done * pace_ns
    assert may_end(done)
    assert done == 1 or not may_end(done - 1)


def test_it_wakes_up_so_early_that_the_turn_ends_in_the_middle_of_its_spin() -> None:
    spin = planned(SpinTuner(2), 5 * MS)
    assert spin == Spin(5 * MS - FIRST_LATE_NS - 50_000, 100_000)


@settings(max_examples=examples(50))
@given(st.integers(1, 10**12), st.lists(st.sampled_from(OUTCOMES), max_size=30))
def test_it_never_spins_for_more_than_its_share(length_ns: int, outcomes: list[Outcome]) -> None:
    spinning = SpinTuner(8)
    for outcome in outcomes:
        spinning.ended(outcome)
    spin = spinning.plan(0, None, length_ns)
    assert spin is None or 0 < spin.most_ns <= min(200_000, max(30_000, length_ns // 50))
    assert spin is None or spin.wake_ns >= 0


def test_nobody_spins_on_one_processor() -> None:
    assert not SpinTuner(1).pays
    assert SpinTuner(1).plan(0, 0, MS) is None


def test_a_turn_that_should_be_over_long_since_is_not_spun_for() -> None:
    assert SpinTuner(2).plan(2 * MS, 0, MS) is None


def test_a_turn_that_has_not_begun_yet_is_counted_from_when_its_holder_may_be_awake() -> None:
    spin = SpinTuner(2).plan(7 * MS, None, 10 * MS)
    assert spin == Spin(17 * MS - 100_000, 200_000)


def test_who_oversleeps_gets_up_earlier_and_who_spins_in_vain_later() -> None:
    before = planned(SpinTuner(2)).wake_ns
    sleeper, waker = SpinTuner(2), SpinTuner(2)
    sleeper.ended("overslept")
    waker.ended("in vain")
    assert planned(sleeper).wake_ns < before < planned(waker).wake_ns


@given(st.lists(st.integers(-(10**9), 10**9), max_size=50))
def test_how_late_it_wakes_up_is_learnt_within_bounds(late_ns: list[int]) -> None:
    spinning = SpinTuner(2)
    for each in late_ns:
        spinning.woke(each)
    assert 0 <= 10 * MS - MOST_SPIN_NS // 2 - planned(spinning).wake_ns <= 500_000


def test_it_learns_how_late_it_wakes_up() -> None:
    spinning = SpinTuner(2)
    for _ in range(100):
        spinning.woke(200_000)
    assert abs(planned(spinning).wake_ns - (10 * MS - MOST_SPIN_NS // 2 - 200_000)) < 1_000


def test_it_gives_up_after_a_few_misses_and_tries_again_ever_more_seldom() -> None:
    tried = tries(SpinTuner(2), 2_000, "in vain")
    assert tried[:8] == [True] * 4 + [False] * 2 + [True, False]
    gaps = [len(gap) for gap in "".join("x" if each else "." for each in tried).split("x") if gap]
    assert gaps[:-1] == sorted(gaps[:-1])
    assert max(gaps) == MOST_SKIPPED


def test_it_tries_each_time_again_once_it_pays() -> None:
    spinning = SpinTuner(2)
    tries(spinning, 2_000, "in vain")
    tried = tries(spinning, 200, "came")
    first = tried.index(True)
    assert all(tried[first:])


def test_one_try_of_three_that_comes_in_time_is_enough_to_go_on() -> None:
    spinning = SpinTuner(2)
    outcomes: tuple[Outcome, ...] = ("came", "in vain", "overslept")
    for _ in range(100):
        for outcome in outcomes:
            assert spinning.pays
            spinning.ended(outcome)
    tries(spinning, 4, "in vain")
    assert not spinning.pays
