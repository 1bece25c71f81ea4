"""
Accounts: the record of a run, and the device time that follows from it.

:class:`RunAccount` is one run as the log has it: since when its job waited for it, when it was granted and ended, which
share of which devices it held, and what came of it. :func:`usage` says how much of a window's device time that is, in
GPU-seconds. All held time is in one of four columns, so that they add up: in iterations (*used*), *idle*, *unmeasured*,
and *lost*. docs/accounts.md defines each.

A run's time is taken as spread evenly: of a run that spent nine tenths of its time in iterations, nine tenths of any
part of it are used. So the sums of windows that touch are those of the whole window, and so are those of groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Final, Optional

import msgspec

from penstock_log.decision_facts import Slot

DAY_S: Final = 86_400.0
MOST_PARTS: Final = 50
"""Changes of a run's part of its devices that are kept; of more, the oldest are taken together."""
_WASTED: Final = frozenset({"failed", "lost", "preempted", "timed_out"})
"""How a run ends of which a later one has to do again what was not saved."""


class RunAccount(msgspec.Struct, kw_only=True, array_like=True):
    """
    One run of a job, from when the job began to wait for it.

    A size is asked for and given with a run: a job that is resized while it waits begins another account, and a job
    that is resized while it runs is stopped and placed anew, under another epoch.

    Attributes
    ----------
    pending_s : float
        Since when the job was pending for it.
    asked : float
        Devices that the job asks for; a part of one with ``sharing = "fraction"``.
    epoch : int
        Of its placement; 0 before it is granted.
    granted_s, started_s, ended_s : float
        Of the round that placed it, of its first process, and of its end on its last node; 0 before.
    kind : str
        Of its devices; empty before it is granted.
    slots : tuple of Slot
        Its devices by node.
    parts : list of (float, float)
        Since when it held how many devices. Of a device on which ``k`` lanes are granted, each holds ``1 / k``.
    outcome : str
        How it ended; empty before. What ended before it was granted is ``resized``, ``cancelled`` or ``failed``. One
        that was stopped for its job's time limit is ``timed_out``.
    loop_s, waited_s : float or None, float
        Seconds in iterations, and between them for turns; None where no end of it has said so.
    loop_steps : int
        Iterations.
    saves : bool
        Whether its script can save a checkpoint.
    begun_step, end_step, kept_step : int
        The steps after which it began and ended, and up to which no later run had to do its work again.
    is_first : bool
        Whether it is the first account of its job.
    eligible_s : float
        When its job could begin for the first time; infinite while that depends on others. Time before does not count
        as waiting.
    start : str
        How its processes began, as in :class:`penstock_log.RunStarted`.
    """

    pending_s: float
    asked: float = 1.0
    epoch: int = 0
    granted_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    kind: str = ""
    slots: tuple[Slot, ...] = ()
    parts: list[tuple[float, float]] = msgspec.field(default_factory=list)
    outcome: str = ""
    loop_s: Optional[float] = None
    waited_s: float = 0.0
    loop_steps: int = 0
    saves: bool = False
    begun_step: int = 0
    end_step: int = 0
    kept_step: int = 0
    is_first: bool = False
    eligible_s: float = 0.0
    start: str = ""

    @property
    def is_granted(self) -> bool:
        """Whether it was given devices."""
        return self.epoch > 0

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or will never begin."""
        return bool(self.outcome)

    @property
    def gpus(self) -> int:
        """The number of its devices."""
        return sum(len(slot.devices) for slot in self.slots)

    @property
    def lost_part(self) -> float:
        """The part of the run that was for nothing: the steps that were not kept, or all where it did none."""
        if not self.is_over or (self.outcome not in _WASTED and self.kept_step >= self.end_step):
            return 0.0
        steps = self.end_step - self.begun_step
        return (self.end_step - self.kept_step) / steps if steps > 0 else 1.0

    def hold(self, at_s: float, devices: float) -> None:
        """Note that it holds so many devices from now on."""
        if self.parts:
            last_s, before = self.parts[-1]
            if devices == before:
                return
            at_s = max(at_s, last_s)
            if at_s == last_s:
                self.parts.pop()
        self.parts.append((at_s, devices))
        if len(self.parts) > MOST_PARTS:
            (first_s, first), (second_s, second), (third_s, _) = self.parts[:3]
            mean = (first * (second_s - first_s) + second * (third_s - second_s)) / (third_s - first_s)
            self.parts[:2] = [(first_s, mean)]

    def waits_from(self, now_s: float) -> float:
        """Return since when the job waited for it; its grant, its end or the present time where it did not."""
        until_s = self.granted_s if self.is_granted else self.end_by(now_s)
        return max(self.pending_s, min(self.eligible_s, until_s))

    def end_by(self, now_s: float) -> float:
        """Return when it ended; the present time while it goes on."""
        return max(self.ended_s if self.is_over else now_s, self.parts[-1][0] if self.parts else self.pending_s)

    def held_gpu_s(self, now_s: float, since_s: float = -math.inf, until_s: float = math.inf) -> float:
        """Return what it held of devices within a window, in GPU-seconds."""
        if len(self.parts) == 1:  # as of most runs
            begin_s, devices = self.parts[0]
            return devices * _within(begin_s, self.end_by(now_s), since_s, until_s)
        ends = [since_s for since_s, _ in self.parts[1:]] + [self.end_by(now_s)]
        spans = zip(self.parts, ends)
        return sum(devices * _within(begin_s, end_s, since_s, until_s) for (begin_s, devices), end_s in spans)


class Usage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    Sums over runs; times are in GPU-seconds.

    Attributes
    ----------
    requested_gpu_s : float
        Devices that were asked for, times the seconds for which their job waited for them or held devices.
    waited_gpu_s : float
        The part of it for which the job waited.
    held_gpu_s : float
        Device time from grant to release: the sum of the four that follow.
    used_gpu_s : float
        In iterations, or in a turn's wait while another run of the same device was in one.
    idle_gpu_s : float
        Not in iterations, of jobs that have shown some.
    unmeasured_gpu_s : float
        Of commands that tell of no iterations, and of runs whose end has not told of them (yet).
    lost_gpu_s : float
        What a later run had to do again, or nobody will: behind the last checkpoint of a run that failed, was
        preempted, was stopped for its job's time limit, or was lost.
    lost_to_preemption_gpu_s : float
        The part of it that was lost by runs that were preempted.
    jobs, runs, preemptions : int
        Jobs that were submitted, runs that were granted, and runs that were preempted.
    """

    requested_gpu_s: float = 0.0
    waited_gpu_s: float = 0.0
    held_gpu_s: float = 0.0
    used_gpu_s: float = 0.0
    idle_gpu_s: float = 0.0
    unmeasured_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    lost_to_preemption_gpu_s: float = 0.0
    jobs: int = 0
    runs: int = 0
    preemptions: int = 0

    def add(self, other: Usage) -> None:
        """Add other sums to these."""
        self.requested_gpu_s += other.requested_gpu_s
        self.waited_gpu_s += other.waited_gpu_s
        self.held_gpu_s += other.held_gpu_s
        self.used_gpu_s += other.used_gpu_s
        self.idle_gpu_s += other.idle_gpu_s
        self.unmeasured_gpu_s += other.unmeasured_gpu_s
        self.lost_gpu_s += other.lost_gpu_s
        self.lost_to_preemption_gpu_s += other.lost_to_preemption_gpu_s
        self.jobs += other.jobs
        self.runs += other.runs
        self.preemptions += other.preemptions

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it."""
        return not (self.requested_gpu_s or self.held_gpu_s or self.jobs or self.runs or self.preemptions)


class UsageKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What usage is grouped by.

    Attributes
    ----------
    user, team, pool, model : str
        As a job's specification has it.
    kind : str
        Of devices; empty for what a job waited without getting any.
    """

    user: str = ""
    team: str = ""
    pool: str = ""
    model: str = ""
    kind: str = ""

    @property
    def group(self) -> str:
        """The same as text; no two groups have the same."""
        return repr((self.user, self.team, self.pool, self.model, self.kind))


