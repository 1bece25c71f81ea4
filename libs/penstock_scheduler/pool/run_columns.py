"""
Columns of runs: what a round works out about a thousand runs, it works out of all at once.

:class:`RunColumns` are the runs at one moment, as preemption weighs them. :class:`PoolGrants` keeps the columns of a
pool's runs beside the index, follows each change, and is never saved. :class:`GrantTerms` is what a round expects of
runs; with it, :meth:`PoolGrants.runs` gives the :class:`RunColumns` of the moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_log import JobState
from penstock_policies import job_lengths
from penstock_policies.job_lengths import FinishedService
from penstock_policies.workload_stats import PreemptionCost
from penstock_scheduler.placement import Shape, device_class, in_order
from penstock_scheduler.round_types import BORROWED, PreemptibleRun

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class RunColumns(msgspec.Struct, frozen=True):
    """
    Runs at one moment.

    Attributes
    ----------
    queue, position : (N,) float arrays
        Each run's place in the order as it is now.
    started_s : (N,) float array
        0 for one that has not started.
    saved_s : (N,) float array
        When its last checkpoint was complete; the start where there is none.
    devices : (N,) float array
        How many devices it has on nodes that take jobs.
    left_s : (N,) float array
        In how many seconds each is expected to end by itself.
    overhead_s, switch_s : (N,) float arrays
        What preempting a run of its workload costs, as :class:`penstock_policies.workload_stats.PreemptionCost` has it.
    saves : (N,) bool array
        Whether it saves what it has done when it is asked to stop.
    group : (N,) int array
        Index of ``shapes``: runs on equal devices have the same.
    shapes : sequence of (kind, Shape)
    rows : (N,) int array
        The index of each in ``all``.
    all : sequence of PreemptibleRun
    """

    queue: Floats
    position: Floats
    started_s: Floats
    saved_s: Floats
    devices: Floats
    left_s: Floats
    overhead_s: Floats
    switch_s: Floats
    saves: Bools
    group: Ints
    shapes: Sequence[tuple[str, Shape]]
    rows: Ints
    all: Sequence[PreemptibleRun]

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, at: int) -> str:
        """Return a run's job."""
        return self.all[int(self.rows[at])].ranked.job_id

    def running(self, at: int) -> PreemptibleRun:
        """Return a run with its place and its end as they are now."""
        run = self.all[int(self.rows[at])]
        place = run.ranked._replace(queue=int(self.queue[at]), position=float(self.position[at]))
        return PreemptibleRun(place, run.kind, run.devices, float(self.left_s[at]))

    def only(self, which: Bools) -> RunColumns:
        """Return some of the runs."""
        if which.all():
            return self
        columns = ("queue", "position", "started_s", "saved_s", "devices", "left_s", "overhead_s", "switch_s")
        some = {name: getattr(self, name)[which] for name in (*columns, "saves", "group", "rows")}
        return msgspec.structs.replace(self, **some)

    def borrowing(self, rows: Ints) -> RunColumns:
        """Return the same runs, with those in some rows of ``all`` behind all others: no quota covers them."""
        return msgspec.structs.replace(self, queue=self.queue + BORROWED * np.isin(self.rows, rows))


def shape_of(run: PreemptibleRun) -> Shape:
    """Return how many devices of each class a run has, in order."""
    return in_order(Counter(device_class(device) for _, device in run.devices))


_NO_NUMBERS: Final = np.zeros(0)

NONE: Final = RunColumns(
    queue=_NO_NUMBERS,
    position=_NO_NUMBERS,
    started_s=_NO_NUMBERS,
    saved_s=_NO_NUMBERS,
    devices=_NO_NUMBERS,
    left_s=_NO_NUMBERS,
    overhead_s=_NO_NUMBERS,
    switch_s=_NO_NUMBERS,
    saves=np.zeros(0, dtype=np.bool_),
    group=np.zeros(0, dtype=np.int64),
    shapes=(),
    rows=np.zeros(0, dtype=np.int64),
    all=(),
)
"""No runs."""

SAMPLE_S: Final = 5.0
"""Expected length of a profiler's sample, seconds."""

_ROOM: Final = 64


