"""
A run on an aggregator: its parts, each with a lock, and what is measured of them.

A part's lock is held while its step is summed up; other parts go on meanwhile. Iteration times go from one step's
completion, on all parts that are here, to that of the next.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from statistics import median
from typing import Final

from penstock.aggregation.shared_vectors import SharedResult
from penstock_aggregator.parts import Part, Vector
from penstock_log.aggregation_messages import PROFILE_STEPS, WATCH_STEPS, OpenPart, RunMeasuredHere

RunKey = tuple[str, int]
"""Job and epoch."""
LEAST_S: Final = (0.0, 0.0, 5.0, 30.0)
"""Least seconds of the first, second and third measurement since parts moved, and of later ones; each is a fact."""


class HostedPart:
    """
    A part, its lock, the memory of its result, and the processor time that it has cost.

    Attributes
    ----------
    lock : Lock
        Held by whoever calls the part.
    moved_s : float
        When it began to move; 0 while it does not.
    pushed_s : float
        When the push that was counted last began to come.
    """

    def __init__(self, order: OpenPart) -> None:
        self.part, self.lock = Part(order, self._share_result), threading.Lock()
        self._sharing = threading.Lock()
        self._result: SharedResult | None = None
        self.number, self.generation = order.part, order.generation
        self.cost_s, self.moved_s, self.pushed_s = 0.0, 0.0, 0.0

    def duplicate_descriptor(self) -> int:
        """Return a descriptor of its result's memory, which ranks of this host read; -1 where there is none."""
        with self._sharing:
            return os.dup(self._result.descriptor) if self._result is not None and self._result.is_shared else -1

    def close(self) -> None:
        """Share its result no more."""
        with self._sharing:
            if self._result is not None:
                self._result.close()

    def _share_result(self) -> Vector:
        self._result = SharedResult(self.part.order.elements, self.part.dtype)
        return self._result.vector

    def add_cost(self, cost_s: float) -> None:
        """Note processor seconds that were spent on it."""
        self.cost_s += cost_s  # two threads at once may lose one of both, seldom: it is a measurement


class HostedRun:
    """
    The parts of a run that are on this aggregator.

    Attributes
    ----------
    parts : dict of int to HostedPart
        Replaced as a whole where it changes, so that it can be read without a lock.
    over : str
        Why the run is closed; empty while it is not.
    """

    def __init__(self, key: RunKey) -> None:
        self.key = key
        self.parts: dict[int, HostedPart] = {}
        self.over = ""
        self._lock = threading.Lock()
        self._step = -1
        self._done: dict[int, dict[int, float]] = {}
        self._begin_measurement()

    @property
    def name(self) -> str:
        """``JOB/EPOCH``."""
        return f"{self.key[0]}/{self.key[1]}"

    def put_part(self, order: OpenPart) -> HostedPart | None:
        """Have a part from now on; return what was there of it before."""
        with self._lock:
            before = self.parts.get(order.part)
            self.parts = {**self.parts, order.part: HostedPart(order)}
            self._begin_measurement()
        return before

    def remove_part(self, number: int, generation: int) -> HostedPart | None:
        """Return a part that is not here any more; None where it is not here in that generation."""
        with self._lock:
            found = self.parts.get(number)
            if found is None or found.generation != generation:
                return None
            self.parts = {each: part for each, part in self.parts.items() if each != number}
            self._begin_measurement()
        return found

    def part_left(self) -> None:
        """Begin to measure anew, since a part is on its way to another aggregator."""
        with self._lock:
            self._begin_measurement()

    def completed(self, hosted: HostedPart, step: int, now_s: float) -> RunMeasuredHere | None:
        """
        Note that a part's step is complete.

        Returns
        -------
        RunMeasuredHere or None
            What was measured, where enough steps are complete on all parts.
        """
        with self._lock:
            if self.parts.get(hosted.number) is not hosted or step <= self._step:
                return None
            done = self._done.setdefault(step, {})
            done[hosted.number] = now_s - hosted.pushed_s
            if len(done) < len(self.parts):
                return None
            self._done = {later: parts for later, parts in self._done.items() if later > step}
            self._step = step
            if not self._ends_s:  # what came before the first completion was no whole step
                self._mark_costs()
            self._ends_s.append(now_s)
            self._held_s.append(max(done.values()))
            least_s = LEAST_S[min(self._measurements, len(LEAST_S) - 1)]
            if len(self._ends_s) <= self._window or now_s - self._ends_s[0] < least_s:
                return None
            return self._measured()

    def _begin_measurement(self) -> None:
        self._window, self._measurements = PROFILE_STEPS, 0
        self._ends_s: list[float] = []
        self._held_s: list[float] = []
        self._done, self._step = {}, -1
        self._mark_costs()

    def _mark_costs(self) -> None:
        self._costs_s = {number: hosted.cost_s for number, hosted in self.parts.items()}
        self._not_finite = _not_finite(self.parts.values())

    def _measured(self) -> RunMeasuredHere:
        steps = len(self._ends_s) - 1
        measured = RunMeasuredHere(
            job_id=self.key[0],
            epoch=self.key[1],
            generation=max(hosted.generation for hosted in self.parts.values()),
            steps=steps,
            iteration_s=median(later - one for one, later in zip(self._ends_s, self._ends_s[1:], strict=False)),
            costs_s={
                number: (part.cost_s - self._costs_s.get(number, 0.0)) / steps for number, part in self.parts.items()
            },
            not_finite=_not_finite(self.parts.values()) - self._not_finite,
            held_s=median(self._held_s[1:]),
        )
        self._window, self._ends_s, self._held_s = WATCH_STEPS, self._ends_s[-1:], self._held_s[-1:]
        self._measurements += 1
        self._mark_costs()
        return measured


def _not_finite(parts: Iterable[HostedPart]) -> int:
    return sum(hosted.part.not_finite for hosted in parts)
