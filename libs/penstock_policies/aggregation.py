"""
Assignment of tensors to shared aggregators: which jobs share one, what moves, and whose turn it is, after AutoPS.

An aggregator sums, in each iteration of a job, the updates of those parts of the job's tensors that it holds: its
*tasks*. Aggregation comes in bursts, so that several jobs can share an aggregator. Its *cycle* is the longest iteration
among its jobs, C = max D_j. Job j runs floor(C / D_j) times in a cycle, so that its iteration takes
d_j = max(D_j, C / floor(C / D_j)) instead of D_j, and it loses (d_j - D_j) / d_j of its speed. An aggregator is within
its limits if no job of it loses as much as the loss limit, and all runs of all its tasks fit into the cycle
(:class:`AggregatorLoad`).

:func:`assign` places the tasks of a job whose iteration was measured, by best fit. Once a job left or times changed,
:func:`rebalance` moves tasks away where limits are broken; then :func:`recycle` empties aggregators. :func:`admits` and
:func:`lost_more` decide whether a job may enter, and whether it goes back to servers of its own. :class:`CycleSlots`
decides on one aggregator whether a job's run may begin now.

All times may be ``fractions.Fraction`` instead of float: they are only added, multiplied, divided, compared and rounded
down. Values that differ by less than a part in :data:`NOISE` are taken as equal, so that floats give what exact numbers
give.

References
----------
Gu, Systems for deep learning clusters (dissertation, University of Michigan, 2021), chapter IV, pseudocode 3; with one
correction: a new task is charged for each of its runs in a cycle, and not once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

NOISE: Final = 10**9
"""Times and losses that differ by less than this part of them are equal."""

LOSS_LIMIT: Final = 0.1
"""Share of its speed that no job may lose by sharing; the paper's."""

RECYCLED_UP_TO: Final = 0.75
"""Utilisation up to which an aggregator is worth emptying: fuller ones have more to move, and seldom go elsewhere."""


class Task(NamedTuple):
    """
    A part of a job's tensors on an aggregator.

    Attributes
    ----------
    job : str
    part : int or str
        Name of the part within the job.
    cost_s : float, seconds
        Processor time of the aggregator for one run: the updates of all workers for this part, once.
    """

    job: str
    part: int | str
    cost_s: float


