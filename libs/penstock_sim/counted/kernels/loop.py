"""The events, one after the other."""

from __future__ import annotations

import math

from penstock_sim.counted.kernels.compiled import kernel
from penstock_sim.counted.kernels.heap import NOBODY, Floats, Ints, remove
from penstock_sim.counted.kernels.moves import completes_s, cross, end, promote, set_running_key, submit
from penstock_sim.counted.kernels.state import BUSY, COME, EVENTS, RUNNING, WAITERS, Sim
from penstock_sim.counted.kernels.walk import allocate


@kernel
def advance(sim: Sim, most: int, at_s: Floats, load: Ints) -> int:
    """
    Go on by at most so many scheduling points; return how many there were, 0 when all is over.

    At one time completions come first, then submissions, demotions and promotions, then an allocation. Each point's
    time goes into ``at_s``; devices in use and jobs that wait then go into ``load``, (most, 2).
    """
    for point in range(most):
        now_s = _next_s(sim)
        if now_s == math.inf:
            return point
        changed = _complete(sim, now_s)
        _submit(sim, now_s)
        _move(sim, changed, now_s)
        allocate(sim, now_s)
        for job in sim.due[:changed]:
            if sim.jobs.phase[job] == RUNNING:
                set_running_key(sim, job)
        sim.counters[EVENTS] += 1
        at_s[point], load[point, 0], load[point, 1] = now_s, sim.counters[BUSY], sim.counters[WAITERS]
    return most


@kernel
def _next_s(sim: Sim) -> float:
    come, first = sim.counters[COME], sim.alarm.root[0]
    submitted_s = sim.jobs.submit_s[come] if come < len(sim.jobs.submit_s) else math.inf
    return float(min(submitted_s, sim.alarm.links.key[first]) if first != NOBODY else submitted_s)


@kernel
def _complete(sim: Sim, now_s: float) -> int:
    """Let jobs complete whose time has come; put the others whose alarms ring into ``due``, return how many."""
    others = 0
    first = sim.alarm.root[0]
    while first != NOBODY and sim.alarm.links.key[first] <= now_s:
        remove(sim.alarm, 0, first)
        if sim.jobs.phase[first] == RUNNING and completes_s(sim, first) <= now_s:
            end(sim, first, now_s)
        else:
            sim.due[others] = first
            others += 1
        first = sim.alarm.root[0]
    return others


@kernel
def _move(sim: Sim, due: int, now_s: float) -> None:
    for job in sim.due[:due]:
        if sim.jobs.phase[job] == RUNNING:
            cross(sim, job, now_s)
        else:
            promote(sim, job, now_s)


@kernel
def _submit(sim: Sim, now_s: float) -> None:
    jobs, come = sim.jobs, sim.counters[COME]
    while come < len(jobs.submit_s) and jobs.submit_s[come] <= now_s:
        submit(sim, come)
        come += 1
    sim.counters[COME] = come
