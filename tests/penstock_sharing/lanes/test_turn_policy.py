"""Whose turn it is: each policy, what it promises to those who ask, and what patience adds."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_executor.settings import ExecutorSettings
from penstock_sharing.lanes import LaneRules, turn_policy
from penstock_sharing.lanes.turn_policy import TURN_POLICIES, MemberStanding, TurnPolicyName, TurnQueue, quantum
from sweeps import examples

LISTED = Path(__file__).parents[3] / "docs/lanes.md"


def test_every_policy_that_can_be_set_is_registered_and_described() -> None:
    assert set(TURN_POLICIES) == set(get_args(TurnPolicyName))
    assert {LaneRules().policy, ExecutorSettings().lane_policy} <= set(TURN_POLICIES)
    for name in TURN_POLICIES:
        assert f"\n{name} " in turn_policy.__doc__
        assert name in LaneRules.__doc__
        assert f"\n| `{name}`" in LISTED.read_text()
    assert "``docs/lanes.md`` lists" in ExecutorSettings.__doc__


def turns(
    policy: str, members: list[MemberStanding], turn_s: dict[str, float], count: int, patience_s: float | None = None
):
    """Return who has had the turn, one after the other, where all ask all the time."""
    asking, now_s = TurnQueue(TURN_POLICIES[policy], patience_s), 0.0
    for member in members:
        asking.welcome(member)
        asking.ask(member, now_s)
    for _ in range(count):
        member = asking.take(now_s)
        yield member.job_id, now_s
        ran_s = turn_s[member.job_id]
        now_s += ran_s
        member.service_s, member.lane_s = member.service_s + ran_s, member.lane_s + ran_s
        member.remaining_s -= ran_s
        asking.ask(member, now_s)


def order(policy: str, members: list[MemberStanding], count: int, **options) -> str:
    even = {member.job_id: 1.0 for member in members}
    return "".join(job_id for job_id, _ in turns(policy, members, even, count, **options))


def test_fifo_serves_the_first_to_its_end():
    assert order("fifo", [MemberStanding("b", 1), MemberStanding("a", 0)], 4) == "aaaa"


def test_srtf_serves_who_has_least_left_and_the_unknown_last():
    members = [MemberStanding("u", 0), MemberStanding("a", 1, remaining_s=9.0), MemberStanding("b", 2, remaining_s=3.0)]
    assert order("srtf", members, 4) == "bbbb"
    assert order("srtf", members[:2], 2) == "aa"


def test_las_serves_who_has_had_least_and_then_all_alike():
    members = [MemberStanding("a", 0, service_s=3.0), MemberStanding("b", 1), MemberStanding("c", 2, service_s=2.0)]
    assert order("las", members, 9) == "bbcbacbac"


def test_fair_shares_time_whatever_the_length_of_a_turn():
    members = [MemberStanding("a", 0), MemberStanding("b", 1)]
    had = [job_id for job_id, _ in turns("fair", members, {"a": 3.0, "b": 1.0}, 40)]
    assert had.count("a") == 10
    assert had.count("b") == 30


def next_six(asking: TurnQueue, *members: MemberStanding) -> str:
    had = ""
    for now_s in range(100, 106):
        for member in members:
            asking.ask(member, now_s)
        taken = asking.take(now_s)
        taken.lane_s += 1.0
        had += taken.job_id
    return had


def alone_for_100_turns(asking: TurnQueue, member: MemberStanding) -> None:
    asking.welcome(member)
    for now_s in range(100):
        asking.ask(member, now_s)
        assert asking.take(now_s) is member
        member.lane_s += 1.0


def test_fair_gives_no_credit_for_the_time_before_one_came():
    asking, old, new = TurnQueue(TURN_POLICIES["fair"], None), MemberStanding("o", 0), MemberStanding("n", 1)
    alone_for_100_turns(asking, old)
    asking.welcome(new)
    assert next_six(asking, old, new) == "nonono"


def test_fair_gives_no_credit_for_asking_for_nothing():
    asking, busy, idle = TurnQueue(TURN_POLICIES["fair"], None), MemberStanding("b", 0), MemberStanding("i", 1)
    asking.welcome(idle)
    alone_for_100_turns(asking, busy)
    assert next_six(asking, busy, idle) == "ibibib"


def test_fair_does_not_hold_against_one_what_it_had_in_another_lane():
    asking, old, moved = (
        TurnQueue(TURN_POLICIES["fair"], None),
        MemberStanding("o", 0),
        MemberStanding("m", 1, lane_s=1000.0),
    )
    alone_for_100_turns(asking, old)
    asking.welcome(moved)
    assert next_six(asking, old, moved) == "momomo"


def test_round_robin_serves_one_after_the_other():
    assert (
        order("round-robin", [MemberStanding("a", 0), MemberStanding("b", 1), MemberStanding("c", 2)], 7) == "abcabca"
    )


def test_priority_serves_the_highest_first_and_equals_in_turn():
    members = [MemberStanding("a", 0), MemberStanding("b", 1, priority=2), MemberStanding("c", 2, priority=2)]
    assert order("priority", members, 5) == "bcbcb"


def test_who_does_not_ask_has_no_turn():
    asking = TurnQueue(TURN_POLICIES["fifo"], None)
    assert asking.take(0.0) is None
    first, second = MemberStanding("a", 0), MemberStanding("b", 1)
    asking.ask(second, 0.0)
    assert asking.take(0.0) is second
    asking.ask(first, 1.0)
    asking.forget(first)
    assert asking.take(2.0) is None
    assert len(asking) == 0


def test_patience_serves_who_has_asked_too_long_and_then_the_policy_again():
    members = [MemberStanding("a", 0), MemberStanding("b", 1)]
    assert order("fifo", members, 12, patience_s=4.0) == "aaaabaaaabaa"


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(sorted(TURN_POLICIES)),
    st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(0, 50.0), st.integers(0, 3)), min_size=2, max_size=6),
)
def test_with_patience_nobody_waits_longer_than_it_and_a_turn_of_each(policy, figures):
    members = [MemberStanding(f"{at}", at, remaining_s=left, priority=p) for at, (_, left, p) in enumerate(figures)]
    turn_s = {f"{at}": ran for at, (ran, _, _) in enumerate(figures)}
    bound_s = 5.0 + sum(turn_s.values())
    asked_s = dict.fromkeys(turn_s, 0.0)
    for job_id, now_s in turns(policy, members, turn_s, 120, patience_s=5.0):
        assert max(now_s - since_s for since_s in asked_s.values()) <= bound_s + 1e-9
        asked_s[job_id] = now_s + turn_s[job_id]


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.floats(0.1, 3.0), min_size=2, max_size=6))
def test_fair_keeps_any_two_within_a_turn_of_each(lengths):
    members = [MemberStanding(f"{at}", at) for at in range(len(lengths))]
    turn_s = {f"{at}": ran for at, ran in enumerate(lengths)}
    had = dict.fromkeys(turn_s, 0.0)
    for job_id, _ in turns("fair", members, turn_s, 150):
        had[job_id] += turn_s[job_id]
        for one, other in permutations(turn_s, 2):
            assert had[one] - had[other] <= turn_s[one] + turn_s[other] + 1e-9


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(2, 7), st.lists(st.integers(0, 6), max_size=60))
def test_in_round_robin_nobody_passes_twice_while_one_asks(count, pattern):
    asking = TurnQueue(TURN_POLICIES["round-robin"], None)
    members = [MemberStanding(f"{at}", at) for at in range(count)]
    passed: dict[str, list[str]] = {}
    for now_s, at in enumerate(pattern):
        member = members[at % count]
        asking.ask(member, now_s)
        passed.setdefault(member.job_id, [])
        if now_s % 2:
            taken = asking.take(now_s)
            passed.pop(taken.job_id)
            for others in passed.values():
                others.append(taken.job_id)
                assert len(others) == len(set(others))


def test_requests_that_patience_served_do_not_pile_up():
    asking, rare, first = (
        TurnQueue(TURN_POLICIES["priority"], 1.0),
        MemberStanding("rare", 0),
        MemberStanding("first", 1, priority=1),
    )
    for now_s in range(2000):
        asking.ask(rare, now_s)
        asking.ask(first, now_s + 0.5)
        assert asking.take(now_s + 1.0) is (rare if now_s % 2 == 0 else first)
        if now_s % 2:
            assert asking.take(now_s + 1.0) is rare
    assert len(asking._heap) < 100


@pytest.mark.parametrize(("handover_us", "iteration_us"), [(30.0, 10_000.0), (30.0, 100.0), (300.0, 7.0), (0.0, 5.0)])
def test_a_quantum_is_the_shortest_turn_whose_hand_over_costs_two_per_cent_at_most(handover_us, iteration_us):
    iterations = quantum(handover_us, iteration_us)
    assert handover_us <= 0.02 * (handover_us + iterations * iteration_us) * (1 + 1e-9)
    if iterations > 1:
        assert handover_us > 0.02 * (handover_us + (iterations - 1) * iteration_us)


@pytest.mark.parametrize("wrong", [(-1.0, 1.0, 0.02), (1.0, 0.0, 0.02), (1.0, 1.0, 0.0), (1.0, 1.0, 1.0)])
def test_a_quantum_of_nonsense_is_an_error(wrong):
    with pytest.raises(ValueError, match="out of range"):
        quantum(*wrong)


def test_who_may_not_have_a_turn_now_keeps_its_place():
    asking = TurnQueue(TURN_POLICIES["fifo"], 30.0)
    long, short = MemberStanding("long", 0), MemberStanding("short", 1)
    asking.ask(long, 0.0)
    asking.ask(short, 0.0)
    assert [asking.take(1.0, lambda name: name == "short") for _ in range(2)] == [short, None]
    asking.ask(short, 1.0)
    assert asking.take(2.0) is long
    asking.ask(long, 3.0)
    assert asking.take(31.0, lambda _: False) is short, "it has asked for too long"
