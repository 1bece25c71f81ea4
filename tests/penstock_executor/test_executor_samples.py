"""What a run's end says of its batch, its samples and its iterations: what its first process said last."""

from __future__ import annotations

from executor_machine_cases import Node, joined, placed, preempted, submitted

from penstock_executor import gang
from penstock_log import RunEnded
from penstock_log.agent_protocol import EXIT_PREEMPTED, CheckpointSaved, SessionDone, StepProgress


def progress(step: int, samples: int) -> StepProgress:
    return StepProgress(
        step=step, loop_steps=step, loop_s=1.0, batch_size=64, samples=samples, iteration_s=0.25, error_s=0.01
    )


def end_of(
    node: Node, code: int, *said: StepProgress | SessionDone | CheckpointSaved, others: tuple[StepProgress, ...] = ()
) -> RunEnded:
    run = node.running(ranks=2)
    for message in said:
        gang.hear(run, 0, message)
    for message in others:
        gang.hear(run, 1, message)
    for rank in run.ranks.values():
        rank.exit_code, rank.ended_s = code, 101.0
    return node.fact()


def test_a_runs_end_says_what_its_first_process_said_last() -> None:
    node = Node().given(joined(), submitted(), placed())
    done = SessionDone(step=9, loop_steps=9, loop_s=2.0, batch_size=64, samples=570, iteration_s=0.2, error_s=0.02)
    fact = end_of(node, 0, progress(3, 192), done, others=(progress(9, 7),))
    assert fact.outcome == "completed"
    assert (fact.batch_size, fact.samples, fact.iteration_s, fact.error_s) == (64, 570, 0.2, 0.02)


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
