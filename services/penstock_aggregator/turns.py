"""
Turns of the runs on one aggregator: a step beyond a run's slots of the cycle waits for the next one.

:class:`RunTurns` says how long a step has to wait, by the policy of :mod:`penstock_policies.aggregation`.
:class:`DeferredSteps` has a thread that completes those that wait.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count

from penstock_aggregator.hosted_run import HostedPart, HostedRun
from penstock_log.aggregation_messages import RunSlots
from penstock_policies.aggregation import AggregatorLoad, CycleSlots, Task


class RunTurns:
    """
    Whether a run's step may be summed up now. One step of a run on all of its parts here is one turn.

    A turn is charged what the run's steps were measured to cost, as soon as it begins: what it takes in the end is
    known only when others have asked long ago.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: CycleSlots | None = None
        self._costs_s: dict[str, float] = {}
        self._steps: dict[str, int] = {}

    def change(self, order: RunSlots) -> None:
        """
        Divide the cycle anew.

        Raises
        ------
        ValueError
            If the times are no times; everything stays as it was.
        """
        load = AggregatorLoad(tuple(Task(run, 0, cost_s) for run, cost_s in order.cost_s.items()), order.iteration_s)
        with self._lock:
            self._costs_s = dict(order.cost_s)
            self._steps = {run: step for run, step in self._steps.items() if run in order.cost_s}
            if not load.tasks:
                self._slots = None
            elif self._slots is None:
                self._slots = CycleSlots(load)
            else:
                self._slots.change_load(load)

    def wait_s(self, run: str, step: int, now_s: float) -> float:
        """Return for how many seconds a run's step has to wait; where it is 0, the turn has begun."""
        with self._lock:
            cost_s = self._costs_s.get(run)
            if self._slots is None or cost_s is None or self._steps.get(run) == step:
                return 0.0
            wait_s = self._slots.may_run(run, now_s)
            if wait_s <= 0:
                self._steps[run] = step
                self._slots.ran(run, now_s, cost_s)
            return wait_s


class DeferredSteps:
    """
    Steps that wait for their turns, and the thread that completes them.

    Parameters
    ----------
    complete : callable
        Called when a step's time has come; it may defer the step again.
    ticking : callable
        Seconds that never jump.
    """

    def __init__(self, complete: Callable[[HostedRun, HostedPart], object], ticking: Callable[[], float]) -> None:
        self._complete, self._ticking = complete, ticking
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, HostedRun, HostedPart]] = []
        self._numbers = count()
        threading.Thread(target=self._complete_due, name="aggregator-turns", daemon=True).start()

    def defer(self, wait_s: float, run: HostedRun, hosted: HostedPart) -> None:
        """Complete a part's step after so many seconds."""
        with self._changed:
            heapq.heappush(self._waiting, (self._ticking() + wait_s, next(self._numbers), run, hosted))
            self._changed.notify()

    def ask_again(self) -> None:
        """Have all that wait ask for their turns now, since the cycle is divided anew."""
        with self._changed:
            self._waiting = [(0.0, number, run, hosted) for _, number, run, hosted in self._waiting]
            heapq.heapify(self._waiting)
            self._changed.notify()

    def _complete_due(self) -> None:
        while True:
            with self._changed:
                while not self._waiting or self._waiting[0][0] > self._ticking():
                    self._changed.wait(self._waiting[0][0] - self._ticking() if self._waiting else None)
                _, _, run, hosted = heapq.heappop(self._waiting)
            self._complete(run, hosted)
