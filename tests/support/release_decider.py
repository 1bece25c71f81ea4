"""A decider small enough to see through, for tests of what runs deciders: it releases every submitted job once."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_bus import Decider, Decision, Proposal
from penstock_log import Event, JobReleased, JobSpec, JobSubmitted, subjects


class ReleaseState(msgspec.Struct):
    """Jobs with the sequence of their submission, and those that were released."""

    seen: dict[str, int] = msgspec.field(default_factory=dict)
    released: set[str] = msgspec.field(default_factory=set)


def apply(state: ReleaseState, event: Event, seq: int) -> None:
    """Fold one fact in."""
    match event:
        case JobSubmitted():
            state.seen[event.job_id] = seq
        case JobReleased():
            state.released.add(event.job_id)
        case _:
            pass


def decide(state: ReleaseState, now_s: float) -> Decision:
    """Release every job that is not released, each once."""
    waiting = [job_id for job_id in state.seen if job_id not in state.released]
    return Decision(
        [Proposal(subject=subjects.job(j), facts=(JobReleased(job_id=j, at_s=now_s),), cause=0) for j in waiting]
    )


def submitted(job_id: str, at_s: float = 0.0) -> JobSubmitted:
    """Return the submission of a job that does nothing."""
    return JobSubmitted(job_id=job_id, at_s=at_s, spec=JobSpec(name=job_id, command=("true",)))


DECIDER: Final = Decider(name="gateway", state=ReleaseState, schema="released.v1", apply=apply, decide=decide)
