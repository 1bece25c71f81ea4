"""Facts as the ranker's tests need them."""

from __future__ import annotations

from penstock_log import (
    AnyEvent,
    JobRank,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    Outcome,
    Placement,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
)
from penstock_policies.queue_policies import QUEUE_POLICIES


def spec(gpus: int = 1, pool: str = "default", duration_s: float = 0.0) -> JobSpec:
    return JobSpec(name="train", command=("python", "train.py"), gpus=gpus, pool=pool, duration_s=duration_s)


def submitted(job_id: str, at_s: float, gpus: int = 1, pool: str = "default", duration_s: float = 0.0) -> JobSubmitted:
    return JobSubmitted(job_id=job_id, at_s=at_s, spec=spec(gpus, pool, duration_s))


def running(job_id: str, at_s: float, epoch: int = 1, gpus: int = 1) -> list[AnyEvent]:
    slot = Slot(node_id="n1", devices=tuple(range(gpus)))
    placement = Placement(job_id=job_id, epoch=epoch, kind="fast", slots=(slot,))
    return [
        RoundDecided(pool="default", at_s=at_s, placements=(placement,)),
        RunStarted(job_id=job_id, epoch=epoch, node_id="n1", devices=slot.devices, at_s=at_s),
    ]


def ended(job_id: str, at_s: float, epoch: int = 1, outcome: Outcome = "preempted") -> RunEnded:
    return RunEnded(job_id=job_id, epoch=epoch, node_id="n1", outcome=outcome, at_s=at_s)


def ranked(at_s: float, *ranks: JobRank, pool: str = "default", order: str = "2d-las") -> JobsRanked:
    mode = QUEUE_POLICIES[order].mode
    return JobsRanked(pool=pool, at_s=at_s, ranks=ranks, backfills=mode.backfills, preempts=mode.preempts, order=order)


def rank(  # noqa: PLR0917 - short words
    job_id: str,
    queue: int,
    position: float,
    attained_gpu_s: float = 0.0,
    since_s: float | None = None,
    falls_per_s: float = 0.0,
) -> JobRank:
    return JobRank(
        job_id=job_id,
        queue=queue,
        position=position,
        attained_gpu_s=attained_gpu_s,
        since_s=since_s,
        falls_per_s=falls_per_s,
    )
