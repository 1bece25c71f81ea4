"""
The kernels' events: what happens to one job, who runs, and the loop over both.

First come the changes of one job: it enters, waits, starts, stops, crosses a limit, is promoted, ends. :func:`allocate`
then decides who runs: it walks the queues, and looks closer only where a waiting job could start. :func:`advance` is
the loop: it carries out the events one after the other. It is read last.
"""

from __future__ import annotations

import math

import numpy as np

from penstock_simulator.fast.kernel_state import (
    BUSY,
    BY_FALLING_KEY,
    BY_INDEX,
    BY_KEY,
    BY_OVERTAKING_KEY,
    BY_START,
    ENDED,
    ENTRIES,
    EVENTS,
    NO_JOB,
    OVER,
    RUNNING,
    RUNS_FROM,
    STARTS,
    STOPS,
    SUBMITTED,
    WAITING,
    WAITING_JOBS,
    Floats,
    Ints,
    KernelState,
    kernel,
    precedes,
    push,
    remove,
)

_EQUAL = 1e-9
_LEAST = 1e-300


@kernel
def submit(sim: KernelState, job: int) -> None:
    """Submit a job: it waits."""
    sim.jobs.since_s[job] = sim.jobs.submit_s[job]
    enter(sim, job, 0, sim.jobs.submit_s[job])
    wait(sim, job)


@kernel
def enter(sim: KernelState, job: int, queue: int, now_s: float) -> None:
    """Give a job its key in a queue in which it is new."""
    sim.jobs.queue[job] = queue
    by, key, tie = sim.rules.by, sim.wait.links.key, sim.wait.links.tie
    tie[job] = now_s
    if by == BY_START:
        sim.counters[ENTRIES] += 1
        key[job] = sim.counters[ENTRIES]
    elif by == BY_INDEX:
        key[job] = -1.0
    elif by == BY_KEY:
        key[job] = sim.jobs.key_fixed[job] + sim.jobs.key_entered[job] * now_s
    else:
        key[job] = key_at(sim, job, now_s)


@kernel
def key_at(sim: KernelState, job: int, now_s: float) -> float:
    """Return the key of a job now: that of a running one may change while it runs."""
    by, jobs = sim.rules.by, sim.jobs
    if by not in (BY_FALLING_KEY, BY_OVERTAKING_KEY):
        return float(sim.wait.links.key[job])
    left_s = jobs.left_s[job]
    if jobs.phase[job] == RUNNING:
        left_s = jobs.since_s[job] + left_s - now_s
    entered_s = sim.wait.links.tie[job]
    return float(jobs.key_fixed[job] + jobs.key_entered[job] * entered_s + jobs.key_left[job] * left_s)


@kernel
def wait(sim: KernelState, job: int) -> None:
    """Put a job among those that wait; its key is set."""
    queue = sim.jobs.queue[job]
    sim.jobs.phase[job] = WAITING
    push(sim.wait, queue * len(sim.sizes) + sim.jobs.gang[job], job)
    sim.queues.waiting[queue] += 1
    sim.counters[WAITING_JOBS] += 1
    _set_alarm(sim, job)


@kernel
def stop_waiting(sim: KernelState, job: int) -> None:
    """Remove a job from those that wait, and its alarm."""
    _remove_waiting(sim, job)
    _drop_alarm(sim, job)


@kernel
def start(sim: KernelState, job: int, after: int, now_s: float) -> None:
    """Start a job that no longer waits; it follows another job in the list of its queue."""
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
def insert(sim: KernelState, job: int, before: int) -> None:
    """Put a running job into the list of its queue, after another or, after NO_JOB, first."""
    jobs, queues, queue = sim.jobs, sim.queues, sim.jobs.queue[job]
    after = queues.first[queue] if before == NO_JOB else jobs.after[before]
    jobs.before[job], jobs.after[job] = before, after
    if before == NO_JOB:
        queues.first[queue] = job
    else:
        jobs.after[before] = job
    if after == NO_JOB:
        queues.last[queue] = job
    else:
        jobs.before[after] = job
    queues.held[queue] += jobs.gpus[job]
    sim.counters[BUSY] += jobs.gpus[job]


