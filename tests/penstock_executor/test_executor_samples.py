"""What a run's end says of its batch, its samples and its iterations: what its first process said last."""

from __future__ import annotations

from typing import Any

import msgspec
from executor_machine_cases import Node, joined, placed, preempted, submitted

from penstock_executor import gang
from penstock_log import RunEnded
from penstock_log.agent_protocol import (
    EXIT_PREEMPTED,
    CheckpointSaved,
    LoopReport,
    MemoryReport,
    SessionDone,
    StepProgress,
)


def progress(step: int, samples: int) -> StepProgress:
    return StepProgress(
        step=step, loop_steps=step, loop_s=1.0, batch_size=64, samples=samples, iteration_s=0.25, error_s=0.01
    )


def end_of(
    node: Node, code: int, *said: StepProgress | SessionDone | CheckpointSaved, others: tuple[StepProgress, ...] = ()
) -> RunEnded:
    run = node.running(ranks=2)
    for message in said:
        gang.note_message(run, 0, message)
    for message in others:
        gang.note_message(run, 1, message)
    for rank in run.ranks.values():
        rank.exit_code, rank.ended_s = code, 101.0
    return node.fact()


def test_a_runs_end_says_what_its_first_process_said_last() -> None:
    node = Node().given(joined(), submitted(), placed())
    done = SessionDone(step=9, loop_steps=9, loop_s=2.0, batch_size=64, samples=570, iteration_s=0.2, error_s=0.02)
    fact = end_of(node, 0, progress(3, 192), done, others=(progress(9, 7),))
    assert fact.outcome == "completed"
    assert (fact.batch_size, fact.samples, fact.iteration_s, fact.error_s) == (64, 570, 0.2, 0.02)


def test_a_report_travels_whole_to_the_end_of_its_run() -> None:
    said: dict[str, Any] = {
        "step": 9,
        "loop_steps": 8,
        "loop_s": 2.0,
        "waited_s": 0.5,
        "saves": True,
        "metrics": {"loss": 0.25},
        "diverged": ("acc",),
        "skew": 0.125,
        "memory": MemoryReport(allocated_bytes=3, peak_bytes=5),
        "batch_size": 64,
        "samples": 570,
        "iteration_s": 0.2,
        "error_s": 0.02,
    }
    assert set(said) == set(LoopReport.__struct_fields__)
    fact = end_of(Node().given(joined(), submitted(), placed()), 0, SessionDone(**said))
    assert fact.steps == said.pop("step")
    assert fact.peak_memory_bytes == said.pop("memory").peak_bytes
    assert {name: getattr(fact, name) for name in said} == said


def test_a_report_is_flat_on_the_wire() -> None:
    done = SessionDone(step=9, loop_steps=8, loop_s=2.0)
    sent = msgspec.json.decode(msgspec.json.encode(done))
    assert list(sent) == ["type", *LoopReport.__struct_fields__]
    assert (sent["type"], sent["step"], sent["loop_steps"]) == ("done", 9, 8)


def test_a_preempted_run_has_done_what_its_last_checkpoint_has() -> None:
    node = Node().given(joined(), submitted(), placed(), preempted())
    saved = CheckpointSaved(step=5, samples=320)
    fact = end_of(node, EXIT_PREEMPTED, progress(4, 256), saved, progress(7, 448))
    assert fact.outcome == "preempted"
    assert (fact.steps, fact.samples, fact.batch_size) == (5, 320, 64)


def test_a_failed_run_has_done_what_it_said_last() -> None:
    node = Node().given(joined(), submitted(), placed())
    fact = end_of(node, 1, CheckpointSaved(step=5, samples=320), progress(7, 448))
    assert (fact.outcome, fact.steps, fact.samples) == ("failed", 7, 448)
