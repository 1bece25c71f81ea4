"""Who runs: a walk through the queues, which looks closer only where somebody who waits could start."""

from __future__ import annotations

from penstock_sim.counted.kernels.compiled import kernel
from penstock_sim.counted.kernels.heap import NOBODY, precedes
from penstock_sim.counted.kernels.moves import (
    comes_first,
    insert,
    leave_waiting,
    set_running_key,
    set_stopped_key,
    start,
    stop,
    take_out,
    wait,
)
from penstock_sim.counted.kernels.state import BY_SERVICE_LEFT, WAITERS, Sim


@kernel
def allocate(sim: Sim, now_s: float) -> None:
    """Give the devices out, as a walk from scratch in the order of all jobs would."""
    if sim.counters[WAITERS] == 0:
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
def _fill(sim: Sim, queue: int, left: int, now_s: float) -> int:
    """Start jobs that wait while they fit, beside those that run."""
    while True:
        job = _next(sim, queue, sim.rules.devices if sim.rules.strict else left)
        if job == NOBODY or sim.jobs.gpus[job] > left:
            return left
        leave_waiting(sim, job)
        start(sim, job, sim.queues.last[queue], now_s)
        left -= sim.jobs.gpus[job]


@kernel
def _next(sim: Sim, queue: int, left: int) -> int:
    """Return the first of those that wait for at most so many devices."""
    sizes = sim.sizes
    found = NOBODY
    for size in range(len(sizes)):
        if sizes[size] > left:
            break
        job = sim.wait.root[queue * len(sizes) + size]
        if job != NOBODY and (found == NOBODY or precedes(sim.wait.links, job, found)):
            found = job
    return found


@kernel
def _competes(sim: Sim, queue: int, left: int, now_s: float) -> bool:
    """Say whether a job that waits fits beside those that run, or comes before one of them."""
    sizes, last = sim.sizes, sim.queues.last[queue]
    beside = left - sim.queues.held[queue]
    for size in range(len(sizes)):
        if sizes[size] > left:
            break
        job = sim.wait.root[queue * len(sizes) + size]
        if job == NOBODY:
            continue
        if sizes[size] <= beside or sim.rules.by == BY_SERVICE_LEFT or comes_first(sim, job, last, now_s):
            return True
    return False


@kernel
def _merge(sim: Sim, queue: int, left: int, now_s: float) -> int:
    """Walk a queue, those that run and those that wait, in order; return the devices that are left."""
    if sim.rules.by == BY_SERVICE_LEFT:
        _sort(sim, queue, now_s)
    jobs, stopped, stops = sim.jobs, sim.stopped, 0
    waiting = _next(sim, queue, left)
    before, kept = _untouched(sim, queue, left, now_s)
    left -= kept
    running = sim.queues.first[queue] if before == NOBODY else jobs.after[before]
    if waiting != NOBODY and jobs.gpus[waiting] > left:
        waiting = _next(sim, queue, left)
    while running != NOBODY or waiting != NOBODY:
        if waiting != NOBODY and comes_first(sim, waiting, running, now_s):
            leave_waiting(sim, waiting)
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
            if waiting != NOBODY and jobs.gpus[waiting] > left:
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
def _untouched(sim: Sim, queue: int, left: int, now_s: float) -> tuple[int, int]:
    """Return the last of those that run whom the walk cannot but let run, and the devices up to it."""
    waiting, last, held = _next(sim, queue, left), sim.queues.last[queue], sim.queues.held[queue]
    while last != NOBODY and (held > left or (waiting != NOBODY and comes_first(sim, waiting, last, now_s))):
        held -= sim.jobs.gpus[last]
        last = sim.jobs.before[last]
    return last, held


@kernel
def _sort(sim: Sim, queue: int, now_s: float) -> None:
    """Put those that run in order again, by insertion: little has changed since the last time."""
    jobs, queues = sim.jobs, sim.queues
    job = queues.first[queue]
    while job != NOBODY:
        after, before = jobs.after[job], jobs.before[job]
        while before != NOBODY and comes_first(sim, job, before, now_s):
            before = jobs.before[before]
        if before != jobs.before[job]:
            _shift(sim, job, before)
        job = after


@kernel
def _shift(sim: Sim, job: int, before: int) -> None:
    take_out(sim, job)
    insert(sim, job, before)
