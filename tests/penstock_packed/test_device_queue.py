"""Whose turn it is: earliest deadline first, trials in the time between, targets kept, and nobody forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_packed.device_queue import DeviceQueue, PackedTurn
from penstock_packed.member import PackedMember
from penstock_sharing.lanes import TURN_POLICIES, LaneRules, MemoryNeed
from penstock_sharing.lanes.turn_policy import MemberStanding, TurnQueue
from sweeps import examples

TINY = MemoryNeed(1, 0, 1)


class Played:
    """A floor whose turns take the time they are told to take, by a clock that only they move."""

    def __init__(self, policy: str = "fair", patience_s: float | None = 30.0, lanes: int = 1, quiet_s: float = 1.0):
        rules = LaneRules(policy=policy, patience_s=patience_s, most_lanes=lanes)
        self.queue: DeviceQueue[str] = DeviceQueue(1000, 0, rules, quiet_s)
        self.now_s = 0.0
        self.length_s: dict[str, float] = {}
        self.turns: list[str] = []

    def trial(self, name: str, length_s: float, priority: int = 0, steps: int | None = None) -> None:
        self.length_s[name] = length_s
        self.queue.join(PackedMember(name, TINY, steps, priority=priority), self.now_s)

    def model(self, name: str, length_s: float, target_s: float, batch: int = 1) -> None:
        self.length_s[name] = length_s
        self.queue.join(PackedMember(name, TINY, None, target_s, batch), self.now_s)

    def ask(self, name: str) -> None:
        self.queue.targets.ask(name, name, self.now_s)

    def turn(self) -> PackedTurn[str] | None:
        """Take a turn; None where nobody may."""
        go = self.queue.next(self.now_s)
        if go is None:
            return None
        self.turns.append(go.name)
        self.end(go)
        return go

    def end(self, go: PackedTurn[str]) -> None:
        member = self.queue.members[go.name]
        self.now_s += self.length_s[go.name]
        member.done += go.what == "step"
        member.ran(self.length_s[go.name])
        member.stage = "running"
        if member.steps is not None and member.done >= member.steps:
            member.stage = "finished"
            self.queue.left(go.name, self.now_s)
            return
        self.queue.over(go.name, self.now_s)

    def set_up(self) -> None:
        """Let all members have their setup and a first step or answer, so that their lengths are known."""
        while any(member.stage == "new" for member in self.queue.members.values()):
            self.turn()
        models = [name for name, member in self.queue.members.items() if not member.trains]
        for name in models:
            self.ask(name)
        while any(member.turn_s == 0 for member in self.queue.members.values()):
            self.turn()
        assert not any(self.queue.targets.pending(name) for name in models)
        self.turns.clear()


def test_the_request_with_the_earliest_deadline_is_answered_first() -> None:
    played = Played()
    played.model("slow", 0.01, target_s=0.5)
    played.model("quick", 0.01, target_s=0.1)
    played.set_up()
    for name in ("slow", "slow", "quick"):
        played.ask(name)
    assert [played.turn().name for _ in range(3)] == ["quick", "slow", "slow"]
    assert played.turn() is None


def test_an_old_request_of_a_slow_model_goes_before_a_new_one_of_a_quick_model() -> None:
    played = Played()
    played.model("slow", 0.01, target_s=0.5)
    played.model("quick", 0.01, target_s=0.1)
    played.set_up()
    played.ask("slow")
    played.now_s += 0.45
    played.ask("quick")
    assert [played.turn().name for _ in range(2)] == ["slow", "quick"]


def test_a_request_that_is_late_already_makes_no_other_late_and_is_answered_after_all() -> None:
    played = Played(patience_s=5.0)
    played.model("late", 0.06, target_s=0.1)
    played.model("other", 0.05, target_s=0.1)
    played.set_up()
    played.ask("late")
    played.now_s += 0.2
    for _ in range(2):
        played.ask("other")
        assert played.turn().name == "other"
    assert played.turn().name == "late"
    played.ask("late")
    played.now_s += 6.0  # beyond patience: it has waited long enough
    played.ask("other")
    assert played.turn().name == "late"


def test_a_late_request_is_answered_at_once_where_all_others_are_then_still_in_time() -> None:
    played = Played()
    for name, length_s, target_s in (("brief", 0.01, 0.02), ("long", 0.05, 0.06), ("other", 0.02, 0.06)):
        played.model(name, length_s, target_s)
    played.set_up()
    played.ask("brief")
    played.ask("long")
    played.now_s += 0.1
    played.ask("other")
    assert [played.turn().name for _ in range(3)] == ["brief", "other", "long"]


def test_one_step_of_a_model_gets_as_many_requests_as_are_there_up_to_its_batch() -> None:
    played = Played()
    played.model("m", 0.01, target_s=0.1, batch=4)
    played.set_up()
    for _ in range(6):
        played.ask("m")
    assert [len(played.turn().requests) for _ in range(2)] == [4, 2]


def test_trials_run_while_nobody_asks_and_wait_while_somebody_does() -> None:
    played = Played()
    played.trial("t", 0.01)
    played.model("m", 0.01, target_s=0.1)
    played.set_up()
    assert played.turn().name == "t"
    played.ask("m")
    played.ask("m")
    assert [played.turn().name for _ in range(3)] == ["m", "m", "t"]


def test_a_step_that_is_too_long_for_a_target_waits_until_the_model_is_idle() -> None:
    played = Played(quiet_s=1.0)
    played.trial("long", 0.095)
    played.trial("short", 0.080)
    played.model("m", 0.015, target_s=0.1)
    played.set_up()
    played.ask("m")
    asked_s = played.now_s
    while played.now_s < asked_s + 0.9:
        played.turn()
    assert set(played.turns) == {"m", "short"}
    assert played.queue.why("long", played.now_s) == "its step takes 95.0 ms; the target of m leaves 85.0 ms"
    played.now_s = asked_s + 1.0
    assert "long" in {played.turn().name for _ in range(2)}
    assert played.queue.why("long", played.now_s) == ""


@given(
    arrivals=st.lists(st.floats(0.02, 0.3), min_size=1, max_size=30), lengths=st.tuples(*[st.floats(0.001, 0.2)] * 3)
)
@settings(max_examples=examples(60), deadline=None)
def test_a_target_is_kept_wherever_one_step_allows_it(arrivals: list[float], lengths: tuple[float, ...]) -> None:
    """Single requests, each after the one before was due: only trials can be in their way."""
    played = Played(patience_s=None, quiet_s=10.0)
    for number, length_s in enumerate(lengths):
        played.trial(f"t{number}", length_s)
    target_s = 0.1
    played.model("m", 0.01, target_s)
    played.set_up()
    played.ask("m")
    played.turn()
    for gap_s in arrivals:
        due_s = played.now_s + target_s + gap_s
        while played.now_s < due_s:
            go = played.queue.next(played.now_s)
            if go is None:
                played.now_s = due_s
                break
            if played.now_s + played.length_s[go.name] >= due_s:
                came_s = max(played.now_s, due_s - target_s) + 1e-6  # in the middle of this step, if it is short enough
                played.queue.targets.ask("m", "m", came_s)
                played.end(go)
                assert played.turn().name == "m"
                assert played.now_s <= came_s + target_s
                break
            played.end(go)


@given(
    policy=st.sampled_from(sorted(TURN_POLICIES)),
    lengths=st.lists(st.floats(0.01, 3.0), min_size=2, max_size=6),
    priorities=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    busy=st.booleans(),
    lanes=st.integers(1, 3),
)
@settings(max_examples=examples(50), deadline=None)
def test_every_trial_gets_turns_under_every_policy_even_while_models_are_asked_all_the_time(
    policy: str, lengths: list[float], priorities: list[int], busy: bool, lanes: int
) -> None:
    played = Played(policy, patience_s=20.0, lanes=lanes)
    for number, length_s in enumerate(lengths):
        played.trial(f"t{number}", length_s, priorities[number])
    played.model("m", 0.5, target_s=0.4)
    bound_s = 20.0 + (len(lengths) + 2) * 3.5
    last_s = dict.fromkeys(played.length_s, 0.0)
    while played.now_s < 3 * bound_s:
        if busy and not played.queue.targets.pending("m"):
            played.ask("m")
        go = played.turn()
        if go is None:
            played.now_s += 0.1
            continue
        last_s[go.name] = played.now_s
        late = {name: played.now_s - s for name, s in last_s.items() if name != "m" and played.now_s - s > bound_s}
        assert not late, f"{policy}: {late}"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fifo", "aaaabbbbcccc"),
        ("round-robin", "abcabcabcabc"),
        ("fair", "abccbcacbaba"),
        ("las", "abccbcacbaba"),
        ("priority", "ccccbbbbaaaa"),
        ("srtf", "abcabcccbbaa"),  # how long each of them takes is known after its first step
    ],
)
def test_trials_take_their_turns_in_the_order_of_the_policy(policy: str, expected: str) -> None:
    """Each has its setup first, and then three steps."""
    played = Played(policy, patience_s=None)
    for priority, (name, length_s) in enumerate([("a", 3.0), ("b", 2.0), ("c", 1.0)]):
        played.trial(name, length_s, priority, steps=3)
    while any(not member.over for member in played.queue.members.values()):
        played.turn()
    assert "".join(played.turns) == expected


def test_patience_counts_from_the_first_asking_for_one_who_comes_from_another_lane() -> None:
    there, here = TurnQueue(TURN_POLICIES["priority"], 30.0), TurnQueue(TURN_POLICIES["priority"], 30.0)
    moved, first, second = (MemberStanding(name, i, priority=i) for i, name in enumerate(["moved", "first", "second"]))
    there.ask(moved, 0.0)
    there.forget(moved)
    here.ask(first, 10.0)
    here.ask(second, 12.0)
    here.welcome(moved)
    assert here.is_impatient(31.0)
    assert [here.take(43.0) for _ in range(4)] == [moved, first, second, None]


def test_fair_shares_the_time_and_not_the_turns() -> None:
    played = Played("fair")
    played.trial("long", 0.4)
    played.trial("short", 0.1)
    while played.now_s < 100.0:
        played.turn()
    assert played.turns.count("short") == pytest.approx(4 * played.turns.count("long"), rel=0.05)


def test_a_model_that_has_left_leaves_its_requests_to_be_refused() -> None:
    played = Played()
    played.model("m", 0.01, target_s=0.1)
    played.set_up()
    played.ask("m")
    played.ask("m")
    assert [asked.request for asked in played.queue.left("m", played.now_s)] == ["m", "m"]
    assert played.turn() is None


def test_members_of_different_lanes_have_their_turns_at_the_same_time() -> None:
    played = Played(lanes=2)
    played.trial("a", 1.0)
    played.trial("b", 1.0)
    one, two = played.queue.next(0.0), played.queue.next(0.0)
    assert {one.name, two.name} == {"a", "b"}
    assert one.lane != two.lane
    assert played.queue.next(0.0) is None
