import dataclasses
import itertools

import pytest
from release_decider import DECIDER, ReleaseState, submitted

from penstock_bus import Decision, Proposal
from penstock_log import Event, JobReleased, NodeLeft, subjects
from penstock_testing import Scenario


def released(job_id: str, at_s: float) -> JobReleased:
    return JobReleased(job_id=job_id, at_s=at_s)


def test_what_was_decided_is_folded_in_before_the_next_question() -> None:
    scenario = Scenario(DECIDER).given(submitted("j1")).at(2.0).when(submitted("j2"))
    scenario.then(released("j1", 2.0), released("j2", 2.0)).then()
    assert scenario.state.released == {"j1", "j2"}


def test_a_decision_can_be_looked_at_without_making_it_true() -> None:
    scenario = Scenario(DECIDER).given(submitted("j1"))
    assert scenario.facts() == [released("j1", 0.0)] == scenario.facts()
    scenario.then_wakes_at(None)


def test_a_wrong_expectation_fails() -> None:
    with pytest.raises(AssertionError):
        Scenario(DECIDER).given(submitted("j1")).then()


def test_settling_makes_decisions_true_until_there_are_none() -> None:
    assert Scenario(DECIDER).given(submitted("j1")).settle() == [released("j1", 0.0)]


def test_a_decider_that_never_rests_is_found_out() -> None:
    def always(state: ReleaseState, now_s: float) -> Decision:
        return Decision([Proposal(subject=subjects.job("j1"), facts=(released("j1", now_s),))])

    with pytest.raises(AssertionError, match="still proposes after 3 rounds"):
        Scenario(dataclasses.replace(DECIDER, decide=always)).settle(rounds=3)


def test_deciding_must_not_change_the_state() -> None:
    def impure(state: ReleaseState, now_s: float) -> Decision:
        state.seen["x"] = 0
        return Decision()

    with pytest.raises(AssertionError, match="only apply may"):
        Scenario(dataclasses.replace(DECIDER, decide=impure)).then()


def test_the_same_state_must_give_the_same_decision() -> None:
    counter = itertools.count()

    def fickle(state: ReleaseState, now_s: float) -> Decision:
        return Decision(wake_at_s=float(next(counter)))

    with pytest.raises(AssertionError, match="gave two decisions"):
        Scenario(dataclasses.replace(DECIDER, decide=fickle)).then()


def test_a_decider_writes_its_own_entities_only() -> None:
    def meddling(state: ReleaseState, now_s: float) -> Decision:
        return Decision([Proposal(subject=subjects.node("n1"), facts=(NodeLeft(node_id="n1", at_s=0.0),))])

    with pytest.raises(AssertionError, match="is written by executor"):
        Scenario(dataclasses.replace(DECIDER, decide=meddling)).then()


def test_a_fold_that_a_snapshot_changes_is_found_out() -> None:
    hidden: list[str] = []

    def leaking(state: ReleaseState, event: Event, seq: int) -> None:
        hidden.append("x")
        state.seen[f"j{len(hidden)}"] = seq

    scenario = Scenario(dataclasses.replace(DECIDER, apply=leaking)).given(submitted("j1"), submitted("j2"))
    with pytest.raises(AssertionError, match="another state than the live one"):
        scenario.decision()
