"""What can happen to one job: it enters, waits, starts, stops, crosses a limit, is promoted, ends."""

from __future__ import annotations

import math

import numpy as np

from penstock_sim.counted.kernels.compiled import kernel
from penstock_sim.counted.kernels.heap import NOBODY, push, remove
from penstock_sim.counted.kernels.state import (
    BUSY,
    BY_DEVICES,
    BY_ENTRY,
    BY_INDEX,
    BY_SERVICE_LEFT,
    BY_START,
    BY_SUBMISSION,
    BY_TIME_LEFT,
    DONE,
    ENTRIES,
    OVER,
    RUNNING,
    RUNS_FROM,
    STARTS,
    STOPS,
    WAITERS,
    WAITING,
    Sim,
)

_EQUAL = 1e-9
_LEAST = 1e-300


@kernel
def submit(sim: Sim, job: int) -> None:
    """Let a job come and wait."""
    sim.jobs.since_s[job] = sim.jobs.submit_s[job]
    enter(sim, job, 0, sim.jobs.submit_s[job])
    wait(sim, job)


@kernel
def enter(sim: Sim, job: int, queue: int, now_s: float) -> None:
    """Give a job its key in a queue in which it is new."""
    sim.jobs.queue[job] = queue
    by, key, tie = sim.rules.by, sim.wait.links.key, sim.wait.links.tie
    tie[job] = now_s
    if by == BY_START:
        sim.counters[ENTRIES] += 1
        key[job] = sim.counters[ENTRIES]
    elif by == BY_ENTRY:
        key[job] = now_s
    elif by == BY_INDEX:
        key[job] = -1.0
    elif by == BY_SUBMISSION:
        key[job] = sim.jobs.submit_s[job]
    else:
        key[job] = key_at(sim, job, now_s)


@kernel
def key_at(sim: Sim, job: int, now_s: float) -> float:
    """Return the key of a job now: that of a running one may change while it runs."""
    by, jobs = sim.rules.by, sim.jobs
    if by == BY_DEVICES:
        return float(jobs.gpus[job])
    if by not in (BY_TIME_LEFT, BY_SERVICE_LEFT):
        return float(sim.wait.links.key[job])
    left_s = jobs.left_s[job]
    if jobs.phase[job] == RUNNING:
        left_s = jobs.since_s[job] + left_s - now_s
    return float(left_s if by == BY_TIME_LEFT else left_s * jobs.gpus[job])


@kernel
def wait(sim: Sim, job: int) -> None:
    """Put a job among those that wait; its key is set."""
    queue = sim.jobs.queue[job]
    sim.jobs.phase[job] = WAITING
    push(sim.wait, queue * len(sim.sizes) + sim.jobs.gang[job], job)
    sim.queues.waiting[queue] += 1
    sim.counters[WAITERS] += 1
    _set_alarm(sim, job)


@kernel
def leave_waiting(sim: Sim, job: int) -> None:
    """Take a job from among those that wait."""
    _unwait(sim, job)
    _drop_alarm(sim, job)


@kernel
def start(sim: Sim, job: int, after: int, now_s: float) -> None:
    """Let a job run that was taken from among those that wait; in the list of its queue it comes after another."""
    jobs = sim.jobs
    jobs.waited_s[job] += now_s - jobs.since_s[job]
    if math.isnan(jobs.start_s[job]):
        jobs.start_s[job] = now_s
    else:
        jobs.left_s[job] += sim.rules.overhead_s
    jobs.since_s[job] = now_s
    jobs.phase[job] = RUNNING
    insert(sim, job, after)
    _set_alarm(sim, job)


@kernel
def insert(sim: Sim, job: int, before: int) -> None:
    """Put a running job into the list of its queue, after another or, after NOBODY, first."""
    jobs, queues, queue = sim.jobs, sim.queues, sim.jobs.queue[job]
    after = queues.first[queue] if before == NOBODY else jobs.after[before]
    jobs.before[job], jobs.after[job] = before, after
    if before == NOBODY:
        queues.first[queue] = job
    else:
        jobs.after[before] = job
    if after == NOBODY:
        queues.last[queue] = job
    else:
        jobs.before[after] = job
    queues.held[queue] += jobs.gpus[job]
    sim.counters[BUSY] += jobs.gpus[job]


@kernel
def take_out(sim: Sim, job: int) -> None:
    """Take a running job out of the list of its queue."""
    jobs, queues, queue = sim.jobs, sim.queues, sim.jobs.queue[job]
    before, after = jobs.before[job], jobs.after[job]
    if before == NOBODY:
        queues.first[queue] = after
    else:
        jobs.after[before] = after
    if after == NOBODY:
        queues.last[queue] = before
    else:
        jobs.before[after] = before
    queues.held[queue] -= jobs.gpus[job]
    sim.counters[BUSY] -= jobs.gpus[job]


@kernel
def stop(sim: Sim, job: int, now_s: float) -> None:
    """Preempt a running job; it is to be given its key and to wait."""
    jobs = sim.jobs
    take_out(sim, job)
    _drop_alarm(sim, job)
    _pass(sim, job, now_s)
    jobs.phase[job] = WAITING
    jobs.preemptions[job] += 1


@kernel
def set_stopped_key(sim: Sim, job: int, now_s: float) -> None:
    """Give a preempted job its key; of several in the order of the list, the last comes first here."""
    key = sim.wait.links.key
    if sim.rules.by == BY_START:
        if key[job] < 0:
            sim.counters[STOPS] += 1
            key[job] = -float(sim.counters[STOPS])
    elif sim.rules.by == BY_INDEX:
        found = -merit(sim, sim.jobs.queue[job], sim.jobs.weight[job] * sim.jobs.served_s[job])
        if abs(found - key[job]) > _EQUAL * max(1.0, abs(found), abs(key[job])):
            key[job] = found
    else:
        key[job] = key_at(sim, job, now_s)


