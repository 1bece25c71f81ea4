"""Many members in one process: each gets its turns, and what goes wrong with one is its own affair."""

from __future__ import annotations

import sys
import threading

import pytest
from packed_cases import Count, Echo, Ledger

from penstock.sessions.session import Session
from penstock.sessions.setup import ProcessSetup
from penstock_packed import DeviceLost, LaneRules, MemoryNeed, PackedHost
from penstock_sharing.lanes import TURN_POLICIES

SMALL = MemoryNeed(10, 0, 10)


def failing(error: BaseException, at: int = 3) -> Count:
    def then(step: int) -> None:
        if step == at:
            raise error

    return Count(then)


@pytest.mark.parametrize("policy", sorted(TURN_POLICIES))
def test_each_trial_does_all_of_its_steps_in_order(policy: str) -> None:
    host = PackedHost(Ledger(), rules=LaneRules(policy=policy))
    trials = {f"t{n}": Count() for n in range(5)}
    for name, trial in trials.items():
        host.train(name, trial, steps=20, memory=SMALL)
    outcomes = host.run()
    assert {outcome.stage for outcome in outcomes.values()} == {"finished"}
    for trial in trials.values():
        assert trial.seen == list(range(20))
        assert trial.calls == ["setup", "teardown"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no such class"), "ValueError: no such class"),
        (MemoryError("of 3 GiB"), "MemoryError: of 3 GiB"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (SystemExit(3), "it called sys.exit(3)"),
        (GeneratorExit(), "GeneratorExit: "),
    ],
)
def test_an_error_of_one_ends_only_that_one_and_its_reason_is_kept(error: BaseException, reason: str) -> None:
    host = PackedHost(Ledger())
    bad, good = failing(error), Count()
    host.train("bad", bad, steps=10, memory=SMALL)
    host.train("good", good, steps=10, memory=SMALL)
    outcomes = host.run()
    assert (outcomes["bad"].stage, outcomes["bad"].steps, outcomes["bad"].reason) == ("failed", 3, reason)
    assert bad.calls[-1] == "teardown"
    assert (outcomes["good"].stage, outcomes["good"].steps) == ("finished", 10)


def test_an_error_in_setup_or_in_teardown_ends_only_that_one() -> None:
    class NoSetup(Count):
        def setup(self) -> None:
            raise OSError("no weights")

    class NoTeardown(Count):
        def teardown(self) -> None:
            raise OSError("no disk")

    host = PackedHost(Ledger())
    host.train("a", NoSetup(), steps=2, memory=SMALL)
    host.train("b", NoTeardown(), steps=2, memory=SMALL)
    host.train("c", Count(), steps=2, memory=SMALL)
    outcomes = host.run()
    assert [outcomes[name].stage for name in "abc"] == ["failed", "finished", "finished"]
    assert outcomes["a"].reason == "OSError: no weights"


def test_an_interrupt_from_the_keyboard_is_not_taken_for_an_error_of_a_member() -> None:
    host = PackedHost(Ledger())
    host.train("a", failing(KeyboardInterrupt()), steps=10, memory=SMALL)
    with pytest.raises(KeyboardInterrupt):
        host.run()


def test_a_trial_may_say_itself_that_it_is_finished() -> None:
    class Short(Count):
        def step(self, turn: object) -> None:
            super().step(turn)
            if self.count == 4:
                turn.finish()

    host = PackedHost(Ledger())
    host.train("a", Short(), memory=SMALL)
    assert host.run()["a"][:2] == ("finished", 4)


def test_a_lost_device_ends_the_process_and_not_just_one_member() -> None:
    class Broken(Ledger):
        def lost(self, error: BaseException) -> bool:
            return isinstance(error, ArithmeticError)

    for lanes in (1, 2):
        host = PackedHost(Broken(lanes=lanes))
        host.train("a", failing(ArithmeticError("device-side assert")), steps=10, memory=SMALL)
        host.train("b", Count(), steps=10_000_000, memory=SMALL)
        with pytest.raises(DeviceLost, match="device-side assert in the turn of a"):
            host.run()


def test_a_member_that_leaks_is_ended_and_its_neighbours_are_not() -> None:
    device = Ledger(capacity_bytes=100)
    leak = Count(lambda _: device.take(5))
    leak.teardown = lambda: device.take(-5 * len(leak.seen))
    good = Count()
    host = PackedHost(device)
    host.train("leak", leak, steps=1000, memory=MemoryNeed(5, 0, 10))
    host.train("good", good, steps=200, memory=MemoryNeed(40, 0, 10))
    outcomes = host.run()
    assert (outcomes["good"].stage, good.seen) == ("finished", list(range(200)))
    assert outcomes["leak"].stage == "failed"
    assert "no room" in outcomes["leak"].reason
    assert outcomes["leak"].steps < 25  # 5 bytes a step, of 100
    assert device.used_bytes == 0


