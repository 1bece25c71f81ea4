"""Facts about jobs. Written by the gateway on ``evt.job.<id>``."""

from __future__ import annotations

from typing import Literal

from penstock_events.base import Event
from penstock_events.spec import JobSpec


class JobSubmitted(Event, frozen=True, kw_only=True, tag="job.submitted.v1"):
    """The gateway accepted a job; from here on it ends exactly once."""

    job_id: str
    spec: JobSpec


class JobCancelled(Event, frozen=True, kw_only=True, tag="job.cancelled.v1"):
    """Somebody asked for the job to end; a running one is stopped first."""

    job_id: str
    by: str = ""
    reason: str = ""


class JobHeld(Event, frozen=True, kw_only=True, tag="job.held.v1"):
    """The job is not to be started until it is released; a running one goes on."""

    job_id: str
    by: str = ""


class JobReleased(Event, frozen=True, kw_only=True, tag="job.released.v1"):
    """The job may start again."""

    job_id: str
    by: str = ""


class JobFinished(Event, frozen=True, kw_only=True, tag="job.finished.v1"):
    """
    The job is over: the gateway's announcement, for people and for services that keep no fold of their own.

    Whoever folds job, round and run facts with :mod:`penstock_events.lifecycle` knows the same without it.
    """

    job_id: str
    name: str
    state: Literal["completed", "failed", "cancelled"]
    submitted_s: float
    reason: str = ""
    exit_code: int | None = None
    run_s: float = 0.0
    gpu_s: float = 0.0
    preemptions: int = 0
    attempts: int = 0
    steps: int = 0
    metrics: dict[str, float] = {}
    user: str = ""
    parent: str = ""