@dataclass(frozen=True)
class AggregatorLoad:
    """
    What an aggregator has to do in a cycle.

    Attributes
    ----------
    tasks : tuple of Task
    iteration_s : mapping of job to float, seconds
        Iteration time of each job alone (D). It may name more jobs than have tasks here. It does not change: a load
        with other times is a new one.

    Raises
    ------
    ValueError
        If a task's job has no iteration time, an iteration time is not positive and finite, or a cost is negative or
        not finite.

    Examples
    --------
    >>> load = AggregatorLoad((Task("J1", "a", 2.0), Task("J2", "b", 3.0)), {"J1": 6.0, "J2": 12.0})
    >>> load.cycle_s, load.runs_of("J1"), load.busy_s, load.loss_of("J1")
    (12.0, 2, 7.0, 0.0)
    """

    tasks: tuple[Task, ...]
    iteration_s: Mapping[str, float]

    def __post_init__(self) -> None:
        for task in self.tasks:
            if not 0 <= task.cost_s < math.inf:
                raise ValueError(
                    f"cost_s of {task.job}/{task.part} is {task.cost_s}; expected seconds, finite and not negative"
                )
        for job in self.cost_s:
            if job not in self.iteration_s:
                raise ValueError(f"{job} has a task but no iteration time; expected iteration_s to name each job")
            if not 0 < self.iteration_s[job] < math.inf:
                raise ValueError(f"iteration_s of {job} is {self.iteration_s[job]}; expected seconds above 0, finite")

    @cached_property
    def cost_s(self) -> Mapping[str, float]:
        """Processor time of one run of each job that has tasks here, seconds."""
        costs: dict[str, float] = {}
        for task in self.tasks:
            costs[task.job] = costs.get(task.job, 0) + task.cost_s
        return costs

    @cached_property
    def cycle_s(self) -> float:
        """Length of a cycle: the longest iteration among the jobs; 0 where there is none."""
        return max((self.iteration_s[job] for job in self.cost_s), default=0)

    @cached_property
    def busy_s(self) -> float:
        """Processor time of all runs in a cycle, seconds."""
        return self._busy_in(self.cycle_s)

    @cached_property
    def worst_loss(self) -> float:
        """Greatest loss among the jobs; 0 where there is none."""
        return self._worst_loss_in(self.cycle_s)

    @property
    def utilisation(self) -> float:
        """Share of the cycle in which the aggregator is busy; 0 where it has no task."""
        return self.busy_s / self.cycle_s if self.tasks else 0

    def runs_of(self, job: str) -> int:
        """Return how many times a job runs in a cycle; ValueError for a job without a task here."""
        self._expect(job)
        return _runs(self.cycle_s, self.iteration_s[job])

    def shared_iteration_s(self, job: str) -> float:
        """Return how long a job's iteration takes here (d); ValueError for a job without a task here."""
        self._expect(job)
        return _shared_iteration_s(self.cycle_s, self.iteration_s[job])

    def loss_of(self, job: str) -> float:
        """Return the share of its speed that a job loses here; ValueError for a job without a task here."""
        self._expect(job)
        return _loss(self.cycle_s, self.iteration_s[job])

    def within(self, loss_limit: float = LOSS_LIMIT) -> bool:
        """Return whether no job loses as much as the limit, and all runs fit into the cycle."""
        return _under(self.worst_loss, loss_limit) and _fits(self.busy_s, self.cycle_s)

    def utilisation_with(
        self, task: Task, loss_limit: float = LOSS_LIMIT, *, run_limit_s: float = math.inf, strict: bool = True
    ) -> float | None:
        """
        Return the utilisation once one more task runs here; None where a limit would be broken.

        ``run_limit_s`` is the longest that one run of the task's job may take here; a single task may take longer, as
        it cannot be divided. With ``strict=False`` the new task is charged once in a cycle, as the paper's text says,
        and the aggregator may come out overloaded.
        """
        there_s = self.cost_s.get(task.job, 0)
        if there_s and not _fits(there_s + task.cost_s, run_limit_s):
            return None
        iteration_s = self.iteration_s[task.job]
        same = iteration_s <= self.cycle_s
        cycle_s = self.cycle_s if same else iteration_s
        busy_s = self.busy_s if same else self._busy_in(cycle_s)
        after_s = busy_s + _runs(cycle_s, iteration_s) * task.cost_s
        if not _fits(after_s if strict else busy_s + task.cost_s, cycle_s):
            return None  # before the losses are worked out: most are refused here
        worst = self.worst_loss if same else self._worst_loss_in(cycle_s)
        if not _under(worst, loss_limit) or not _under(_loss(cycle_s, iteration_s), loss_limit):
            return None
        return after_s / cycle_s

    def with_task(self, task: Task) -> AggregatorLoad:
        """Return the load with one more task."""
        return AggregatorLoad((*self.tasks, task), self.iteration_s)

    def without_job(self, job: str) -> AggregatorLoad:
        """Return the load without the tasks of a job."""
        return AggregatorLoad(tuple(task for task in self.tasks if task.job != job), self.iteration_s)

    def _busy_in(self, cycle_s: float) -> float:
        return sum((_runs(cycle_s, self.iteration_s[job]) * cost_s for job, cost_s in self.cost_s.items()))

    def _worst_loss_in(self, cycle_s: float) -> float:
        return max((_loss(cycle_s, self.iteration_s[job]) for job in self.cost_s), default=0)

    def _expect(self, job: str) -> None:
        if job not in self.cost_s:
            raise ValueError(
                f"{job} has no task on this aggregator; expected one of {', '.join(self.cost_s) or 'none'}"
            )


