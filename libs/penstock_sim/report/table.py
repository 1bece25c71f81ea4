"""The figures of several policies as rows of text, for terminals and pages."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from penstock_sim.outcome import Summary
from penstock_sim.report.comparison import Comparison
from penstock_sim.report.lengths import length

Rows = list[tuple[str, ...]]
HEADERS: Final = ("POLICY", "AVG", "RATIO", "MEDIAN", "P95", "QUEUE", "MAKESPAN", "UTIL", "PREEMPT")
WIDE: Final = ("POLICY", "RATIO", *(name.upper() for name in Summary.__struct_fields__))
_WHOLE: Final = {"jobs", "finished", "in_window", "dropped", "preemptions", "promotions", "events"}
_DIGITS: Final = {"utilisation": 4, "wall_s": 3, "jobs_per_s": 0}


def rows(comparison: Comparison, span: Callable[[float], str]) -> Rows:
    """Return cells under :data:`HEADERS`; ``span`` says how lengths of time read."""
    return [
        (
            policy,
            span(one.avg_jct_s),
            ratio(comparison.ratio(policy)),
            span(one.median_jct_s),
            span(one.p95_jct_s),
            span(one.avg_queue_s),
            span(one.makespan_s),
            f"{one.utilisation:.0%}",
            str(one.preemptions),
        )
        for policy, one in comparison.summaries.items()
    ]


def wide_rows(comparison: Comparison) -> Rows:
    """Return cells under :data:`WIDE`: every figure, in seconds."""
    return [
        (policy, ratio(comparison.ratio(policy)), *(_figure(one, name) for name in Summary.__struct_fields__))
        for policy, one in comparison.summaries.items()
    ]


def _figure(one: Summary, name: str) -> str:
    value = getattr(one, name)
    return str(value) if name in _WHOLE else f"{value:.{_DIGITS.get(name, 1)}f}"


def ratio(value: float | None) -> str:
    """
    Return a ratio, the smaller the more digits; a dash for none.

    Examples
    --------
    >>> [ratio(value) for value in (None, 1.0, 0.0502, 0.00123, 12.34)]
    ['-', '1.00', '0.050', '0.0012', '12.3']
    """
    if value is None:
        return "-"
    if value >= 10:
        return f"{value:.1f}"
    if value >= 0.01:
        return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"
    return f"{value:.2g}"


def gpus(comparison: Comparison) -> str:
    """Return how many GPUs there are, from the fewest to the most where outcomes differ in that."""
    counts = sorted({outcome.gpus for outcome in comparison.outcomes}) or [0]
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"


def notes(comparison: Comparison) -> list[str]:
    """Return what readers of the table have to know, each one sentence."""
    found = [*comparison.notes]
    if len(comparison.outcomes) > 1:
        first = comparison.outcomes[0].policy
        found.insert(0, f"ratio: average JCT over that of {first}, on {gpus(comparison)} GPUs; less is better")
    for policy, one in comparison.summaries.items():
        left = one.jobs - one.finished - one.dropped
        if comparison.tells_unfinished and left:
            found.append(f"{policy}: {left:,} of {one.jobs:,} jobs did not finish; JCTs leave them out")
        if one.dropped:
            found.append(f"{policy}: {one.dropped:,} of {one.jobs:,} jobs found no room and were dropped")
    if math.isfinite(comparison.window_s):
        done = ", ".join(f"{policy} {one.in_window:,}" for policy, one in comparison.summaries.items())
        found.append(f"jobs that finished within {length(comparison.window_s)} of the first submission: {done}")
    dropped = sum(comparison.trace.dropped.values())
    if dropped:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in comparison.trace.dropped.items() if count)
        found.append(f"{dropped:,} rows of the trace are no jobs: {reasons}")
    return found
