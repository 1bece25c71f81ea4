"""Who held which GPU when, in letters: a Gantt chart for terminals."""

from __future__ import annotations

import string
from typing import Final

import numpy as np

from penstock_sim.outcome import Outcome, Spells
from penstock_sim.report import devices, thin
from penstock_sim.trace import Trace

_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase + string.digits
_SHADES: Final = " ▁▂▃▄▅▆▇█"
_MOST_ROWS: Final = 48
_NAMED: Final = 24


def lines(outcome: Outcome, width: int = 100) -> list[str]:
    """
    Return a chart of at most ``width`` columns: a line for each GPU, or for each few where there are more than 48.

    Few GPUs: in each cell the letter of the job that held the GPU longest in that time, a dot where it was idle for
    longer. Many: how much of the line's GPUs was in use.

    Raises
    ------
    ValueError
        The outcome does not say who held what.
    """
    if outcome.spells is None:
        raise ValueError(f"{outcome.policy}: nobody kept who held which GPU; simulate with spells")
    if not outcome.spells.job.size:
        return [f"{outcome.policy}: no job ran"]
    from_s, to_s = float(outcome.trace.submit_s[0]), float(outcome.spells.to_s.max())
    names = _row_names(outcome.gpus)
    inner = max(width - len(names[0]) - 2, 10)
    edge_s = thin.edges(from_s, to_s, inner)
    few = outcome.gpus <= _MOST_ROWS
    cells = (
        _letters(outcome.spells, outcome.gpus, edge_s)
        if few
        else _bars(outcome.spells, outcome.gpus, (from_s, to_s), inner)
    )
    margin = " " * (len(names[0]) + 2)
    what = "a letter is a job, . is idle" if few else "bars show how much is in use"
    return [
        f"{outcome.policy}: {outcome.gpus} GPUs; one column is {_length((to_s - from_s) / inner)}; {what}",
        *(f"{name}  {line}" for name, line in zip(names, cells, strict=True)),
        margin + _axis(to_s - from_s, inner),
        *(_legend(outcome.trace, outcome.spells, width) if few else []),
    ]


def _row_names(gpus: int) -> list[str]:
    row = devices.row_of(gpus, _MOST_ROWS)
    bounds = [(np.flatnonzero(row == at)[0], np.flatnonzero(row == at)[-1]) for at in range(int(row[-1]) + 1)]
    names = [f"gpu {first}" if first == last else f"gpus {first}-{last}" for first, last in bounds]
    longest = max(map(len, names))
    return [f"{name:<{longest}}" for name in names]


def _letters(spells: Spells, gpus: int, edge_s: np.ndarray) -> list[str]:
    held = devices.holders(spells, gpus, edge_s)
    return ["".join("." if job < 0 else _letter(job) for job in row) for row in held.tolist()]


def _letter(job: int) -> str:
    """Return a job's letter, by its row: the same under every policy, and used again when they run out."""
    return _LETTERS[job % len(_LETTERS)]


def _bars(spells: Spells, gpus: int, span_s: tuple[float, float], width: int) -> list[str]:
    shares = devices.shares(spells, gpus, span_s, (_MOST_ROWS, width))
    levels = np.ceil(shares * (len(_SHADES) - 1) - 1e-9).astype(np.int64)
    return ["".join(_SHADES[level] for level in row) for row in levels.tolist()]


def _axis(extent_s: float, width: int) -> str:
    """Return a line of times under the cells, at even places."""
    line = ""
    for part in range(4):
        at = width * part // 4
        line = f"{line:<{at}}{_length(extent_s * part / 4) if part else '0'}"
    end = _length(extent_s)
    return f"{line[: width - len(end) - 1]:<{width - len(end)}}{end}"


def _legend(trace: Trace, spells: Spells, width: int) -> list[str]:
    words = [f"{_letter(job)}={trace.job_ids[job]}" for job in np.unique(spells.job).tolist()]
    shown = words if len(words) <= _NAMED else [*words[:_NAMED], f"and {len(words) - _NAMED} more"]
    if len(trace) > len(_LETTERS):
        shown.append(f"(letters are used again after {len(_LETTERS)} jobs)")
    found = [""]
    for word in shown:
        if found[-1] and len(found[-1]) + 1 + len(word) > width:
            found.append("")
        found[-1] = f"{found[-1]} {word}".strip()
    return found


def _length(seconds: float) -> str:
    """
    Return a length of time in three figures.

    Examples
    --------
    >>> [_length(seconds) for seconds in (0.5, 60, 90, 7200, 200_000)]
    ['0.5s', '1m', '1.5m', '2h', '2.31d']
    """
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g}{unit}"
    return f"{seconds:.3g}s"
