"""The process of an aggregator and its orders: what it measures, copies that fail, turns in a cycle, and its end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from aggregator_harness import LOCAL, AggregatedRun, Training, aggregated, in_threads, plain_results

from penstock.aggregation.rules import state_size, update
from penstock_aggregator.turns import RunTurns
from penstock_log.aggregation_messages import (
    COPY_RANK,
    AggregatorAddress,
    CopyFailed,
    PartCopied,
    RunMeasuredHere,
    RunSlots,
    SendPart,
    UpdateRule,
    VectorLayout,
)

LAYOUT = VectorLayout(dtype="f4", parts=(1000, 500))


def test_a_run_is_measured_after_twenty_steps_and_then_after_each_hundred(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2) as run:
        Training(run).train(125)
        process = run.processes["n1/0"]
        first = process.wait_for(RunMeasuredHere)
        second = process.wait_for(RunMeasuredHere)
        process.ping()
        assert process.said(RunMeasuredHere) == []
    assert [(each.steps, each.generation, sorted(each.costs_s)) for each in (first, second)] == [
        (20, 1, [0, 1]),
        (100, 1, [0, 1]),
    ]
    assert 0 < sum(first.costs_s.values()) < 20 * first.iteration_s
    assert 0 < first.held_s <= first.iteration_s  # a step's last push begins to come after the step before


def test_a_move_is_measured_and_what_is_measured_begins_anew(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2, UpdateRule(name="adamw"), aggregators=2) as run:
        training = Training(run)
        training.train(5)
        (copied,) = run.move([0], "n1/1")
        training.train(40)
        measured = run.processes["n1/1"].wait_for(RunMeasuredHere)
    assert (copied.part, copied.generation, copied.step, copied.copied_bytes) == (0, 2, 5, 3 * 4000 + 8)
    assert copied.pause_s > 0
    assert (measured.generation, sorted(measured.costs_s)) == (2, [0, 1])


def test_a_ping_says_what_was_received_and_sent(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2) as run:
        Training(run).train(3)
        pongs = iter(run.processes["n1/0"].ping, None)  # what it sends is counted a moment after it has arrived
        pong = next(pong for pong in pongs if pong.sent_bytes >= 3 * 2 * 6000)
    assert (pong.received_bytes, pong.sent_bytes, pong.refused) == (3 * 2 * 6000, 3 * 2 * 6000, {})
    assert pong.busy_s > 0


def test_a_copy_that_does_not_arrive_is_said_and_the_part_can_be_joined(tmp_path: Path) -> None:
    rule = UpdateRule(name="momentum", momentum=0.9)
    with aggregated(tmp_path, LAYOUT, 2, rule, aggregators=2) as run:
        training = Training(run)
        training.train(5)
        with socket.create_server((LOCAL, 0)) as nobody:
            port = nobody.getsockname()[1]
        to = AggregatorAddress(aggregator="n9/0", lease="00" * 16, token="00" * 32, host=LOCAL, port=port)
        run.announce_move([0], "n1/1")
        process = run.processes["n1/0"]
        process.order(SendPart(job_id="j1", epoch=1, part=0, generation=2, to=to))
        failed = process.wait_for(CopyFailed)
        assert (failed.part, failed.generation, "n9/0: " in failed.reason) == (0, 2, True)
        threading.Thread(target=run.join_anew, args=([0],), daemon=True).start()
        assert training.train(12) == [plain_results(LAYOUT, rule, 2, 12)] * 2


def test_a_part_that_is_not_there_or_has_nothing_cannot_be_sent(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2, aggregators=2) as run:
        to = run.lease("n1/1", COPY_RANK)
        process = run.processes["n1/0"]
        process.order(SendPart(job_id="j1", epoch=1, part=1, generation=2, to=to))
        assert process.wait_for(CopyFailed).reason == "to n1/1: the part is not here"
        process.order(SendPart(job_id="j1", epoch=1, part=0, generation=2, to=to))
        assert "the part is joining" in process.wait_for(CopyFailed).reason


def test_a_copy_to_where_nobody_waits_for_it_fails_and_is_said(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 1, aggregators=2) as run:
        Training(run).train(2)
        to = run.lease("n1/1", COPY_RANK)
        process = run.processes["n1/0"]
        process.order(SendPart(job_id="j1", epoch=1, part=0, generation=2, to=to))
        assert "part 0 of run j1/1 is not here" in process.wait_for(CopyFailed).reason
        assert run.processes["n1/1"].said(PartCopied) == []


def test_an_order_that_is_none_is_left_out_and_the_next_followed(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 1) as run:
        process = run.processes["n1/0"]
        process._mine.sendall(b'{"type":"dance"}\nno json\n')
        process.order(RunSlots(iteration_s={"j1/1": -1.0}, cost_s={"j1/1": 1.0}))
        assert Training(run).train(2) == [plain_results(LAYOUT, UpdateRule(), 1, 2)]


def test_an_aggregator_ends_with_its_agent(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 1) as run:
        assert run.processes["n1/0"].hang_up() == 0


# --- turns


def test_runs_beyond_the_slots_of_a_cycle_wait_for_the_next_one() -> None:
    turns = RunTurns()
    turns.change(RunSlots(iteration_s={"a/1": 10.0, "b/1": 10.0}, cost_s={"a/1": 4.0, "b/1": 5.0}))
    assert turns.wait_s("a/1", 1, 0.0) == 0.0
    assert turns.wait_s("a/1", 1, 1.0) == 0.0  # another part of the same step
    assert turns.wait_s("a/1", 2, 2.0) == 8.0
    assert turns.wait_s("b/1", 1, 3.0) == 0.0
    assert turns.wait_s("a/1", 2, 10.0) == 0.0
    assert turns.wait_s("c/1", 7, 11.0) == 0.0  # not held back


def test_a_run_that_is_alone_or_unknown_never_waits() -> None:
    turns = RunTurns()
    assert [turns.wait_s("a/1", step, 0.0) for step in range(5)] == [0.0] * 5
    turns.change(RunSlots(iteration_s={"a/1": 10.0}, cost_s={"a/1": 4.0}))
    assert [turns.wait_s("a/1", step, 0.0) for step in range(5)] == [0.0] * 5


def test_a_step_that_waits_for_its_turn_is_completed_in_the_next_cycle(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2) as run:
        slots = RunSlots(iteration_s={"j1/1": 0.1, "j2/1": 0.1}, cost_s={"j1/1": 0.05, "j2/1": 0.05})
        run.processes["n1/0"].order(slots)
        results = Training(run).train(22)
        measured = run.processes["n1/0"].wait_for(RunMeasuredHere)
    assert results == [plain_results(LAYOUT, UpdateRule(), 2, 22)] * 2
    assert measured.iteration_s > 0.05, "a step a cycle, however fast the ranks are"


def test_an_aggregator_keeps_no_memory_of_parts_that_were_copied_away(tmp_path: Path) -> None:
    with aggregated(tmp_path, LAYOUT, 2, aggregators=2, shared=True) as run:
        training = Training(run)
        training.train(3)
        of_ranks, of_a_result = 2, 2
        assert descriptors_of_memory(run, "n1/0") == of_ranks + of_a_result
        run.move([0], "n1/1")
        training.train(6)
        for _ in range(5_000):  # until it has heard that its copy is whole
            run.processes["n1/0"].ping()
            if descriptors_of_memory(run, "n1/0") == of_ranks:
                break
        assert descriptors_of_memory(run, "n1/0") == of_ranks
        assert descriptors_of_memory(run, "n1/1") == of_ranks + 2 * of_a_result


def descriptors_of_memory(run: AggregatedRun, name: str) -> int:
    """Return how many an aggregator has of shared memory: one for each mapping, and one of each result to be given."""
    links = Path(f"/proc/{run.processes[name].process.pid}/fd").iterdir()
    return sum("penstock-vectors" in os.readlink(link) for link in links)


# --- the rules against those of torch


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    "rule",
    [
        UpdateRule(name="sgd", lr=0.1, weight_decay=0.01),
        UpdateRule(name="momentum", lr=0.05, momentum=0.9, weight_decay=0.01),
        UpdateRule(name="adamw", lr=0.01, weight_decay=0.1),
    ],
    ids=lambda rule: rule.name,
)
def test_the_rules_are_those_of_torch(rule: UpdateRule, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    params = rng.standard_normal(70_000).astype(dtype)
    state = [np.zeros_like(params) for _ in range(state_size(rule))]
    tensor = torch.tensor(params.copy(), requires_grad=True)
    if rule.name == "adamw":
        betas = (rule.beta1, rule.beta2)
        optimizer = torch.optim.AdamW([tensor], lr=rule.lr, betas=betas, eps=rule.eps, weight_decay=rule.weight_decay)
    else:
        momentum = rule.momentum if rule.name == "momentum" else 0
        optimizer = torch.optim.SGD([tensor], lr=rule.lr, momentum=momentum, weight_decay=rule.weight_decay)
    for step in range(1, 51):
        gradient = rng.standard_normal(70_000).astype(dtype)
        update(rule, step, [gradient], params, state)
        tensor.grad = torch.tensor(gradient)
        optimizer.step()
    difference = np.abs(params - tensor.detach().numpy()).max()
    assert difference / np.abs(params).max() < (1e-6 if dtype == "f4" else 1e-14)


def test_values_are_summed_in_the_order_of_ranks_whoever_comes_first(tmp_path: Path) -> None:
    """1e8 + 1 - 1e8 is 0 in this order, and 1 in others."""
    layout = VectorLayout(dtype="f4", parts=(3,))
    with aggregated(tmp_path, layout, 3) as run:
        exchanges = [run.exchange(rank) for rank in range(3)]
        turn = [threading.Event() for _ in range(4)]
        turn[0].set()

        def train(rank: int) -> float:
            place = (1, 0, 2)[rank]
            turn[place].wait()
            exchanges[rank].push(np.full(3, (1e8, 1, -1e8)[rank], "f4"))
            turn[place + 1].set()
            into = np.ones(3, "f4")
            exchanges[rank].pull(into)
            return float(into[0])

        assert in_threads(train, 3) == [0.0] * 3


def test_an_aggregator_ends_by_an_error_of_any_of_its_threads() -> None:
    lines = (
        "import threading",
        "from penstock_aggregator.process import end_on_errors",
        "end_on_errors()",
        "threading.Thread(target=lambda: 1 / 0, name='odd').start()",
        "threading.Event().wait()",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == os.EX_SOFTWARE
    assert "aggregator_failed" in done.stdout + done.stderr
    assert "ZeroDivisionError" in done.stdout + done.stderr
