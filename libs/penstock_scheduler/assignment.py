"""
Assignment of one-device jobs to kinds of devices, and the time at which each device is free.

The settings choose an assignment policy by name (:data:`ASSIGNMENTS`): ``allox``, ``first-fit`` or ``load-balance``.
``allox`` knows how long each job takes on each kind. The other two are blind to speeds, for one-device jobs and for
gangs: ``allox`` is compared with them. They never leave a job waiting beside an idle device.

``allox`` matches the jobs at the head of the order. The order decides who comes first, the matching who gets which
kind. The round therefore matches jobs queue by queue, in windows of at most ``window`` jobs. Within a window, shorter
jobs may go first, because the least sum of completion times asks for it, and a job may be left for a *later place* on
a faster device that is still busy. Jobs that are left over go to the next window. Once the first job has waited
``patience_s``, its window shrinks to as many jobs as devices are idle, so nobody is overtaken for ever. Each further
window of the round is twice as large, because the first job has its place by then. Where positions within a queue bind
(``fifo``, ``srtf``), admission passes on no more jobs than find an idle device each, in their order.

:class:`DeviceSchedule` solves each window exactly, busy devices included. Three cases need no solving, because their
answer is known: all devices are of one class and there is an idle one for each job; every job finds an idle device of
its fastest class, which no schedule can better; only one class is of use to any of the jobs, and the shortest go first.

The order to read: the policies, :func:`match` with its windows, :class:`DeviceSchedule`, :class:`DeviceSupply`, prices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_cluster.nodes import fits
from penstock_log import Device, Job
from penstock_policies.matching import UNFIT, KeptMatching, MatchedSchedule, assign
from penstock_policies.matching.flow import Ints
from penstock_scheduler.placement import FreeDevices, Located
from penstock_scheduler.round_types import ASSIGNS, RankedJob, RoundContext

if TYPE_CHECKING:
    from penstock_scheduler.sharing.shared_placement import SharedPlacement


class AssignmentRule(Protocol):
    """Decides which one-device jobs start now, and where; takes their devices from ``supply.free``."""

    def __call__(
        self, singles: Sequence[RankedJob], supply: DeviceSupply, busy: Busy, context: RoundContext
    ) -> MatchedJobs:
        """Return the jobs that start, and those that wait for a better device."""
        ...


@dataclass(frozen=True)
class AssignmentPolicy:
    """
    One way to give out kinds.

    Attributes
    ----------
    knows_speeds : bool
        Whether the policy uses how fast a job is on each kind; else it takes all kinds as equally fast.
    """

    assign: AssignmentRule
    knows_speeds: bool = True


def first_fit(singles: Sequence[RankedJob], supply: DeviceSupply, busy: Busy, context: RoundContext) -> MatchedJobs:  # noqa: ARG001 - one form
    """Start each job in rank order on the first idle kind that it fits, by name."""
    return _in_order(singles, supply, context, lambda _, kinds: min(kinds))


def load_balance(singles: Sequence[RankedJob], supply: DeviceSupply, busy: Busy, context: RoundContext) -> MatchedJobs:
    """
    Start each job in rank order on the idle kind whose devices have the least left to do, on the average.

    What a run has left is its expected service, as if all kinds were equally fast.
    """
    sizes: defaultdict[str, int] = defaultdict(int)
    for like, count in supply.whole.classes().items():
        sizes[like.kind] += count
    load_s: defaultdict[str, float] = defaultdict(float)
    for like, in_s in busy().items():
        load_s[like.kind] += sum(in_s)

    def choose(ranked: RankedJob, kinds: Sequence[str]) -> str:
        kind = min(kinds, key=lambda kind: (load_s[kind] / sizes[kind], kind))
        load_s[kind] += context.remaining([ranked.job])[0]
        return kind

    return _in_order(singles, supply, context, choose)


def _in_order(
    singles: Sequence[RankedJob],
    supply: DeviceSupply,
    context: RoundContext,
    choose: Callable[[RankedJob, Sequence[str]], str],
) -> MatchedJobs:
    found, found_nothing = MatchedJobs(), set()
    for ranked in singles:
        if not len(supply.free):
            break
        spec = ranked.job.spec
        if (spec.kinds, spec.memory_bytes) in found_nothing:
            continue
        kinds = list(supply.free.kinds(spec))
        if not kinds:
            found_nothing.add((spec.kinds, spec.memory_bytes))
            continue
        kind = choose(ranked, kinds)
        devices = supply.free.choose(spec, kind, 1, first_fit=context.first_fit, near=ranked.job.parked_on)
        supply.free.take(devices)
        found.starts.append((ranked, kind, devices))
    return found


LOOKED_AT: Final = 2048
"""Most jobs that are matched in one round; an idle device that none of them wants stays idle until the next."""


@dataclass(frozen=True)
class DeferredJob:
    """
    A job that the matching leaves waiting for a better device.

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