class Assignment(NamedTuple):
    """Where the tasks of a job go: each task's aggregator, and the aggregators among these that are new."""

    placements: Mapping[Task, str]
    allocated: tuple[str, ...]


class TaskMove(NamedTuple):
    """A task that goes from one aggregator to another."""

    task: Task
    source: str
    target: str


class Rebalancing(NamedTuple):
    """
    What has to change where limits are broken.

    Attributes
    ----------
    moves : tuple of TaskMove
    allocated : tuple of str
        New aggregators among the targets.
    unplaced : tuple of Task
        Tasks that have to leave, but for which there is no aggregator: their jobs need servers of their own.
    """

    moves: tuple[TaskMove, ...]
    allocated: tuple[str, ...]
    unplaced: tuple[Task, ...]


def assign(
    tasks: Sequence[Task],
    iteration_s: Mapping[str, float],
    aggregators: Mapping[str, Sequence[Task]],
    *,
    loss_limit: float = LOSS_LIMIT,
    run_limit_s: Mapping[str, float] | None = None,
    new_ids: Iterable[str] = (),
    may_allocate: int | None = None,
    strict: bool = True,
) -> Assignment | None:
    """
    Return where the tasks of a job go; None where they cannot all be placed.

    Each task, the costliest first, goes to the aggregator that is the fullest with it, and within its limits: best fit.
    Where there is none, a new one is allocated.

    Parameters
    ----------
    tasks : sequence of Task
        None of them is on an aggregator yet.
    iteration_s : mapping of job to float, seconds
        Iteration time alone (D) of each job that has a task here or there.
    aggregators : mapping of name to sequence of Task
        The aggregators there are, and what they hold. Of equally full ones, the first takes the task.
    loss_limit : float
        No job may lose this share of its speed, or more; above 0, at most 1.
    run_limit_s : mapping of job to float, seconds, or None
        The longest that one run of a job may take on one aggregator. Aggregators work for a job at the same time: with
        what the costliest of a job's own servers takes for a run, it goes to as many of them as it had, and waits for
        none longer than before. A job that is not named has no such limit; nor has anybody in the paper.
    new_ids : iterable of str
        Names for new aggregators, in this order; those in use are left out. No more are allocated than it has.
    may_allocate : int or None
        How many new aggregators may be allocated; None: as many as ``new_ids`` has.
    strict : bool
        False charges a new task once in a cycle, as the paper's text says. That overloads aggregators, and is here for
        comparison.

    Returns
    -------
    Assignment or None
        None where more new aggregators would be needed than may be had, or a task takes longer than its job's
        iteration, so that no aggregator can keep up with it.

    Raises
    ------
    ValueError
        If a task is there twice, or a number is out of its range.

    Notes
    -----
    O(T · (A + j)) time for T tasks, A aggregators, and j jobs on one whose cycle a task would lengthen. The same input
    gives the same result.

    Examples
    --------
    >>> iteration_s = {"P": 10.0, "Q": 10.0, "R": 10.0}
    >>> there = {"a1": [Task("P", "p", 5.0)], "a2": [Task("Q", "q", 8.0)]}
    >>> assign([Task("R", "r", 2.0)], iteration_s, there).placements
    {Task(job='R', part='r', cost_s=2.0): 'a2'}
    >>> assign([Task("R", "r", 6.0)], iteration_s, there) is None
    True
    >>> assign([Task("R", "r", 6.0)], iteration_s, there, new_ids=["a3"]).allocated
    ('a3',)
    """
    packing = _TaskTable(
        aggregators, iteration_s, loss_limit, run_limit_s, new_ids=new_ids, may_allocate=may_allocate, strict=strict
    )
    packing.expect_new(tasks)
    if packing.place_all(tasks):
        return None
    places = packing.places
    return Assignment({task: places[task] for task in tasks}, tuple(packing.allocated))


