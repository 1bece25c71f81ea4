"""Nodes whose heartbeats stop."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from matcher_facts import ended, job, node, on, rounds, run_all, started, where

from penstock_bus import Decision, Proposal
from penstock_cluster.nodes import Cluster
from penstock_log import (
    DeviceDrained,
    DeviceFailed,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeRemoved,
    RoundDecided,
    subjects,
)
from penstock_log.request_bodies import NodeHeard, NodeHeartbeat
from penstock_matcher import machine
from penstock_matcher.liveness import Liveness
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_testing import Scenario


class Ears:
    """What the runner would have heard: node → time; the others since 0."""

    def __init__(self) -> None:
        self.heard_s: dict[str, float] = {}

    def __call__(self, nodes: Iterable[str], _now_s: float) -> dict[str, float]:
        return {node_id: self.heard_s.get(node_id, 0.0) for node_id in nodes}


def listening(**settings: float) -> tuple[Scenario[machine.MatcherState], Ears]:
    ears = Ears()
    return Scenario(machine.decider(MatcherSettings(node_timeout_s=5.0, **settings), ears)), ears


def test_the_jobs_of_a_lost_node_are_placed_again_under_the_next_epoch():
    two, ears = listening()
    two.given(node("n1", fast=1), node("n2", slow=1), job("a"))
    run_all(two, 2.0)
    ears.heard_s = {"n1": 3.0, "n2": 7.0}
    two.at(7.5).then().then_wakes_at(8.0)
    two.at(8.0).then(RoundDecided(at_s=8.0, pool="default", lost_nodes=("n1",)))
    (fact,) = rounds(two.settle())
    assert [on(p) for p in fact.placements] == [("a", "slow", 2, (("n2", (0,)),))]


def test_what_a_lost_node_says_of_an_old_epoch_changes_nothing():
    two, ears = listening()
    two.given(node("n1", fast=1), node("n2", slow=1), job("a"))
    run_all(two, 2.0)
    ears.heard_s = {"n1": 3.0, "n2": 8.0}
    two.at(8.0).settle()
    two.given(ended("a", 9.0, node_id="n1", epoch=1)).at(9.0)
    assert two.state.jobs["a"].epoch == 2
    assert two.state.jobs["a"].open_nodes == {"n2"}


def test_a_lost_node_takes_jobs_again_only_after_it_has_joined_again():
    one, ears = listening()
    one.given(node("n1", fast=1))
    one.at(6.0).settle()
    ears.heard_s = {"n1": 6.5}
    one.given(job("a", at_s=6.5)).at(6.5)
    assert where(one.settle()) == {}
    one.given(node("n1", at_s=7.0, fast=1)).at(7.0)
    assert where(one.settle()) == {"a": "fast"}


def test_a_node_that_was_lost_long_ago_is_forgotten():
    two, ears = listening()
    two.given(node("n1", fast=1), node("n2", fast=1))
    ears.heard_s = {"n1": 3.0, "n2": 5_000.0}
    two.at(8.0).settle()
    two.at(3607.9).then().then_wakes_at(3608.0)
    two.at(3608.0).then(RoundDecided(at_s=3608.0, pool="default", forgotten_nodes=("n1",)))
    two.settle()
    assert list(two.state.cluster.nodes) == ["n2"]
    two.given(node("n1", at_s=4000.0, fast=1), job("a", at_s=4000.0)).at(4000.0)
    assert where(two.settle()) == {"a": "fast"}


def test_a_node_that_left_is_forgotten_once_its_runs_are_known_to_have_ended():
    one, ears = listening()
    one.given(node("n1", fast=1), job("a"))
    run_all(one, 2.0)
    ears.heard_s = {"n1": 9_000.0}  # its executor is up again and silent about the run
    one.given(NodeLeft(node_id="n1", at_s=3.0)).at(4_000.0).then()
    one.given(ended("a", 4_001.0, node_id="n1", outcome="preempted")).at(4_001.0)
    (fact,) = rounds(one.settle())
    assert fact.forgotten_nodes == ("n1",)


def test_a_drained_node_is_never_forgotten_since_it_would_come_back_undrained():
    one, _ = listening()
    one.given(node("n1", fast=1), NodeDrained(node_id="n1", at_s=1.0), NodeLeft(node_id="n1", at_s=2.0))
    one.at(100_000.0).then().then_wakes_at(None)
    one.given(NodeRemoved(node_id="n1", at_s=100_001.0))
    assert one.state.cluster.nodes == {}


@pytest.mark.parametrize("fact", [DeviceDrained, DeviceFailed])
def test_a_node_with_a_device_out_of_service_is_never_forgotten_since_it_would_come_back_fit(fact):
    one, _ = listening()
    code = {"code": "xid 79"} if fact is DeviceFailed else {}
    one.given(node("n1", fast=1), fact(node_id="n1", at_s=1.0, index=0, **code), NodeLeft(node_id="n1", at_s=2.0))
    one.at(100_000.0).then().then_wakes_at(None)


def test_gone_nodes_are_kept_where_nobody_wants_them_forgotten():
    one, _ = listening(forget_node_s=0.0)
    one.given(node("n1", fast=1), NodeLeft(node_id="n1", at_s=2.0))
    one.at(100_000.0).then().then_wakes_at(None)


def test_a_gang_that_loses_one_node_waits_for_the_other_to_stop_before_it_goes_on():
    two, ears = listening()
    two.given(node("n1", fast=1), node("n2", fast=1), job("g", gpus=2))
    run_all(two, 2.0)
    ears.heard_s = {"n1": 2.0, "n2": 7.0}
    two.at(7.0).then(RoundDecided(at_s=7.0, pool="default", lost_nodes=("n1",)))
    two.given(node("n1", at_s=7.2, fast=1))
    ears.heard_s = {"n1": 7.3, "n2": 7.3}
    two.at(7.3)
    assert where(two.settle()) == {}
    two.given(ended("g", 7.5, node_id="n2", outcome="preempted")).at(7.5)
    (fact,) = rounds(two.settle())
    assert [on(p)[2] for p in fact.placements] == [2]


def test_a_lease_on_a_node_that_left_ends_as_well():
    one, _ = listening()
    one.given(node("n1", fast=1), job("a"))
    (fact,) = one.at(2.0).facts()
    one.settle()
    one.given(*started(fact.placements[0], 2.0), NodeLeft(node_id="n1", at_s=2.5))
    one.at(5.0).then(RoundDecided(at_s=5.0, pool="default", lost_nodes=("n1",)))


def test_silence_counts_from_the_last_beat():
    liveness = Liveness(100.0)
    for second in range(101, 110):
        liveness.echo(float(second))
    liveness.beat("n1", 108.0)
    assert liveness.heard(["n1", "n2"], 109.0) == {"n1": 108.0, "n2": 100.0}


def test_while_the_bus_is_silent_nobody_becomes_more_silent():
    liveness = Liveness(0.0)
    for second in range(1, 4):
        liveness.beat("n1", second - 0.5)
        liveness.echo(float(second))
    assert liveness.heard(["n1"], 3.0) == {"n1": 2.5}
    assert liveness.heard(["n1"], 60.0) == {"n1": 59.5}


def test_after_the_bus_was_silent_everybody_gets_the_whole_time_again():
    liveness = Liveness(0.0)
    liveness.beat("n1", 0.5)
    liveness.echo(1.0)
    liveness.echo(31.0)
    assert liveness.heard(["n1"], 31.0) == {"n1": 31.0}
    liveness.echo(32.0)
    assert liveness.heard(["n1"], 32.0) == {"n1": 31.0}


def test_a_new_leader_gives_every_node_the_whole_time_since_another_may_have_answered_it():
    liveness = Liveness(0.0)
    for second in range(1, 21):
        liveness.echo(float(second))
    assert liveness.heard(["n1"], 20.0, term_s=4.0) == {"n1": 16.0}
    liveness.beat("n1", 18.0)
    assert liveness.heard(["n1"], 20.0, term_s=4.0) == {"n1": 18.0}


def test_a_grant_names_the_patience_that_it_is_given_with_where_heartbeats_are_answered():
    one, _ = listening()
    one.given(node("n1", fast=1), job("a"))
    assert [p.patience_s for fact in rounds(one.at(2.0).settle()) for p in fact.placements] == [5.0]
    pure = Scenario(machine.decider(MatcherSettings(node_timeout_s=5.0)))
    pure.given(node("n1", fast=1), job("a"))
    assert [p.patience_s for fact in rounds(pure.at(2.0).settle()) for p in fact.placements] == [0.0]


def test_a_node_is_lost_no_sooner_than_its_grants_were_promised_though_the_setting_be_less_by_now():
    earlier, _ = listening()
    earlier.given(node("n1", fast=1), job("a"))
    earlier.at(2.0)
    placed = rounds(earlier.settle())
    later = Scenario(machine.decider(MatcherSettings(node_timeout_s=1.0), Ears()))
    later.given(node("n1", fast=1), job("a"), *placed)
    later.at(4.9).then()
    later.at(5.0).then(RoundDecided(at_s=5.0, pool="default", lost_nodes=("n1",)))


def test_a_patience_that_no_fence_could_keep_is_refused():
    with pytest.raises(msgspec.ValidationError, match=r"Expected `float` >= 1.0 - at `\$.node_timeout_s`"):
        msgspec.convert({"node_timeout_s": 0.5}, MatcherSettings)


BEAT = NodeHeartbeat(node_id="n1", incarnation="boot-1", at_s=1.0, ticks_s=7.0)


def one_node() -> Cluster:
    cluster = Cluster()
    cluster.apply(NodeJoined(at_s=0.0, node_id="n1", devices=(), incarnation="boot-1"))
    return cluster


def lost(*nodes: str) -> Decision:
    fact = RoundDecided(at_s=1.0, pool="default", lost_nodes=nodes)
    return Decision(proposals=[Proposal(subject=subjects.round_("default"), facts=(fact,))])


def test_a_heartbeat_is_answered_with_what_it_said():
    assert Liveness(0.0).answer(BEAT, "n1", one_node()) == NodeHeard(incarnation="boot-1", ticks_s=7.0)


def test_no_heartbeat_is_answered_of_a_node_that_is_lost_unknown_or_has_joined_anew():
    liveness, cluster = Liveness(0.0), one_node()
    assert liveness.answer(BEAT, "n2", cluster) is None
    assert liveness.answer(msgspec.structs.replace(BEAT, incarnation="boot-2"), "n1", cluster) is None
    cluster.apply(RoundDecided(at_s=1.0, pool="default", lost_nodes=("n1",)))
    assert liveness.answer(BEAT, "n1", cluster) is None


def test_no_heartbeat_is_answered_while_a_decision_to_give_the_node_up_is_on_its_way():
    liveness, cluster = Liveness(0.0), one_node()
    liveness.note_decision(lost("n1"))
    assert liveness.answer(BEAT, "n1", cluster) is None
    liveness.note_decision(Decision())  # the one before was refused, and the node was heard meanwhile
    assert liveness.answer(BEAT, "n1", cluster) is not None


def test_after_another_replicas_late_decision_nothing_is_given_in_that_pool_for_a_while():
    liveness = Liveness(0.0)
    liveness.bar("default", 15.0)
    elsewhere = RoundDecided(at_s=10.0, pool="other")
    here, there = lost("n2").proposals[0], Proposal(subject=subjects.round_("other"), facts=(elsewhere,))
    assert liveness.permitted(Decision(proposals=[here, there]), 10.0) == Decision(proposals=[there], wake_at_s=15.0)
    assert liveness.permitted(Decision(proposals=[here]), 15.0) == Decision(proposals=[here])