class MatchedJobs(msgspec.Struct):
    """
    What an assignment decided.

    Attributes
    ----------
    starts : list of (RankedJob, kind, devices)
    later : dict of str to DeferredJob
        Jobs left for a later place.
    """

    starts: list[tuple[RankedJob, str, list[Located]]] = []
    later: dict[str, DeferredJob] = {}


def match(singles: Sequence[RankedJob], supply: DeviceSupply, busy: Busy, context: RoundContext) -> MatchedJobs:
    """
    Decide which one-device jobs start now.

    Parameters
    ----------
    singles : sequence of RankedJob
        In rank order.
    supply : DeviceSupply
        Idle devices that jobs start on are taken from ``free``.
    busy : callable
        Tells when the others will be free.

    Notes
    -----
    One matching of at most ``window`` jobs at a time until no device is idle, :data:`LOOKED_AT` jobs at most.
    """
    walk, at, solved = _WindowWalk(supply, busy, context), 0, 0
    while at < len(singles) and solved < LOOKED_AT and len(supply.free):
        part = _window(singles, at, max(at, len(supply.free)), context)
        at += len(part)
        if walk.is_of_use_to(part):
            walk.visit(part)
            solved += len(part)
    return walk.found


def _window(singles: Sequence[RankedJob], at: int, least: int, context: RoundContext) -> Sequence[RankedJob]:
    first, rules = singles[at], context.rules
    impatient = context.now_s - first.job.queued_since_s >= rules.patience_s
    size = min(rules.window, least) if impatient else rules.window
    end = at + 1
    while end < min(len(singles), at + size) and singles[end].queue == first.queue:
        end += 1
    return singles[at:end]