def recycle(
    aggregators: Mapping[str, Sequence[Task]],
    iteration_s: Mapping[str, float],
    *,
    loss_limit: float = LOSS_LIMIT,
    run_limit_s: Mapping[str, float] | None = None,
    up_to: float = RECYCLED_UP_TO,
) -> tuple[TaskMove, ...]:
    """
    Return the moves that empty whole aggregators, where all of their tasks fit into the others.

    The emptiest aggregator is tried first. No move leads to an aggregator that has no task, or that breaks a limit, and
    a task moves once. An exit can break limits, so that :func:`rebalance` comes first: with iterations of 6, 3 and 2 s
    nobody loses, but once the first job left, the last one waits for a cycle of 3 s.

    Parameters
    ----------
    aggregators : mapping of name to sequence of Task
    iteration_s : mapping of job to float, seconds
        Iteration time alone (D) of each job.
    loss_limit, run_limit_s
        As in :func:`assign`.
    up_to : float
        Utilisation of the fullest aggregator that is tried.

    Returns
    -------
    tuple of TaskMove
        After them, each source holds no task.

    Notes
    -----
    O(A · E · T) time for A aggregators, E that are freed, and T tasks on those that are tried.

    Examples
    --------
    >>> there = {"a1": [Task("R", "r1", 3.0)], "a2": [Task("Q", "q1", 6.0)]}
    >>> recycle(there, {"Q": 10.0, "R": 10.0})
    (TaskMove(task=Task(job='R', part='r1', cost_s=3.0), source='a1', target='a2'),)
    """
    packing = _TaskTable(aggregators, iteration_s, loss_limit, run_limit_s)
    before = packing.places
    while packing.empty_one(up_to):
        pass
    return packing.moves_since(before)


def rebalance(
    aggregators: Mapping[str, Sequence[Task]],
    iteration_s: Mapping[str, float],
    *,
    loss_limit: float = LOSS_LIMIT,
    run_limit_s: Mapping[str, float] | None = None,
    new_ids: Iterable[str] = (),
    may_allocate: int | None = None,
) -> Rebalancing:
    """
    Return what has to move so that no limit is broken, once times were measured anew, or a job left.

    From each aggregator that breaks a limit, the fewest tasks leave that let it keep its limits. They are placed by
    best fit, as in :func:`assign`. Nothing moves where no limit is broken.

    Parameters
    ----------
    aggregators : mapping of name to sequence of Task
        With the costs as measured now.
    iteration_s : mapping of job to float, seconds
        Iteration time alone (D) of each job, as measured now.
    loss_limit, run_limit_s, new_ids, may_allocate
        As in :func:`assign`.

    Notes
    -----
    Times that are measured vary, and those near a limit would go to and fro: pass smoothed ones.
    The number of tasks that leave an aggregator is the least. Whole jobs need not leave: each task is placed by itself.

    Examples
    --------
    >>> there = {"a1": [Task("P", "p", 6.0), Task("R", "r", 5.0)], "a2": [Task("Q", "q", 5.0)]}
    >>> rebalance(there, {"P": 10.0, "Q": 10.0, "R": 10.0}).moves
    (TaskMove(task=Task(job='R', part='r', cost_s=5.0), source='a1', target='a2'),)
    """
    packing = _TaskTable(aggregators, iteration_s, loss_limit, run_limit_s, new_ids=new_ids, may_allocate=may_allocate)
    before = packing.places
    leaving = [task for name in aggregators for task in packing.relieve(name)]
    unplaced = packing.place_all(leaving)
    return Rebalancing(packing.moves_since(before), tuple(packing.allocated), tuple(unplaced))


