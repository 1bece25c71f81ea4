"""Of a gang's end it is told which process was killed, whoever of the others was seen to fail first."""

from __future__ import annotations

import pytest
from executor_machine_cases import Node, cancelled, ended, joined, placed, started, submitted

from penstock_executor.run_state import RunProcess

GANG = submitted(gpus=2, min_gpus=1, max_gpus=4, batch_size=64)


@pytest.fixture
def node() -> Node:
    return Node().given(joined(), GANG, placed(), started())


def test_the_killed_process_is_named_though_its_peer_was_seen_to_fail_first(node: Node) -> None:
    run = node.running(ranks=2)
    run.termed_s = 99.2  # for the sake of rank 0, that had hung up
    run.ranks[0] = RunProcess(exit_code=1, ended_s=99.1, last_line="PeerLost: a process of the gang hung up")
    run.ranks[1] = RunProcess(exit_code=137, ended_s=99.3)
    fact = node.fact()
    assert (fact.outcome, fact.killed, fact.exit_code) == ("failed", True, 137)
    assert fact.reason == "rank 1 of 2: signal SIGKILL (exit code 137)"


def test_a_process_that_left_no_status_at_all_was_lost_though_its_peer_says_why_it_failed(node: Node) -> None:
    run = node.running(ranks=2)
    run.ranks[0] = RunProcess(exit_code=1, ended_s=99.1, last_line="PeerLost: a process of the gang hung up")
    run.ranks[1] = RunProcess(exit_code=None, ended_s=99.3)
    assert (node.fact().outcome, node.fact().killed) == ("lost", False)


@pytest.mark.parametrize(
    ("code", "fields", "killed"),
    [
        (137, {}, True),
        (139, {}, True),
        (143, {}, True),
        (1, {}, False),
        (134, {}, False),
        (255, {}, False),
        (137, {"killed_s": 99.0}, False),
    ],
)
def test_a_process_was_killed_if_a_signal_ended_it_that_was_not_ours(
    node: Node, code: int, fields: dict[str, float], killed: bool
) -> None:
    run = node.running(ranks=2)
    run.ranks = {0: RunProcess(exit_code=0, ended_s=99.4), 1: RunProcess(exit_code=code, ended_s=99.5)}
    for name, value in fields.items():
        setattr(run, name, value)
    assert (node.fact().outcome, node.fact().killed) == ("failed", killed)


def test_what_we_ended_ourselves_was_not_killed(node: Node) -> None:
    run = node.running(ranks=2)
    run.termed_s, run.killed_s = 99.2, 99.3
    run.ranks[0] = RunProcess(exit_code=1, ended_s=99.1, last_line="ValueError: shapes")
    run.ranks[1] = RunProcess(exit_code=137, ended_s=99.4)
    fact = node.fact()
    assert (fact.outcome, fact.killed, fact.reason) == ("failed", False, "rank 0 of 2: exit code 1: ValueError: shapes")


def test_a_gang_that_ends_here_for_its_other_node_was_not_killed() -> None:
    node = Node().given(joined(), GANG, placed(nodes=("n1", "n2")), started(), ended(node_id="n2", outcome="failed"))
    run = node.running(world=2)
    run.ending, run.termed_s = "gang", 99.0
    run.ranks[0] = RunProcess(exit_code=143, ended_s=99.1)
    assert (node.fact().outcome, node.fact().killed) == ("preempted", False)


def test_a_killed_process_is_told_though_the_gang_was_to_end_for_its_other_node_by_then() -> None:
    node = Node().given(joined(), GANG, placed(nodes=("n1", "n2")), started(), ended(node_id="n2", outcome="failed"))
    run = node.running(world=2)
    run.ending, run.termed_s = "gang", 99.0
    run.ranks[0] = RunProcess(exit_code=137, ended_s=99.1)
    assert (node.fact().outcome, node.fact().killed) == ("failed", True)


def test_a_cancelled_gang_was_not_killed(node: Node) -> None:
    node.given(cancelled())
    run = node.running(ranks=2)
    run.ending, run.termed_s = "cancelled", 99.0
    run.ranks = {0: RunProcess(exit_code=137, ended_s=99.5), 1: RunProcess(exit_code=143, ended_s=99.1)}
    assert (node.fact().outcome, node.fact().killed) == ("cancelled", False)


def test_what_never_started_was_not_killed(node: Node) -> None:
    node.running(ranks=0).refused = "command: no such program"
    assert (node.fact().outcome, node.fact().killed) == ("failed", False)