class _WindowWalk:
    """The windows of one round, one after the other."""

    def __init__(self, supply: DeviceSupply, busy: Busy, context: RoundContext) -> None:
        self.free, self.busy, self.context = supply.free, busy, context
        self.classes = list(supply.whole.classes())
        self.found = MatchedJobs()
        self.begun: list[tuple[int, float]] = []  # class and length of what has started
        self.machines: DeviceSchedule | None = None
        self.found_nothing: set[tuple[object, ...]] = set()  # what finds no idle device, which are only ever fewer

    def is_of_use_to(self, part: Sequence[RankedJob]) -> bool:
        """Say whether any of the jobs fits any idle device."""
        for ranked in part:
            wanted = (ranked.job.spec.kinds, ranked.job.spec.memory_bytes)
            if wanted not in self.found_nothing:
                if self.free.kinds(ranked.job.spec):
                    return True
                self.found_nothing.add(wanted)
        return False

    def visit(self, part: Sequence[RankedJob]) -> None:
        if len(self.classes) == 1 and len(part) <= len(self.free):  # however long they are, and nothing is solved later
            self._start_on(self.classes[0], [ranked for ranked in part if fits(ranked.job.spec, self.classes[0])])
            return
        lengths = lengths_us([ranked.job for ranked in part], self.classes, self.context)
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
        fastest: list[int] = np.where((lengths != UNFIT).any(axis=1), lengths.argmin(axis=1), -1).tolist()
        idle = self.free.classes()
        if any(fastest.count(column) > idle.get(like, 0) for column, like in enumerate(self.classes)):
            return None
        return fastest

    def _shortest_on_the_only_class(self, lengths: Ints) -> list[tuple[int, int]] | None:
        """Return the jobs that an only class's idle devices go to; None where several are of use."""
        fitting = lengths != UNFIT
        columns = np.flatnonzero(fitting.any(axis=0))
        if self.machines is not None or len(columns) != 1:
            return None
        column = int(columns[0])
        rows = np.flatnonzero(fitting[:, column])
        rows = rows[np.argsort(lengths[rows, column], kind="stable")]
        idle = self.free.classes().get(self.classes[column], 0)
        return [(row, column) for row in sorted(rows[:idle].tolist())]

    def _start(self, part: Sequence[RankedJob], lengths: Ints, starts: Sequence[tuple[int, int]]) -> None:
        for row, column in starts:
            self._start_on(self.classes[column], [part[row]])
            self.begun.append((column, float(lengths[row, column]) / 1e6))

    def _start_on(self, like: Device, jobs: Sequence[RankedJob]) -> None:
        for ranked in jobs:
            devices = self.free.choose_like(like, first_fit=self.context.first_fit, near=ranked.job.parked_on)
            if not devices:
                return  # a host has less room left than devices: they wait for the next round
            self.free.take(devices)
            self.found.starts.append((ranked, like.kind, devices))

    def _solve(self, part: Sequence[RankedJob], lengths: Ints) -> None:
        if self.machines is None:
            busy: dict[Device, Sequence[float]] = dict(self.busy())
            for column, in_s in self.begun:
                busy[self.classes[column]] = [*busy.get(self.classes[column], ()), in_s]
            self.machines = DeviceSchedule(self.classes, self.free, busy)
        solved = self.machines.solve(lengths)
        now = np.flatnonzero(solved.starts_us == 0).tolist()
        self._start(part, lengths, [(row, int(solved.kind[row])) for row in now])
        for row in np.flatnonzero(solved.starts_us > 0).tolist():
            start_us, column = int(solved.starts_us[row]), int(solved.kind[row])
            end_us = start_us + int(lengths[row, column])
            self.found.later[part[row].job_id] = DeferredJob(self.classes[column].kind, start_us / 1e6, end_us / 1e6)
        self.machines.occupy(lengths, solved)


Busy = Callable[[], Mapping[Device, Sequence[float]]]
"""Tells, by class, in how many seconds each device in use is expected to be free; asked only where that matters."""

LONGEST_US: Final = 10**15
"""Thirty years: what takes longer is taken to take this long."""

_FITTING: Final = 2**59


@dataclass(frozen=True)
class SolvedWindow:
    """
    A window's schedule.

    Attributes
    ----------
    kind, machine : (J,) int arrays
        Class of devices and the machine within it; -1 for a job that fits none.
    starts_us : (J,) int array, microseconds from now
        -1 likewise.
    gap_us : int
        0: no schedule has a smaller sum of completion times.
    """

    kind: Ints
    machine: Ints
    starts_us: Ints
    gap_us: int


