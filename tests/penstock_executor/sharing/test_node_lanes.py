"""The lanes of a node: what they have processes do, with processes and pages that are played."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharing_scenario import Play

from penstock_executor.run_state import SharingProgress
from penstock_executor.sharing.node_lanes import NodeLanes
from penstock_executor.sharing.shared_run import DesiredTurn, NodeLane, ShareRequest
from penstock_executor.sharing.sharing_state import LEAVING_S
from penstock_log import Device, MemoryNeed, RunMeasured, RunWarned
from penstock_sharing.lanes import TURN_POLICIES, LaneRules, MemoryReading
from penstock_sharing.token.protocol import LaneClientId
from sweeps import examples

SMALL = MemoryNeed(10, 0, 100)
ONE_LANE = LaneRules(most_lanes=1, patience_s=None)
FIRST = NodeLane(0, 0)


def who(job_id: str, rank: int = 0) -> LaneClientId:
    return LaneClientId(job_id, 1, rank)


def named(play: Play) -> tuple[LaneClientId | None, LaneClientId | None]:
    """Return who should have the first lane's token, and who next."""
    desired = play.lanes.desired_turn(FIRST)
    return desired.holder, desired.after


def in_one_lane(*jobs: str) -> Play:
    """Jobs in one lane, all waiting for their turn; the first has it."""
    play = Play(rules=ONE_LANE)
    for job in jobs:
        play.arrive(job, SMALL, iterations=100)
    play.deliver_all()
    for job in jobs:
        play.ask(who(job))
        play.deliver_all()
    return play


def test_a_turn_is_handed_straight_to_whoever_is_named() -> None:
    play = in_one_lane("a", "b")
    assert named(play) == (who("a"), who("b"))
    play.finish(who("a"))
    assert play.pages["0/0"].token == who("b"), "before anybody was asked"
    play.ask(who("a"))
    play.deliver_all()
    assert named(play) == (who("b"), who("a"))


def test_whoever_is_alone_keeps_its_turn() -> None:
    play = in_one_lane("a")
    assert play.lanes.desired_turn(FIRST) == DesiredTurn(who("a"))
    for _ in range(2):
        play.finish(who("a"))
        play.ask(who("a"))
        play.deliver_all()
    assert play.turns == ["a"] * 3


def test_a_job_whose_need_nobody_knows_has_the_device_until_it_was_measured() -> None:
    play = Play(rules=ONE_LANE)
    play.arrive("a", SMALL)
    play.arrive("new", MemoryNeed(50, 0, 300), known=False)
    play.deliver_all()
    play.ask(who("new"))
    play.deliver_all()
    play.ask(who("a"))
    play.deliver_all()
    assert play.lanes.desired_turn(FIRST) == DesiredTurn(who("new")), "nobody is named after it"
    for iterations in (1, 2):
        play.lanes.see(who("new"), MemoryReading(50, 350), iterations, play.tick())
    assert play.lanes.desired_turn(FIRST) == DesiredTurn(who("new"), recall=True)
    play.carry_out()
    play.finish(who("new"))
    play.deliver_all()
    assert play.pages["0/0"].token == who("a")
    (measured,) = [fact for fact in play.facts if isinstance(fact, RunMeasured)]
    assert (measured.need, measured.iterations) == (MemoryNeed(50, 0, 300), 2)


def test_a_job_that_needs_more_than_there_is_room_for_is_parked_and_comes_back() -> None:
    play = Play(rules=ONE_LANE)
    play.arrive("a", MemoryNeed(100, 0, 400))
    play.arrive("b", MemoryNeed(100, 0, 400))
    play.deliver_all()
    for iterations in (1, 2):
        play.lanes.see(who("b"), MemoryReading(100, 950), iterations, play.tick())
    play.carry_out()
    assert play.lane_changes("b") == [("entered", 0), ("parked", -1)]
    play.end(who("a"))
    play.bury()
    assert play.lane_changes("a") == [("entered", 0), ("left", -1)]
    assert play.lane_changes("b")[-1][0] == "entered"


