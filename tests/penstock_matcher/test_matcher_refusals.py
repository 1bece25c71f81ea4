"""Nodes that run no jobs of a user: the jobs go elsewhere, and whoever waits for another node is told so."""

from __future__ import annotations

import msgspec
from matcher_facts import Matcher, causes, ended, job, matcher, node, rounds

from penstock_log import NodeResumed, RunEnded


def refused(job_id: str, at_s: float, node_id: str, epoch: int = 1) -> RunEnded:
    return msgspec.structs.replace(
        ended(job_id, at_s, outcome="preempted", node_id=node_id, epoch=epoch), refuses_user=True, reason="no account"
    )


def places(one: Matcher) -> dict[str, list[str]]:
    """Job → the nodes where it was placed."""
    found = [placed for fact in rounds(one.settle()) for placed in fact.placements]
    return {placed.job_id: [slot.node_id for slot in placed.slots] for placed in found}


def test_a_job_that_a_node_refuses_goes_elsewhere_and_so_do_the_users_others_at_once() -> None:
    one = matcher().given(node("n1", fast=1), node("n2", fast=8), job("a", user="ada")).at(2.0)
    assert places(one) == {"a": ["n1"]}
    one.given(refused("a", 2.1, "n1"), job("b", user="ada", at_s=2.1), job("c", user="bob", at_s=2.1)).at(2.2)
    assert places(one) == {"a": ["n2"], "b": ["n2"], "c": ["n1"]}


def test_jobs_that_wait_already_are_not_sent_to_a_node_that_refuses_their_user() -> None:
    jobs = [job(name, user="ada") for name in ("a", "b")]
    one = matcher().given(node("n1", fast=1), *jobs).at(2.0)
    assert places(one) == {"a": ["n1"]}
    one.given(refused("a", 2.1, "n1"), node("n2", fast=2)).at(2.2)
    assert places(one) == {"a": ["n2"], "b": ["n2"]}


def test_a_gang_takes_its_devices_of_the_nodes_that_run_its_users_jobs() -> None:
    nodes = [node(f"n{number}", fast=2) for number in (1, 2, 3)]
    one = matcher().given(*nodes, job("a", user="ada", gpus=4)).at(2.0)
    assert places(one) == {"a": ["n1", "n2"]}
    one.given(refused("a", 2.1, "n1"), ended("a", 2.2, outcome="preempted", node_id="n2")).at(2.3)
    assert places(one) == {"a": ["n2", "n3"]}


def test_a_job_that_every_node_refuses_never_fits_and_is_told_what_to_do() -> None:
    one = matcher().given(node("n1", fast=4), job("a", user="ada")).at(2.0)
    assert places(one) == {"a": ["n1"]}
    (fact,) = rounds(one.given(refused("a", 2.1, "n1")).at(4.0).settle())
    (wait,) = fact.waits
    assert (wait.cause, wait.evidence) == ("never_fits", "n1 runs no jobs of user `ada`")
    assert "`penstock story` of the job says why" in wait.remedy


def test_a_job_beside_idle_devices_of_a_node_that_refuses_it_is_told_so() -> None:
    jobs = job("a", user="ada"), job("b", user="bob", at_s=2.05)
    one = matcher().given(node("n1", fast=1), node("n2", fast=1), *jobs).at(2.1)
    assert places(one) == {"a": ["n1"], "b": ["n2"]}
    (fact,) = rounds(one.given(refused("a", 2.2, "n1")).at(4.0).settle())
    assert causes(one) == {"a": "capacity"}
    assert fact.waits[0].evidence.startswith("idle: 1 fast, but n1 runs no jobs of user `ada`; ")


def test_a_node_is_tried_again_once_it_has_joined_anew_or_somebody_says_so_or_it_was_long_ago() -> None:
    for again in (node("n1", fast=1), NodeResumed(node_id="n1", at_s=3.0)):
        one = matcher().given(node("n1", fast=1), job("a", user="ada")).at(2.0)
        assert places(one) == {"a": ["n1"]}
        one.given(refused("a", 2.1, "n1")).at(2.2).settle()
        assert places(one.given(again).at(3.0)) == {"a": ["n1"]}
    one = matcher().given(node("n1", fast=1), job("a", user="ada")).at(2.0)
    one.settle()
    one.given(refused("a", 2.1, "n1")).at(2.2).settle()
    assert places(one.given(job("b", user="ada", at_s=1000.0)).at(1000.0)) == {"b": ["n1"]}
