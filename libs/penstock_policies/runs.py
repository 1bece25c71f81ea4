"""Runs that may have to make way for others, as columns: what is worked out of each is worked out of all at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_events import Device
from penstock_policies.order import BORROWED, Outlook, Running
from penstock_policies.placement import device_class

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Shape = tuple[tuple[Device, int], ...]
"""How many devices of each class."""


class Runs(msgspec.Struct, frozen=True):
    """
    Runs at one moment.

    Attributes
    ----------
    queue, position : (N,) float arrays
        In the order as it is now.
    started_s : (N,) float array
        0 for one that has not started.
    saved_s : (N,) float array
        When its last checkpoint was complete, or it started.
    devices : (N,) float array
        How many it has on nodes that take jobs.
    left_s : (N,) float array
        In how many seconds each is expected to end by itself.
    overhead_s, switch_s : (N,) float arrays
        What preempting a run of its workload costs, as :class:`penstock_policies.stopping.Cost` has it.
    saves : (N,) bool array
        Whether it saves what it has done when it is asked to stop.
    group : (N,) int array
        Index of ``shapes``: runs on equal devices have the same.
    shapes : sequence of (kind, Shape)
    rows : (N,) int array
        Where each stands in ``all``.
    all : sequence of Running
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
    all: Sequence[Running]

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, at: int) -> str:
        """Return a run's job."""
        return self.all[int(self.rows[at])].ranked.job_id

    def running(self, at: int) -> Running:
        """Return a run with its place and its end as they are now."""
        run = self.all[int(self.rows[at])]
        place = run.ranked._replace(queue=int(self.queue[at]), position=float(self.position[at]))
        return Running(place, run.kind, run.devices, float(self.left_s[at]))

    def only(self, which: Bools) -> Runs:
        """Return some of them."""
        if which.all():
            return self
        columns = ("queue", "position", "started_s", "saved_s", "devices", "left_s", "overhead_s", "switch_s")
        some = {name: getattr(self, name)[which] for name in (*columns, "saves", "group", "rows")}
        return msgspec.structs.replace(self, **some)

    def borrowing(self, rows: Ints) -> Runs:
        """Return the same with those in some rows of ``all`` behind all others: no quota covers them."""
        return msgspec.structs.replace(self, queue=self.queue + BORROWED * np.isin(self.rows, rows))


def of(running: Iterable[Running], outlook: Outlook) -> Runs:
    """Return runs as columns; each brings its place and its end itself."""
    found = list(running)
    jobs, costs = [run.ranked.job for run in found], [outlook.cost(run.ranked.job) for run in found]
    shapes: dict[tuple[str, Shape], int] = {}
    return Runs(
        queue=_floats(run.ranked.queue for run in found),
        position=_floats(run.ranked.position for run in found),
        started_s=_floats(job.started_s for job in jobs),
        saved_s=_floats(max(job.started_s, job.checkpointed_s) for job in jobs),
        devices=_floats(len(run.devices) for run in found),
        left_s=_floats(run.left_s for run in found),
        overhead_s=_floats(cost.overhead_s for cost in costs),
        switch_s=_floats(cost.switch_s for cost in costs),
        saves=np.array([cost.saves for cost in costs], dtype=np.bool_),
        group=np.array([shapes.setdefault((run.kind, shape_of(run)), len(shapes)) for run in found], dtype=np.int64),
        shapes=list(shapes),
        rows=np.arange(len(found)),
        all=found,
    )


def shape_of(run: Running) -> Shape:
    """Return how many devices of each class a run has, in order."""
    return in_order(Counter(device_class(device) for _, device in run.devices))


def in_order(counts: Mapping[Device, int]) -> Shape:
    """Return how many devices of each class there are, in the order of kind, memory and backend."""
    if len(counts) < 2:
        return tuple(counts.items())
    return tuple(sorted(counts.items(), key=lambda each: (each[0].kind, each[0].memory_bytes, each[0].backend)))


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)


_NO_NUMBERS: Final = np.zeros(0)
_NO_ROWS: Final = np.zeros(0, dtype=np.int64)

NONE: Final = Runs(
    queue=_NO_NUMBERS,
    position=_NO_NUMBERS,
    started_s=_NO_NUMBERS,
    saved_s=_NO_NUMBERS,
    devices=_NO_NUMBERS,
    left_s=_NO_NUMBERS,
    overhead_s=_NO_NUMBERS,
    switch_s=_NO_NUMBERS,
    saves=np.zeros(0, dtype=np.bool_),
    group=_NO_ROWS,
    shapes=(),
    rows=_NO_ROWS,
    all=(),
)
"""No runs."""
