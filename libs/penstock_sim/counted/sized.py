"""
The policy ``elastic`` as the counting simulator runs it: every job may have fewer or more devices than it asked for.

At each submission, completion and crossing the first jobs in the order whose smallest widths fit are admitted, and
:func:`penstock_policies.elastic.allocate` shares the devices out among them. A job that is resized, or resumed after it
had to wait, holds its devices for ``overhead_s`` before it goes on. Where nobody comes in or goes out, widths stay
unless what changing them gains within ``horizon_s`` exceeds what it costs.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from penstock_policies import elastic
from penstock_sim.counted.settings import GoOn
from penstock_sim.counted.sizing import Curves, Sizing, progress
from penstock_sim.outcome import Outcome, Timeline
from penstock_sim.trace import Floats, Ints, Trace

_LOOK_EVERY: Final = 64
_EQUAL_S: Final = 1e-9


@dataclass
class _Jobs:
    """The state of J jobs, in columns; a job that is ``going`` has devices."""

    trace: Trace
    speed: Floats  # (J, k_max), relative to the speed on as many devices as it asked for
    scaling: Floats  # (J, k_max), relative to the speed on the fewest
    left_s: Floats = field(init=False)
    width: Ints = field(init=False)

    def __post_init__(self) -> None:
        jobs = len(self.trace)
        self.left_s = self.trace.duration_s.copy()
        self.width = np.zeros(jobs, dtype=np.int64)
        self.begins_s = np.zeros(jobs)  # until when its devices are held for nothing
        self.end_s, self.start_s = np.full(jobs, np.nan), np.full(jobs, np.nan)
        self.executed_s, self.held_gpu_s = np.zeros(jobs), np.zeros(jobs)
        self.entered_s = self.trace.submit_s.copy()
        self.queue = np.zeros(jobs, dtype=np.int64)
        self.stops = np.zeros(jobs, dtype=np.int64)

    def advance(self, going: Ints, from_s: float, to_s: float) -> None:
        """Let time pass."""
        worked_s = np.maximum(0.0, to_s - np.maximum(from_s, self.begins_s[going]))
        self.left_s[going] -= worked_s * self.speed[going, self.width[going] - 1]
        self.executed_s[going] += to_s - from_s
        self.held_gpu_s[going] += (to_s - from_s) * self.width[going]

    def ends_s(self, going: Ints, now_s: float) -> Floats:
        """Return when each will end if nothing changes."""
        begins_s = np.maximum(now_s, self.begins_s[going])
        ends_s: Floats = begins_s + np.maximum(self.left_s[going], 0.0) / self.speed[going, self.width[going] - 1]
        return ends_s


def simulate_sized(
    trace: Trace,
    devices: int,
    sizing: Sizing,
    curves: Curves | None,
    *,
    overhead_s: float,
    go_on: GoOn,
) -> Outcome:
    """
    Return what becomes of a trace whose jobs may be given any number of devices.

    Raises
    ------
    ValueError
        If a job's curve says nothing of the number of devices that it asked for.
    """
    began_s = time.process_time()
    speed = progress(trace, sizing, curves)
    on_the_fewest = speed[np.arange(len(trace)), elastic.smallest(speed) - 1]
    jobs = _Jobs(trace, speed, speed / on_the_fewest[:, None])
    run = _Run(jobs, devices, sizing, overhead_s)
    run.until_over(go_on)
    at_s, busy, waiting = zip(*run.seen, strict=True) if run.seen else ((), (), ())
    return Outcome(
        policy="elastic",
        trace=trace,
        gpus=devices,
        start_s=jobs.start_s,
        end_s=jobs.end_s,
        executed_s=jobs.executed_s,
        preemptions=jobs.stops,
        promotions=np.zeros(len(trace), dtype=np.int64),
        events=run.events,
        wall_s=time.process_time() - began_s,
        timeline=Timeline(np.array(at_s), np.array(busy, dtype=np.int64), np.array(waiting, dtype=np.int64)),
        held_gpu_s=jobs.held_gpu_s,
    )


class _Run:
    """One simulation, event by event."""

    def __init__(self, jobs: _Jobs, devices: int, sizing: Sizing, overhead_s: float) -> None:
        self.jobs, self.devices, self.sizing, self.overhead_s = jobs, devices, sizing, overhead_s
        self.limits = np.asarray(sizing.thresholds_gpu_s if sizing.admit == "2d-las" else (), dtype=np.float64)
        self.active = np.zeros(0, dtype=np.int64)
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
        jobs.width[ended] = 0
        self.over += ended.size
        come = int(np.searchsorted(jobs.trace.submit_s, next_s, side="right"))
        new = np.arange(self.arrived, come)
        self.arrived = come
        self.active = np.concatenate((self.active[np.isnan(jobs.end_s[self.active])], new))

    def _resize(self) -> None:
        """Share the devices out anew."""
        jobs = self.jobs
        order = np.lexsort((self.active, jobs.entered_s[self.active], jobs.queue[self.active]))
        first = self.active[order][: self.devices]
        widths = np.zeros_like(jobs.width)
        widths[first] = elastic.allocate(jobs.scaling[first], self.devices) if first.size else 0
        changed = self.active[widths[self.active] != jobs.width[self.active]]
        if changed.size and self._is_worth_it(changed, widths[changed]):
            self._set(changed, widths[changed])

    def _is_worth_it(self, changed: Ints, widths: Ints) -> bool:
        """Say whether to change widths: somebody comes in or goes out, or it gains more than it costs."""
        jobs = self.jobs
        if np.any((widths == 0) | (jobs.width[changed] == 0)):
            return True
        before, after = (jobs.scaling[changed, each - 1] for each in (jobs.width[changed], widths))
        gain = float(after.sum() - before.sum())
        return gain > _EQUAL_S and gain * self.sizing.horizon_s > float(before.sum()) * self.overhead_s

    def _set(self, changed: Ints, widths: Ints) -> None:
        jobs, now_s = self.jobs, self.now_s
        fresh = np.isnan(jobs.start_s[changed])
        jobs.stops[changed[jobs.width[changed] > 0]] += 1
        jobs.begins_s[changed] = np.where(fresh, now_s, now_s + self.overhead_s)
        jobs.start_s[changed[fresh & (widths > 0)]] = now_s
        jobs.width[changed] = widths
