"""
The work that jobs really have, and what becomes of it.

No service may know what stands here: a :class:`VirtualTask` has the real work of a job, and a :class:`VirtualRun` one
run of it. Executors of a virtual cluster advance them, and an :class:`OutcomeRecorder` makes the outcome of them.

:class:`PreservedWork` says what a job loses when it is preempted, as the log shows it: some scripts save their work,
others start anew. Replay and shadow use the same rule. A job that counts no iterations begins at its beginning each
time. For other jobs the last preempted run of the workload decides, or the fact that a run of the workload completed a
checkpoint. A workload without either goes with the majority of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import numpy as np

from penstock_log import JobsRanked
from penstock_log import Outcome as RunOutcome
from penstock_simulator.outcome import ClusterTimeline, DeviceSpells, Outcome
from penstock_simulator.trace import Trace

_WORST: Final[tuple[RunOutcome, ...]] = ("completed", "preempted", "failed", "lost", "cancelled")


@dataclass(slots=True)
class VirtualTask:
    """
    The real work of one job, or of one of the profiler's samples.

    Attributes
    ----------
    row : int
        Row of the trace; -1 for a sample.
    work_s : float
        Seconds of work, on the fastest kind.
    starting_s : float
        Time at the beginning of a run in which its devices are held and nothing advances.
    startings_s : list of float
        The same for the first, second, … run, where they differ.
    failures : list of (float, float)
        Work at which a run fails, and how much of it is kept; rising. The job's specification says whether it is tried
        again.
    iteration_s : float
        Time of one iteration on the fastest kind; steps count iterations.
    cancelled : bool
        Whether somebody has cancelled the job; its present run, if it has one, is then its last.
    saves : bool
        Whether a run's work is kept when it is stopped; otherwise all of it is done once more.
    kept_s : float
        Work that is done and saved.
    lost_s : float
        Work that was done and not saved, summed over all runs.
    runs : int
        Runs begun so far.
    idle_s : float
        Seconds of all runs in which nothing advanced: starting, stopping, and waiting for a node that was gone.
    start_s, end_s : float
        First start and end; nan where there was none.
    executed_s, held_gpu_s : float
        Seconds in which it held devices, over all runs; and the same times its number of devices.
    """

    id: str
    row: int
    gpus: int
    model: str
    work_s: float
    starting_s: float = 0.0
    iteration_s: float = 1.0
    startings_s: list[float] = field(default_factory=list)
    failures: list[tuple[float, float]] = field(default_factory=list)
    saves: bool = True
    cancelled: bool = False
    runs: int = 0
    kept_s: float = 0.0
    lost_s: float = 0.0
    idle_s: float = 0.0
    start_s: float = math.nan
    end_s: float = math.nan
    executed_s: float = 0.0
    held_gpu_s: float = 0.0
    preemptions: int = 0
    promotions: int = 0
    queue: int = 0

    def begin(self) -> float:
        """Begin another run; return how long it takes to start."""
        self.runs += 1
        return self.startings_s[self.runs - 1] if self.runs <= len(self.startings_s) else self.starting_s

    @property
    def next_s(self) -> float:
        """The work at which a run ends by itself: the next failure, or all of it."""
        return self.failures[0][0] if self.failures else self.work_s

    def steps(self, work_s: float) -> int:
        """Return how many iterations make up an amount of work."""
        return round(work_s / self.iteration_s)

    @property
    def over(self) -> bool:
        """Whether the task has ended."""
        return self.end_s == self.end_s


@dataclass(slots=True, eq=False)
class VirtualRun:
    """
    One run of a task.

    Attributes
    ----------
    speed : float
        Speed on this kind of device, in seconds of work a second.
    open : dict of str to tuple of int
        Node → devices, of nodes whose part of the run has not ended.
    missing : set of str
        Nodes whose part has not started.
    started_s, begins_s : float
        Start of the first process, and of work; nan and infinite before.
    done_s : float
        Work done in this run once it has come to a stop; nan before.
    asked : bool
        Whether the run was asked to stop.
    goes_on, parks : bool
        Whether it goes on with the process of a parked run, and is parked when it is preempted.
    """

    task: VirtualTask
    epoch: int
    kind: str
    speed: float
    open: dict[str, tuple[int, ...]]
    missing: set[str] = field(default_factory=set)
    started_s: float = math.nan
    begins_s: float = math.inf
    done_s: float = math.nan
    asked: bool = False
    goes_on: bool = False
    parks: bool = False
    outcome: RunOutcome = "completed"

    @property
    def halted(self) -> bool:
        """Whether the run has come to a stop and does no more work."""
        return self.done_s == self.done_s

    def worked_s(self, now_s: float) -> float:
        """Return the work done in this run up to a time at which it still works."""
        return min(max(0.0, now_s - self.begins_s) * self.speed, self.task.next_s - self.task.kept_s)

    def worsen(self, outcome: RunOutcome) -> None:
        """Note how one of its nodes' parts ended: a gang ends as its worst part did."""
        self.outcome = max(self.outcome, outcome, key=_WORST.index)


