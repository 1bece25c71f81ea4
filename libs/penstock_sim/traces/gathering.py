"""Jobs as they are read, block by block, and the trace that they make together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from penstock_sim.trace import Floats, Ints, Trace
from penstock_sim.traces.table import BROKEN, Mask

NO_GPUS: Final = "zero GPUs"
NO_END: Final = "no end time"
NEGATIVE: Final = "negative length"
NO_LENGTH: Final = "zero length"
_NAMES: Final = ("vcs", "users", "models", "kinds", "states")


class Gathering:
    """
    Collects jobs in any order, and counts what is none.

    Examples
    --------
    >>> jobs = Gathering("two")
    >>> jobs.add(["b", "a"], np.array([5.0, 1.0]), np.array([1, 0]), np.array([9.0, 9.0]))
    >>> len(jobs.trace()), jobs.trace().dropped
    (1, {'zero GPUs': 1})
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.dropped: Counter[str] = Counter()
        self._ids: list[str] = []
        self._submit_s: list[Floats] = []
        self._gpus: list[Ints] = []
        self._duration_s: list[Floats] = []
        self._shares: list[Floats] = []
        self._batches: list[Ints] = []
        self._texts: dict[str, list[str]] = {name: [] for name in _NAMES}
        self._seen: dict[str, str] = {}

    def add(
        self,
        ids: Sequence[str],
        submit_s: Floats,
        num_gpus: Ints,
        duration_s: Floats,
        *,
        broken: Mask | None = None,
        unfit: Mapping[str, Mask] | None = None,
        shares: Floats | None = None,
        batches: Ints | None = None,
        vcs: Sequence[str] = (),
        users: Sequence[str] = (),
        models: Sequence[str] = (),
        kinds: Sequence[str] = (),
        states: Sequence[str] = (),
    ) -> None:
        """
        Add rows in columns, (R,) each.

        Parameters
        ----------
        duration_s : (R,) float array
            nan where the source has no end.
        broken : (R,) bool array, optional
            Rows that make no sense.
        unfit : mapping of str to (R,) bool array, optional
            Rows that are no jobs for a reason of the format's own; a row counts under the first reason that holds.
        vcs, users, models, kinds, states : sequence of str, (R,) or empty
        """
        reasons = {
            **({BROKEN: broken} if broken is not None else {}),
            **(unfit or {}),
            NO_GPUS: num_gpus < 1,
            NO_END: np.isnan(duration_s),
            NEGATIVE: duration_s < 0,
            NO_LENGTH: duration_s == 0,
        }
        keep = self._without(reasons)
        self._ids += _kept(ids, keep)
        self._submit_s.append(submit_s[keep])
        self._gpus.append(num_gpus[keep].astype(np.int64))
        self._duration_s.append(duration_s[keep])
        if shares is not None:
            self._shares.append(shares[keep])
        if batches is not None:
            self._batches.append(batches[keep])
        again = self._seen.setdefault
        for name, cells in zip(_NAMES, (vcs, users, models, kinds, states), strict=True):
            self._texts[name] += [again(cell, cell) for cell in _kept(cells, keep)]

    def drop(self, reason: str, rows: int = 1) -> None:
        """Count rows that are no jobs."""
        if rows:
            self.dropped[reason] += rows

    def trace(self) -> Trace:
        """Return all jobs by submission; jobs of one time keep their order."""
        submit_s = _joined(self._submit_s, np.float64)
        order = np.argsort(submit_s, kind="stable")
        shares = _joined(self._shares, np.float64)[order] if self._shares else None
        batches = _joined(self._batches, np.int64)[order] if self._batches else None
        return Trace(
            name=self.name,
            job_ids=_ordered(self._ids, order),
            submit_s=submit_s[order],
            num_gpus=_joined(self._gpus, np.int64)[order],
            duration_s=_joined(self._duration_s, np.float64)[order],
            gpu_share=None if shares is None or (shares == 1).all() else shares,
            batch_sizes=None if batches is None or not batches.any() else batches,
            dropped=dict(self.dropped),
            **{name: _ordered(cells, order) if any(cells) else () for name, cells in self._texts.items()},
        )

    def _without(self, reasons: Mapping[str, Mask]) -> Mask:
        keep = np.ones(len(next(iter(reasons.values()))), bool)
        for reason, unfit in reasons.items():
            if rows := int((keep & unfit).sum()):
                self.dropped[reason] += rows
            keep &= ~unfit
        return keep


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _kept(cells: Sequence[str], keep: Mask) -> Sequence[str]:
    return cells if not cells or keep.all() else [cells[i] for i in np.flatnonzero(keep).tolist()]


def _ordered(cells: list[str], order: Ints) -> list[str]:
    rising = bool((np.diff(order) > 0).all())
    return cells if rising else [cells[i] for i in order.tolist()]
