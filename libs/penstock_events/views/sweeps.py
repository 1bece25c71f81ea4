"""Sweeps and their trials."""

from __future__ import annotations

from penstock_events.spec import Param, SweepSpec
from penstock_events.views.base import View


class TrialView(View, frozen=True, kw_only=True):
    """One trial of a sweep; ``state`` is that of its job (empty before it is submitted)."""

    job_id: str
    params: dict[str, Param]
    gpus: int
    group: int
    state: str
    value: float | None


class SweepView(View, frozen=True, kw_only=True):
    """
    One sweep.

    Attributes
    ----------
    state : {"running", "cancelling", "completed", "failed", "cancelled"}
    trials : tuple of TrialView
        Opened so far.
    done : int
        Trials that are over.
    wanted : int
        Trials that the specification asks for; 0 where the search decides (a whole grid).
    """

    id: str
    name: str
    state: str
    metric: str
    mode: str
    submitted_s: float
    finished_s: float | None
    wanted: int
    done: int
    best_job_id: str
    best_value: float | None
    reason: str
    trials: tuple[TrialView, ...]
    spec: SweepSpec


class SweepsView(View, frozen=True, kw_only=True):
    """All sweeps, by submission; their trials are left out (``sweep`` has them)."""

    sweeps: tuple[SweepView, ...]
    seq: int