class OutcomeRecorder:
    """
    A recorder of what the outcome needs: promotions and, where they are asked for, the timeline and the spells.

    Parameters
    ----------
    trace : Trace
    tasks : sequence of VirtualTask, (J,)
        By row of the trace; each keeps its own times.
    sizes : mapping of str to int
        Node → its devices, in the order in which devices are numbered.
    shift_s : float
        Virtual time less the trace's time.
    resizes : bool
        Whether jobs may have other numbers of devices than they ask for.
    """

    def __init__(
        self,
        trace: Trace,
        tasks: Sequence[VirtualTask],
        sizes: Mapping[str, int],
        shift_s: float = 0.0,
        *,
        resizes: bool = False,
    ) -> None:
        self._trace, self._tasks, self._shift_s, self._resizes = trace, tasks, shift_s, resizes
        self._by_id = {task.id: task for task in tasks}
        self._first_device = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        self._gpus = sum(sizes.values())
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

    def note_spell(self, run: VirtualRun, node_id: str, devices: tuple[int, ...], now_s: float) -> None:
        """Note the devices that a run held on a node until now; samples are left out."""
        if run.task.row < 0 or run.started_s != run.started_s:
            return
        first = self._first_device[node_id]
        from_s, to_s = run.started_s - self._shift_s, now_s - self._shift_s
        self._spells += [(run.task.row, first + index, from_s, to_s) for index in devices]

    def outcome(self, policy: str, instants: int, cpu_s: float) -> Outcome:
        """Return the outcome of the trace."""
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
            timeline=ClusterTimeline.of_rows(self._timeline) if self._timeline else None,
            spells=DeviceSpells.of_rows(self._spells) if self._spells else None,
            held_gpu_s=np.array([task.held_gpu_s for task in tasks]) if self._resizes else None,
        )


_NOT_KEPT: Final = frozenset({"preempted", "lost"})
_OF_ITSELF: Final = frozenset({"completed", "failed"})


class PreservedWork:
    """
    Which workloads keep their work when they are preempted.

    Examples
    --------
    >>> saving = PreservedWork()
    >>> saving.of("mlp")
    True
    >>> saving.preempted("mlp", advanced=0, loop_steps=50)
    >>> saving.of("mlp"), saving.of("cnn")
    (False, False)
    """

    def __init__(self) -> None:
        self._by_key: dict[str, bool] = {}

    def checkpointed(self, key: str) -> None:
        """Note that a run of a workload completed a checkpoint."""
        self._by_key[key] = True

    def preempted(self, key: str, *, advanced: int, loop_steps: int) -> None:
        """Note the end of a preempted run that did ``loop_steps``, of which its job kept ``advanced``."""
        if loop_steps:
            self._by_key[key] = 2 * advanced >= loop_steps

    def of(self, key: str) -> bool:
        """Return whether a preempted job of a workload goes on where it was; true while nothing is known."""
        known = self._by_key.get(key)
        return known if known is not None else 2 * sum(self._by_key.values()) >= len(self._by_key)


def uncounted_work_s(runs: Sequence[tuple[str, float, str]], speed: Callable[[str], float]) -> float:
    """
    Return the work of a job that counts no iterations: the time that it held its devices, times their speed.

    Work of runs that were preempted or lost was not kept. The work of a job that did not come to its end is at least
    that of its longest run.

    Parameters
    ----------
    runs : sequence of (str, float, str)
        Of each run: the kind of its devices, the seconds for which it held them, and its outcome in the log.
    """
    worked_s = [(held_s * speed(kind), outcome) for kind, held_s, outcome in runs]
    whole_s = sum(each_s for each_s, outcome in worked_s if outcome not in _NOT_KEPT)
    if runs and runs[-1][2] in _OF_ITSELF:
        return whole_s
    return max([whole_s, *(each_s for each_s, _ in worked_s)])
