"""Gangs over real pages, in whatever order things happen: they go on, also under an executor that was started anew."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sharing_node import stage

from penstock_log import MemoryNeed
from penstock_sharing.lanes import LaneRules
from penstock_sharing.token import LaneClientId
from sweeps import examples

RUNS = {"gang": ((0,), (1,)), "j1": ((1,),), "j2": ((0,),)}


class Gangs(RuleBasedStateMachine):
    """Two gangs and a job beside them; at the end everybody must get on."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = ExitStack()
        self.stage = self.closing.enter_context(stage(RUNS))

    @rule(data=st.data())
    @precondition(lambda self: self.stage.actors)
    def a_process_goes_on(self, data: st.DataObject) -> None:
        self.stage.step(data.draw(st.sampled_from(sorted(self.stage.actors))))

    @rule()
    def all_go_on(self) -> None:
        for who in list(self.stage.actors):
            self.stage.step(who)

    @rule(data=st.data())
    @precondition(lambda self: self.stage.actors)
    def a_process_looks(self, data: st.DataObject) -> None:
        self.stage.actors[data.draw(st.sampled_from(sorted(self.stage.actors)))].look()

    @rule()
    def news_are_heard(self) -> None:
        self.stage.turn()

    @rule()
    def time_passes(self) -> None:
        self.stage.turn(0.1)

    @rule(data=st.data())
    @precondition(lambda self: self.stage.actors)
    def processes_are_measured(self, data: st.DataObject) -> None:
        for _ in range(2):
            self.stage.measure(data.draw(st.sampled_from(sorted(self.stage.actors))))

    @rule()
    def the_executor_looks(self) -> None:
        self.stage.look()

    @rule()
    def the_executor_is_killed(self) -> None:
        self.stage.restart()

    @rule(job=st.sampled_from(["j1", "j2"]))
    def a_run_ends(self, job: str) -> None:
        if self.stage.of(job):
            self.stage.kill(job)

    @invariant()
    def nobody_runs_beside_another(self) -> None:
        assert not self.stage.overlaps, self.stage.story()

    def teardown(self) -> None:
        try:
            before = self.stage.done()
            self.stage.play_on()
            after = self.stage.done()
            assert all(after[job] > before[job] + 3 for job in after), (before, after, self.stage.story())
        finally:
            self.closing.close()


def test_who_gives_its_turn_back_is_not_given_it_again_before_that_is_heard() -> None:
    with stage({"gang": ((0,), (1,)), "j1": ((1,),)}) as played:
        first, second, other = LaneClientId("gang", 1, 0), LaneClientId("gang", 1, 1), LaneClientId("j1", 1, 0)
        for who in (first, second, other):
            played.step(who)
        played.turn()
        for who in (first, second):
            played.step(who)
        played.turn(0.1)
        for _ in range(2):  # it ends its iteration, and asks for the next
            played.step(second)
        played.measure(first)
        played.measure(first)
        before = played.done()
        played.play_on()
        assert all(played.done()[job] > before[job] + 3 for job in before), played.story()


def test_a_gang_that_asks_while_a_lane_is_found_for_it_is_heard_and_goes_on() -> None:
    """As long as ``j1`` is there, memory has room for one lane only; once it has left, the gang gets its own."""
    sizes = {"j1": MemoryNeed(10, 0, 500), "j2": MemoryNeed(10, 0, 490), "gang": MemoryNeed(10, 0, 490)}
    rules = LaneRules(policy="round-robin", patience_s=None)
    with stage({"j1": ((1,),), "j2": ((1,),), "gang": ((0,), (1,))}, rules, sizes) as played:
        lanes = played.coordinator.lanes
        assert [len(lane.members) for lane in lanes.state.lanes_of[1].lanes] == [3]
        played.actors.pop(LaneClientId("j1", 1, 0)).member.close()
        played.turn()
        for who in played.of("gang"):
            played.step(who)
        lanes.leave("j1", played.now_s, "its run has ended")
        assert [len(lane.members) for lane in lanes.state.lanes_of[1].lanes] == [1, 1]
        played.turn()
        played.play_on()
        assert all(done > 3 for done in played.done().values()), played.story()


TestGangs = Gangs.TestCase
TestGangs.settings = settings(max_examples=examples(30), stateful_step_count=40, deadline=None)
