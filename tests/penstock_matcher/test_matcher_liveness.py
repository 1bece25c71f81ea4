"""Nodes whose heartbeats stop."""

from __future__ import annotations

from collections.abc import Iterable

from matcher_facts import ended, job, node, on, rounds, run_all, started, where

from penstock_log import NodeDrained, NodeLeft, NodeRemoved, RoundDecided
from penstock_matcher import machine
from penstock_matcher.__main__ import Liveness
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