def test_a_job_that_is_to_stop_has_the_next_turn_under_every_policy() -> None:
    for policy in TURN_POLICIES:
        play = Play(rules=LaneRules(policy=policy, most_lanes=1, patience_s=None))
        for job in ("a", "b", "c"):
            play.arrive(job, SMALL)
        play.deliver_all()
        for job in ("a", "b", "c"):
            play.ask(who(job))
            play.deliver_all()
        play.lanes.hurry("c")
        assert named(play) == (who("a"), who("c")), policy


def test_a_stopped_process_loses_its_turn_and_what_it_holds_counts() -> None:
    play = in_one_lane("a", "b")
    play.stop(who("a"))
    play.deliver_all()
    assert play.pages["0/0"].token == who("b")
    assert play.lanes.state.lanes_of[0].need("a") == MemoryNeed(110, 0, 100)
    assert any(isinstance(fact, RunWarned) for fact in play.facts)
    play.processes[who("a")].busy = False
    play.ask(who("a"))
    play.deliver_all()
    assert play.lanes.state.lanes_of[0].need("a") == SMALL


def test_a_stopped_process_that_leaves_no_room_for_others_has_to_leave() -> None:
    play = Play(rules=ONE_LANE)
    for job in ("a", "b"):
        play.arrive(job, MemoryNeed(100, 0, 700))
    play.deliver_all()
    for job in ("a", "b"):
        play.ask(who(job))
        play.deliver_all()
    play.stop(who("a"))
    play.deliver_all()
    assert play.lanes.progress["a", 1].at == "leaving"
    assert play.pages["0/0"].token is None, "it still holds its memory"
    play.end(who("a"))
    play.bury()
    assert play.pages["0/0"].token == who("b")


def test_one_who_was_named_and_should_not_have_been_gives_the_turn_back() -> None:
    play = in_one_lane("a", "b", "c")
    play.finish(who("a"))  # b has it; nobody has seen it yet
    play.lanes.state.gangs.lanes_of[0].measured("b", MemoryNeed(10, 0, 10_000), 9.0)
    play.lanes.state.shared_runs["b"].lanes.clear()  # it has lost its lane at the same time
    play.deliver()
    assert play.lanes.desired_turn(FIRST) == DesiredTurn(who("b"), recall=True)
    play.ask(who("a"))
    play.deliver_all()
    play.finish(who("b"))
    play.deliver_all()
    assert named(play) == (who("c"), who("a")), "who asked meanwhile is not forgotten"


def test_a_gang_has_its_turns_on_all_of_its_devices_together() -> None:
    play = Play(devices=2, rules=ONE_LANE)
    play.arrive("gang", SMALL, devices=(0, 1))
    play.arrive("a", SMALL, devices=(1,))
    play.deliver_all()
    play.ask(who("a"))
    play.ask(who("gang", 0))
    play.deliver_all()
    play.ask(who("gang", 1))
    play.deliver_all()
    assert play.pages["0/0"].token is None
    assert play.lanes.desired_turn(NodeLane(1, 0)) == DesiredTurn(who("a"), recall=True)
    play.finish(who("a"))
    play.deliver_all()
    assert (play.pages["0/0"].token, play.pages["1/0"].token) == (who("gang", 0), who("gang", 1))


def test_nobody_waits_for_one_that_is_to_stop_and_has_left_its_seat() -> None:
    play = in_one_lane("a", "b", "c")
    play.lanes.hurry("b")
    assert named(play) == (who("a"), who("b"))
    play.lanes.gone(who("b"), play.tick())
    assert named(play) == (who("a"), who("c"))


def test_who_is_let_go_on_takes_those_along_for_whom_it_would_wait() -> None:
    lanes = pair()
    begin(lanes)
    others_wait(lanes)
    lanes.passed(NodeLane(1, 0), who("gang", 1), None, 2.0)
    lanes.asks(who("gang", 1), 2.0, {0: 8, 1: 7})  # rank 0 was only about to begin its eighth
    assert holders(lanes) == [who("gang", 0), who("gang", 1)]
    lanes.passed(NodeLane(0, 0), who("gang", 0), None, 3.0)
    lanes.asks(who("gang", 0), 3.0, {0: 7, 1: 7})
    assert holders(lanes) == [who("gang", 0), who("gang", 1)]