@kernel
def set_running_key(sim: Sim, job: int) -> None:
    """Put a job that is given devices behind those of its queue that had some."""
    if sim.rules.by == BY_START and sim.wait.links.key[job] > RUNS_FROM / 2:
        sim.counters[STARTS] += 1
        sim.wait.links.key[job] = RUNS_FROM + sim.counters[STARTS]


@kernel
def end(sim: Sim, job: int, now_s: float) -> None:
    """Let a running job complete."""
    take_out(sim, job)
    _pass(sim, job, now_s)
    sim.jobs.left_s[job] = 0.0
    sim.jobs.end_s[job] = now_s
    sim.jobs.phase[job] = OVER
    sim.counters[DONE] += 1


@kernel
def cross(sim: Sim, job: int, now_s: float) -> None:
    """Demote a running job whose alarm has rung."""
    take_out(sim, job)
    queue, lowest = sim.jobs.queue[job] + 1, len(sim.queues.limit) - 1
    while queue < lowest and _crosses_s(sim, job, queue) <= now_s:
        queue += 1
    enter(sim, job, queue, now_s)
    last = sim.queues.last[queue]
    while last != NOBODY and comes_first(sim, job, last, now_s):
        last = sim.jobs.before[last]
    insert(sim, job, last)
    _set_alarm(sim, job)


@kernel
def promote(sim: Sim, job: int, now_s: float) -> None:
    """Let a waiting job begin again in queue 0, both counters at zero; its alarm has rung."""
    jobs = sim.jobs
    _unwait(sim, job)
    jobs.served_s[job] = jobs.waited_s[job] = 0.0
    jobs.since_s[job] = now_s
    jobs.promotions[job] += 1
    enter(sim, job, 0, now_s)
    wait(sim, job)


@kernel
def merit(sim: Sim, queue: int, attained: float) -> float:
    """Return what :meth:`penstock_policies.orders.Learnt.merit` does, of one job."""
    samples, queues = sim.samples, sim.queues
    quantum = queues.limit[queue]
    if quantum == math.inf:
        return 1.0
    if queue > 0:
        attained = max(attained, queues.limit[queue - 1])
    first = np.searchsorted(samples.length, attained, side="right")
    last = np.searchsorted(samples.length, attained + quantum, side="right")
    index = 0.0
    if last > first:
        cost = samples.before[last] - samples.before[first] - (last - first) * attained
        cost += quantum * (len(samples.length) - 1 - last)
        index = (last - first) / max(cost, _LEAST)
    return float((index + queues.floor[queue]) / queues.fresh[queue])


@kernel
def comes_first(sim: Sim, waiting: int, running: int, now_s: float) -> bool:
    """Say whether a job comes before one that runs; before NOBODY every job does."""
    if running == NOBODY:
        return True
    one, other = key_at(sim, waiting, now_s), key_at(sim, running, now_s)
    if one != other:
        return one < other
    if sim.wait.links.tie[waiting] != sim.wait.links.tie[running]:
        return bool(sim.wait.links.tie[waiting] < sim.wait.links.tie[running])
    return waiting < running


@kernel
def completes_s(sim: Sim, job: int) -> float:
    """Return when a running job completes."""
    return float(sim.jobs.since_s[job] + sim.jobs.left_s[job])


@kernel
def _unwait(sim: Sim, job: int) -> None:
    queue = sim.jobs.queue[job]
    remove(sim.wait, queue * len(sim.sizes) + sim.jobs.gang[job], job)
    sim.queues.waiting[queue] -= 1
    sim.counters[WAITERS] -= 1


@kernel
def _pass(sim: Sim, job: int, now_s: float) -> None:
    jobs = sim.jobs
    passed_s = now_s - jobs.since_s[job]
    jobs.left_s[job] -= passed_s
    jobs.served_s[job] += passed_s
    jobs.held_s[job] += passed_s
    jobs.since_s[job] = now_s


@kernel
def _set_alarm(sim: Sim, job: int) -> None:
    jobs, rules, queue = sim.jobs, sim.rules, sim.jobs.queue[job]
    at_s = math.inf
    if jobs.phase[job] == RUNNING:
        at_s = completes_s(sim, job)
        at_s = min(at_s, _crosses_s(sim, job, queue))
    elif queue > 0 and rules.knob < math.inf:
        left_s = max(0.0, rules.knob * jobs.served_s[job] - jobs.waited_s[job])
        at_s = jobs.since_s[job] + _ticks(sim, left_s)
    sim.alarm.links.key[job] = at_s
    if at_s < math.inf:
        push(sim.alarm, 0, job)


@kernel
def _crosses_s(sim: Sim, job: int, queue: int) -> float:
    left_s = sim.queues.limit[queue] / sim.jobs.weight[job] - sim.jobs.served_s[job]
    return float(sim.jobs.since_s[job] + _ticks(sim, left_s))


@kernel
def _drop_alarm(sim: Sim, job: int) -> None:
    if sim.alarm.links.key[job] < math.inf:
        remove(sim.alarm, 0, job)


@kernel
def _ticks(sim: Sim, in_s: float) -> float:
    tick_s = sim.rules.tick_s
    return float(in_s if tick_s == 0.0 or in_s == math.inf else math.ceil(in_s / tick_s) * tick_s)
