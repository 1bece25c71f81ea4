"""Outcomes of the parts of a trace, put together: what becomes of virtual clusters that are clusters by themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock_sim.outcome import Outcome, Timeline
from penstock_sim.trace import Floats, Ints, Trace


def merged(trace: Trace, policy: str, gpus: int, parts: Sequence[tuple[Ints, Outcome]]) -> Outcome:
    """
    Return the outcome of a whole trace from those of its parts; jobs of no part never start.

    Parameters
    ----------
    gpus : int
        Devices of the whole cluster, those that no part has among them.
    parts : sequence of ((J,) int array, Outcome)
        The rows of each part, and what became of them.
    """

    def column(name: str, fill: float) -> Floats:
        values = np.full(len(trace), fill)
        for rows, outcome in parts:
            values[rows] = getattr(outcome, name)
        return values

    lines = [outcome.timeline for _, outcome in parts if outcome.timeline is not None]
    return Outcome(
        policy=policy,
        trace=trace,
        gpus=gpus,
        start_s=column("start_s", np.nan),
        end_s=column("end_s", np.nan),
        executed_s=column("executed_s", 0.0),
        preemptions=column("preemptions", 0).astype(np.int64),
        promotions=column("promotions", 0).astype(np.int64),
        events=sum(outcome.events for _, outcome in parts),
        wall_s=sum(outcome.wall_s for _, outcome in parts),
        timeline=together(lines) if lines else None,
        held_gpu_s=_held_gpu_s(trace, parts),
        dropped=_dropped(trace, parts),
    )


def _held_gpu_s(trace: Trace, parts: Sequence[tuple[Ints, Outcome]]) -> Floats | None:
    if all(outcome.held_gpu_s is None for _, outcome in parts):
        return None
    found = np.zeros(len(trace))
    for rows, outcome in parts:
        found[rows] = outcome.held_gpu_s
    return found


def _dropped(trace: Trace, parts: Sequence[tuple[Ints, Outcome]]) -> npt.NDArray[np.bool_] | None:
    if all(outcome.dropped is None for _, outcome in parts):
        return None
    found = np.zeros(len(trace), dtype=np.bool_)
    for rows, outcome in parts:
        found[rows] = outcome.dropped if outcome.dropped is not None else False
    return found


def together(lines: Sequence[Timeline]) -> Timeline:
    """
    Return the sum of timelines, each of which is 0 before it begins.

    Examples
    --------
    >>> one = Timeline(np.array([0.0, 4.0]), np.array([2, 1]), np.array([0, 0]))
    >>> other = Timeline(np.array([2.0]), np.array([3]), np.array([5]))
    >>> both = together([one, other])
    >>> both.at_s.tolist(), both.busy_gpus.tolist(), both.waiting_jobs.tolist()
    ([0.0, 2.0, 4.0], [2, 5, 4], [0, 5, 5])
    """
    at_s = np.unique(np.concatenate([line.at_s for line in lines]))
    busy, waiting = (np.zeros(at_s.size, dtype=np.int64) for _ in range(2))
    for line in lines:
        step = np.searchsorted(line.at_s, at_s, side="right")
        busy += _held(line.busy_gpus, step)
        waiting += _held(line.waiting_jobs, step)
    return Timeline(at_s, busy, waiting)


def _held(values: Ints, step: npt.NDArray[np.intp]) -> Ints:
    return np.concatenate(([0], values))[step]
