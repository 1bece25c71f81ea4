"""Devices over time in few rows and columns: what is held by whom, and how much of it."""

from __future__ import annotations

import numpy as np

from penstock_sim.outcome import Spells
from penstock_sim.report import thin
from penstock_sim.trace import Floats, Ints


def row_of(gpus: int, rows: int) -> Ints:
    """Return the row of each device, (gpus,): neighbours share one where there are more devices than rows."""
    return np.arange(gpus) // -(-gpus // rows)


def shares(spells: Spells, gpus: int, span_s: tuple[float, float], size: tuple[int, int]) -> Floats:
    """
    Return how much of each row's devices was held in each column of time.

    Parameters
    ----------
    span_s : (float, float), seconds
        From when to when.
    size : (int, int)
        Most rows, and columns.

    Returns
    -------
    (rows, columns) float array, 0 to 1
        Mean over the row's devices and the column's time.
    """
    row = row_of(gpus, size[0])
    edge_s = thin.edges(*span_s, size[1])
    found = np.zeros((int(row[-1]) + 1, size[1]))
    row_of_spell = row[spells.device]
    for at in range(found.shape[0]):
        mine = row_of_spell == at
        at_s = np.concatenate([spells.from_s[mine], spells.to_s[mine]])
        step = np.concatenate([np.ones(mine.sum()), -np.ones(mine.sum())])
        order = np.argsort(at_s, kind="stable")
        held = thin.columns(at_s[order], np.cumsum(step[order]), edge_s)
        found[at] = held.mean / np.count_nonzero(row == at)
    return np.clip(found, 0.0, 1.0)


def holders(spells: Spells, gpus: int, edge_s: Floats) -> Ints:
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


def _by_device_and_job(spells: Spells) -> dict[tuple[int, int], list[tuple[float, float]]]:
    grouped: dict[tuple[int, int], list[tuple[float, float]]] = {}
    columns = (spells.device.tolist(), spells.job.tolist(), spells.from_s.tolist(), spells.to_s.tolist())
    for device, job, from_s, to_s in zip(*columns, strict=True):
        grouped.setdefault((device, job), []).append((from_s, to_s))
    return grouped
