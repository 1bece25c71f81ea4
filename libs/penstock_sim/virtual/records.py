"""What is noted of a virtual cluster while it runs, for the outcome."""

from __future__ import annotations

import numpy as np

from penstock_events import JobsRanked
from penstock_sim.outcome import Outcome, Spells, Timeline
from penstock_sim.virtual.script import Script
from penstock_sim.virtual.tasks import Run


class Records:
    """
    Notes promotions, and where they are asked for the timeline and the spells.

    Parameters
    ----------
    script : Script
        Each of its tasks keeps its own times.
    resizes : bool
        Whether jobs may have other numbers of devices than they ask for.
    """

    def __init__(self, script: Script, *, resizes: bool = False) -> None:
        self._resizes = resizes
        self._trace, self._tasks, self._shift_s = script.trace, script.tasks, script.shift_s
        self._by_id = {task.id: task for task in script.tasks}
        self._gpus, self._first_device = 0, dict[str, int]()
        for node_id, size in script.sizes.items():
            self._first_device[node_id] = self._gpus
            self._gpus += size
        self._timeline: list[tuple[float, int, int]] = []
        self._spells: list[tuple[int, int, float, float]] = []

    def note_ranks(self, fact: JobsRanked) -> None:
        """Count promotions."""
        for rank in fact.ranks:
            if (task := self._by_id.get(rank.job_id)) is not None:
                task.promotions += rank.queue < task.queue
                task.queue = rank.queue

    def note_instant(self, now_s: float, busy: int, waiting: int) -> None:
        """Note how the cluster is used from now on."""
        if not self._timeline or self._timeline[-1][1:] != (busy, waiting):
            self._timeline.append((now_s - self._shift_s, busy, waiting))

    def note_spell(self, run: Run, node_id: str, devices: tuple[int, ...], now_s: float) -> None:
        """Note who held the devices of a node's part of a run; samples are left out."""
        if run.task.row < 0 or run.started_s != run.started_s:
            return
        first = self._first_device[node_id]
        from_s, to_s = run.started_s - self._shift_s, now_s - self._shift_s
        self._spells += [(run.task.row, first + index, from_s, to_s) for index in devices]

    def outcome(self, policy: str, instants: int, cpu_s: float) -> Outcome:
        """Return what became of the trace."""
        tasks = self._tasks
        return Outcome(
            policy=policy,
            trace=self._trace,
            gpus=self._gpus,
            start_s=np.array([task.start_s for task in tasks]) - self._shift_s,
            end_s=np.array([task.end_s for task in tasks]) - self._shift_s,
            executed_s=np.array([task.executed_s for task in tasks]),
            preemptions=np.array([task.preemptions for task in tasks], dtype=np.int64),
            promotions=np.array([task.promotions for task in tasks], dtype=np.int64),
            events=instants,
            wall_s=cpu_s,
            timeline=_timeline(self._timeline) if self._timeline else None,
            spells=_spells(self._spells) if self._spells else None,
            held_gpu_s=np.array([task.held_gpu_s for task in tasks]) if self._resizes else None,
        )


def _timeline(rows: list[tuple[float, int, int]]) -> Timeline:
    at_s, busy, waiting = zip(*rows, strict=True)
    return Timeline(
        at_s=np.array(at_s),
        busy_gpus=np.array(busy, dtype=np.int64),
        waiting_jobs=np.array(waiting, dtype=np.int64),
    )


def _spells(rows: list[tuple[int, int, float, float]]) -> Spells:
    job, device, from_s, to_s = zip(*rows, strict=True)
    return Spells(
        job=np.array(job, dtype=np.int64),
        device=np.array(device, dtype=np.int64),
        from_s=np.array(from_s),
        to_s=np.array(to_s),
    )