def test_a_process_for_which_another_waits_is_found_later_too() -> None:
    lanes = pair()
    begin(lanes)
    others_wait(lanes)
    lanes.passed(NodeLane(1, 0), who("gang", 1), None, 2.0)
    lanes.asks(who("gang", 1), 2.0, {0: 7, 1: 7})
    assert holders(lanes) == [who("gang", 0), None]
    lanes.look_after("gang", {0: 8, 1: 7}, 3.0)
    assert holders(lanes) == [who("gang", 0), who("gang", 1)]


def test_a_process_for_which_another_waits_is_found_where_counts_tell_nothing() -> None:
    lanes = pair()
    begin(lanes)
    others_wait(lanes)
    lanes.passed(NodeLane(1, 0), who("gang", 1), None, 2.0)
    lanes.asks(who("gang", 1), 2.0, {0: 7, 1: 7})
    lanes.look_after("gang", {0: 7, 1: 7}, 3.0)
    assert holders(lanes) == [who("gang", 0), None], "it may be about to end its iteration"
    lanes.look_after("gang", {0: 7, 1: 7}, 3.5)
    assert holders(lanes) == [who("gang", 0), who("gang", 1)]


def test_who_asks_in_a_turn_that_nobody_else_waits_for_goes_on() -> None:
    lanes = pair()
    begin(lanes)
    lanes.passed(NodeLane(1, 0), who("gang", 1), None, 2.0)
    assert holders(lanes) == [who("gang", 0), None]
    lanes.asks(who("gang", 1), 2.0, {0: 7, 1: 7})
    assert holders(lanes) == [who("gang", 0), who("gang", 1)]


def test_those_of_an_adopted_gang_that_ask_have_a_turn_while_others_are_in_an_iteration_still() -> None:
    lanes = pair(adopted=True)
    lanes.await_return([who("gang", 0), who("gang", 1)])
    others_wait(lanes)
    assert holders(lanes) == [None, None], "somebody may be in an iteration there"
    lanes.asks(who("gang", 0), 1.0)
    assert holders(lanes) == [who("gang", 0), None]
    lanes.passed(NodeLane(0, 0), None, who("gang", 0), 2.0)
    assert lanes.desired_turn(NodeLane(0, 0)).recall is False, "for the other one is not to be waited for"
    lanes.asks(who("gang", 1), 3.0, {0: 8, 1: 8})
    assert holders(lanes) == [who("gang", 0), None]
    assert lanes.desired_turn(NodeLane(0, 0)).recall, "now that all are back, others ask too"


def test_a_gang_that_is_to_stop_keeps_the_turn_in_which_it_was_told_so_until_it_has_left() -> None:
    lanes = pair()
    begin(lanes)
    others_wait(lanes)
    lanes.passed(NodeLane(1, 0), who("gang", 1), None, 2.0)
    lanes.asks(who("gang", 1), 2.0, {0: 1, 1: 1})
    assert holders(lanes) == [who("gang", 0), None]
    lanes.hurry("gang")
    lanes.look_after("gang", {0: 1, 1: 1}, 2.5)
    assert holders(lanes) == [who("gang", 0), who("gang", 1)]
    assert not lanes.desired_turn(NodeLane(0, 0)).recall
    lanes.look_after("gang", {0: 1, 1: 1}, 2.5 + LEAVING_S)
    assert lanes.desired_turn(NodeLane(0, 0)).recall, "it is not waited for without end"


def begin(lanes: NodeLanes) -> None:
    """Both processes of the gang ask, and have their turn."""
    for rank in (0, 1):
        lanes.asks(who("gang", rank), 1.0)
    for rank in (0, 1):
        lanes.passed(NodeLane(rank, 0), None, who("gang", rank), 1.0)


def others_wait(lanes: NodeLanes) -> None:
    """Another job waits for its turn on each device."""
    for device in (0, 1):
        lanes.arrive(ShareRequest(job_id=f"other{device}", epoch=1, ranks={0: (device,)}, need=SMALL), 1.0)
        assert lanes.join(who(f"other{device}"), 1.0)
        lanes.asks(who(f"other{device}"), 1.0)


def pair(*, adopted: bool = False) -> NodeLanes:
    """A gang of two processes, each on a device of its own."""
    devices = [Device(index=i, kind="fast", memory_bytes=1000, backend="emulated") for i in (0, 1)]
    lanes = NodeLanes("n1", devices, ONE_LANE)
    lanes.arrive(ShareRequest(job_id="gang", epoch=1, ranks={0: (0,), 1: (1,)}, need=SMALL, adopted=adopted), 0.0)
    for rank in (0, 1):
        assert lanes.join(who("gang", rank), 0.5)
    return lanes