def admits(free: int, wanted: int) -> bool:
    """
    Return whether a job may enter: all servers that it asks for could be had, so that it can go back to its own.

    Parameters
    ----------
    free : int
        Servers that are not reserved.
    wanted : int
        Servers of its own that the job asks for; 1 or more.

    Examples
    --------
    >>> admits(free=4, wanted=4), admits(free=3, wanted=4)
    (True, False)
    """
    if wanted < 1:
        raise ValueError(f"wanted is {wanted}; expected 1 or more servers")
    return wanted <= free


def lost_more(before_s: float, after_s: float, limit: float = LOSS_LIMIT) -> bool:
    """
    Return whether a job lost more of its speed than the limit, by its measured iteration times.

    Parameters
    ----------
    before_s, after_s : float, seconds
        Mean iteration time with servers of its own, and with shared ones.
    limit : float

    Examples
    --------
    >>> lost_more(0.9, 1.0), lost_more(0.89, 1.0), lost_more(1.0, 0.5)
    (False, True, False)
    """
    if not (0 < before_s < math.inf and 0 < after_s < math.inf):
        raise ValueError(f"iteration times are {before_s} and {after_s}; expected seconds above 0, finite")
    loss = (after_s - before_s) / after_s
    return loss > limit + limit / NOISE


class CycleSlots:
    """
    Turns of the jobs on one aggregator: whether a run may begin now, or in the next cycle.

    A run is one iteration of a job: all of its tasks here, once. Who sums them one by one, asks with the first, and
    records the run after the last. Each job has as many runs in a cycle as
    :meth:`AggregatorLoad.runs_of` says, and these may begin at any time. One more run in the same cycle may begin if
    what is left of the cycle allows it: its length, less what all jobs' own runs take, less what such extra runs took.
    Else it waits for the next cycle, in which the job has its own runs again: so nobody starves. A job that is alone
    never waits.

    The clock is an argument, and never goes back. A run is recorded before another one is asked for, or else runs that
    are under way are not seen.

    Parameters
    ----------
    load : AggregatorLoad

    Examples
    --------
    >>> tasks = (Task("J1", "a", 2.0), Task("J2", "b", 3.0))
    >>> slots = CycleSlots(AggregatorLoad(tasks, {"J1": 12.0, "J2": 12.0}))
    >>> slots.may_run("J2", 0.0)
    0.0
    >>> slots.ran("J2", 0.0, 3.0)
    >>> slots.ran("J2", 4.0, 3.0)  # 7 s are left: 12 s less 5 s for one run of each job
    >>> slots.ran("J2", 8.0, 3.0)
    >>> slots.may_run("J2", 11.0), slots.may_run("J1", 11.0)
    (1.0, 0.0)
    """

    def __init__(self, load: AggregatorLoad) -> None:
        self._load = load
        self._began_s: float | None = None
        self._runs: dict[str, int] = {}
        self._extra_s: float = 0.0

    def change_load(self, load: AggregatorLoad) -> None:
        """Go on with another load: jobs came or left, or times were measured anew. The cycle keeps its beginning."""
        self._load = load

    def may_run(self, job: str, now_s: float) -> float:
        """
        Return how long a job's run has to wait: 0.0 where it may begin now.

        ValueError for a job without a task here.
        """
        own, cost_s = self._load.runs_of(job), self._load.cost_s[job]
        ends_s = self._enter_cycle(now_s)
        alone = len(self._load.cost_s) == 1
        if alone or self._runs.get(job, 0) < own or _fits(cost_s + self._extra_s, self._spare_s):
            return 0.0
        return ends_s - now_s

    def ran(self, job: str, began_s: float, cost_s: float) -> None:
        """
        Record a run: when it began, and the processor time that it took.

        What it took beyond its measured cost is charged to the time that is left for extra runs. A run that began in an
        earlier cycle counts for that one, which is over. ValueError for a job without a task here.
        """
        own, expected_s = self._load.runs_of(job), self._load.cost_s[job]
        self._enter_cycle(began_s)
        if self._began_s is None or began_s < self._began_s:
            return
        runs = self._runs.get(job, 0)
        self._runs[job] = runs + 1
        self._extra_s += max(0.0, cost_s - expected_s) if runs < own else cost_s

    @property
    def _spare_s(self) -> float:
        """What the jobs' own runs leave of a cycle."""
        return self._load.cycle_s - self._load.busy_s

    def _enter_cycle(self, now_s: float) -> float:
        """Begin the cycle that the time is in, if it has not begun, and return when it ends."""
        cycle_s = self._load.cycle_s
        if self._began_s is None:
            self._began_s = now_s
        elapsed = (now_s - self._began_s) / cycle_s
        over = math.floor(elapsed + 1 / NOISE)
        if over >= 1:
            self._began_s += over * cycle_s
            self._runs.clear()
            self._extra_s = 0.0
        return self._began_s + cycle_s


