"""Facts about sweeps. Written by the tuner on ``evt.sweep.<id>``."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock_events.base import Event
from penstock_events.spec import Param


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the space; it runs as the job ``job_id``."""

    job_id: str
    params: dict[str, Param]
    gpus: int = 1


class TrialGroupOpened(Event, frozen=True, kw_only=True, tag="sweep.group_opened.v1"):
    """The tuner chose these trials and their widths; it submits each as a job, again if need be, under the same id."""

    sweep_id: str
    group: int
    trials: tuple[Trial, ...]


class TrialFinished(Event, frozen=True, kw_only=True, tag="sweep.trial_finished.v1"):
    """
    A trial's job is over, or never came about.

    Attributes
    ----------
    value : float or None
        Its metric; None where it reported none.
    reason : str
        Why there is no job: the gateway's refusal.
    """

    sweep_id: str
    job_id: str
    state: Literal["completed", "failed", "cancelled"]
    value: float | None = None
    reason: str = ""


class SweepFinished(Event, frozen=True, kw_only=True, tag="sweep.finished.v1"):
    """All trials are over. ``best_job_id`` is empty where no trial gave a value."""

    sweep_id: str
    state: Literal["completed", "failed", "cancelled"]
    best_job_id: str = ""
    best_value: float | None = None
    reason: str = ""
