"""Facts about sweeps. Written by the tuner on ``evt.sweep.<id>``."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock_events.base import Event
from penstock_events.scale import Demand
from penstock_events.spec import Param

Problem = Literal["", "crashed", "diverged", "no_report", "refused", "memory"]
"""Why a trial gave no value."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """
    One run of a point of the space; it runs as the job ``job_id``.

    Attributes
    ----------
    gpus : int
    packed : int
        Trials on its device at most, itself among them; where there may be others, it takes turns with them.
    number : int
        Of the point; a trial that is promoted runs again under the same number, as another job.
    bracket, rung : int
        Where it stands, in a search that stops early; the generations of population-based training are rungs.
    budget : int
        Up to which it trains, counted from its very beginning; 0 where the sweep has no budget.
    origin : str
        The job whose last checkpoint it goes on from; empty where it starts afresh.
    """

    job_id: str
    params: dict[str, Param]
    gpus: int = 1
    packed: int = 1
    number: int = 0
    bracket: int = 0
    rung: int = 0
    budget: int = 0
    origin: str = ""


class TrialGroupOpened(Event, frozen=True, kw_only=True, tag="sweep.group_opened.v1"):
    """
    The tuner chose these trials and their widths; it submits each as a job, again if need be, under the same id.

    A group is a batch, a rung, a generation, or whatever an asynchronous search has room for.
    """

    sweep_id: str
    group: int
    trials: tuple[Trial, ...]


class TrialsScaled(Event, frozen=True, kw_only=True, tag="sweep.scaled.v1"):
    """
    These trials are to be as wide as this from their next runs on; no step is lost, and others are not touched.

    A trial that is over, or is being cancelled, has no next run: its demand is void.
    """

    sweep_id: str
    demands: tuple[Demand, ...]


class TrialRetried(Event, frozen=True, kw_only=True, tag="sweep.trial_retried.v1"):
    """
    A trial's job has exceeded its memory beside others; it runs once more, as another job with a device to itself.

    Attributes
    ----------
    job_id : str
        Of the job that is over; the search hears only of the new one.
    trial : Trial
        The same trial, as the new job.
    reason : str
        What it asked for and what it used.
    """

    sweep_id: str
    job_id: str
    trial: Trial
    reason: str


class TrialsMeasured(Event, frozen=True, kw_only=True, tag="sweep.measured.v1"):
    """
    What the trials of a sweep, and of those before it, have shown of their workload; a later one replaces it.

    Attributes
    ----------
    key : str
        Of the workload.
    alpha, beta : float
        Penalties of packing and of scaling out, 1 or more; 0 where not measured.
    packing, widest : int
        Most trials on one device, and most devices for one trial, that are worth it as far as is known; 0: no limit.
    overhead_s : float
        What moving a running trial costs (ε), in seconds; 0 where not measured.
    saves : bool
        Whether its script saves checkpoints: trials of one that does not are never moved.
    moves : int
        How many moves that was measured on; where none, it is what starting takes, and a guess for stopping.
    """

    sweep_id: str
    key: str
    alpha: float = 0.0
    beta: float = 0.0
    packing: int = 0
    widest: int = 0
    overhead_s: float = 0.0
    moves: int = 0
    saves: bool = False


class TrialFinished(Event, frozen=True, kw_only=True, tag="sweep.trial_finished.v1"):
    """
    A trial's job is over, or never came about.

    Attributes
    ----------
    value : float or None
        Its metric; None where it reported none.
    problem : str
        Why there is no value: it crashed, it exceeded its memory, its metric was no number in the end (``diverged``),
        it reported nothing, or the gateway refused it. Empty where there is one, or it was cancelled.
    reason : str
        The same in a sentence, where there is more to say.
    """

    sweep_id: str
    job_id: str
    state: Literal["completed", "failed", "cancelled"]
    value: float | None = None
    reason: str = ""
    problem: Problem = ""


class SweepFinished(Event, frozen=True, kw_only=True, tag="sweep.finished.v1"):
    """All trials are over. ``best_job_id`` is empty where no trial gave a value."""

    sweep_id: str
    state: Literal["completed", "failed", "cancelled"]
    best_job_id: str = ""
    best_value: float | None = None
    reason: str = ""
