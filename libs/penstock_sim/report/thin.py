"""Long timelines in few columns, without lying: each column keeps its mean over time, its least and its most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock_sim.trace import Floats


@dataclass(frozen=True)
class Columns:
    """
    A step function over B columns of time.

    Attributes
    ----------
    edge_s : (B + 1,) float array, seconds
    mean : (B,) float array
        Weighted by time.
    least, most : (B,) float arrays
        Of the values in force within the column for any time at all.
    """

    edge_s: Floats
    mean: Floats
    least: Floats
    most: Floats


def columns(at_s: Floats, values: npt.ArrayLike, edge_s: Floats) -> Columns:
    """
    Return a step function's mean, least and most in each column.

    Parameters
    ----------
    at_s : (E,) float array, seconds, not falling
        From when on each value holds; of several at one time only the last holds.
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
    return Columns(
        edge_s=edge_s,
        mean=np.diff(upto) / np.diff(edge_s),
        least=np.minimum.reduceat(padded, bounds)[::2],
        most=np.maximum.reduceat(padded, bounds)[::2],
    )


def edges(from_s: float, to_s: float, count: int) -> Floats:
    """Return the edges of so many equal columns; of one second if the span is empty."""
    return np.linspace(from_s, to_s if to_s > from_s else from_s + 1.0, count + 1)


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
