"""
One pool's jobs kept in order as things happen: what is due for another place now, and when the next one will be.

Every job has at most one alarm: the time at which its place changes if nothing else happens. A running job's is its
next crossing of a threshold, a waiting one's its promotion; a new job, or one whose position is out of date, is due at
once. Alarms to come are a sorted collection, so that an event costs a few searches and nobody looks at all jobs.

``K - 1`` thresholds make ``K`` queues, 0 served first; a job is in queue ``q`` once it has crossed the first ``q``.
Queues are counted by crossing *times*, not by comparing service with thresholds: a decider that sleeps until a crossing
then finds the job demoted when it wakes, whatever the rounding.

Reading changes nothing: ``due`` says which moves are to be made, and a move becomes true with ``commit`` (or ``put``,
where it comes back from the log). So the same structure serves a decider, whose decisions become true only through the
log, and a simulation, which commits at once.

References
----------
Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from typing import Final, Literal, NamedTuple

import msgspec
from sortedcontainers import SortedList

from penstock_policies.queue_policies import (
    BY_QUEUE,
    NOTHING,
    UNKNOWN_S,
    DispatchMode,
    JobFigures,
    LengthKnowledge,
    QueuePolicy,
)

Phase = Literal["waiting", "starting", "running"]
"""A job that is ``starting`` has its devices, and gathers neither service nor waiting."""

Key = tuple[int, float, float, str]
"""Queue, position, time of entering the queue, id: what jobs are sorted by."""

_EQUAL: Final = 1e-9
"""Positions that differ by less, relative to their size, are the same but for rounding."""


class RankMove(NamedTuple):
    """
    A job's new place.

    Attributes
    ----------
    promoted : bool
        Whether it starts again in queue 0, both counters at zero.
    """

    job_id: str
    queue: int
    position: float
    entered_s: float
    promoted: bool = False


@dataclass(frozen=True)
class QueueLadder:
    """
    The rules of one pool.

    Attributes
    ----------
    thresholds_gpu_s : (K - 1,) floats, GPU-seconds, rising; seconds for an order that demotes by time
    promote_knob : float or None
        A job that has waited this many times what it has executed goes back to queue 0; None: never.
    name : str
        Of the order.
    """

    order: QueuePolicy
    thresholds_gpu_s: Sequence[float] = ()
    promote_knob: float | None = None
    name: str = BY_QUEUE.order

    @cached_property
    def mode(self) -> DispatchMode:
        """How it is walked, and what it is called."""
        return msgspec.structs.replace(self.order.mode, order=self.name)

    @property
    def limits(self) -> Sequence[float]:
        """The thresholds that this order heeds."""
        return () if self.order.demotes_by == "nothing" else self.thresholds_gpu_s


class RankingEntry(JobFigures, kw_only=True):
    """
    One job, and its place.

    Attributes
    ----------
    since_s : float
        Since when it is in this phase.
    rate : float
        Seconds of service that it gathers in a second of running: less than 1 where it shares its devices.
    waited_s : float
        Waited before that, over all.
    executed_before_s, waited_before_s : float
        Of these, what came before its last promotion.
    """

    id: str
    phase: Phase = "waiting"
    since_s: float
    rate: float = 1.0
    waited_s: float = 0.0
    executed_before_s: float = 0.0
    waited_before_s: float = 0.0
    placed: bool = False
    position: float = 0.0
    alarm_s: float = -math.inf

    @property
    def key(self) -> Key:
        """What it is sorted by."""
        return int(self.queue), self.position, self.entered_s, self.id

    def executed_by(self, now_s: float) -> float:
        """Return the seconds executed up to ``now_s``."""
        return self.executed_s + (self.rate * max(0.0, now_s - self.since_s) if self.phase == "running" else 0.0)

    def waited_by(self, now_s: float) -> float:
        """Return the seconds waited up to ``now_s``."""
        return self.waited_s + (max(0.0, now_s - self.since_s) if self.phase == "waiting" else 0.0)


class PoolRanking:
    """
    The jobs of a pool in order.

    Iterating gives the ids of all jobs that have a place, the first to be served first.

    Parameters
    ----------
    ladder : QueueLadder
    learnt : LengthKnowledge
        What is known of lengths, for an order that asks.

    Notes
    -----
    O(log n) for each of ``add``, ``note``, ``put``, ``remove``; ``due`` looks at what is due and at one more.

    Examples
    --------
    >>> from penstock_policies.queue_policies import QUEUE_POLICIES
    >>> ranking = PoolRanking(QueueLadder(QUEUE_POLICIES["2d-las"], [4.0]))
    >>> for name in ("a", "b"):
    ...     ranking.add(name, gpus=2, submitted_s=0.0)
    >>> ranking.settle(0.0)
    >>> ranking.start("a", 0.0)
    >>> list(ranking), ranking.next_s(0.0)
    (['a', 'b'], 2.0)
    >>> ranking.settle(2.0)
    >>> list(ranking)
    ['b', 'a']
    """

    def __init__(self, ladder: QueueLadder, learnt: LengthKnowledge = NOTHING) -> None:
        self.ladder, self.learnt = ladder, learnt
        self._limits = ladder.limits
        self._entries: dict[str, RankingEntry] = {}
        self._overdue: dict[str, None] = {}  # whose alarm is at minus infinity
        self._alarms: SortedList[tuple[float, str]] = SortedList()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._entries

    def __getitem__(self, job_id: str) -> RankingEntry:
        return self._entries[job_id]

    def __iter__(self) -> Iterator[str]:
        return (key[3] for key in sorted([entry.key for entry in self._entries.values() if entry.placed]))

    def add(
        self, job_id: str, *, gpus: int, submitted_s: float, length_s: float = 0.0, least: int | None = None
    ) -> None:
        """
        Take in a waiting job, which is due for a place at once.

        ``length_s`` is 0 where it declares none, and ``least`` the devices that it needs at least, if not ``gpus``.
        """
        entry = RankingEntry(
            id=job_id,
            gpus=float(gpus),
            least=float(least or gpus),
            submitted_s=submitted_s,
            entered_s=submitted_s,
            since_s=submitted_s,
            executed_s=0.0,
            served_s=0.0,
            length_s=length_s or UNKNOWN_S,
            queue=0.0,
        )
        self._entries[job_id] = entry
        self._overdue[job_id] = None

    def note(
        self,
        job_id: str,
        phase: Phase,
        since_s: float,
        *,
        executed_s: float,
        waited_s: float,
        rate: float = 1.0,
        gpus: int | None = None,
    ) -> None:
        """
        Say in which phase a job is since when, and what it had executed and waited by then, over all.

        ``gpus`` is how many devices it asks for from now on; None: as many as before.
        """
        entry = self._entries[job_id]
        if gpus is not None:
            entry.gpus = float(gpus)
        entry.phase, entry.since_s, entry.rate = phase, since_s, rate
        entry.executed_s, entry.waited_s = executed_s, waited_s
        entry.served_s = executed_s - entry.executed_before_s
        self._set_alarm(entry)

    def start(self, job_id: str, now_s: float) -> None:
        """Say that a job executes from now on."""
        self._change(job_id, "running", now_s)

    def stop(self, job_id: str, now_s: float) -> None:
        """Say that a job waits from now on."""
        self._change(job_id, "waiting", now_s)

    def put(self, move: RankMove, *, executed_before_s: float, waited_before_s: float) -> None:
        """Make a place true, with what the job had executed and waited when it was last promoted."""
        entry = self._entries[move.job_id]
        entry.queue, entry.position, entry.entered_s = float(move.queue), move.position, move.entered_s
        entry.executed_before_s, entry.waited_before_s = executed_before_s, waited_before_s
        entry.served_s = entry.executed_s - executed_before_s
        entry.placed = True
        self._set_alarm(entry)

    def commit(self, move: RankMove, now_s: float) -> None:
        """Make a move true that was found due now."""
        entry = self._entries[move.job_id]
        executed_s, waited_s = entry.executed_before_s, entry.waited_before_s
        if move.promoted:
            executed_s, waited_s = entry.executed_by(now_s), entry.waited_by(now_s)
        self.put(move, executed_before_s=executed_s, waited_before_s=waited_s)

    def settle(self, now_s: float) -> None:
        """Commit all that is due."""
        for move in self.due(now_s):
            self.commit(move, now_s)

    def remove(self, job_id: str) -> None:
        """Drop a job."""
        self._drop_alarm(self._entries.pop(job_id))

    def follow(self, ladder: QueueLadder) -> None:
        """Go by other thresholds from here on, O(n) where they are others: jobs fall by them, and none rises."""
        if ladder.limits != self._limits:
            self.ladder, self._limits = ladder, ladder.limits
            for entry in self._entries.values():
                self._set_alarm(entry)

    def learn(self, learnt: LengthKnowledge) -> None:
        """Go by other lengths from here on: O(n), so not at every job that ends. Jobs that never ran stay in place."""
        self.learnt = learnt
        for entry in self._entries.values():
            if entry.served_s and self.ladder.order.learns:
                self._set_alarm(entry)

    def due(self, now_s: float, most: int | None = None) -> list[RankMove]:
        """
        Return the moves that are due, without making them, or so many of them, those that are due longest first.

        A job that fell by several queues falls at once.
        """
        if self.first_s > now_s:  # as at most events
            return []
        due = sorted(self._overdue)[:most]
        if self._alarms and self._alarms[0][0] <= now_s:
            later = takewhile(lambda alarm: alarm[0] <= now_s, self._alarms)
            due += [job_id for _, job_id in islice(later, most if most is None else most - len(due))]
        return [self._move(self._entries[job_id], now_s) for job_id in due]

    @property
    def first_s(self) -> float:
        """When a place changes, or was to change; infinite if none will."""
        if self._overdue:
            return -math.inf
        return self._alarms[0][0] if self._alarms else math.inf

    def next_s(self, now_s: float) -> float:
        """Return the first time after now at which a place changes by itself; infinite if none does."""
        if not self._alarms or (first_s := self._alarms[0][0]) > now_s:  # as mostly
            return first_s if self._alarms else math.inf
        return next((alarm_s for alarm_s, _ in self._alarms if alarm_s > now_s), math.inf)

    def _change(self, job_id: str, phase: Phase, now_s: float) -> None:
        entry = self._entries[job_id]
        executed_s, waited_s = entry.executed_by(now_s), entry.waited_by(now_s)
        self.note(job_id, phase, now_s, executed_s=executed_s, waited_s=waited_s)

    def _move(self, entry: RankingEntry, now_s: float) -> RankMove:
        fallen = self._fallen(entry, now_s)
        if fallen is not None:
            return fallen
        if not self._limits and entry.queue:  # left from another order
            return self._to(entry, 0, entry.submitted_s)
        if entry.placed and self._promotion_s(entry) <= now_s:
            return self._to(entry, 0, now_s, promoted=True)
        return self._to(entry, int(entry.queue), entry.entered_s)

    def _fallen(self, entry: RankingEntry, now_s: float) -> RankMove | None:
        if self._crossing_s(entry, int(entry.queue)) > now_s:  # as nearly always
            return None
        crossings_s = [self._crossing_s(entry, queue) for queue in range(len(self._limits))]
        queue = sum(crossing_s <= now_s for crossing_s in crossings_s)
        crossed_s = crossings_s[queue - 1]
        return self._to(entry, queue, crossed_s if math.isfinite(crossed_s) else entry.since_s)

    def _to(self, entry: RankingEntry, queue: int, entered_s: float, *, promoted: bool = False) -> RankMove:
        standing = JobFigures(
            gpus=entry.gpus,
            least=entry.least,
            submitted_s=entry.submitted_s,
            entered_s=entered_s,
            executed_s=entry.executed_s,
            served_s=0.0 if promoted else entry.served_s,
            length_s=entry.length_s,
            queue=float(queue),
        )
        position = self.ladder.order.position(standing, self.learnt)
        return RankMove(entry.id, queue, position, entered_s, promoted)

    def _set_alarm(self, entry: RankingEntry) -> None:
        alarm_s = self._alarm_s(entry)
        if alarm_s == entry.alarm_s:
            return
        self._drop_alarm(entry)
        entry.alarm_s = alarm_s
        if alarm_s == -math.inf:
            self._overdue[entry.id] = None
        elif alarm_s < math.inf:
            self._alarms.add((alarm_s, entry.id))

    def _drop_alarm(self, entry: RankingEntry) -> None:
        if entry.alarm_s == -math.inf:
            del self._overdue[entry.id]
            if not self._overdue:
                self._overdue.clear()  # else whoever iterates it passes all that were ever in it
        elif entry.alarm_s < math.inf:
            self._alarms.remove((entry.alarm_s, entry.id))

    def _alarm_s(self, entry: RankingEntry) -> float:
        """Return when a job's place changes by itself."""
        if not entry.placed or (entry.queue and not self._limits):
            return -math.inf
        crossing_s = self._crossing_s(entry, int(entry.queue))
        if entry.phase != "waiting" or crossing_s < math.inf:
            return crossing_s
        position = self.ladder.order.position(entry, self.learnt)
        if position != entry.position and not math.isclose(position, entry.position, rel_tol=_EQUAL, abs_tol=_EQUAL):
            return -math.inf
        return self._promotion_s(entry) if entry.queue else math.inf

    def _crossing_s(self, entry: RankingEntry, queue: int) -> float:
        """Return when a job crosses, or crossed, the limit of a queue; minus infinity where it waits."""
        if queue >= len(self._limits):
            return math.inf
        left_s = self._limits[queue] / self.ladder.order.weight(entry.gpus) - entry.served_s
        if entry.phase == "running":
            return entry.since_s + left_s / entry.rate
        return -math.inf if left_s <= 0 else math.inf

    def _promotion_s(self, entry: RankingEntry) -> float:
        """Return when a starving job goes back to queue 0; one that has executed nothing was never demoted."""
        knob = self.ladder.promote_knob
        if knob is None or not entry.queue or entry.phase != "waiting" or entry.served_s <= 0:
            return math.inf
        return entry.since_s + knob * entry.served_s - (entry.waited_s - entry.waited_before_s)