class DayUsage(UsageKey, frozen=True, kw_only=True, omit_defaults=True):
    """What is left of archived jobs: their sums on one UTC day, such as ``2026-01-31``."""

    day: str
    usage: Usage


class RunReport(msgspec.Struct, frozen=True):
    """What a run that goes on has reported so far: seconds in iterations, how many, and seconds waited for turns."""

    loop_s: float = 0.0
    loop_steps: int = 0
    waited_s: float = 0.0


def usage(
    run: RunAccount,
    now_s: float,
    since_s: float = -math.inf,
    until_s: float = math.inf,
    *,
    measured: bool = False,
    counts: bool = True,
    report: RunReport | None = None,
) -> Usage:
    """
    Return what a run asked for, held and did within ``[since_s, until_s)``.

    Parameters
    ----------
    measured : bool
        Whether another run of its job has shown iterations: then this one was idle where it has shown none.
    counts : bool
        Whether its job counts as a job; the profiler's samples do not.
    report : RunReport, optional
        Of a run that goes on.

    Examples
    --------
    >>> run = RunAccount(pending_s=0.0, asked=2.0, epoch=1, granted_s=10.0, started_s=20.0, ended_s=120.0)
    >>> run.hold(10.0, 2.0)
    >>> run.outcome, run.loop_s, run.loop_steps, run.end_step, run.kept_step = "completed", 50.0, 5, 5, 5
    >>> whole = usage(run, now_s=200.0)
    >>> whole.requested_gpu_s, whole.waited_gpu_s, whole.held_gpu_s, whole.used_gpu_s, whole.idle_gpu_s
    (240.0, 20.0, 220.0, 100.0, 120.0)
    """
    end_s = run.end_by(now_s)
    granted_s = run.granted_s if run.is_granted else end_s
    waited_gpu_s = run.asked * _within(run.waits_from(now_s), granted_s, since_s, until_s)
    placed_s = _within(granted_s, end_s, since_s, until_s)
    held_gpu_s = run.held_gpu_s(now_s, since_s, until_s)
    lost_gpu_s = run.lost_part * held_gpu_s
    kept_gpu_s = held_gpu_s - lost_gpu_s
    in_loop = _in_loop(run, end_s, measured=measured, report=report)
    found = Usage(
        requested_gpu_s=waited_gpu_s + run.asked * placed_s,
        waited_gpu_s=waited_gpu_s,
        held_gpu_s=held_gpu_s,
        lost_gpu_s=lost_gpu_s,
        lost_to_preemption_gpu_s=lost_gpu_s if run.outcome == "preempted" else 0.0,
        jobs=int(counts and run.is_first and since_s <= run.pending_s < until_s),
        runs=int(run.is_granted and since_s <= run.granted_s < until_s),
        preemptions=int(run.outcome == "preempted" and since_s <= run.ended_s < until_s),
    )
    if in_loop is None:
        found.unmeasured_gpu_s = kept_gpu_s
    elif run.started_s:
        ran_gpu_s = run.held_gpu_s(now_s, max(since_s, run.started_s), until_s)
        found.used_gpu_s = min(kept_gpu_s, (1.0 - run.lost_part) * in_loop * ran_gpu_s)
        found.idle_gpu_s = kept_gpu_s - found.used_gpu_s
    else:
        found.idle_gpu_s = kept_gpu_s
    return found


