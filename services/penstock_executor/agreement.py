"""How a gang agrees on the step to stop after, from what its processes say. Pure; the rules are those of ``agent``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock_events.agent import (
    STOP_MARGIN,
    At,
    Done,
    FromJob,
    Hello,
    Progress,
    Saved,
    SaveFailed,
    StopAt,
    kept_metrics,
)
from penstock_executor.local import Rank, Run


def stop_step(
    world_size: int, answers: Mapping[int, int], absent: Collection[int] = (), held: Collection[int] = ()
) -> int | None:
    """
    Return the step that all processes of a gang can stop after; None while an answer is missing.

    ``absent`` are processes that have ended, and need not be waited for; ``held`` are those that begin no further step
    before they hear of it.

    Examples
    --------
    >>> stop_step(2, {0: 10}), stop_step(2, {0: 10, 1: 11}), stop_step(2, {0: 10}, absent={1})
    (None, 13, 12)
    >>> stop_step(2, {0: 10, 1: 10}, held={0, 1}), stop_step(2, {0: 11, 1: 10}, held={0})
    (10, 12)
    """
    if not answers or any(rank not in answers and rank not in absent for rank in range(world_size)):
        return None
    return max(step + (0 if rank in held else STOP_MARGIN) for rank, step in answers.items())


def hear(run: Run, index: int, message: FromJob) -> None:
    """Take in what one process said."""
    rank = run.ranks[index]
    match message:
        case Hello():
            rank.greeted = True
            rank.step = max(rank.step, message.step)
            run.answers.pop(index, None)  # a question over an older connection is void
            run.held.discard(index)
        case Progress():
            _progress(rank, message)
        case Done():
            _progress(rank, message)
            rank.done = True
            run.answers[index] = message.step
        case At():
            run.answers[index] = message.step
            if message.held:
                run.held.add(index)
        case Saved():
            rank.saved_step = max(rank.saved_step, message.step)
            rank.saved_samples = max(rank.saved_samples, message.samples)
            rank.step = max(rank.step, message.step)
            rank.leaving = rank.leaving or message.leaving
        case SaveFailed():
            rank.step = max(rank.step, message.step)


def _progress(rank: Rank, message: Progress | Done) -> None:
    rank.step, rank.loop_steps, rank.loop_s = message.step, message.loop_steps, message.loop_s
    rank.waited_s, rank.saves = message.waited_s, message.saves
    if message.memory is not None:
        rank.peak_bytes = max(rank.peak_bytes, message.memory.peak_bytes, message.memory.allocated_bytes)
    metrics = {**rank.metrics, **message.metrics}
    kept = kept_metrics(metrics)
    rank.metrics = {name: metrics[name] for name in kept if name not in message.diverged}
    rank.diverged = tuple(kept_metrics(message.diverged))
    rank.crowded = rank.crowded or len(kept) < len(metrics) or len(rank.diverged) < len(message.diverged)
    rank.skew = message.skew or rank.skew
    rank.batch_size, rank.samples = message.batch_size, message.samples
    rank.iteration_s, rank.error_s = message.iteration_s, message.error_s


def agree(run: Run, agreed: int | None = None) -> StopAt | None:
    """
    Settle the step once all answers are in; return what to tell the processes, the first time only.

    ``agreed`` is the step as another node of the gang had it from the same answers.
    """
    if not run.asked_s or run.stop_step is not None:
        return None
    absent = run.absent | {index for index, rank in run.ranks.items() if not rank.alive}
    run.stop_step = stop_step(run.world_size, run.answers, absent, run.held) if agreed is None else agreed
    return None if run.stop_step is None else StopAt(step=run.stop_step)
