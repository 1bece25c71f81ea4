"""
Devices over time, in few rows and columns, and the chart for terminals.

:func:`columns` shortens a long timeline without hiding anything: each column keeps its mean over time, its least and
its most. :func:`device_shares` and :func:`holders` say how much of the devices was held, and by whom. :func:`lines`
draws who held which GPU when, in letters: a Gantt chart for terminals.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock_simulator.outcome import DeviceSpells, Outcome
from penstock_simulator.trace import Floats, Ints, Trace


def row_of(gpus: int, rows: int) -> Ints:
    """Return the row of each device, (gpus,): neighbours share one where there are more devices than rows."""
    return np.arange(gpus) // -(-gpus // rows)


def columns(at_s: Floats, values: npt.ArrayLike, edge_s: Floats) -> TimeColumns:
    """
    Return a step function's mean, least and most in each column.

    Parameters
    ----------
    at_s : (E,) float array, seconds, not falling
        Time from which each value holds; of several values at one time only the last holds.
    values : (E,) array
        Before the first time the value is 0.
    edge_s : (B + 1,) float array, seconds, rising

    Notes
    -----
    O(E + B log E). The mean is exact: differences of the integral, which is linear between two steps.

    Examples
    --------
    >>> found = columns(np.array([0.0, 1.0, 9.0]), [4, 0, 2], np.array([0.0, 8.0, 10.0]))
    >>> found.mean.tolist(), found.least.tolist(), found.most.tolist()
    ([0.5, 1.0], [0.0, 0.0], [4.0, 2.0])
    """
    at_s, stepped = _steps(at_s, np.asarray(values, dtype=np.float64), float(edge_s[0]))
    first = np.searchsorted(at_s, edge_s[:-1], "right") - 1
    behind = np.searchsorted(at_s, edge_s[1:], "left")
    bounds = np.column_stack([first, behind]).ravel()
    padded = np.append(stepped, 0.0)
    integral = np.concatenate([[0.0], np.cumsum(np.diff(at_s) * stepped[:-1])])
    inner = np.maximum(np.searchsorted(at_s, edge_s, "right") - 1, 0)
    upto = integral[inner] + (edge_s - at_s[inner]) * stepped[inner]
    return TimeColumns(
        edge_s=edge_s,
        mean=np.diff(upto) / np.diff(edge_s),
        least=np.minimum.reduceat(padded, bounds)[::2],
        most=np.maximum.reduceat(padded, bounds)[::2],
    )


def edges(from_s: float, to_s: float, count: int) -> Floats:
    """Return the edges of so many equal columns; of one second if the span is empty."""
    return np.linspace(from_s, to_s if to_s > from_s else from_s + 1.0, count + 1)


def device_shares(spells: DeviceSpells, gpus: int, span_s: tuple[float, float], size: tuple[int, int]) -> Floats:
    """
    Return how much of each row's devices was held in each column of time.

    Parameters
    ----------
    span_s : (float, float), seconds
        Beginning and end.
    size : (int, int)
        The most rows, and the number of columns.

    Returns
    -------
    (rows, columns) float array, 0 to 1
        Mean over the row's devices and the column's time.
    """
    row = row_of(gpus, size[0])
    edge_s = edges(*span_s, size[1])
    found = np.zeros((int(row[-1]) + 1, size[1]))
    row_of_spell = row[spells.device]
    for at in range(found.shape[0]):
        mine = row_of_spell == at
        at_s = np.concatenate([spells.from_s[mine], spells.to_s[mine]])
        step = np.concatenate([np.ones(mine.sum()), -np.ones(mine.sum())])
        order = np.argsort(at_s, kind="stable")
        held = columns(at_s[order], np.cumsum(step[order]), edge_s)
        found[at] = held.mean / np.count_nonzero(row == at)
    return np.clip(found, 0.0, 1.0)


def holders(spells: DeviceSpells, gpus: int, edge_s: Floats) -> Ints:
    """
    Return which job held each device for most of each column, (gpus, columns); -1 where it was idle for longer.

    Notes
    -----
    O(S log S + cells that spells cover).
    """
    width = edge_s.size - 1
    longest = np.zeros((gpus, width))
    idle_s = np.tile(np.diff(edge_s), (gpus, 1))
    found = np.full((gpus, width), -1, dtype=np.int64)
    for (device, job), pieces in _by_device_and_job(spells).items():
        held_s = np.zeros(width)
        for from_s, to_s in pieces:
            held_s += np.clip(np.minimum(edge_s[1:], to_s) - np.maximum(edge_s[:-1], from_s), 0.0, None)
        idle_s[device] -= held_s
        longer = held_s > longest[device]
        found[device, longer] = job
        longest[device, longer] = held_s[longer]
    found[idle_s > longest + 1e-9 * np.diff(edge_s)] = -1
    return found


def _by_device_and_job(spells: DeviceSpells) -> dict[tuple[int, int], list[tuple[float, float]]]:
    grouped: dict[tuple[int, int], list[tuple[float, float]]] = {}
    columns = (spells.device.tolist(), spells.job.tolist(), spells.from_s.tolist(), spells.to_s.tolist())
    for device, job, from_s, to_s in zip(*columns, strict=True):
        grouped.setdefault((device, job), []).append((from_s, to_s))
    return grouped


@dataclass(frozen=True)
class TimeColumns:
    """
    A step function over B columns of time.

    Attributes
    ----------
    edge_s : (B + 1,) float array, seconds
    mean : (B,) float array
        Weighted by time.
    least, most : (B,) float arrays
        The least and the most of the values that hold within the column for any time at all.
    """

    edge_s: Floats
    mean: Floats
    least: Floats
    most: Floats


def _steps(at_s: Floats, values: Floats, from_s: float) -> tuple[Floats, Floats]:
    """Return the steps that hold for some time, from the first edge or before it."""
    lasting = np.append(np.diff(at_s) > 0, True)[: at_s.size]
    at_s, values = at_s[lasting], values[lasting]
    if not at_s.size or at_s[0] > from_s:
        return np.concatenate([[from_s], at_s]), np.concatenate([[0.0], values])
    return at_s, values


def points(size: int, most: int) -> npt.NDArray[np.int64]:
    """
    Return which of N sorted values to draw of their distribution: at most so many, the first and the last among them.

    Half of them are even in rank, and a quarter each gathers towards the first and the last: tails keep their shape.

    Examples
    --------
    >>> points(4, 10).tolist(), points(10_000, 8).tolist()
    ([0, 1, 2, 3], [0, 3333, 6666, 9999])
    """
    if size <= most:
        return np.arange(size)
    even = np.linspace(0, size - 1, most // 2).astype(np.int64)
    rank = np.geomspace(1, size, most // 4).astype(np.int64) - 1
    return np.unique(np.concatenate([even, rank, size - 1 - rank]))


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
    edge_s = edges(from_s, to_s, inner)
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
    row = row_of(gpus, _MOST_ROWS)
    bounds = [(np.flatnonzero(row == at)[0], np.flatnonzero(row == at)[-1]) for at in range(int(row[-1]) + 1)]
    names = [f"gpu {first}" if first == last else f"gpus {first}-{last}" for first, last in bounds]
    longest = max(map(len, names))
    return [f"{name:<{longest}}" for name in names]


def _letters(spells: DeviceSpells, gpus: int, edge_s: np.ndarray) -> list[str]:
    held = holders(spells, gpus, edge_s)
    return ["".join("." if job < 0 else _letter(job) for job in row) for row in held.tolist()]


def _letter(job: int) -> str:
    """Return a job's letter, by its row: the same under every policy, and used again when they run out."""
    return _LETTERS[job % len(_LETTERS)]


def _bars(spells: DeviceSpells, gpus: int, span_s: tuple[float, float], width: int) -> list[str]:
    shares = device_shares(spells, gpus, span_s, (_MOST_ROWS, width))
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


def _legend(trace: Trace, spells: DeviceSpells, width: int) -> list[str]:
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
