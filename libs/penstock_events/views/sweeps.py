"""Sweeps and their trials."""

from __future__ import annotations

from penstock_events.spec import Param, SweepSpec
from penstock_events.sweep import Problem
from penstock_events.views.base import View


class TrialView(View, frozen=True, kw_only=True):
    """
    One run of a trial; ``state`` is that of its job (empty before it is submitted).

    Attributes
    ----------
    gpus, packed : int
        Devices that its job asks for, and how many trials may take turns on its device; 1 where it has it to itself.
    number : int
        Of the trial: the same in all rungs.
    bracket, rung, budget : int
        Where it stands in a search that stops early; 0 elsewhere.
    promoted : bool
        Whether another run went on from it.
    problem : str
        Why it gave no value: crashed, diverged, no_report, refused.
    reason : str
        The same in a sentence, where there is more to say.
    """

    job_id: str
    params: dict[str, Param]
    gpus: int
    group: int
    state: str
    value: float | None
    packed: int = 1
    number: int = 0
    bracket: int = 0
    rung: int = 0
    budget: int = 0
    promoted: bool = False
    problem: Problem = ""
    reason: str = ""


class RungView(View, frozen=True, kw_only=True):
    """
    One group of a search that stops early: so many trials opened, of which so many are over and were promoted.

    Attributes
    ----------
    best_value : float or None
        The best of those that are over.
    """

    bracket: int
    rung: int
    budget: int
    opened: int
    over: int
    promoted: int
    best_value: float | None


class GoodputView(View, frozen=True, kw_only=True):
    """
    What became of the devices that a sweep's trials held, in device-seconds; all but the last of runs that are over.

    Attributes
    ----------
    useful_gpu_s : float
        Spent in iterations whose result reached the search, of runs that were promoted or are the best.
    stopped_gpu_s : float
        The same of runs that were not: what it costs to find out.
    failed_gpu_s : float
        Of runs that gave no value, iterations and all: crashed, diverged, cancelled.
    rescale_gpu_s : float
        Stopping and going on again, after a move, a preemption or a crash.
    overhead_gpu_s : float
        What else was no iteration: starting, loading and saving checkpoints, leaving.
    profile_gpu_s : float
        Samples that the profiler took of the workload while the sweep was there.
    allocated_gpu_s : float
        All of these.
    running_gpu_s : float
        Held so far by runs on their way.
    """

    useful_gpu_s: float
    stopped_gpu_s: float
    failed_gpu_s: float
    overhead_gpu_s: float
    allocated_gpu_s: float
    rescale_gpu_s: float = 0.0
    profile_gpu_s: float = 0.0
    running_gpu_s: float = 0.0

    @property
    def share(self) -> float:
        """The useful part of what was allocated, from 0 to 1."""
        return self.useful_gpu_s / self.allocated_gpu_s if self.allocated_gpu_s else 0.0


class SweepView(View, frozen=True, kw_only=True):
    """
    One sweep.

    Attributes
    ----------
    state : {"running", "cancelling", "completed", "failed", "cancelled"}
    trials : tuple of TrialView
        Runs opened so far.
    done : int
        Runs that are over.
    opened : int
        Trials opened so far; a trial that is promoted runs more than once.
    wanted : int
        Runs that there will be if nothing fails; 0 where the search finds out on the way.
    best_job_id, best_value
        So far: of the runs with the largest budget that gave a value, the best.
    eta_s : float or None
        Seconds to the end at the pace so far, as far as the search knows what is left.
    makespan_s : float
        Seconds from submission to the end, or so far.
    target_s : float or None
        Seconds from submission to the first value as good as the target of the specification.
    utilisation : float or None
        Device-seconds held over those of the devices that it could have used, from 0 to 1; None where there were none.
    failed : int
        Runs that should have given a value and gave none: they crashed, reported nothing or were refused. Those that
        diverged have shown something, and are not among them; nor are those that were cancelled.
    failed_promotions : int
        Of these, the runs that went on from another.
    first_failed, first_error : str
        The first of them, and why, in a sentence; empty where none has.
    rungs : tuple of RungView
    goodput : GoodputView or None
        None in a list of sweeps.
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
    opened: int = 0
    eta_s: float | None = None
    makespan_s: float = 0.0
    target_s: float | None = None
    utilisation: float | None = None
    failed: int = 0
    failed_promotions: int = 0
    first_failed: str = ""
    first_error: str = ""
    rungs: tuple[RungView, ...] = ()
    goodput: GoodputView | None = None


class SweepsView(View, frozen=True, kw_only=True):
    """All sweeps, by submission; their trials are left out (``sweep`` has them)."""

    sweeps: tuple[SweepView, ...]
    seq: int