class _Columns(NamedTuple):
    """The columns that are kept of each run; counts and truth values are floats among floats."""

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


class GrantTerms(msgspec.Struct, frozen=True):
    """
    What a round expects of runs.

    Attributes
    ----------
    keys : mapping of str to str
        Job → workload.
    speed : callable
        Gives the speed of a workload on a kind of device.
    cost : callable
        Gives what stopping and resuming a workload's runs costs.
    finished_s : FinishedService
        The service that finished jobs needed.
    prior_s : float
        Expected length of a job while none has finished.
    """

    now_s: float
    keys: Mapping[str, str]
    speed: Callable[[str, str], float]
    cost: Callable[[str], PreemptionCost]
    finished_s: FinishedService
    prior_s: float


class PoolGrants:
    """
    A pool's runs as columns, kept up to date with the index.

    Notes
    -----
    Putting a run in and dropping it are O(1). A run that is over before anybody asks never comes into the columns. A
    round takes a few operations on whole columns, and a look at each pair of workload and kind of device among runs.
    """

    def __init__(self) -> None:
        self._runs: list[PreemptibleRun] = []
        self._rows: dict[str, int] = {}
        self._table: Floats = np.zeros((_WIDTH, _ROOM))
        self._shapes: dict[tuple[str, Shape], int] = {}
        self._pairs: dict[tuple[str, str], int] = {}  # workload and kind
        self._unpaired: dict[str, None] = {}
        self._noted: dict[str, tuple[PreemptibleRun, Shape, float]] = {}  # not in the columns yet

    def put(self, run: PreemptibleRun, shape: Shape, falls_per_s: float) -> None:
        """Note a run, new or changed; ``falls_per_s`` is what its position loses while it executes."""
        self._noted[run.ranked.job_id] = run, shape, falls_per_s

    def drop(self, job_id: str) -> None:
        """Drop a run that is over; the last row takes its place."""
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
        """Return the rows of some jobs' runs; jobs without a run are left out."""
        self._write()
        return np.array([row for job_id in job_ids if (row := self._rows.get(job_id)) is not None], dtype=np.int64)

    def ends_s(self, job_ids: Sequence[str], terms: GrantTerms) -> list[float]:
        """Return in how many seconds the runs of some jobs are expected to end."""
        columns = self._columns(terms.keys)
        left_s: list[float] = _left_s(columns, self._speeds(terms)[columns.pair.astype(np.int64)], terms)[
            self.rows_of(job_ids)
        ].tolist()
        return left_s

    def runs(self, terms: GrantTerms) -> tuple[RunColumns, Bools]:
        """Return all runs as they are now, and whether each may be stopped."""
        columns = self._columns(terms.keys)
        pair = columns.pair.astype(np.int64)
        costs = [terms.cost(workload) for workload, _ in self._pairs]
        found = RunColumns(
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
        """Note which new runs are of one workload on one kind."""
        if len(self._pairs) > 2 * len(self._runs) + _ROOM:  # mostly of runs that are over
            self._pairs.clear()
            self._unpaired = dict.fromkeys(self._rows)
        for job_id in self._unpaired:
            row = self._rows[job_id]
            pair = keys[job_id], self._runs[row].kind
            self._table[-1, row] = self._pairs.setdefault(pair, len(self._pairs))
        self._unpaired.clear()

    def _speeds(self, terms: GrantTerms) -> Floats:
        return np.array([terms.speed(workload, kind) for workload, kind in self._pairs])


def _row(run: PreemptibleRun, falls_per_s: float, group: int) -> tuple[float, ...]:
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


def _left_s(columns: _Columns, speeds: Floats, terms: GrantTerms) -> Floats:
    """Return in how many seconds each run is expected to end."""
    started = columns.started_s > 0
    running_s = np.where(started, np.maximum(terms.now_s - columns.started_s, 0.0), 0.0)
    had_s = (columns.executed_s + running_s) * speeds
    expected_s = job_lengths.remaining_s(had_s, terms.finished_s, terms.prior_s)
    left_s: Floats = job_lengths.left_s(columns.declared_s, had_s, expected_s) / speeds
    return left_s
