"""
How a job comes to another size, and back: what demands make of it, and what becomes of a run that a new size has ended.

An elastic job is not failed by the autoscaler's choice. A run that fails at once with a size that had not done before
goes back to the one that had, and so does one that fails for want of memory; that size is not tried again. A gang of
which a process is killed is treated as if its node was lost: it goes on from its last checkpoint, at whatever width
there is room for. Neither goes on for ever: there are so many sizes only, and a gang must get on between its losses.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_events.scale import Demand
from penstock_events.states import TERMINAL, Job, Size, State

EARLY_STEPS: Final = 2
"""A run that has failed after so many steps, or fewer, has failed at once."""


def scale(job: Job, demand: Demand) -> bool:
    """
    Note what a job is to have from its next run on.

    One that waits takes a new epoch with it, so that a placement which was decided before is void.
    """
    if (
        demand.epoch != job.epoch
        or job.state in TERMINAL
        or job.state is State.COMPLETING
        or not _may_have(job, demand)
    ):
        return False
    if job.placement is None:
        job.epoch += 1
        become(job, demand)
    else:
        job.demand = demand
    return True


def _may_have(job: Job, demand: Demand) -> bool:
    """Say whether an elastic job has said that it takes this size, not found unfit since; others take any but none."""
    spec, batch = job.spec, job.spec.batch
    if not spec.elastic:
        return demand.gpus > 0
    size = _asked(job, demand)
    kept = size.batch_size == spec.batch_size
    batch_fits = kept or (batch is not None and batch.min <= size.batch_size <= batch.max)
    return size.gpus in spec.widths and batch_fits and not job.is_unfit(size)


def become(job: Job, demand: Demand) -> None:
    """Have a job ask for something else; what it has attained by now stays."""
    job.demand = None
    if not _may_have(job, demand):
        return  # its run has just failed with that size
    if job.spec.elastic and job.before is None:
        job.before = job.size
    if demand.kinds and job.accepts is None:
        job.accepts = job.spec.kinds
    _set(job, _asked(job, demand))
    job.spec = msgspec.structs.replace(
        job.spec,
        sharing=demand.sharing,
        sharers=demand.sharers if demand.sharing == "lane" else 0,
        kinds=demand.kinds or (job.spec.kinds if job.accepts is None else job.accepts),
    )


def drop(job: Job, at_s: float) -> bool:
    """End a job that has never run, for want of room."""
    if job.attempts or job.placement is not None or not job.move("dropped"):
        return False
    job.reason = "dropped: its smallest size found no room, and its pool drops such jobs"
    job.waited_s += max(0.0, at_s - job.pending_since_s)
    job.finished_s = at_s
    return True


def prove(job: Job) -> None:
    """Note with which size a run has just gone well: it got on, and it was not for itself that it ended."""
    if job.spec.elastic and job.outcome != "failed" and job.run_steps > EARLY_STEPS:
        job.before = job.size


def spared(job: Job) -> str:
    """
    Say what is to be made of an elastic job's failed run, if that is not to be held against it.

    Returns
    -------
    str
        ``lost`` where a process was killed; ``retried`` for a size that did not do; empty where it has failed.
    """
    if not job.spec.elastic or job.state is State.COMPLETING:
        return ""
    if job.killed and job.spec.gpus > 1 and job.steps > job.lost_steps and not job.out_of_memory:
        job.lost_steps = job.steps
        job.reason = f"one of its processes was killed ({job.reason})"
        return "lost"
    early = job.attempts > 1 and job.run_steps <= EARLY_STEPS
    if job.before is not None and job.before != job.size and (early or job.out_of_memory):
        _go_back(job, job.before)
        return "retried"
    return ""


def _go_back(job: Job, size: Size) -> None:
    any_batch = size.gpus != job.spec.gpus and not job.out_of_memory  # such as a checkpoint of another width
    job.unfit = (*job.unfit, Size(job.spec.gpus, 0 if any_batch else job.spec.batch_size))
    job.reason = f"it did not run on {_words(job.size)}, and goes back to {_words(size)}: {job.reason}"
    _set(job, size)
    if job.accepts is not None:
        job.spec = msgspec.structs.replace(job.spec, kinds=job.accepts)


def _asked(job: Job, demand: Demand) -> Size:
    return Size(demand.gpus, demand.batch_size or job.spec.batch_size)


def _set(job: Job, size: Size) -> None:
    job.carried_gpu_s += (job.spec.gpus - size.gpus) * (job.executed_s - job.forgone_s)
    job.spec = msgspec.structs.replace(job.spec, gpus=size.gpus, batch_size=size.batch_size)


def _words(size: Size) -> str:
    batch = f" with a batch of {size.batch_size}" if size.batch_size else ""
    return f"{size.gpus} device{'s' if size.gpus > 1 else ''}{batch}"