def test_a_member_that_grows_is_parked_until_another_has_ended() -> None:
    device = Ledger(capacity_bytes=100)
    grown = Count(lambda step: device.take(40) or device.take(-40) if step >= 2 else None)
    first = Count()
    host = PackedHost(device)
    host.train("first", first, steps=50, memory=MemoryNeed(45, 0, 20))
    host.train("grown", grown, steps=10, memory=MemoryNeed(20, 0, 20))
    order: list[str] = []
    first.then = lambda _: order.append("first")
    inner = grown.then
    grown.then = lambda step: (order.append("grown"), inner(step))[0]
    outcomes = host.run()
    assert [outcomes[name].stage for name in ("first", "grown")] == ["finished", "finished"]
    assert order.count("grown") == 10
    assert order[-7:] == ["grown"] * 7  # from its third step on it was parked, as long as the other was there


def test_who_finds_no_room_waits_until_others_are_finished() -> None:
    device = Ledger(capacity_bytes=60)
    order: list[str] = []
    host = PackedHost(device)
    for name in "abc":
        host.train(name, Count(lambda _, name=name: order.append(name)), steps=5, memory=MemoryNeed(25, 0, 5))
    host.run()
    assert sorted(order) == [*"aaaaabbbbbccccc"]
    assert "c" not in order[:5]


def test_who_needs_more_than_the_device_has_is_refused_with_the_reason() -> None:
    host = PackedHost(Ledger(capacity_bytes=2**20))
    host.train("huge", Count(), steps=5, memory=MemoryNeed(2**21, 0, 0))
    host.train("good", Count(), steps=5, memory=SMALL)
    outcomes = host.run()
    assert outcomes["huge"].reason == "no room: it needs 2.0 MiB; the device has 1.0 MiB"
    assert outcomes["good"].stage == "finished"


def test_a_device_that_breaks_while_a_member_is_tidied_up_is_lost_and_not_held_against_the_next() -> None:
    class Broken(Ledger):
        def lost(self, error: BaseException) -> bool:
            return isinstance(error, ArithmeticError)

    class BadEnd(Count):
        def teardown(self) -> None:
            raise ArithmeticError("illegal address")

    host = PackedHost(Broken())
    host.train("a", BadEnd(), steps=2, memory=SMALL)
    host.train("b", Count(), steps=1000, memory=SMALL)
    with pytest.raises(DeviceLost, match="illegal address while a was tidied up"):
        host.run()


def test_why_nobody_has_a_turn_before_the_host_runs() -> None:
    host = PackedHost(Ledger())
    host.train("a", Count(), steps=1, memory=SMALL)
    assert host.why("a") == "the host has not begun"


def test_with_two_lanes_turns_are_taken_side_by_side_and_each_trial_alone() -> None:
    meeting = threading.Barrier(2, timeout=30)
    host = PackedHost(Ledger(lanes=2))
    trials = {name: Count(lambda _: meeting.wait() and None) for name in "ab"}
    for name, trial in trials.items():
        host.train(name, trial, steps=20, memory=SMALL)
    outcomes = host.run()
    assert [outcomes[name].stage for name in "ab"] == ["finished", "finished"], outcomes
    for trial in trials.values():
        assert trial.seen == list(range(20))


def test_the_metrics_of_all_members_are_reported_under_their_names() -> None:
    session = Session(ProcessSetup())
    host = PackedHost(Ledger(), within=session)
    host.train("a", Count(), steps=3, memory=SMALL)
    host.train("b", failing(ValueError("x")), steps=9, memory=SMALL)
    host.run()
    assert session._boundary.metrics == {"a/count": 3, "b/count": 3, "members/finished": 1, "members/failed": 1}


def test_names_are_unique_and_numbers_make_sense() -> None:
    host = PackedHost(Ledger())
    host.train("a", Count(), steps=3)
    with pytest.raises(ValueError, match="there is a member 'a' already"):
        host.train("a", Count(), steps=3)
    with pytest.raises(ValueError, match="steps of b is 0"):
        host.train("b", Count(), steps=0)
    with pytest.raises(ValueError, match="target_s=0"):
        host.serve("c", Echo(), target_s=0)


def test_torch_is_not_imported_for_those_who_do_not_use_it() -> None:
    PackedHost()
    assert "torch" not in sys.modules