class _TaskTable:
    """Tasks on aggregators while they are placed and moved."""

    def __init__(
        self,
        aggregators: Mapping[str, Sequence[Task]],
        iteration_s: Mapping[str, float],
        loss_limit: float,
        run_limit_s: Mapping[str, float] | None,
        *,
        new_ids: Iterable[str] = (),
        may_allocate: int | None = None,
        strict: bool = True,
    ) -> None:
        if not 0 < loss_limit <= 1:
            raise ValueError(f"loss_limit is {loss_limit}; expected a share above 0, at most 1")
        if may_allocate is not None and may_allocate < 0:
            raise ValueError(f"may_allocate is {may_allocate}; expected 0 or more aggregators, or None")
        self.loads = {name: AggregatorLoad(tuple(tasks), iteration_s) for name, tasks in aggregators.items()}
        self.allocated: list[str] = []
        self._iteration_s = iteration_s
        self._loss_limit = loss_limit
        self._run_limit_s = run_limit_s or {}
        self._new_ids = islice((name for name in new_ids if name not in self.loads), may_allocate)
        self._strict = strict
        self._known: set[tuple[str, int | str]] = set()
        for tasks in aggregators.values():
            self.expect_new(tasks)

    @property
    def places(self) -> dict[Task, str]:
        """The aggregator of each task."""
        return {task: name for name, load in self.loads.items() for task in load.tasks}

    def expect_new(self, tasks: Sequence[Task]) -> None:
        """Raise ValueError where tasks are there twice, or lack what a load needs."""
        AggregatorLoad(tuple(tasks), self._iteration_s)
        for task in tasks:
            if (task.job, task.part) in self._known:
                raise ValueError(f"{task.job}/{task.part} is there twice; expected each part of a job once")
            self._known.add((task.job, task.part))

    def place_all(self, tasks: Sequence[Task]) -> list[Task]:
        """Place tasks by best fit, and return those that found no place."""
        return [task for task in self._costliest_first(tasks) if not self._place(task)]

    def empty_one(self, up_to: float) -> bool:
        """Move all tasks of one aggregator to others that have tasks, and return whether there was one to empty."""
        occupied = [name for name, load in self.loads.items() if load.tasks]
        tried = [name for name in occupied if self.loads[name].utilisation <= up_to]
        for source in sorted(tried, key=lambda name: self.loads[name].utilisation):
            if self._empty(source, [name for name in occupied if name != source]):
                return True
        return False

    def relieve(self, name: str) -> list[Task]:
        """Take the fewest tasks off an aggregator with which it is within its limits, and return them."""
        load = self.loads[name]
        if load.within(self._loss_limit):
            return []
        cycles = sorted({self._iteration_s[job] for job in load.cost_s})
        kept = max((self._kept(load, cycle_s) for cycle_s in cycles), key=_count_and_cost)
        self.loads[name] = AggregatorLoad(kept, self._iteration_s)
        return [task for task in load.tasks if task not in kept]

    def moves_since(self, before: Mapping[Task, str]) -> tuple[TaskMove, ...]:
        """Return where tasks are that were elsewhere before."""
        places = self.places
        return tuple(
            TaskMove(task, source, places[task])
            for task, source in before.items()
            if places.get(task, source) != source
        )

    def _costliest_first(self, tasks: Iterable[Task]) -> list[Task]:
        return sorted(tasks, key=lambda task: task.cost_s / self._iteration_s[task.job], reverse=True)

    def _place(self, task: Task) -> bool:
        name = self._best_fit(task, self.loads, self.loads)
        if name is None:
            empty = AggregatorLoad((), self._iteration_s)
            if empty.utilisation_with(task, self._loss_limit, strict=self._strict) is None:
                return False
            name = next(self._new_ids, None)
            if name is None:
                return False
            self.allocated.append(name)
            self.loads[name] = empty
        self.loads[name] = self.loads[name].with_task(task)
        return True

    def _best_fit(self, task: Task, names: Iterable[str], loads: Mapping[str, AggregatorLoad]) -> str | None:
        """Return the first of the aggregators that are the fullest with a task; None where it fits nowhere."""
        best, most = None, None
        run_limit_s = self._run_limit_s.get(task.job, math.inf)
        for name in names:
            used = loads[name].utilisation_with(task, self._loss_limit, run_limit_s=run_limit_s, strict=self._strict)
            if used is not None and (most is None or used > most):
                best, most = name, used
        return best

    def _empty(self, source: str, others: Sequence[str]) -> bool:
        loads = {name: self.loads[name] for name in others}
        for task in self._costliest_first(self.loads[source].tasks):
            name = self._best_fit(task, others, loads)
            if name is None:
                return False
            loads[name] = loads[name].with_task(task)
        self.loads.update(loads)
        self.loads[source] = AggregatorLoad((), self._iteration_s)
        return True

    def _kept(self, load: AggregatorLoad, cycle_s: float) -> tuple[Task, ...]:
        """
        Return the most tasks of an aggregator that are within its limits in a cycle of that length; none if none are.

        The jobs that can stay follow from the cycle's length. Of their tasks, the fewest leave: those that take most of
        the cycle, and as the last one the smallest that suffices. One task stays of a job that gives the cycle its
        length.
        """
        takes_s = {
            task: _runs(cycle_s, self._iteration_s[task.job]) * task.cost_s
            for task in load.tasks
            if self._iteration_s[task.job] <= cycle_s
            and _under(_loss(cycle_s, self._iteration_s[task.job]), self._loss_limit)
        }
        busy_s = sum(takes_s.values())
        while not _fits(busy_s, cycle_s):
            giving = [task for task in takes_s if self._iteration_s[task.job] == cycle_s]
            may_leave = sorted((task for task in takes_s if giving != [task]), key=takes_s.__getitem__)
            if not may_leave:
                return ()
            enough = (task for task in may_leave if _fits(busy_s - takes_s[task], cycle_s))
            busy_s -= takes_s.pop(next(enough, may_leave[-1]))
        return tuple(takes_s)


def _count_and_cost(tasks: Sequence[Task]) -> tuple[int, float]:
    return len(tasks), sum(task.cost_s for task in tasks)


def _runs(cycle_s: float, iteration_s: float) -> int:
    """Return how many iterations there are in a cycle."""
    ratio = cycle_s / iteration_s
    return math.floor(ratio + ratio / NOISE)


def _shared_iteration_s(cycle_s: float, iteration_s: float) -> float:
    return max(iteration_s, cycle_s / _runs(cycle_s, iteration_s))


def _loss(cycle_s: float, iteration_s: float) -> float:
    shared_s = _shared_iteration_s(cycle_s, iteration_s)
    return (shared_s - iteration_s) / shared_s


def _under(loss: float, limit: float) -> bool:
    return loss < limit - limit / NOISE


def _fits(busy_s: float, cycle_s: float) -> bool:
    return busy_s <= cycle_s + cycle_s / NOISE
