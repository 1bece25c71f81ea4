"""JCT by the number of GPUs that jobs ask for: who pays for whom."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock_sim.report import palette
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.picture import Picture
from penstock_sim.report.plots import style
from penstock_sim.trace import Ints

_MOST_GROUPS: Final = 8


def draw(comparison: Comparison) -> Picture | None:
    """Draw each group's median JCT and its middle half; None if no job finished."""
    if not any(outcome.finished.any() for outcome in comparison.outcomes):
        return None
    named = groups(comparison.trace.num_gpus)
    looks = palette.looks([outcome.policy for outcome in comparison.outcomes])
    step = min(0.8 / len(comparison.outcomes), 0.25)
    ends: list[float] = []
    with style.figure(8.0, 4.2) as figure:
        axes = figure.subplots()
        for at, outcome in enumerate(comparison.outcomes):
            places, quartiles = _quartiles(outcome.end_s - comparison.trace.submit_s, named)
            ends += quartiles.ravel().tolist()
            places = places + (at - (len(comparison.outcomes) - 1) / 2) * step
            colour = looks[outcome.policy].colour
            axes.vlines(places, quartiles[:, 0], quartiles[:, 2], color=colour, linewidth=3.5, alpha=0.5)
            axes.plot(places, quartiles[:, 1], "o", color=colour, markersize=5, label=outcome.policy)
        style.log_time_axis(axes, "y", min(ends), max(ends))
        axes.grid(visible=False, axis="x")
        axes.set_xticks(range(len(named)), [_tick(name, int(member.sum())) for name, member in named.items()])
        axes.tick_params(axis="x", labelsize=9)
        axes.set_xlabel("GPUs that a job asks for")
        axes.set_ylabel("job completion time (JCT)")
        if len(looks) > 1:
            figure.legend(loc="outside right upper")
        return Picture(
            "jct-by-gpus",
            "JCT by GPU count",
            "Median JCT of the finished jobs (dot) and the middle half of them (bar), by the GPUs that they ask for.",
            style.svg(figure),
        )


def groups(num_gpus: Ints) -> dict[str, npt.NDArray[np.bool_]]:
    """
    Return who belongs to which group: one for each number of GPUs, or for each power of two where there are many.

    Examples
    --------
    >>> {name: member.sum().item() for name, member in groups(np.array([1, 1, 4])).items()}
    {'1': 2, '4': 1}
    >>> {name: member.sum().item() for name, member in groups(np.arange(1, 101)).items()}
    {'1': 1, '2': 1, '3-4': 2, '5-8': 4, '9-16': 8, '17-32': 16, '33-64': 32, '65-100': 36}
    """
    found = np.unique(num_gpus)
    if found.size <= _MOST_GROUPS:
        return {str(gpus): num_gpus == gpus for gpus in found.tolist()}
    power = np.ceil(np.log2(num_gpus)).astype(np.int64)
    power = np.minimum(power, power.min() + _MOST_GROUPS - 1)
    named = {}
    for exponent in np.unique(power).tolist():
        member = power == exponent
        low, high = 2 ** (exponent - 1) + 1 if exponent else 1, int(num_gpus[member].max())
        high = min(high, 2**exponent) if exponent < power.max() else high
        named[f"{low}-{high}" if high > low else str(high)] = member
    return named


def _tick(name: str, jobs: int) -> str:
    return f"{name}\n{jobs:,} {'job' if jobs == 1 else 'jobs'}"


def _quartiles(
    jct_s: npt.NDArray[np.float64], named: dict[str, npt.NDArray[np.bool_]]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the groups' places on the axis, those with a finished job, and their quartiles, (groups, 3)."""
    done = np.isfinite(jct_s)
    kept = [(at, member & done) for at, member in enumerate(named.values()) if (member & done).any()]
    places = np.array([at for at, _ in kept], dtype=np.float64)
    return places, np.array([np.percentile(np.maximum(jct_s[member], 1e-3), [25, 50, 75]) for _, member in kept])