def day_of(at_s: float) -> str:
    """
    Return the UTC day of a time, as people write it.

    Examples
    --------
    >>> day_of(86_400.0)
    '1970-01-02'
    """
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d")


def bounds_of(day: str) -> tuple[float, float]:
    """
    Return when a UTC day begins and ends.

    Examples
    --------
    >>> bounds_of("1970-01-02")
    (86400.0, 172800.0)
    """
    begin_s = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=timezone.utc).timestamp()
    return begin_s, begin_s + DAY_S


def by_day(run: RunAccount, *, measured: bool, counts: bool = True) -> Iterator[tuple[str, Usage]]:
    """Yield the usage of a run that is over, by UTC day."""
    for number in range(int(run.pending_s // DAY_S), int(run.end_by(run.ended_s) // DAY_S) + 1):
        since_s = number * DAY_S
        found = usage(run, run.ended_s, since_s, since_s + DAY_S, measured=measured, counts=counts)
        if not found.is_empty:
            yield day_of(since_s), found


def total(parts: Iterable[Usage]) -> Usage:
    """Return the sum of sums."""
    whole = Usage()
    for part in parts:
        whole.add(part)
    return whole


def _in_loop(run: RunAccount, end_s: float, *, measured: bool, report: RunReport | None) -> float | None:
    """Return which part of its time since its start a run was in iterations; None where nothing says so."""
    ran_s = end_s - run.started_s
    if not run.is_over:
        if report is None or not (report.loop_steps or measured):
            return None
        # how long it waited for turns, an executor of an earlier version does not report: then it has had its share
        share = run.parts[-1][1] / run.gpus if run.parts and run.gpus and not report.waited_s else 1.0
        busy_s = report.loop_s + report.waited_s
        return min(1.0, busy_s / (share * ran_s)) if ran_s > 0 and share > 0 else 0.0
    if run.loop_s is None or not (run.loop_steps or run.loop_s or measured):
        return None
    return min(1.0, (run.loop_s + run.waited_s) / ran_s) if ran_s > 0 else 0.0


def _within(begin_s: float, end_s: float, since_s: float, until_s: float) -> float:
    return max(0.0, min(end_s, until_s) - max(begin_s, since_s))
