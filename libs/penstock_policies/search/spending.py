"""
What became of the devices that a sweep held, and how long it took to what: the same for live and simulated sweeps.

Whoever plays a sweep says of each run what it held and how much of that was iterations (:class:`Spent`), where it stood
and what it gave (:class:`Use`); :func:`account` adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec


class Spent(msgspec.Struct, kw_only=True):
    """
    What one run of a trial held, in device-seconds; a share of a device that others use too counts as that share.

    Attributes
    ----------
    held_gpu_s : float
        All of it.
    loop_gpu_s : float
        Of that, iterations.
    moved_gpu_s : float
        Of the rest, what it cost to stop and to go on: whatever was no iteration once it was started again.
    """

    held_gpu_s: float = 0.0
    loop_gpu_s: float = 0.0
    moved_gpu_s: float = 0.0

    def add(self, held_gpu_s: float, loop_gpu_s: float, *, again: bool) -> None:
        """
        Add a stretch from a start to its end; ``again`` where the run had been started before.

        Examples
        --------
        >>> spent = Spent()
        >>> spent.add(5.0, 4.0, again=False)
        >>> spent.add(3.0, 1.0, again=True)
        >>> spent
        Spent(held_gpu_s=8.0, loop_gpu_s=5.0, moved_gpu_s=2.0)
        """
        loop_gpu_s = min(loop_gpu_s, held_gpu_s)
        self.held_gpu_s += held_gpu_s
        self.loop_gpu_s += loop_gpu_s
        if again:
            self.moved_gpu_s += held_gpu_s - loop_gpu_s


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """
    One run of a trial, as it counts.

    Attributes
    ----------
    key : str or int
        Names it; ``origin`` is that of the run whose checkpoint it goes on from.
    budget : int
        Up to which it trained; 0 where the sweep has none.
    ended_s : float or None
        When it was over; None as long as it is not.
    value : float or None
        What it gave to the search.
    """

    key: str | int
    origin: str | int = ""
    budget: int = 0
    ended_s: float | None = None
    value: float | None = None
    spent: Spent = msgspec.field(default_factory=Spent)


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """
    What became of a sweep's device-seconds; all but ``running_gpu_s`` are of runs that are over.

    Attributes
    ----------
    useful_gpu_s : float
        Iterations of runs from which another went on, or which are the best.
    stopped_gpu_s : float
        Iterations of the other runs that gave a value: what it cost to tell them apart.
    failed_gpu_s : float
        Runs without a value: crashed, diverged, killed; iterations and all.
    rescale_gpu_s : float
        Stopping and going on, after a move, a preemption or a crash.
    overhead_gpu_s : float
        The rest of what was no iteration: starting, loading, saving, leaving.
    profile_gpu_s : float
        Samples that were taken to know the workload.
    allocated_gpu_s : float
        All of these.
    running_gpu_s : float
        Held so far by runs on their way; not among those allocated, since nobody knows yet what for.
    best : str, int or None
        The run with the best value among those with the largest budget; of equal ones the first.
    target_s : float or None
        When a run first gave a value as good as the target.
    """

    useful_gpu_s: float
    stopped_gpu_s: float
    failed_gpu_s: float
    rescale_gpu_s: float
    overhead_gpu_s: float
    profile_gpu_s: float
    allocated_gpu_s: float
    running_gpu_s: float
    best: str | int | None
    target_s: float | None

    @property
    def goodput(self) -> float:
        """The useful part of what was allocated, from 0 to 1."""
        return self.useful_gpu_s / self.allocated_gpu_s if self.allocated_gpu_s else 0.0


def account(
    uses: Sequence[Use],
    mode: Literal["max", "min"],
    *,
    target: float | None = None,
    profile_gpu_s: float = 0.0,
) -> Account:
    """
    Return what became of the device-seconds of a sweep's runs.

    Examples
    --------
    >>> begun = Use(key="a", ended_s=5.0, value=0.5, budget=1, spent=Spent(held_gpu_s=5.0, loop_gpu_s=4.0))
    >>> other = Use(key="b", ended_s=6.0, value=0.4, budget=1, spent=Spent(held_gpu_s=6.0, loop_gpu_s=4.0))
    >>> promoted = Use(key="a1", origin="a", ended_s=9.0, value=0.9, budget=3, spent=Spent(held_gpu_s=3.0))
    >>> found = account([begun, other, promoted], "max", target=0.8)
    >>> found.useful_gpu_s, found.stopped_gpu_s, found.overhead_gpu_s, found.best, found.target_s
    (4.0, 4.0, 6.0, 'a1', 9.0)
    """
    over = [use for use in uses if use.ended_s is not None]
    found = best(uses, mode)
    wanted = {use.origin for use in uses} | {found}
    valued = [use for use in over if use.value is not None]
    failed_gpu_s = sum(use.spent.held_gpu_s for use in over if use.value is None)
    idle_gpu_s = sum(use.spent.held_gpu_s - use.spent.loop_gpu_s for use in valued)
    rescale_gpu_s = sum(use.spent.moved_gpu_s for use in valued)
    return Account(
        useful_gpu_s=sum(use.spent.loop_gpu_s for use in valued if use.key in wanted),
        stopped_gpu_s=sum(use.spent.loop_gpu_s for use in valued if use.key not in wanted),
        failed_gpu_s=failed_gpu_s,
        rescale_gpu_s=rescale_gpu_s,
        overhead_gpu_s=max(0.0, idle_gpu_s - rescale_gpu_s),
        profile_gpu_s=profile_gpu_s,
        allocated_gpu_s=profile_gpu_s + sum(use.spent.held_gpu_s for use in over),
        running_gpu_s=sum(use.spent.held_gpu_s for use in uses if use.ended_s is None),
        best=found,
        target_s=_reached_s(valued, mode, target),
    )


def best(uses: Sequence[Use], mode: Literal["max", "min"]) -> str | int | None:
    """Return the key of the best run: of those with the largest budget, the first with the best value."""
    sign = 1.0 if mode == "max" else -1.0
    valued = [(use.budget, sign * use.value, use.key) for use in uses if use.value is not None]
    return max(valued, key=lambda found: found[:2])[2] if valued else None


def _reached_s(valued: Sequence[Use], mode: Literal["max", "min"], target: float | None) -> float | None:
    if target is None:
        return None
    sign = 1.0 if mode == "max" else -1.0
    reached = (use.ended_s for use in valued if sign * (use.value or 0.0) >= sign * target and use.ended_s is not None)
    return min(reached, default=None)