def holders(lanes: NodeLanes) -> list[LaneClientId | None]:
    """Return who should have the tokens of the devices' first lanes."""
    return [lanes.desired_turn(NodeLane(device, 0)).holder for device in (0, 1)]


def test_a_gang_over_several_processes_stops_after_the_same_iteration() -> None:
    play = Play(devices=2, rules=ONE_LANE)
    play.arrive("gang", SMALL, devices=(0, 1), iterations=9)
    play.arrive("a", SMALL, devices=(1,))
    play.deliver_all()
    for rank in (0, 1):
        play.ask(who("gang", rank))
    play.deliver_all()
    play.finish(who("gang", 1))
    play.ask(who("gang", 1))  # in its second iteration, in which it waits for the other
    play.ask(who("a"))
    play.deliver_all()
    play.finish(who("gang", 0))  # the first, at whose end it gives its token back
    play.ask(who("gang", 0))
    play.deliver_all()
    assert play.pages["0/0"].token == who("gang", 0), "it goes on with the other one"
    for rank in (0, 1):
        play.finish(who("gang", rank))
    play.deliver_all()
    assert play.pages["1/0"].token == who("a")
    assert [play.processes[who("gang", rank)].done for rank in (0, 1)] == [2, 2]


def test_a_job_that_is_too_large_is_refused_and_one_too_many_waits() -> None:
    play = Play(capacity_bytes=1000)
    for job_id, need in (
        ("huge", MemoryNeed(1, 0, 1000)),
        ("a", MemoryNeed(600, 0, 100)),
        ("b", MemoryNeed(600, 0, 0)),
    ):
        request = ShareRequest(job_id=job_id, epoch=1, ranks={0: (0,)}, need=need)
        play.lanes.arrive(request, play.tick())
    progress = play.lanes.progress
    assert (progress["huge", 1].at, progress["a", 1], progress["b", 1].at) == (
        "refused",
        SharingProgress("in"),
        "waits",
    )
    assert "1,001" in progress["huge", 1].reason or "MiB" in progress["huge", 1].reason
    play.lanes.leave("huge", play.tick(), "it never ran")
    play.lanes.leave("a", play.tick(), "its run has ended")
    assert play.lanes.progress["b", 1] == SharingProgress("in")


@pytest.mark.parametrize(("backend", "spare"), [("cuda", (0, 0)), ("emulated", (885, 670))])
def test_caps_follow_the_lane_and_what_nobody_needs(
    backend: Literal["cuda", "emulated"], spare: tuple[int, int]
) -> None:
    lanes = NodeLanes("n1", [Device(index=0, kind="fast", memory_bytes=1000, backend=backend)], ONE_LANE)
    lanes.arrive(ShareRequest(job_id="a", epoch=1, ranks={0: (0,)}, need=MemoryNeed(10, 5, 100)), 0.0)
    assert lanes.take().caps == {("a", 1): {0: 115 + spare[0]}}
    lanes.arrive(ShareRequest(job_id="b", epoch=1, ranks={0: (0,)}, need=MemoryNeed(10, 5, 300)), 1.0)
    assert lanes.take().caps == {("a", 1): {0: 315 + spare[1]}, ("b", 1): {0: 315 + spare[1]}}


def test_of_a_run_that_has_left_no_cap_is_told() -> None:
    lanes = NodeLanes("n1", [Device(index=0, kind="fast", memory_bytes=1000, backend="cuda")], ONE_LANE)
    for job_id in ("a", "b"):
        lanes.arrive(ShareRequest(job_id=job_id, epoch=1, ranks={0: (0,)}, need=SMALL), 0.0)
    lanes.leave("a", 1.0, "its run has ended")
    assert lanes.take().caps == {("b", 1): {0: 110}}


NEEDS = st.builds(MemoryNeed, st.integers(0, 120), st.just(0), st.integers(1, 400))