@kernel
def unlink(sim: KernelState, job: int) -> None:
    """Remove a running job from the list of its queue."""
    jobs, queues, queue = sim.jobs, sim.queues, sim.jobs.queue[job]
    before, after = jobs.before[job], jobs.after[job]
    if before == NO_JOB:
        queues.first[queue] = after
    else:
        jobs.after[before] = after
    if after == NO_JOB:
        queues.last[queue] = before
    else:
        jobs.before[after] = before
    queues.held[queue] -= jobs.gpus[job]
    sim.counters[BUSY] -= jobs.gpus[job]


@kernel
def stop(sim: KernelState, job: int, now_s: float) -> None:
    """Preempt a running job; the caller gives it a key and lets it wait."""
    jobs = sim.jobs
    unlink(sim, job)
    _drop_alarm(sim, job)
    _account(sim, job, now_s)
    jobs.phase[job] = WAITING
    jobs.preemptions[job] += 1


@kernel
def set_stopped_key(sim: KernelState, job: int, now_s: float) -> None:
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
def set_running_key(sim: KernelState, job: int) -> None:
    """Put a job that is given devices behind those of its queue that had some."""
    if sim.rules.by == BY_START and sim.wait.links.key[job] > RUNS_FROM / 2:
        sim.counters[STARTS] += 1
        sim.wait.links.key[job] = RUNS_FROM + sim.counters[STARTS]


@kernel
def end(sim: KernelState, job: int, now_s: float) -> None:
    """Complete a running job."""
    unlink(sim, job)
    _account(sim, job, now_s)
    sim.jobs.left_s[job] = 0.0
    sim.jobs.end_s[job] = now_s
    sim.jobs.phase[job] = OVER
    sim.counters[ENDED] += 1


@kernel
def cross(sim: KernelState, job: int, now_s: float) -> None:
    """Demote a running job that has crossed the limit of its queue."""
    unlink(sim, job)
    queue, lowest = sim.jobs.queue[job] + 1, len(sim.queues.limit) - 1
    while queue < lowest and _crosses_s(sim, job, queue) <= now_s:
        queue += 1
    enter(sim, job, queue, now_s)
    last = sim.queues.last[queue]
    while last != NO_JOB and comes_first(sim, job, last, now_s):
        last = sim.jobs.before[last]
    insert(sim, job, last)
    _set_alarm(sim, job)


@kernel
def promote(sim: KernelState, job: int, now_s: float) -> None:
    """Promote a job that has waited long enough: it begins again in queue 0, with both of its counters at zero."""
    jobs = sim.jobs
    _remove_waiting(sim, job)
    jobs.served_s[job] = jobs.waited_s[job] = 0.0
    jobs.since_s[job] = now_s
    jobs.promotions[job] += 1
    enter(sim, job, 0, now_s)
    wait(sim, job)


@kernel
def merit(sim: KernelState, queue: int, attained: float) -> float:
    """Return what :meth:`penstock_policies.queue_policies.LengthKnowledge.merit` does, of one job."""
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
def comes_first(sim: KernelState, waiting: int, running: int, now_s: float) -> bool:
    """Say whether a job comes before one that runs; every job comes before ``NO_JOB``."""
    if running == NO_JOB:
        return True
    one, other = key_at(sim, waiting, now_s), key_at(sim, running, now_s)
    if one != other:
        return one < other
    if sim.wait.links.tie[waiting] != sim.wait.links.tie[running]:
        return bool(sim.wait.links.tie[waiting] < sim.wait.links.tie[running])
    return waiting < running


@kernel
def completes_s(sim: KernelState, job: int) -> float:
    """Return when a running job completes."""
    return float(sim.jobs.since_s[job] + sim.jobs.left_s[job])


@kernel
def _remove_waiting(sim: KernelState, job: int) -> None:
    queue = sim.jobs.queue[job]
    remove(sim.wait, queue * len(sim.sizes) + sim.jobs.gang[job], job)
    sim.queues.waiting[queue] -= 1
    sim.counters[WAITING_JOBS] -= 1


