"""Processes that share a lane take turns, whatever happens to one of them."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from token_clients import House, Process, house, who

from penstock_sharing.token import ClientGone, JoinRequested, TokenPassed, TokenRevoked, TurnRequested
from penstock_sharing.token.protocol import LaneClientId

pytestmark = pytest.mark.slow

LANE = "0/0"


def intervals(*processes: Process) -> list[tuple[int, int]]:
    """Return when the iterations of some processes began and ended, in order."""
    texts = [text for process in processes for text in process.hear().split()]
    return sorted((int(text.split("-")[0]), int(text.split("-")[1])) for text in texts)


def moment(answer: str) -> int:
    return int(answer.rsplit(maxsplit=1)[-1])


def contended(served: House) -> tuple[Process, Process]:
    """Return a process that is in its iteration, and another that waits for its turn."""
    holder, other = served.process("holder"), served.process("other")
    holder.do("enter")
    other.tell("enter")
    served.asks(other)
    return holder, other


def test_never_two_at_once_in_a_lane(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        processes = [served.process(name) for name in "abc"]
        for process in processes:  # all are here before anybody works
            process.tell("enter")
            served.asks(process)
        for process in processes:
            process.tell("exit", "work 60 300")
        for process in processes:
            assert [process.hear().split()[0] for _ in range(2)] == ["entered", "exited"]
        found = intervals(*processes)
        assert served.count(TokenPassed) >= 5
    assert len(found) == 180
    assert all(before[1] <= after[0] for before, after in pairwise(found))


def test_processes_in_different_lanes_do_not_wait_for_each_other(tmp_path: Path) -> None:
    with house(tmp_path, lambda member: [member.job_id]) as served:
        a, b = served.process("a"), served.process("b")
        assert a.do("enter")[0].startswith("entered")
        assert b.do("enter")[0].startswith("entered")


def test_the_token_goes_straight_to_whoever_is_named(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        holder, other = contended(served)
        served.wait_for(TurnRequested(LANE, other.who))
        assert holder.do("exit")[0].startswith("exited False")
        assert other.hear().startswith("entered")
        served.wait_for(TokenPassed(LANE, holder.who, other.who))


def test_who_is_alone_keeps_the_token_without_anybody_hearing_of_it(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        only = served.process("only")
        intervals_ = only.do("work 50 0")[0].split()
        served.wait_for(TokenPassed(LANE, None, only.who))  # it works while the broker has yet to say so
        (counters,) = served.broker.view(LANE).members
    assert len(intervals_) == 50
    assert (counters.iterations, counters.turns) == (50, 1)
    assert served.rota.events[:3] == [
        JoinRequested(only.who, only.popen.pid),
        TurnRequested(LANE, only.who),
        TokenPassed(LANE, None, only.who),
    ]


def test_when_the_holder_is_killed_its_neighbour_goes_on(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        holder, other = contended(served)
        holder.popen.kill()
        assert other.hear().startswith("entered")
        served.wait_for(ClientGone(holder.who))


def test_when_the_one_that_is_next_is_killed_the_token_is_not_lost_with_it(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        holder, other = contended(served)
        third = served.process("third")
        third.tell("enter")
        served.asks(third)
        other.popen.kill()
        other.popen.wait()
        holder.do("exit")
        assert third.hear().startswith("entered")


def test_a_stopped_holder_loses_the_token_and_notices_before_its_next_iteration(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        holder, other = contended(served)
        os.kill(holder.popen.pid, signal.SIGSTOP)
        assert other.hear().startswith("entered")
        served.wait_for(TokenRevoked(LANE, holder.who))
        os.kill(holder.popen.pid, signal.SIGCONT)
        holder.tell("exit", "enter")
        assert holder.hear().startswith("exited False")
        served.wait_for(TurnRequested(LANE, holder.who), count=2)  # it waits, as anybody else
        assert served.broker.view(LANE).holder == other.who
        left = moment(other.do("exit")[0])
        assert moment(holder.hear()) >= left - 1_000_000_000


def test_who_fetches_its_next_batch_for_long_loses_the_token_meanwhile(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        slow, other = served.process("slow"), served.process("other")
        assert slow.do("enter", "exit")[1].startswith("exited True")
        assert other.do("enter")[0].startswith("entered")
        slow.tell("enter")
        served.wait_for(TurnRequested(LANE, slow.who), count=2)
        other.do("exit")
        assert slow.hear().startswith("entered")


def test_who_leaves_its_loop_gives_the_token_to_who_waits(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        served.order(lambda broker: broker.open(LANE))
        served.order(lambda broker: broker.set_quantum(LANE, 1_000_000))
        holder, other = contended(served)
        assert holder.do("rest") == ["rested False"]
        assert other.hear().startswith("entered")


def test_who_closes_gives_the_token_to_who_waits(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        holder, other = contended(served)
        holder.do("close")
        assert other.hear().startswith("entered")


def test_a_turn_lasts_as_many_iterations_as_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "penstock_sharing.token.slot_table.GRACE_NS", 3_600_000_000_000
    )  # however slowly it is told what to do
    with house(tmp_path) as served:
        served.order(lambda broker: broker.open(LANE))
        served.order(lambda broker: broker.set_quantum(LANE, 3))
        holder, _ = contended(served)
        answers = holder.do("exit", "enter", "exit", "enter", "exit")
    assert [answer.split()[1] for answer in answers if answer.startswith("exited")] == ["True", "True", "False"]


def test_a_forked_child_has_no_token_and_does_not_keep_that_of_its_parent(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        holder, other = contended(served)
        assert holder.do("fork") == ["child False"]
        holder.popen.kill()
        assert other.hear().startswith("entered")


def test_gangs_take_their_devices_in_one_order_and_never_wait_in_a_circle(tmp_path: Path) -> None:
    lanes = {"a": ["0/0", "1/0"], "b": ["0/0", "1/0"], "c": ["1/0", "2/0"], "d": ["0/0", "2/0"]}
    with house(tmp_path, lambda member: lanes[member.job_id]) as served:
        processes = {name: served.process(name) for name in lanes}
        for process in processes.values():
            process.tell("work 25 200")
        found = {name: intervals(process) for name, process in processes.items()}
    for device in ("0/0", "1/0", "2/0"):
        on_it = sorted(each for name in lanes if device in lanes[name] for each in found[name])
        assert all(before[1] <= after[0] for before, after in pairwise(on_it))


def test_a_process_moves_to_another_lane_at_its_boundary(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        holder, other = contended(served)
        served.order(lambda _: served.rota.assign_slots(holder.who, ["0/1"]))
        assert holder.do("exit")[0].startswith("exited False")
        assert other.hear().startswith("entered")
        assert holder.do("enter")[0].startswith("entered")
        assert served.broker.view("0/1").holder == holder.who


def test_one_that_waits_moves_at_once(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        holder, other = contended(served)
        served.order(lambda _: served.rota.assign_slots(other.who, ["0/1"]))
        assert other.hear().startswith("entered")
        assert served.broker.view(LANE).holder == holder.who


def test_one_that_waits_and_is_moved_away_and_back_at_once_is_not_forgotten(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        holder, other = contended(served)
        served.order(
            lambda _: (served.rota.assign_slots(other.who, ["0/1"]), served.rota.assign_slots(other.who, [LANE]))
        )
        served.wait_for(TurnRequested(LANE, other.who), count=2)
        holder.do("exit")
        assert other.hear().startswith("entered")


def test_one_that_is_next_is_next_still_when_it_gets_another_lane_as_well(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        holder, other = contended(served)
        served.order(lambda _: served.rota.assign_slots(other.who, [LANE, "1/0"]))
        holder.do("exit")
        served.wait_for(TurnRequested("1/0", other.who))
        assert other.hear().startswith("entered")


def test_one_that_is_moved_while_it_waits_keeps_no_higher_lane_from_others(tmp_path: Path) -> None:
    lanes = {"last": ["2/0"], "moved": ["1/0", "2/0"], "other": ["0/0", "1/0"]}
    with house(tmp_path, lambda member: lanes[member.job_id]) as served:
        last, moved, other = (served.process(name) for name in lanes)
        last.do("enter")
        moved.tell("enter")
        served.asks(moved, "2/0")
        other.tell("enter")
        served.asks(other, "1/0")
        served.order(lambda _: served.rota.assign_slots(moved.who, ["0/0", "1/0"]))
        served.wait_for(TokenPassed("1/0", None, other.who))
        assert other.hear().startswith("entered")
        other.do("exit")
        assert moved.hear().startswith("entered")


@pytest.mark.parametrize("strangers", [("nobody",), ("a", "a")])
def test_a_process_that_has_no_place_is_told_why(tmp_path: Path, strangers: tuple[str, ...]) -> None:
    with house(tmp_path, lambda member: [LANE] if member == LaneClientId("a", 1, 0) else []) as served:
        processes = []
        for name in strangers:
            processes.append(served.process(name))
            processes[-1].tell("enter")
            served.wait_for(JoinRequested) if name == "nobody" else served.wait_for(TurnRequested(LANE, who("a")))
        assert processes[-1].hear().startswith("no slot")


def test_a_device_that_is_still_at_work_is_waited_for_before_the_token_goes_on(tmp_path: Path) -> None:
    with house(tmp_path) as served:
        slow, other = served.process("slow", "drains"), served.process("other")
        slow.tell("enter", "exit")  # and then it fetches for long: nothing more is said to it
        assert [slow.hear().split()[0] for _ in range(3)] == ["settled", "entered", "exited"]
        other.tell("enter")
        assert slow.hear() == "settled"
        assert other.hear().startswith("entered")


def test_a_broker_that_comes_back_finds_the_token_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "penstock_sharing.token.slot_table.RETURN_NS", 3_600_000_000_000
    )  # however long its holder takes to return
    with house(tmp_path) as before:
        holder, other = contended(before)
        before.fall()
        with house(tmp_path) as served:
            served.order(lambda broker: broker.open(LANE))  # what was there counts, not what has just been made
            served.asks(other)  # it comes back by itself, since it waits
            assert served.broker.view(LANE).holder is None
            assert served.count(TokenPassed) == 0
            holder.do("look", "look")
            served.wait_for(TokenPassed(LANE, None, holder.who))
            assert holder.do("exit")[0].startswith("exited False")
            assert other.hear().startswith("entered")
            served.wait_for(TokenPassed(LANE, holder.who, None))  # it reads where it sits from now on
            served.wait_for(TokenPassed(LANE, None, other.who))


def test_a_holder_that_died_while_there_was_no_broker_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_sharing.token.slot_table.RETURN_NS", 50_000_000)
    with house(tmp_path) as before:
        holder, other = contended(before)
        before.fall()
        holder.popen.kill()
        with house(tmp_path) as served:
            assert other.hear().startswith("entered")
            assert served.broker.view(LANE).holder == other.who


def test_processes_that_are_moved_about_all_come_to_their_end(tmp_path: Path) -> None:
    lanes = [["0/0"], ["1/0"], ["0/0", "1/0"], ["1/0", "2/0"], ["0/0", "2/0"]]
    with house(tmp_path, lambda _: lanes[0]) as served:
        processes = [served.process(name) for name in "abc"]
        for process in processes:
            process.tell("work 40 200")
            served.asks(process)
        for turn in range(24):
            moved, to = processes[turn % 3], lanes[(turn * 7 + turn // 3) % 5]
            before = len(served.rota.events)
            served.order(
                lambda _, moved=moved, to=to: (
                    ClientGone(moved.who) in served.rota.events or served.rota.assign_slots(moved.who, to)
                )
            )
            served.wait_for_more(before)
        assert [len(process.hear().split()) for process in processes] == [40, 40, 40]


def test_one_that_a_new_broker_does_not_know_yet_asks_again(tmp_path: Path) -> None:
    known: list[str] = []
    with house(tmp_path) as before:
        process = before.process("a")
        process.do("enter", "exit")
        before.fall()
        with house(tmp_path, lambda _: known) as served:
            process.do("look", "look")
            served.wait_for(ClientGone(process.who))
            process.do("look")
            known.append(LANE)
            process.do("look")
            served.wait_for(JoinRequested(process.who, process.popen.pid), count=2)
            assert process.do("enter")[0].startswith("entered")
