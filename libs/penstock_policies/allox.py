"""
Which one-device jobs start now, and where: AlloX's matching over the jobs at the head of the order.

The order decides who comes first, the matching who gets which kind. So jobs are matched queue by queue, in windows of
at most ``window`` jobs: within a window shorter jobs may go first (that is what the least sum of completion times asks
for), and a job may be left for a *later place* on a faster device that is still busy. What is left over goes to the
next window. Once the first job has waited ``patience_s``, its window shrinks to as many jobs as devices are idle, so
nobody is overtaken for ever; further windows of the round double, for whoever comes first has his place by then. Where
positions within a queue bind (``fifo``, ``srtf``), admission lets no more jobs come to the matching than find an idle
device each, in their order.

Each window is solved exactly, busy devices included. Three cases need no solving, because their answer is known: all
devices are of one class and there is an idle one for each job; every job finds an idle device of its fastest class,
which no schedule can better; and only one class is of use to any of them, on which the shortest go first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from penstock_events import Device
from penstock_policies.cluster import fits
from penstock_policies.machines import Busy, Machines, lengths_us
from penstock_policies.matching import IMPOSSIBLE_US, Ints
from penstock_policies.order import Outlook, Ranked, Supply
from penstock_policies.placement import Located

LOOKED_AT: Final = 2048
"""Most jobs that are matched in one round; an idle device that none of them wants stays idle until the next."""

PRICED: Final = 256
"""Most waiting jobs that the prices are worked out on."""


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


class Matched(msgspec.Struct):
    """
    What an assignment decided.

    Attributes
    ----------
    starts : list of (Ranked, kind, devices)
    later : dict of str to Later
        Jobs left for a later place.
    """

    starts: list[tuple[Ranked, str, list[Located]]] = []
    later: dict[str, Later] = {}


def match(singles: Sequence[Ranked], supply: Supply, busy: Busy, outlook: Outlook) -> Matched:
    """
    Decide which one-device jobs start now.

    Parameters
    ----------
    singles : sequence of Ranked
        In rank order.
    supply : Supply
        Idle devices that jobs start on are taken from ``free``.
    busy : callable
        Tells when the others will be free.

    Notes
    -----
    One matching of at most ``window`` jobs at a time until no device is idle, :data:`LOOKED_AT` jobs at most.
    """
    walk, at, solved = _Walk(supply, busy, outlook), 0, 0
    while at < len(singles) and solved < LOOKED_AT and len(supply.free):
        part = _window(singles, at, max(at, len(supply.free)), outlook)
        at += len(part)
        if walk.is_of_use_to(part):
            walk.visit(part)
            solved += len(part)
    return walk.found


def prices_s(singles: Sequence[Ranked], supply: Supply, busy: Busy, outlook: Outlook) -> dict[str, float]:
    """
    Return, for each kind, what one more idle device would take off the completion times of these jobs, seconds.

    Gangs have no part in it. The first :data:`PRICED` of the jobs count.
    """
    first = singles[:PRICED]
    classes = list(supply.whole.classes())
    if not first or not classes:
        return {}
    machines = Machines(classes, supply.free, busy())
    saved_us = machines.savings_us(lengths_us([ranked.job for ranked in first], classes, outlook))
    prices: dict[str, float] = {}
    for like, us in zip(classes, saved_us.tolist(), strict=True):
        prices[like.kind] = max(prices.get(like.kind, 0.0), us / 1e6)
    return dict(sorted(prices.items()))


def _window(singles: Sequence[Ranked], at: int, least: int, outlook: Outlook) -> Sequence[Ranked]:
    first, rules = singles[at], outlook.rules
    impatient = outlook.now_s - first.job.pending_since_s >= rules.patience_s
    size = min(rules.window, least) if impatient else rules.window
    end = at + 1
    while end < min(len(singles), at + size) and singles[end].queue == first.queue:
        end += 1
    return singles[at:end]


class _Walk:
    """The windows of one round, one after the other."""

    def __init__(self, supply: Supply, busy: Busy, outlook: Outlook) -> None:
        self.free, self.busy, self.outlook = supply.free, busy, outlook
        self.classes = list(supply.whole.classes())
        self.found = Matched()
        self.begun: list[tuple[int, float]] = []  # class and length of what has started
        self.machines: Machines | None = None
        self.futile: set[tuple[object, ...]] = set()  # what finds no idle device, which are only ever fewer

    def is_of_use_to(self, part: Sequence[Ranked]) -> bool:
        """Say whether an idle device is one that any of the jobs fits."""
        for ranked in part:
            wanted = (ranked.job.spec.kinds, ranked.job.spec.memory_bytes)
            if wanted not in self.futile:
                if self.free.kinds(ranked.job.spec):
                    return True
                self.futile.add(wanted)
        return False

    def visit(self, part: Sequence[Ranked]) -> None:
        if len(self.classes) == 1 and len(part) <= len(self.free):  # however long they are, and nothing is solved later
            self._start_on(self.classes[0], [ranked for ranked in part if fits(ranked.job.spec, self.classes[0])])
            return
        lengths = lengths_us([ranked.job for ranked in part], self.classes, self.outlook)
        fastest = self._each_on_its_fastest(lengths)
        if fastest is not None:
            self._start(part, lengths, [(row, column) for row, column in enumerate(fastest) if column >= 0])
        elif (shortest := self._shortest_on_the_only_class(lengths)) is not None:
            self._start(part, lengths, shortest)
        else:
            self._solve(part, lengths)

    def _each_on_its_fastest(self, lengths: Ints) -> list[int] | None:
        """Return each job's fastest class, -1 where it fits none, if all of them find idle devices there."""
        if self.machines is not None or not lengths.size:
            return None
        fastest: list[int] = np.where((lengths != IMPOSSIBLE_US).any(axis=1), lengths.argmin(axis=1), -1).tolist()
        idle = self.free.classes()
        if any(fastest.count(column) > idle.get(like, 0) for column, like in enumerate(self.classes)):
            return None
        return fastest

    def _shortest_on_the_only_class(self, lengths: Ints) -> list[tuple[int, int]] | None:
        """Return the jobs that an only class's idle devices go to; None where several are of use."""
        fitting = lengths != IMPOSSIBLE_US
        columns = np.flatnonzero(fitting.any(axis=0))
        if self.machines is not None or len(columns) != 1:
            return None
        column = int(columns[0])
        rows = np.flatnonzero(fitting[:, column])
        rows = rows[np.argsort(lengths[rows, column], kind="stable")]
        idle = self.free.classes().get(self.classes[column], 0)
        return [(row, column) for row in sorted(rows[:idle].tolist())]

    def _start(self, part: Sequence[Ranked], lengths: Ints, seats: Sequence[tuple[int, int]]) -> None:
        for row, column in seats:
            self._start_on(self.classes[column], [part[row]])
            self.begun.append((column, float(lengths[row, column]) / 1e6))

    def _start_on(self, like: Device, jobs: Sequence[Ranked]) -> None:
        for ranked in jobs:
            devices = self.free.choose_like(like, first_fit=self.outlook.first_fit)
            if not devices:
                return  # a host has less room left than devices: they wait for the next round
            self.free.take(devices)
            self.found.starts.append((ranked, like.kind, devices))

    def _solve(self, part: Sequence[Ranked], lengths: Ints) -> None:
        if self.machines is None:
            busy: dict[Device, Sequence[float]] = dict(self.busy())
            for column, in_s in self.begun:
                busy[self.classes[column]] = [*busy.get(self.classes[column], ()), in_s]
            self.machines = Machines(self.classes, self.free, busy)
        solved = self.machines.solve(lengths)
        now = np.flatnonzero(solved.starts_us == 0).tolist()
        self._start(part, lengths, [(row, int(solved.kind[row])) for row in now])
        for row in np.flatnonzero(solved.starts_us > 0).tolist():
            start_us, column = int(solved.starts_us[row]), int(solved.kind[row])
            end_us = start_us + int(lengths[row, column])
            self.found.later[part[row].job_id] = Later(self.classes[column].kind, start_us / 1e6, end_us / 1e6)
        self.machines.occupy(lengths, solved)