@kernel
def _account(sim: KernelState, job: int, now_s: float) -> None:
    jobs = sim.jobs
    passed_s = now_s - jobs.since_s[job]
    jobs.left_s[job] -= passed_s
    jobs.served_s[job] += passed_s
    jobs.held_s[job] += passed_s
    jobs.since_s[job] = now_s


@kernel
def _set_alarm(sim: KernelState, job: int) -> None:
    jobs, rules, queue = sim.jobs, sim.rules, sim.jobs.queue[job]
    at_s = math.inf
    if jobs.phase[job] == RUNNING:
        at_s = completes_s(sim, job)
        at_s = min(at_s, _crosses_s(sim, job, queue))
    elif queue > 0 and rules.knob < math.inf:
        left_s = max(0.0, rules.knob * jobs.served_s[job] - jobs.waited_s[job])
        at_s = jobs.since_s[job] + _whole_ticks(sim, left_s)
    sim.alarm.links.key[job] = at_s
    if at_s < math.inf:
        push(sim.alarm, 0, job)


@kernel
def _crosses_s(sim: KernelState, job: int, queue: int) -> float:
    left_s = sim.queues.limit[queue] / sim.jobs.weight[job] - sim.jobs.served_s[job]
    return float(sim.jobs.since_s[job] + _whole_ticks(sim, left_s))


@kernel
def _drop_alarm(sim: KernelState, job: int) -> None:
    if sim.alarm.links.key[job] < math.inf:
        remove(sim.alarm, 0, job)


@kernel
def _whole_ticks(sim: KernelState, in_s: float) -> float:
    tick_s = sim.rules.tick_s
    return float(in_s if tick_s == 0.0 or in_s == math.inf else math.ceil(in_s / tick_s) * tick_s)


@kernel
def allocate(sim: KernelState, now_s: float) -> None:
    """Allocate the devices as a walk over all jobs in order would."""
    if sim.counters[WAITING_JOBS] == 0:
        return
    left = sim.rules.devices
    for queue in sim.queues.turn:
        held = sim.queues.held[queue]
        if not sim.rules.preempts:
            left -= held
            left = _fill(sim, queue, left, now_s)
        elif held > left or (sim.queues.waiting[queue] and _competes(sim, queue, left, now_s)):
            left = _merge(sim, queue, left, now_s)
        else:
            left -= held


@kernel
def _fill(sim: KernelState, queue: int, left: int, now_s: float) -> int:
    """Start jobs that wait while they fit, beside those that run."""
    while True:
        job = _next(sim, queue, sim.rules.devices if sim.rules.strict else left)
        if job == NO_JOB or sim.jobs.gpus[job] > left:
            return left
        stop_waiting(sim, job)
        start(sim, job, sim.queues.last[queue], now_s)
        left -= sim.jobs.gpus[job]


@kernel
def _next(sim: KernelState, queue: int, left: int) -> int:
    """Return the first of those that wait for at most so many devices."""
    sizes = sim.sizes
    found = NO_JOB
    for size in range(len(sizes)):
        if sizes[size] > left:
            break
        job = sim.wait.root[queue * len(sizes) + size]
        if job != NO_JOB and (found == NO_JOB or precedes(sim.wait.links, job, found)):
            found = job
    return found


@kernel
def _competes(sim: KernelState, queue: int, left: int, now_s: float) -> bool:
    """Say whether a job that waits fits beside those that run, or comes before one of them."""
    sizes, last = sim.sizes, sim.queues.last[queue]
    beside = left - sim.queues.held[queue]
    for size in range(len(sizes)):
        if sizes[size] > left:
            break
        job = sim.wait.root[queue * len(sizes) + size]
        if job == NO_JOB:
            continue
        if sizes[size] <= beside or sim.rules.by == BY_OVERTAKING_KEY or comes_first(sim, job, last, now_s):
            return True
    return False