@pytest.mark.parametrize("policy", sorted(TURN_POLICIES))
@given(data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_whatever_happens_memory_is_safe_and_everybody_comes_to_an_end(policy: str, data: st.DataObject) -> None:
    play = Play(devices=2, rules=LaneRules(policy=policy, patience_s=None))
    coming = data.draw(st.lists(st.tuples(NEEDS, st.sampled_from([(0,), (1,), (0, 1)])), min_size=1, max_size=6))
    events = st.sampled_from(["arrive", "news", "news", "ask", "ask", "finish", "finish", "crash", "stop"])
    for _ in range(data.draw(st.integers(0, 60))):
        happen(play, data.draw(events), coming, data)
        check(play)
    for n, (need, devices) in enumerate(coming):
        play.arrive(f"late{n}", need, devices=devices)
    for _ in range(2000):
        if not play.needs:
            return
        come_to_an_end(play)
        check(play)
    raise AssertionError(f"these have not come to an end: {play.lanes.progress}, {play.pages}")


def happen(play: Play, event: str, coming: list[tuple[MemoryNeed, tuple[int, ...]]], data: st.DataObject) -> None:
    idle = [process for process in play.processes.values() if process.slots and not process.busy]
    if event == "arrive" and coming:
        need, devices = coming.pop()
        play.arrive(f"j{len(coming)}", need, devices=devices)
    elif event == "news" and play.events:
        play.deliver()
    elif event == "ask" and idle:
        play.ask(data.draw(st.sampled_from(idle)).who)
    elif event in {"finish", "stop", "crash"} and (running := [p for p in play.running if not p.stopped]):
        process = data.draw(st.sampled_from(running))
        if event == "crash" or (event == "finish" and process.left <= 1):
            end_run(play, process.who.job_id)
        elif event == "finish":
            play.finish(process.who)
        elif len([w for w in play.processes if w.job_id == process.who.job_id]) == 1:
            play.stop(process.who)
            play.deliver_all()


def end_run(play: Play, job_id: str) -> None:
    for each in [process_who for process_who in play.processes if process_who.job_id == job_id]:
        play.end(each)
    play.bury()


def come_to_an_end(play: Play) -> None:
    """Let everybody do what it can; those that have to leave, leave, and those that were stopped go on."""
    play.deliver_all()
    for process in list(play.processes.values()):
        job_id = process.who.job_id
        if process.who not in play.processes:
            continue
        if play.lanes.progress[job_id, 1].at in {"leaving", "refused"}:
            end_run(play, job_id)
        elif process.busy:
            process.stopped = False
            if process.left <= 1:
                end_run(play, job_id)
            else:
                play.finish(process.who)
        else:
            play.ask(process.who)


def check(play: Play) -> None:
    """Hold the pages and the memory of each device against what must always be."""
    tokens = [page.token for page in play.pages.values() if page.token is not None]
    for process in play.running:
        assert process.stopped or all(play.pages[slot].token == process.who for slot in process.slots)
    assert len(tokens) == len(set(tokens))
    for device in (0, 1):
        here = [
            p
            for p in play.processes.values()
            if device in play.lanes.state.shared_runs[p.who.job_id].request.ranks[p.who.rank]
        ]
        kept_bytes = sum(p.need.resident_bytes for p in here if p.slots)
        running_bytes = sum(p.need.ephemeral_bytes for p in here if p.busy)
        assert kept_bytes + running_bytes <= play.capacity_bytes


def test_a_process_on_two_devices_has_given_its_turn_back_when_it_has_given_both_lanes_back() -> None:
    devices = [Device(index=i, kind="fast", memory_bytes=1000, backend="emulated") for i in range(2)]
    lanes, both, second = NodeLanes("n1", devices, ONE_LANE), who("both"), NodeLane(1, 0)
    lanes.arrive(ShareRequest(job_id="both", epoch=1, ranks={0: (0, 1)}, need=SMALL), 0.0)
    assert lanes.join(both, 1.0)
    assert lanes.take().slot_assignments == {both: (FIRST, second)}
    lanes.asks(both, 2.0)
    assert (lanes.desired_turn(FIRST), lanes.desired_turn(second)) == (
        DesiredTurn(both, not_before_s=2.015),
        DesiredTurn(both, not_before_s=2.015),
    )
    lanes.passed(FIRST, None, both, 3.0)
    lanes.asks(both, 3.0)
    lanes.passed(second, None, both, 3.0)
    lanes.passed(second, both, None, 4.0)
    assert lanes.desired_turn(FIRST).holder == both
    lanes.passed(FIRST, both, None, 4.0)
    assert (lanes.desired_turn(FIRST), lanes.desired_turn(second)) == (DesiredTurn(), DesiredTurn()), (
        "it does not ask any more"
    )


def test_a_process_on_two_devices_that_asks_again_before_all_is_heard_of_its_last_turn_is_not_forgotten() -> None:
    devices = [Device(index=i, kind="fast", memory_bytes=1000, backend="emulated") for i in range(2)]
    lanes, both, second = NodeLanes("n1", devices, ONE_LANE), who("both"), NodeLane(1, 0)
    lanes.arrive(ShareRequest(job_id="both", epoch=1, ranks={0: (0, 1)}, need=SMALL), 0.0)
    assert lanes.join(both, 1.0)
    lanes.asks(both, 2.0)
    for place in (FIRST, second):
        lanes.passed(place, None, both, 3.0)
    lanes.passed(FIRST, both, None, 4.0)
    lanes.asks(both, 4.0)
    lanes.passed(second, both, None, 4.0)
    assert (lanes.desired_turn(FIRST).holder, lanes.desired_turn(second).holder) == (both, both)


def test_what_a_gang_needs_is_taken_in_later_where_it_has_one_of_its_devices_already() -> None:
    devices = [Device(index=i, kind="fast", memory_bytes=1000, backend="emulated") for i in range(2)]
    lanes, gang, other = NodeLanes("n1", devices, ONE_LANE), who("gang"), who("other")
    lanes.arrive(ShareRequest(job_id="other", epoch=1, ranks={0: (1,)}, need=SMALL), 0.0)
    lanes.arrive(ShareRequest(job_id="gang", epoch=1, ranks={0: (0, 1)}, need=SMALL), 0.0)
    for member in (gang, other):
        assert lanes.join(member, 1.0)
    lanes.asks(other, 2.0)
    lanes.asks(gang, 2.0)
    assert lanes.state.gangs.holds("gang")
    for iterations in range(1, 4):
        lanes.see(gang, MemoryReading(30, 300), iterations, 3.0)
    assert lanes.state.lanes_of[0].need("gang") == SMALL, "not in what may be a turn"


def test_one_whose_turn_has_come_is_not_forgotten_when_another_returns_from_the_turn_of_who_has_left() -> None:
    lanes = strayed("c", "a", "b", asks_late="c")
    lanes.leave("a", 2.0, "its run has ended")  # so it is c's turn now, and b has the token still
    assert lanes.desired_turn(FIRST) == DesiredTurn(who("b"), recall=True)
    lanes.passed(FIRST, who("b"), None, 3.0)
    assert lanes.desired_turn(FIRST).holder == who("c")


def test_a_turn_is_over_that_another_has_had_who_left_with_it() -> None:
    lanes = strayed("a", "b", "c", asks_late="a")
    lanes.leave("b", 2.0, "its run has ended")  # of which the page tells only later
    lanes.passed(FIRST, who("b"), None, 3.0)
    desired = lanes.desired_turn(FIRST)
    assert {desired.holder, desired.after} == {who("a"), who("c")}


def strayed(*jobs: str, asks_late: str) -> NodeLanes:
    """Return lanes in which b has the token in the place of a, which has turned out to need more than was known."""
    rules = LaneRules(policy="fifo", most_lanes=1, patience_s=None)
    lanes = NodeLanes("n1", [Device(index=0, kind="fast", memory_bytes=1000, backend="cpu")], rules)
    for job in jobs:
        lanes.arrive(ShareRequest(job_id=job, epoch=1, ranks={0: (0,)}, need=SMALL), 0.0)
        lanes.join(who(job), 0.0)
    for job in sorted({*jobs} - {"c"} if asks_late == "c" else jobs):
        lanes.asks(who(job), 0.0)
    lanes.passed(FIRST, None, who("a"), 0.0)
    assert lanes.desired_turn(FIRST).after == who("b")
    lanes.see(who("a"), MemoryReading(30, 170, 0), 2, 1.0)
    lanes.see(who("a"), MemoryReading(30, 170, 0), 3, 1.0)
    lanes.passed(FIRST, who("a"), who("b"), 1.0)  # it had been named before that
    lanes.asks(who(asks_late), 2.0)
    return lanes
