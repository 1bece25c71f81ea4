"""How an elastic workload goes with batch size and devices, as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.cli import render

if TYPE_CHECKING:
    from penstock_events import Scalability, Timing

HEADERS: Final = ("KIND", "GPUS", "EACH", "MS/STEP", "ERROR", "EXAMPLES/S", "EFFICIENCY", "RUNS")
_BAR: Final = 24
_MOST_ROWS: Final = 16
"""Sizes that are shown of a kind: real runs may have added many."""


def lines(kinds: Sequence[Scalability], width: int | None = None) -> list[str]:
    """
    Return what is known, kind by kind: a table of the measured sizes, what a device holds, and what is missing.

    ``EACH`` is the batch on each device, and ``EFFICIENCY`` the throughput as a part of what so many single devices
    with this batch would have.

    Parameters
    ----------
    width : int or None
        Columns of the terminal, where bars for the throughput are drawn as well; None elsewhere.
    """
    if not kinds:
        return []
    rows = [row for kind in kinds for row in _rows(kind)]
    fastest = max((speed for _, speed in rows), default=0.0)
    headers = HEADERS if width is None else (*HEADERS, "")
    cells = [cell if width is None else (*cell, _bar(speed, fastest)) for cell, speed in rows]
    return [*(render.table(headers, cells, width=width) if rows else []), *render.labelled(map(_said, kinds))]


def _rows(known: Scalability) -> list[tuple[tuple[str, ...], float]]:
    """Return a row for each size, the most measured ones where there are many, and its samples a second."""
    most = sorted(known.timings, key=lambda timing: -timing.runs)[:_MOST_ROWS]
    shown = sorted(most, key=lambda timing: (timing.gpus, timing.local_batch))
    return [(_row(known, timing), timing.gpus * timing.local_batch / timing.iteration_s) for timing in shown]


def _row(known: Scalability, timing: Timing) -> tuple[str, ...]:
    alone_s = _alone_s(known, timing.local_batch)
    efficiency = "-" if math.isnan(alone_s) else f"{100 * alone_s / timing.iteration_s:.0f}%"
    return (
        known.kind,
        str(timing.gpus),
        str(timing.local_batch),
        f"{1000 * timing.iteration_s:.4g}",
        f"{1000 * timing.error_s:.2g}" if timing.error_s else "-",
        render.rate(timing.gpus * timing.local_batch / timing.iteration_s),
        efficiency if timing.gpus > 1 else "-",
        str(timing.runs),
    )


def _alone_s(known: Scalability, local_batch: int) -> float:
    """Return the seconds of an iteration with so many samples on one device; nan beyond those that were timed."""
    alone = [timing for timing in known.timings if timing.gpus == 1]
    below = [timing for timing in alone if timing.local_batch <= local_batch]
    above = [timing for timing in alone if timing.local_batch >= local_batch]
    if not below or not above:
        return math.nan
    low, high = max(below, key=lambda t: t.local_batch), min(above, key=lambda t: t.local_batch)
    apart = high.local_batch - low.local_batch
    part = (local_batch - low.local_batch) / apart if apart else 0.0
    return low.iteration_s + part * (high.iteration_s - low.iteration_s)


def _said(known: Scalability) -> tuple[str, str]:
    cap = f"at most {render.count(known.per_gpu_cap, 'example')} on a device" if known.per_gpu_cap else ""
    return f"on {known.kind}", "; ".join(filter(None, (cap, known.note)))


def _bar(speed: float, fastest: float) -> str:
    return "█" * max(1, round(_BAR * speed / fastest))
