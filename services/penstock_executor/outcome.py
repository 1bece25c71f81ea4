"""From exit codes to what the log says about a run's end."""

from __future__ import annotations

import re
import signal
from typing import Final

from penstock_events import Checkpoint, Job, Outcome, RunEnded, State
from penstock_events.agent import EXIT_PREEMPTED
from penstock_executor.local import Ending, Rank, Run

WANTS_MEMORY: Final = re.compile(r"MemoryError|out ?of ?memory|allocate memory|bad_alloc", re.IGNORECASE)
_VANISHING: Final = frozenset(
    {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL}
)
"""Beside KILL; not ABRT, with which a program gives up by itself, often because a peer of it is gone."""
NOT_FOUND: Final = 127
"""What a shell says of a program that it cannot find."""


def ended(run: Run, job: Job, node_id: str, now_s: float, limit_s: float = 0.0) -> RunEnded:
    """
    Return the fact that ends a run none of whose processes is left.

    Parameters
    ----------
    run : Run
    job : Job
        As the log has it: says whether a stop was asked for.
    limit_s : float
        The time limit that ended it, where one did.
    """
    outcome, reason, rank = _verdict(run, job, limit_s)
    first = run.ranks.get(0, Rank())
    saved = max(first.saved_step, run.resumed_step, job.checkpoint_step if _is_of(job.checkpoint, run) else 0)
    return RunEnded(
        job_id=run.job_id,
        epoch=run.epoch,
        node_id=node_id,
        at_s=now_s,
        outcome=outcome,
        exit_code=NOT_FOUND if run.refused and not job.sample else 0 if rank.unflushed else rank.exit_code,
        reason=reason,
        steps=saved if outcome == "preempted" else first.step,
        loop_steps=first.loop_steps,
        loop_s=first.loop_s,
        waited_s=first.waited_s,
        saves=first.saves,
        peak_memory_bytes=first.peak_bytes,
        out_of_memory=outcome == "failed" and _for_want_of_memory(run, rank),
        killed=outcome == "failed" and rank.failed and _vanished(run, rank) and run.ending != "host_memory",
        cap_bytes=run.cap_bytes,
        metrics=first.metrics,
        diverged=first.diverged,
        skew=first.skew,
        batch_size=first.batch_size,
        samples=first.saved_samples if outcome == "preempted" else first.samples,
        iteration_s=first.iteration_s,
        error_s=first.error_s,
    )


def _is_of(checkpoint: Checkpoint | None, run: Run) -> bool:
    """Say whether a checkpoint was written by this run, on whichever of its nodes."""
    return checkpoint is not None and checkpoint.generation == run.epoch


def _verdict(run: Run, job: Job, limit_s: float) -> tuple[Outcome, str, Rank]:
    if run.refused:
        return "failed", run.refused, Rank()
    rank = _decisive(run)
    if not any(each.failed for each in run.ranks.values()):
        return "completed", "", rank
    return (*_words(run, job, _ending(run, job), rank, limit_s), rank)


def _words(run: Run, job: Job, ending: Ending, rank: Rank, limit_s: float) -> tuple[Outcome, str]:
    if ending == "cancelled":
        return "cancelled", job.reason or "cancelled"
    if ending in {"time_limit", "memory", "host_memory", "hang"}:
        return "failed", run.why or f"the sample took longer than {limit_s:g} s and was ended"
    if not run.crashed and ending == "preempted":
        return "preempted", run.why or job.reason
    if not run.crashed and ending == "gang" and not _vanished(run, rank):
        return "preempted", "ended because its gang ended on another node"
    if rank.exit_code is None:
        return "lost", "its processes vanished without an exit status: was the machine restarted?"
    return "failed", _reason(run, rank)


def _ending(run: Run, job: Job) -> Ending:
    """Return why the run was ended; the log knows it too, if the executor was killed before it could note it."""
    if job.state is State.COMPLETING:
        return "cancelled"
    if not run.ending and job.state is State.PREEMPTING and _left_as_asked(run):
        return "preempted"
    return run.ending


def _left_as_asked(run: Run) -> bool:
    return all(rank.exit_code in (0, EXIT_PREEMPTED) or rank.leaving for rank in run.ranks.values())


def _decisive(run: Run) -> Rank:
    """
    Return the process over which the others stumbled, or the lowest one where all went well.

    That is one that was killed; else the one that failed first, as far as the order was seen.
    """
    ranks = [run.ranks[index] for index in sorted(run.ranks)]
    failed = [rank for rank in ranks if rank.failed]
    return min(failed, key=lambda rank: (not _vanished(run, rank), rank.ended_s), default=ranks[0])


def _vanished(run: Run, rank: Rank) -> bool:
    """Say whether a process was ended by a signal that was not ours."""
    signum = None if rank.exit_code is None else rank.exit_code - 128
    if signum in (None, signal.SIGKILL):
        return not run.killed_s or rank.ended_s < run.killed_s
    return signum in _VANISHING and (not run.termed_s or rank.ended_s < run.termed_s)


def _reason(run: Run, rank: Rank) -> str:
    index = next(index for index, each in run.ranks.items() if each is rank)
    who = f"rank {index} of {run.world_size}: " if run.world_size > 1 else ""
    said = f": {rank.last_line}" if rank.last_line else ""
    return who + exit_words(rank.exit_code or 0) + said + _cap_words(run, rank)


def _for_want_of_memory(run: Run, rank: Rank) -> bool:
    """Say whether a process wanted more of its device; what it wants of its host says nothing of that."""
    if run.ending == "host_memory":
        return False
    return run.ending == "memory" or bool(WANTS_MEMORY.search(rank.last_line))


def _cap_words(run: Run, rank: Rank) -> str:
    """Say what a process may hold of its device, where it ended for want of memory."""
    if not run.cap_bytes or not WANTS_MEMORY.search(rank.last_line):
        return ""
    return f"; it may hold {run.cap_bytes / 2**20:,.0f} MiB of its device, which it shares"


def exit_words(code: int) -> str:
    """
    Say an exit code as people do.

    Examples
    --------
    >>> exit_words(1), exit_words(139)
    ('exit code 1', 'signal SIGSEGV (exit code 139)')
    """
    try:
        return f"signal {signal.Signals(code - 128).name} (exit code {code})"
    except ValueError:
        return f"exit code {code}"
