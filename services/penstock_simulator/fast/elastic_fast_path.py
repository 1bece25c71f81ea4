"""
Elastic jobs, counted.

A job may have fewer or more devices than it asked for, and another batch, as
:func:`penstock_scheduler.sizing.decide` says. That is the autoscaler's own decision. The simulation asks it at each
submission, completion and crossing, about one kind of device. A policy is this decision with more or fewer choices: see
:mod:`penstock_simulator.fast.fast_settings`. A job that is resized, or resumed after a wait, holds its devices for
``overhead_s`` before it goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from penstock_log import Size
from penstock_policies.queue_policies import DispatchMode
from penstock_scheduler.sizing import SizeRequest, decide
from penstock_simulator.fast.fast_settings import FastSizingSettings, GoOn, JobShape, Policy
from penstock_simulator.outcome import ClusterTimeline, Outcome
from penstock_simulator.trace import Floats, Ints, Trace

_LOOK_EVERY: Final = 8
_EQUAL_S: Final = 1e-9
_KIND: Final = "gpu"
_IN_ORDER: Final = DispatchMode(backfills=False, preempts="position")
"""The order binds: whoever is first runs, and behind one that does not fit nobody starts."""


@dataclass
class _Jobs:
    """The state of J jobs, in columns; a job that is ``going`` has devices."""

    trace: Trace
    shapes: Sequence[JobShape]
    left_s: Floats = field(init=False)
    width: Ints = field(init=False)

    def __post_init__(self) -> None:
        jobs = len(self.trace)
        self.left_s = self.trace.duration_s.copy()
        self.width, self.batch = np.zeros(jobs, dtype=np.int64), np.zeros(jobs, dtype=np.int64)
        self.speed = np.zeros(jobs)  # relative to that on as many devices as it asked for, with its user's batch
        self.begins_s = np.zeros(jobs)  # until when its devices are held for nothing
        self.end_s, self.start_s = np.full(jobs, np.nan), np.full(jobs, np.nan)
        self.executed_s, self.held_gpu_s = np.zeros(jobs), np.zeros(jobs)
        self.entered_s = self.trace.submit_s.copy()
        self.queue = np.zeros(jobs, dtype=np.int64)
        self.stops = np.zeros(jobs, dtype=np.int64)
        self.dropped = np.zeros(jobs, dtype=np.bool_)

    def advance(self, going: Ints, from_s: float, to_s: float) -> None:
        """Let time pass."""
        worked_s = np.maximum(0.0, to_s - np.maximum(from_s, self.begins_s[going]))
        self.left_s[going] -= worked_s * self.speed[going]
        self.executed_s[going] += to_s - from_s
        self.held_gpu_s[going] += (to_s - from_s) * self.width[going]

    def ends_s(self, going: Ints, now_s: float) -> Floats:
        """Return when each will end if nothing changes."""
        begins_s = np.maximum(now_s, self.begins_s[going])
        ends_s: Floats = begins_s + np.maximum(self.left_s[going], 0.0) / self.speed[going]
        return ends_s


def simulate_sized(
    trace: Trace,
    devices: int,
    policy: Policy,
    sizing: FastSizingSettings,
    shapes: Sequence[JobShape],
    *,
    overhead_s: float,
    go_on: GoOn,
) -> Outcome:
    """Return what becomes of a trace whose jobs may be given other sizes; ``shapes`` say which, (J,)."""
    began_s = time.process_time()
    jobs = _Jobs(trace, shapes)
    run = _Run(jobs, devices, sizing, overhead_s)
    run.until_over(go_on)
    at_s, busy, waiting = zip(*run.seen, strict=True) if run.seen else ((), (), ())
    return Outcome(
        policy=policy,
        trace=trace,
        gpus=devices,
        start_s=jobs.start_s,
        end_s=jobs.end_s,
        executed_s=jobs.executed_s,
        preemptions=jobs.stops,
        promotions=np.zeros(len(trace), dtype=np.int64),
        events=run.events,
        wall_s=time.process_time() - began_s,
        timeline=ClusterTimeline(np.array(at_s), np.array(busy, dtype=np.int64), np.array(waiting, dtype=np.int64)),
        held_gpu_s=jobs.held_gpu_s,
        dropped=jobs.dropped,
    )


class _Run:
    """One simulation, event by event."""

    def __init__(self, jobs: _Jobs, devices: int, sizing: FastSizingSettings, overhead_s: float) -> None:
        self.jobs, self.devices, self.sizing, self.overhead_s = jobs, devices, sizing, overhead_s
        self.limits = np.asarray(sizing.thresholds_gpu_s if sizing.admit == "2d-las" else (), dtype=np.float64)
        self.active = np.zeros(0, dtype=np.int64)
        self.sized: list[int] = []
        self.arrived = self.over = self.events = 0
        self.now_s = 0.0
        self.seen: list[tuple[float, int, int]] = []

    def until_over(self, go_on: GoOn) -> None:
        """Go from event to event until nothing more can happen, or it is not to go on."""
        number = len(self.jobs.trace)
        while math.isfinite(next_s := self._next_s()):
            if self.events % _LOOK_EVERY == 0 and not go_on(self.over, number):
                return
            self._pass(next_s)
            self._resize()
            self.events += 1
            self.seen.append((self.now_s, int(self.jobs.width.sum()), int((self.jobs.width[self.active] == 0).sum())))

    @property
    def going(self) -> Ints:
        """The jobs that have devices."""
        return self.active[self.jobs.width[self.active] > 0]

    def _next_s(self) -> float:
        submit_s, going = self.jobs.trace.submit_s, self.going
        found = [float(submit_s[self.arrived])] if self.arrived < len(submit_s) else []
        if going.size:
            found.append(float(self.jobs.ends_s(going, self.now_s).min()))
            found.append(float(self._crossings_s(going).min()))
        return min(found, default=math.inf)

    def _crossings_s(self, going: Ints) -> Floats:
        """Return when each job will have had as much device time as its queue allows."""
        jobs, limits = self.jobs, np.append(self.limits, np.inf)
        lacking_gpu_s = limits[jobs.queue[going]] - jobs.held_gpu_s[going]
        crossings_s: Floats = self.now_s + np.maximum(lacking_gpu_s, 0.0) / jobs.width[going]
        return crossings_s

    def _pass(self, next_s: float) -> None:
        """Let time pass until an event, end what ends, and take in what comes."""
        jobs, going = self.jobs, self.going
        ended = going[jobs.ends_s(going, self.now_s) <= next_s + _EQUAL_S]
        crossed = going[self._crossings_s(going) <= next_s + _EQUAL_S]
        jobs.advance(going, self.now_s, next_s)
        self.now_s = next_s
        jobs.queue[crossed] += 1
        jobs.entered_s[crossed] = next_s
        jobs.end_s[ended] = next_s
        jobs.width[ended] = jobs.batch[ended] = 0
        self.over += ended.size
        come = int(np.searchsorted(jobs.trace.submit_s, next_s, side="right"))
        new = np.arange(self.arrived, come)
        self.arrived = come
        self.active = np.concatenate((self.active[np.isnan(jobs.end_s[self.active])], new))

    def _resize(self) -> None:
        """Ask for everybody's size anew, and do as is said."""
        jobs = self.jobs
        rows = self._first()
        if rows == self.sized:
            return  # the same jobs in the same order, as the last decision left them: it would be the same again
        self.sized = rows
        decided = decide([self._wish(row) for row in rows], {_KIND: self.devices}, self.sizing.rules, _IN_ORDER)
        sizes = [each.size for each in decided.jobs.values()]
        rest = self.going[~np.isin(self.going, rows)]
        for row, size in [*((row, Size(0)) for row in rest.tolist()), *zip(rows, sizes, strict=True)]:
            if size != (Size(int(jobs.width[row]), int(jobs.batch[row]))):
                self._set(row, size)
        if decided.dropped:
            self._drop(np.array(decided.dropped, dtype=np.int64))

    def _first(self) -> list[int]:
        """Return the jobs to be decided about, in order: none behind those whose smallest widths take up all."""
        jobs, active = self.jobs, self.active
        order: list[int] = active[np.lexsort((active, jobs.entered_s[active], jobs.queue[active]))].tolist()
        if self.sizing.drop:
            return order
        found, left = [], self.devices
        for row in order:
            least = jobs.shapes[row].least
            if least > self.devices:
                continue  # it never starts, and holds up nobody
            if least > left:
                break
            found.append(row)
            left -= least
        return found

    def _wish(self, row: int) -> SizeRequest:
        jobs = self.jobs
        runs = bool(jobs.width[row])
        shape = jobs.shapes[row]
        return SizeRequest(
            job_id=str(row),
            profiles={_KIND: shape.profile},
            widths=shape.widths,
            now=Size(int(jobs.width[row]), int(jobs.batch[row])) if runs else None,
            kind=_KIND if runs else "",
            cost_s=self.overhead_s,
            fresh=math.isnan(jobs.start_s[row]),
        )

    def _set(self, row: int, size: Size) -> None:
        jobs, now_s = self.jobs, self.now_s
        fresh = math.isnan(jobs.start_s[row])
        jobs.stops[row] += jobs.width[row] > 0
        jobs.begins_s[row] = now_s if fresh else now_s + self.overhead_s
        if fresh:
            jobs.start_s[row] = now_s
        jobs.width[row], jobs.batch[row] = size.gpus, size.batch_size
        jobs.speed[row] = jobs.shapes[row].progress(size) if size.gpus else 0.0

    def _drop(self, rows: Ints) -> None:
        self.jobs.dropped[rows] = True
        self.over += rows.size
        self.active = self.active[~np.isin(self.active, rows)]
