"""
The counting simulator that was published with Tiresias, by its rules: for comparing figures with those printed by it.

Whole seconds; at one time completions come first, then submissions, then an allocation, which is made from scratch for
policies that preempt. It looks at all jobs at every event, as that program does: this is the one to compare with,
:mod:`penstock_sim.counted.engine` the one to work with.

References
----------
https://github.com/SymbioticLab/Tiresias, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock_policies.orders import ORDERS
from penstock_sim.counted.lines import Job, Lines, Rules, line_up
from penstock_sim.counted.rooms import Room


@dataclass
class Run:
    """The jobs after a run, and its scheduling points as (time, busy devices, waiting jobs)."""

    jobs: Sequence[Job]
    points: list[tuple[int, int, int]] = field(default_factory=list)


def run(jobs: Sequence[Job], room: Room, rules: Rules, go_on: Callable[[int, int], bool] = lambda *_: True) -> Run:
    """
    Run jobs to their ends.

    Parameters
    ----------
    jobs : sequence of Job
        By submission; they are changed.
    room : Room
        Empty, and large enough for each of them.
    rules : Rules
    go_on : callable
        Told at each event the time and how many jobs were submitted; the run ends where it says no.

    Notes
    -----
    O(events x jobs in the system).
    """
    found, lines, active = Run(jobs), line_up(rules), list[Job]()
    now_s, come = 0, 0
    while come < len(jobs) or active:
        before_s, now_s = now_s, _next_s(jobs, come, active, lines, now_s)
        _advance(active, now_s - before_s)
        for job in _ended(active, now_s):
            room.give(job)
            lines.drop(job)
        active = [job for job in active if job.end_s is None]
        while come < len(jobs) and jobs[come].submit_s <= now_s:
            lines.add(jobs[come])
            active.append(jobs[come])
            come += 1
        lines.move(active)
        _allocate(lines, active, room, now_s, again=ORDERS[rules.policy].preempts)
        found.points.append((now_s, *_load(active)))
        if not go_on(now_s, come):
            break
    return found


def _next_s(jobs: Sequence[Job], come: int, active: Sequence[Job], lines: Lines, now_s: int) -> int:
    submission_s = jobs[come].submit_s if come < len(jobs) else math.inf
    completion_s = min((now_s + job.left_s for job in active if job.running), default=math.inf)
    inserted_s = min((now_s + lines.jump_s(job) for job in active), default=math.inf)
    return max(now_s, int(min(submission_s, completion_s, inserted_s)))


def _advance(active: Sequence[Job], passed_s: int) -> None:
    for job in active:
        if job.running:
            job.executed_s += passed_s
            job.served_s += passed_s
        else:
            job.waited_s += passed_s if job.served_s else 0


def _ended(active: Sequence[Job], now_s: int) -> Sequence[Job]:
    ended = [job for job in active if job.running and job.left_s <= 0]
    for job in ended:
        job.end_s, job.running = now_s, False
    return ended


def _allocate(lines: Lines, active: Sequence[Job], room: Room, now_s: int, *, again: bool) -> None:
    """Walk the jobs in order, those that wait or, ``again``, all of them, and give devices to those that fit."""
    ran = [job for job in active if job.running]
    if again:
        for job in ran:
            room.give(job)
            job.running = False
    for job in lines.walk():
        if job.running:
            continue
        if room.full:
            break
        if room.take(job):
            job.running = True
            job.start_s = now_s if job.start_s is None else job.start_s
        elif lines.strict:
            break
    for job in ran:
        job.preemptions += not job.running
    lines.settle()


def _load(active: Sequence[Job]) -> tuple[int, int]:
    busy = sum(job.gpus for job in active if job.running)
    return busy, sum(not job.running for job in active)