@kernel
def _merge(sim: KernelState, queue: int, left: int, now_s: float) -> int:
    """Walk a queue, those that run and those that wait, in order; return the devices that are left."""
    if sim.rules.by == BY_OVERTAKING_KEY:
        _sort(sim, queue, now_s)
    jobs, stopped, stops = sim.jobs, sim.stopped, 0
    waiting = _next(sim, queue, left)
    before, kept = _untouched(sim, queue, left, now_s)
    left -= kept
    running = sim.queues.first[queue] if before == NO_JOB else jobs.after[before]
    if waiting != NO_JOB and jobs.gpus[waiting] > left:
        waiting = _next(sim, queue, left)
    while running != NO_JOB or waiting != NO_JOB:
        if waiting != NO_JOB and comes_first(sim, waiting, running, now_s):
            stop_waiting(sim, waiting)
            start(sim, waiting, before, now_s)
            set_running_key(sim, waiting)
            left -= jobs.gpus[waiting]
            before = waiting
            waiting = _next(sim, queue, left)
            continue
        after = jobs.after[running]
        if jobs.gpus[running] <= left:
            left -= jobs.gpus[running]
            set_running_key(sim, running)
            before = running
            if waiting != NO_JOB and jobs.gpus[waiting] > left:
                waiting = _next(sim, queue, left)
        else:
            stop(sim, running, now_s)
            stopped[stops] = running
            stops += 1
        running = after
    for place in range(stops - 1, -1, -1):
        set_stopped_key(sim, stopped[place], now_s)
        wait(sim, stopped[place])
    return left


@kernel
def _untouched(sim: KernelState, queue: int, left: int, now_s: float) -> tuple[int, int]:
    """Return the last running job before which nothing changes, and the devices up to it."""
    waiting, last, held = _next(sim, queue, left), sim.queues.last[queue], sim.queues.held[queue]
    while last != NO_JOB and (held > left or (waiting != NO_JOB and comes_first(sim, waiting, last, now_s))):
        held -= sim.jobs.gpus[last]
        last = sim.jobs.before[last]
    return last, held


@kernel
def _sort(sim: KernelState, queue: int, now_s: float) -> None:
    """Put those that run in order again, by insertion: little has changed since the last time."""
    jobs, queues = sim.jobs, sim.queues
    job = queues.first[queue]
    while job != NO_JOB:
        after, before = jobs.after[job], jobs.before[job]
        while before != NO_JOB and comes_first(sim, job, before, now_s):
            before = jobs.before[before]
        if before != jobs.before[job]:
            unlink(sim, job)
            insert(sim, job, before)
        job = after


@kernel
def advance(sim: KernelState, most: int, at_s: Floats, load: Ints) -> int:
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
        at_s[point], load[point, 0], load[point, 1] = now_s, sim.counters[BUSY], sim.counters[WAITING_JOBS]
    return most


@kernel
def _next_s(sim: KernelState) -> float:
    coming, first = sim.counters[SUBMITTED], sim.alarm.root[0]
    submitted_s = sim.jobs.submit_s[coming] if coming < len(sim.jobs.submit_s) else math.inf
    return float(min(submitted_s, sim.alarm.links.key[first]) if first != NO_JOB else submitted_s)


@kernel
def _complete(sim: KernelState, now_s: float) -> int:
    """Complete the jobs that are done; put the others whose alarms are due into ``due``, and return their number."""
    others = 0
    first = sim.alarm.root[0]
    while first != NO_JOB and sim.alarm.links.key[first] <= now_s:
        remove(sim.alarm, 0, first)
        if sim.jobs.phase[first] == RUNNING and completes_s(sim, first) <= now_s:
            end(sim, first, now_s)
        else:
            sim.due[others] = first
            others += 1
        first = sim.alarm.root[0]
    return others


@kernel
def _move(sim: KernelState, due: int, now_s: float) -> None:
    for job in sim.due[:due]:
        if sim.jobs.phase[job] == RUNNING:
            cross(sim, job, now_s)
        else:
            promote(sim, job, now_s)


@kernel
def _submit(sim: KernelState, now_s: float) -> None:
    jobs, coming = sim.jobs, sim.counters[SUBMITTED]
    while coming < len(jobs.submit_s) and jobs.submit_s[coming] <= now_s:
        submit(sim, coming)
        coming += 1
    sim.counters[SUBMITTED] = coming
