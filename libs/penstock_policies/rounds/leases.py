"""
A pool's leases as columns of numbers: what a round works out about each of a thousand runs, it works out at once.

Beside the roster, kept up to date with it, and never saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from penstock_events import State as JobState
from penstock_policies import estimates
from penstock_policies.estimates import Finished
from penstock_policies.order import Running
from penstock_policies.runs import Bools, Floats, Ints, Runs, Shape
from penstock_policies.stopping import Cost

SAMPLE_S: Final = 5.0
"""Expected length of a profiler's sample, seconds."""

_ROOM: Final = 64


class _Columns(NamedTuple):
    """What is kept of each lease; counts, and yes or no, as floats among floats."""

    queue: Floats
    position: Floats
    falls_per_s: Floats
    started_s: Floats
    executed_s: Floats
    saved_s: Floats
    declared_s: Floats
    devices: Floats
    stoppable: Floats
    group: Floats
    pair: Floats


_WIDTH: Final = len(_Columns._fields)


class Terms(msgspec.Struct, frozen=True):
    """
    What a round expects of runs.

    Attributes
    ----------
    keys : mapping of str to str
        Job → workload.
    speed : callable
        Of a workload on a kind of device.
    cost : callable
        Of stopping and resuming a workload's runs.
    finished_s : Finished
        Service that finished jobs needed.
    prior_s : float
        Expected length of a job while none has finished.
    """

    now_s: float
    keys: Mapping[str, str]
    speed: Callable[[str, str], float]
    cost: Callable[[str], Cost]
    finished_s: Finished
    prior_s: float


class Leases:
    """
    Everything about a pool's leases that a round reckons with.

    Notes
    -----
    Putting one in and dropping it are O(1); one that is over before anybody asks never comes into the columns. A round
    takes a few operations on whole columns, and a look at each pair of a workload and a kind of device that runs are
    of.
    """

    def __init__(self) -> None:
        self._runs: list[Running] = []
        self._rows: dict[str, int] = {}
        self._table: Floats = np.zeros((_WIDTH, _ROOM))
        self._shapes: dict[tuple[str, Shape], int] = {}
        self._pairs: dict[tuple[str, str], int] = {}  # workload and kind
        self._unpaired: dict[str, None] = {}
        self._noted: dict[str, tuple[Running, Shape, float]] = {}  # not in the columns yet

    def put(self, run: Running, shape: Shape, falls_per_s: float) -> None:
        """Note a lease, new or changed; ``falls_per_s`` is what its position loses while it executes."""
        self._noted[run.ranked.job_id] = run, shape, falls_per_s

    def drop(self, job_id: str) -> None:
        """Drop a lease that is over; the last row takes its place."""
        self._noted.pop(job_id, None)
        row, last = self._rows.pop(job_id, None), len(self._runs) - 1
        if row is None:
            return
        self._unpaired.pop(job_id, None)
        run = self._runs.pop()
        if row != last:
            self._runs[row] = run
            self._rows[run.ranked.job_id] = row
            self._table[:, row] = self._table[:, last]

    def rows_of(self, job_ids: Sequence[str]) -> Ints:
        """Return where the leases of some jobs stand; jobs without one are left out."""
        self._write()
        return np.array([row for job_id in job_ids if (row := self._rows.get(job_id)) is not None], dtype=np.int64)

    def ends_s(self, job_ids: Sequence[str], terms: Terms) -> list[float]:
        """Return in how many seconds the leases of some jobs are expected to end."""
        columns = self._columns(terms.keys)
        left_s: list[float] = _left_s(columns, self._speeds(terms)[columns.pair.astype(np.int64)], terms)[
            self.rows_of(job_ids)
        ].tolist()
        return left_s

    def runs(self, terms: Terms) -> tuple[Runs, Bools]:
        """Return all leases as they are now, and whether each may be stopped."""
        columns = self._columns(terms.keys)
        pair = columns.pair.astype(np.int64)
        costs = [terms.cost(workload) for workload, _ in self._pairs]
        found = Runs(
            queue=columns.queue,
            position=columns.position - columns.falls_per_s * np.maximum(0.0, terms.now_s - columns.started_s),
            started_s=columns.started_s,
            saved_s=columns.saved_s,
            devices=columns.devices,
            left_s=_left_s(columns, self._speeds(terms)[pair], terms),
            overhead_s=np.array([cost.overhead_s for cost in costs])[pair],
            switch_s=np.array([cost.switch_s for cost in costs])[pair],
            saves=np.array([cost.saves for cost in costs], dtype=np.bool_)[pair],
            group=columns.group.astype(np.int64),
            shapes=list(self._shapes),
            rows=np.arange(len(self._runs)),
            all=self._runs,
        )
        return found, columns.stoppable > 0

    def _columns(self, keys: Mapping[str, str]) -> _Columns:
        self._write()
        if self._unpaired:
            self._pair(keys)
        return _Columns(*self._table[:, : len(self._runs)])

    def _write(self) -> None:
        """Bring what was noted into the columns."""
        for job_id, (run, shape, falls_per_s) in self._noted.items():
            row = self._rows.get(job_id)
            if row is None:
                row = self._rows[job_id] = len(self._runs)
                self._runs.append(run)
                self._unpaired[job_id] = None
                if row == self._table.shape[1]:
                    self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
            self._runs[row] = run
            group = self._shapes.setdefault((run.kind, shape), len(self._shapes))
            self._table[:-1, row] = _row(run, falls_per_s, group)
        self._noted.clear()

    def _pair(self, keys: Mapping[str, str]) -> None:
        """Note which new leases are of one workload on one kind."""
        if len(self._pairs) > 2 * len(self._runs) + _ROOM:  # mostly of runs that are over
            self._pairs.clear()
            self._unpaired = dict.fromkeys(self._rows)
        for job_id in self._unpaired:
            row = self._rows[job_id]
            pair = keys[job_id], self._runs[row].kind
            self._table[-1, row] = self._pairs.setdefault(pair, len(self._pairs))
        self._unpaired.clear()

    def _speeds(self, terms: Terms) -> Floats:
        return np.array([terms.speed(workload, kind) for workload, kind in self._pairs])


def _row(run: Running, falls_per_s: float, group: int) -> tuple[float, ...]:
    queue, position, _, job = run.ranked
    return (
        queue,
        position,
        falls_per_s if job.started_s else 0.0,
        job.started_s,
        job.executed_s,
        max(job.started_s, job.checkpointed_s),
        SAMPLE_S if job.sample is not None else job.spec.duration_s,
        len(run.devices),
        bool(run.devices) and job.state is JobState.RUNNING and not job.stopping,
        group,
    )


def _left_s(columns: _Columns, speeds: Floats, terms: Terms) -> Floats:
    """Return in how many seconds each lease is expected to end."""
    started = columns.started_s > 0
    running_s = np.where(started, np.maximum(terms.now_s - columns.started_s, 0.0), 0.0)
    had_s = (columns.executed_s + running_s) * speeds
    expected_s = estimates.remaining_s(had_s, terms.finished_s, terms.prior_s)
    left_s: Floats = estimates.left_s(columns.declared_s, had_s, expected_s) / speeds
    return left_s
