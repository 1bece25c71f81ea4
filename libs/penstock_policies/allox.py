"""
Which one-device jobs start now, and where: AlloX's matching over the jobs at the head of the order.

The order decides who comes first, the matching who gets which kind. So jobs are matched queue by queue, in windows of
at most ``window`` jobs: within a window shorter jobs may go first (that is what the least sum of completion times asks
for), and a job may be left for a *later place* on a faster device that is still busy. What is left over goes to the
next window. Once the first job of a window has waited ``patience_s``, the window shrinks to as many jobs as devices are
idle, so nobody is overtaken for ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock_events import Device, Job
from penstock_policies.cluster import fits
from penstock_policies.matching import IMPOSSIBLE_US, Assignment, Ints, assign_lsa, savings_us, starts_us
from penstock_policies.order import Outlook, Ranked
from penstock_policies.placement import Free, Located, device_class

LOOKED_AT = 512
"""Most jobs that are matched in one round; an idle device that none of them wants stays idle until the next."""


@dataclass(frozen=True)
class Later:
    """
    A job that had better wait.

    Attributes
    ----------
    kind : str
        What it waits for.
    start_s, end_s : float
        From now, expected.
    """

    kind: str
    start_s: float
    end_s: float


@dataclass
class Matched:
    """
    What the matching decided.

    Attributes
    ----------
    starts : list of (Ranked, kind, devices)
    later : dict of str to Later
        Jobs left for a later place.
    """

    starts: list[tuple[Ranked, str, list[Located]]] = field(default_factory=list)
    later: dict[str, Later] = field(default_factory=dict)


class Machines:
    """
    When each device is next free, by class of equal devices.

    Parameters
    ----------
    free : Free
        Idle devices.
    busy : iterable of (Device, float)
        Devices in use, and in how many seconds they are expected to be free.
    """

    def __init__(self, free: Free, busy: Iterable[tuple[Device, float]]) -> None:
        ready: dict[Device, list[int]] = {}
        for _, device in free:
            ready.setdefault(device_class(device), []).append(0)
        for device, in_s in busy:
            ready.setdefault(device_class(device), []).append(max(1, round(in_s * 1e6)))
        self.classes = sorted(ready, key=lambda c: (c.kind, c.memory_bytes, c.backend))
        self.ready_us = [np.sort(np.array(ready[c], dtype=np.int64)) for c in self.classes]

    def copy(self) -> Machines:
        """Return the same, to be changed on its own."""
        other = object.__new__(Machines)
        other.classes, other.ready_us = self.classes, [ready.copy() for ready in self.ready_us]
        return other

    def nearest(self, jobs: int) -> list[Ints]:
        """Return the times of the earliest devices of each class, as many as so many jobs could make use of."""
        return [ready[:jobs] for ready in self.ready_us]

    def lengths_us(self, jobs: Sequence[Job], outlook: Outlook) -> Ints:
        """Return the (J, T) processing times, :data:`IMPOSSIBLE_US` where a job does not fit."""
        lengths = np.full((len(jobs), len(self.classes)), IMPOSSIBLE_US, dtype=np.int64)
        for row, (job, service_s) in enumerate(zip(jobs, outlook.remaining(jobs), strict=True)):
            for column, like in enumerate(self.classes):
                if fits(job.spec, like):
                    lengths[row, column] = max(1, round(service_s / outlook.speed(job, like.kind) * 1e6))
        return lengths

    def occupy(self, lengths_us: Ints, found: Assignment) -> None:
        """Put a schedule's jobs on their devices."""
        for column, ready in enumerate(self.ready_us):
            mine = found.kind == column
            np.add.at(ready, found.machine[mine], lengths_us[mine, column])
            ready.sort()


def match(singles: Sequence[Ranked], free: Free, machines: Machines, outlook: Outlook) -> Matched:
    """
    Decide which one-device jobs start now.

    Parameters
    ----------
    singles : sequence of Ranked
        In rank order.
    free : Free
        Idle devices; those that jobs start on are taken.
    machines : Machines
        The same and the busy ones; changed as well.

    Notes
    -----
    One matching of at most ``window`` jobs at a time until no device is idle, :data:`LOOKED_AT` jobs at most.
    """
    matched, at = Matched(), 0
    while at < min(len(singles), LOOKED_AT) and len(free):
        part = _window(singles, at, len(free), outlook)
        at += len(part)
        if any(free.kinds(ranked.job.spec) for ranked in part):
            _match_window(part, free, machines, outlook, matched)
    return matched


def prices_s(singles: Sequence[Ranked], machines: Machines, outlook: Outlook) -> dict[str, float]:
    """
    Return, for each kind, what one more idle device would take off the completion times of these jobs, seconds.

    Gangs have no part in it. Pass the first few waiting jobs: the matching is solved once more for each kind.
    """
    if not singles or not machines.classes:
        return {}
    lengths_us = machines.lengths_us([ranked.job for ranked in singles], outlook)
    prices: dict[str, float] = {}
    saved = savings_us(lengths_us, machines.nearest(len(singles)))
    for like, saved_us in zip(machines.classes, saved, strict=True):
        prices[like.kind] = max(prices.get(like.kind, 0.0), saved_us / 1e6)
    return prices


def _window(singles: Sequence[Ranked], at: int, idle: int, outlook: Outlook) -> Sequence[Ranked]:
    first, rules = singles[at], outlook.rules
    impatient = outlook.now_s - first.job.pending_since_s >= rules.patience_s
    size = min(rules.window, idle) if impatient else rules.window
    end = at + 1
    while end < min(len(singles), at + size) and singles[end].queue == first.queue:
        end += 1
    return singles[at:end]


def _match_window(part: Sequence[Ranked], free: Free, machines: Machines, outlook: Outlook, matched: Matched) -> None:
    jobs = [ranked.job for ranked in part]
    lengths_us = machines.lengths_us(jobs, outlook)
    ready_us = machines.nearest(len(jobs))
    count = sum(len(ready) for ready in ready_us)
    found = assign_lsa(lengths_us, ready_us, depth=max(2, math.ceil(2 * len(jobs) / max(1, count))))
    found = _in_rank_order(lengths_us, found, starts_us(lengths_us, ready_us, found))
    starts = starts_us(lengths_us, ready_us, found)
    for row, ranked in enumerate(part):
        if starts[row] < 0:
            continue
        like = machines.classes[found.kind[row]]
        if starts[row] == 0:
            devices = free.choose_like(like)
            free.take(devices)
            matched.starts.append((ranked, like.kind, devices))
        else:
            end_us = starts[row] + lengths_us[row, found.kind[row]]
            matched.later[ranked.job_id] = Later(like.kind, float(starts[row]) / 1e6, float(end_us) / 1e6)
    machines.occupy(lengths_us, found)


def _in_rank_order(lengths_us: Ints, found: Assignment, starts: Ints) -> Assignment:
    """Among jobs that are all alike to the matching, let the higher ranked start earlier."""
    order = np.arange(len(starts))
    late = np.where(starts < 0, np.iinfo(np.int64).max, starts)
    _, groups = np.unique(lengths_us, axis=0, return_inverse=True)
    for group in range(int(groups.max()) + 1):
        alike = np.flatnonzero(groups.ravel() == group)
        order[alike] = alike[np.argsort(late[alike], kind="stable")]
    return Assignment(
        kind=found.kind[order], machine=found.machine[order], place=found.place[order], total_us=found.total_us
    )