class DeviceSchedule:
    """
    The devices of a pool by class of equal ones, and when each is next free.

    Parameters
    ----------
    classes : sequence of Device
        All classes there are.
    free : FreeDevices
        Idle devices.
    busy : mapping of Device to floats
        Class → in how many seconds each of its devices in use is expected to be free.
    """

    def __init__(self, classes: Sequence[Device], free: FreeDevices, busy: Mapping[Device, Sequence[float]]) -> None:
        idle = free.classes()
        self.ready_us: list[Ints] = []
        for like in classes:
            in_use = np.sort(_whole_us(np.asarray(busy.get(like, ()), dtype=np.float64)))
            self.ready_us.append(np.concatenate([np.zeros(idle.get(like, 0), dtype=np.int64), in_use]))

    def solve(self, lengths_us: Ints) -> SolvedWindow:
        """
        Return the schedule of jobs with the least sum of completion times; those that are alike start in their order.

        Parameters
        ----------
        lengths_us : (J, T) int array
            As :func:`lengths_us` gives it.
        """
        ready_us = self.nearest(len(lengths_us))
        unit = _unit(lengths_us, ready_us)
        found = assign(_coarse(lengths_us, unit), [ready // unit for ready in ready_us])
        starts = begins_us(lengths_us, ready_us, found)
        rows = _fair_rows(lengths_us, found.kind, starts)
        return SolvedWindow(found.kind[rows], found.machine[rows], starts[rows], found.gap_us)

    def occupy(self, lengths_us: Ints, found: SolvedWindow) -> None:
        """Put a schedule's jobs on their devices."""
        for column, ready in enumerate(self.ready_us):
            mine = found.kind == column
            np.add.at(ready, found.machine[mine], lengths_us[mine, column])
            ready.sort()

    def nearest(self, jobs: int) -> list[Ints]:
        """Return the times of the earliest devices of each class, as many as so many jobs could make use of."""
        return [ready[:jobs] for ready in self.ready_us]

    def savings_us(self, lengths_us: Ints) -> Ints:
        """
        Return what one more idle device of each class would take off the sum of the jobs' completion times.

        Returns
        -------
        (T,) int array, microseconds
            0 for a class of which every device is kept for somebody.

        Notes
        -----
        The duals of the matching are not these: they price the first moment of one more device, while its later places
        are worth less than they say, and places that no device is deep enough for have no price. So the matching is
        solved once with a device of each class that is free too late to be of use, and each of these in turn is let
        free at once.
        """
        ready_us = self.nearest(len(lengths_us))
        unit = _unit(lengths_us, ready_us)
        lengths, ready = _coarse(lengths_us, unit), [times // unit for times in ready_us]
        saved = np.zeros(len(ready), dtype=np.int64)
        if not lengths.size:
            return saved
        never = _most(lengths, ready)
        kept = KeptMatching(lengths, [np.append(times, never) if times.size else times for times in ready])
        base_us = kept.assignment().total_us
        for column, times in enumerate(ready):
            if times.size:
                kept.set_ready(column, times.size, 0)
                saved[column] = (base_us - kept.assignment().total_us) * unit
                kept.set_ready(column, times.size, never)
        return saved


def lengths_us(jobs: Sequence[Job], classes: Sequence[Device], context: RoundContext) -> Ints:
    """Return the (J, T) processing times, :data:`UNFIT` where a job does not fit."""
    rows: dict[tuple[object, ...], int] = {}
    speeds: list[list[float]] = []  # of each workload that accepts the same devices; 0 where it does not fit
    of_job = []
    for job in jobs:
        alike = (context.workload(job), job.spec.kinds, job.spec.memory_bytes)
        row = rows.setdefault(alike, len(speeds))
        if row == len(speeds):
            speeds.append([context.speed(job, like.kind) if fits(job.spec, like) else 0.0 for like in classes])
        of_job.append(row)
    speed = np.array(speeds, dtype=np.float64).reshape(len(speeds), len(classes))[of_job]
    service_s = np.asarray(context.remaining(jobs), dtype=np.float64)[:, None]
    fitting = speed > 0
    return np.where(fitting, _whole_us(service_s / np.where(fitting, speed, 1.0)), UNFIT)


def _whole_us(times_s: npt.NDArray[np.float64]) -> Ints:
    """Return times as whole microseconds, at least one."""
    return np.clip(np.rint(times_s * 1e6), 1, LONGEST_US).astype(np.int64)


def begins_us(lengths_us: Ints, ready_us: Sequence[Ints], found: MatchedSchedule) -> Ints:
    """Return when each job starts in a schedule, microseconds; -1 for an unmatched one."""
    starts = np.full(found.kind.size, -1, dtype=np.int64)
    for column, ready in enumerate(ready_us):
        mine = np.flatnonzero(found.kind == column)
        mine = mine[np.lexsort((-found.place[mine], found.machine[mine]))]
        machine = found.machine[mine]
        first = np.flatnonzero(np.diff(machine, prepend=-1))
        ended = np.cumsum(lengths_us[mine, column])
        before = ended - lengths_us[mine, column]
        queued = np.diff(np.append(first, mine.size))
        starts[mine] = ready[machine] + before - np.repeat(before[first], queued)
    return starts


def _fair_rows(lengths_us: Ints, kind: Ints, starts_us: Ints) -> Ints:
    """Return whose place each job takes: of jobs that are alike, the higher ranked start, and then end, earlier."""
    rows = np.arange(kind.size)
    never = np.iinfo(np.int64).max
    starts = np.where(kind < 0, never, starts_us)
    lengths = np.where(kind < 0, never, lengths_us[rows, kind])
    _, group = np.unique(lengths_us, axis=0, return_inverse=True)
    taken = rows.copy()
    taken[np.lexsort((rows, group.ravel()))] = np.lexsort((rows, lengths, starts, group.ravel()))
    return taken


def _most(lengths: Ints, ready: Sequence[Ints]) -> int:
    """Return more than any job can add to the sum, at whatever place."""
    longest = int(lengths[lengths != UNFIT].max(initial=0))
    return 2 * (len(lengths) + 2) * (longest + 1) + max((int(times.max(initial=0)) for times in ready), default=0)


def _unit(lengths: Ints, ready: Sequence[Ints]) -> int:
    """
    Return in how many microseconds to count, so that all sums fit in 64 bits: 1 unless jobs take weeks.

    A thousand jobs of at most three days are counted in microseconds; the longer they are, the coarser is the count.
    """
    return 2 * _most(lengths, ready) * 4 * (len(lengths) + 3) // _FITTING + 1


def _coarse(lengths: Ints, unit: int) -> Ints:
    return lengths if unit == 1 else np.where(lengths == UNFIT, lengths, -(-lengths // unit))


class DeviceSupply(msgspec.Struct, frozen=True):
    """
    The devices of a pool's nodes that take jobs.

    Attributes
    ----------
    free, coming : FreeDevices
        Free now, and held by runs that are stopping; a round takes from both.
    whole : FreeDevices
        All of them, whoever holds them.
    sharing : SharedPlacement or None
        Those that jobs share; None where no job does.
    """

    free: FreeDevices
    coming: FreeDevices
    whole: FreeDevices
    sharing: SharedPlacement | None = None


ASSIGNMENTS: Final[dict[str, AssignmentPolicy]] = {
    "allox": AssignmentPolicy(match),
    "first-fit": AssignmentPolicy(first_fit, knows_speeds=False),
    "load-balance": AssignmentPolicy(load_balance, knows_speeds=False),
}
"""Every assignment that can be chosen, by the name that settings use."""

assert set(ASSIGNMENTS) == set(ASSIGNS)  # noqa: S101 - a name without an assignment would pass as a setting

PRICED: Final = 256
"""Most waiting jobs that the prices are worked out on."""


def prices_s(singles: Sequence[RankedJob], supply: DeviceSupply, busy: Busy, context: RoundContext) -> dict[str, float]:
    """
    Return, for each kind, what one more idle device would take off the completion times of these jobs, seconds.

    Gangs have no part in it. The first :data:`PRICED` of the jobs count.
    """
    first = singles[:PRICED]
    classes = list(supply.whole.classes())
    if not first or not classes:
        return {}
    machines = DeviceSchedule(classes, supply.free, busy())
    saved_us = machines.savings_us(lengths_us([ranked.job for ranked in first], classes, context))
    prices: dict[str, float] = {}
    for like, us in zip(classes, saved_us.tolist(), strict=True):
        prices[like.kind] = max(prices.get(like.kind, 0.0), us / 1e6)
    return dict(sorted(prices.items()))
