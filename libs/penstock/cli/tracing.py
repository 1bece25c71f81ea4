"""How traces read: pure functions from figures to lines of text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from penstock.cli import render
from penstock.cli.errors import bad_input
from penstock.cli.times import span

if TYPE_CHECKING:
    from penstock_sim.traces.about import About, Parties

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_WINDOW: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)-(?:(\d+(?:\.\d+)?)([smhd]?))?")


def window_s(text: str) -> tuple[float, float]:
    """
    Return the two ends of a window, in seconds.

    Examples
    --------
    >>> window_s("1d-36h"), window_s("0-90"), window_s("2h-")
    ((86400.0, 129600.0), (0.0, 90.0), (7200.0, inf))
    """
    found = _WINDOW.fullmatch(text.strip())
    if found is None:
        bad_input(f"--window {text!r} is no window; expected two spans after the first submission, such as 2d-9d")
    from_s = float(found[1]) * _UNITS[found[2]]
    to_s = float(found[3]) * _UNITS[found[4]] if found[3] else math.inf
    if to_s <= from_s:
        bad_input(f"--window {text!r} is empty; expected the second span to be longer than the first")
    return from_s, to_s


def dropped(reasons: Mapping[str, int]) -> str:
    """
    Return what to say about rows that are no jobs, behind the count of jobs; nothing if there are none.

    Examples
    --------
    >>> dropped({"zero GPUs": 3, "no end time": 1}), dropped({})
    (' (dropped: 3 zero GPUs, 1 no end time)', '')
    """
    return f" (dropped: {_reasons(reasons)})" if reasons else ""


def about_lines(about: About) -> list[str]:
    """Return a trace's figures, a line each, and a table of its jobs by number of devices."""
    pairs = [
        ("name", about.name),
        ("rows", str(about.rows)),
        ("jobs", str(about.jobs)),
        ("dropped", _reasons(about.dropped) or "none"),
        ("span", f"{span(about.span_s)}, {_figure(about.jobs_per_h)} jobs an hour"),
        ("device time", f"{_figure(about.gpu_h)} GPU-h: {_figure(about.busy_gpus)} GPUs busy on average"),
        *((f"load on {gpus}", f"{load:.3f}") for gpus, load in about.load.items()),
        ("length", _quantiles(about.duration_s)),
        ("GPU-time", _quantiles(about.gpu_time_s)),
        ("fractions", f"{render.count(about.fractional, 'job')} of less than one GPU" if about.fractional else ""),
        ("states", _parties(about.states)),
        ("vcs", _parties(about.vcs)),
        ("users", _parties(about.users)),
        ("models", _parties(about.models)),
        ("kinds", _parties(about.kinds)),
    ]
    return [*render.labelled(pairs), "", *_sizes(about)]


def _figure(value: float) -> str:
    """Return three figures or more, never in powers of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _sizes(about: About) -> list[str]:
    jobs, gpu_h = max(about.jobs, 1), about.gpu_h or 1.0
    rows = [
        (str(s.gpus), str(s.jobs), f"{s.jobs / jobs:.1%}", f"{s.gpu_h:.1f}", f"{s.gpu_h / gpu_h:.1%}")
        for s in about.gpus
    ]
    return render.table(("GPUS", "JOBS", "OF-JOBS", "GPU-H", "OF-GPU-H"), rows)


def _reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _quantiles(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {span(value)}" for name, value in values.items())


def _parties(parties: Parties) -> str:
    if not parties.count:
        return ""
    named = ", ".join(f"{party.name or '(none)'} {party.jobs}" for party in parties.largest)
    more = ", …" if parties.count > len(parties.largest) else ""
    return f"{parties.count}, by device time, with jobs: {named}{more}"
