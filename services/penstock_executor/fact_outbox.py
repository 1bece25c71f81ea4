"""
Facts on their way to the log, in order and once each, whoever else writes the subject. Part of the runner.

:class:`FactOutbox` is pure: it says which facts of a job have to reach the log next, and under which commit id.
:class:`FactAppender` appends them; it has one outbox for each job.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import msgspec

from penstock_bus import Append, Conflict, LogPort
from penstock_bus.follower import FoldFollower, until_available
from penstock_executor.machine import ExecutorState
from penstock_log import (
    AnyEvent,
    Commit,
    DeviceFailed,
    DeviceRecovered,
    LaneChanged,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    RunBusyAgain,
    RunCheckpointed,
    RunEnded,
    RunIdle,
    RunMeasured,
    RunRewound,
    RunStarted,
    RunUnparked,
    RunWarned,
    encode,
    subjects,
    tag_of,
)

PACE_S: Final = 0.5
"""How long the next commit waits about a run that has said the same a thousand times."""

RunFact = (
    RunStarted
    | RunCheckpointed
    | RunRewound
    | RunEnded
    | RunWarned
    | RunIdle
    | RunBusyAgain
    | RunUnparked
    | RunMeasured
    | LaneChanged
)

MOST_BYTES: Final = 256 * 1024
"""Of one commit: a quarter of what a server takes in one message by default."""


class FactOutbox:
    """
    Facts about one job on their way to its run subject, in order.

    Waiting facts go as one commit, or as several if one would be too large. A commit's id comes from its content and
    not from its time: an executor that was killed after an append and before it knew of it appends the same again under
    the same id, and the log keeps one.

    Parameters
    ----------
    most_bytes : int
        The most bytes of one commit.
    """

    def __init__(self, actor: str, most_bytes: int = MOST_BYTES) -> None:
        self._actor, self._most_bytes = actor, most_bytes
        self._waiting: deque[RunFact] = deque()
        self._counts: Counter[tuple[str, int]] = Counter()
        self._delivered_counts: Counter[tuple[str, int]] = Counter()
        self._has_time = False
        self._offered: list[RunFact] = []
        self._cause = 0

    def put(self, fact: RunFact, cause: int) -> None:
        """
        Add a fact; ``cause`` is the sequence of the commit that gave the grant.

        A job may report saved or failed checkpoints faster than the log takes them. The outbox keeps the first few
        hundred of each kind, and of the later ones the newest, which replaces those before it. Once a job has reported
        enough for a whole run, only the newest report waits.
        """
        kind = (tag_of(fact), fact.epoch)
        if self._counts[kind] >= (1 if self._is_paced(fact) else MOST_WAITING):
            del self._waiting[_newest(self._waiting, kind)]
        else:
            self._counts[kind] += 1
        self._waiting.append(fact)
        self._cause = cause or self._cause

    def __len__(self) -> int:
        """Return how many facts wait."""
        return len(self._waiting)

    @property
    def has_time(self) -> bool:
        """Whether the last and all waiting facts came so often that they may wait a moment, to spare the log."""
        return self._has_time and all(map(self._is_paced, self._waiting))

    def _is_paced(self, fact: RunFact) -> bool:
        return isinstance(fact, _FREQUENT) and self._delivered_counts[tag_of(fact), fact.epoch] >= MOST_UNPACED

    def next(self) -> Commit | None:
        """Return the facts that wait longest as one commit, or None; the same until :meth:`done` is called."""
        if not self._waiting:
            return None
        epoch, size = self._waiting[0].epoch, 0
        facts: list[RunFact] = []
        for fact in self._waiting:
            if fact.epoch == epoch:
                size += _size(fact)
                if facts and size > self._most_bytes:
                    break
                facts.append(fact)
        self._offered = facts
        fitting = (fact if _size(fact) <= self._most_bytes else shortened(fact) for fact in facts)
        return commit(self._actor, tuple(fitting), self._cause)

    def done(self) -> None:
        """Note that the commit of :meth:`next` is in the log, or will never be."""
        self._delivered_counts.update((tag_of(fact), fact.epoch) for fact in self._offered)
        self._has_time = all(map(self._is_paced, self._offered))
        gone = {id(fact) for fact in self._offered}  # equal ones may wait behind them
        self._waiting = deque(fact for fact in self._waiting if id(fact) not in gone)
        self._counts = Counter((tag_of(fact), fact.epoch) for fact in self._waiting)
        self._offered = []


def commit(actor: str, facts: tuple[AnyEvent, ...], cause: int = 0) -> Commit:
    """Return the facts as a commit whose id depends on their content, and not on the time of writing."""
    digest = hashlib.sha256("\n".join([actor, *map(_gist, facts)]).encode()).hexdigest()[:32]
    return Commit(id=digest, actor=actor, facts=facts, cause=cause)


class FactAppender:
    """
    An appender of this node's facts.

    Parameters
    ----------
    actor : str
        The name under which it writes.
    spawn : callable
        Runs a coroutine beside the caller.
    giving_up : asyncio.Event
        Once it is set, facts that the log cannot take are left to the next start, which finds them in the run folders.
    """

    def __init__(
        self,
        bus: LogPort,
        live: FoldFollower[ExecutorState],
        actor: str,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        giving_up: asyncio.Event,
    ) -> None:
        self._bus, self._live, self._actor, self._spawn = bus, live, actor, spawn
        self._giving_up = giving_up
        self._outboxes: dict[str, FactOutbox] = {}
        self._delivered: set[str] = set()
        """Jobs of which nothing waits; their outboxes know how much they have said, until a run ends."""
        self._heads: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        """How many facts are on their way."""
        return sum(len(outbox) for job_id, outbox in self._outboxes.items() if job_id not in self._delivered)

    def report(self, fact: AnyEvent) -> None:
        """Send a fact about a run; facts of one job arrive in the order in which they were reported."""
        if not isinstance(fact, RunFact):
            raise TypeError(f"{fact!r} is no fact about a run")
        outbox = self._outboxes.get(fact.job_id)
        if outbox is None:
            most_bytes = min(MOST_BYTES, self._bus.max_body_bytes // 2)
            outbox = self._outboxes[fact.job_id] = FactOutbox(self._actor, most_bytes)
            self._delivered.add(fact.job_id)
        outbox.put(fact, self._live.state.granted.get(fact.job_id, 0))
        if fact.job_id in self._delivered:
            self._delivered.discard(fact.job_id)
            self._spawn(self._deliver(fact.job_id, outbox))

    def forget(self, job_id: str) -> None:
        """Drop the outbox of a job whose run is over, unless facts of it are on their way."""
        if job_id in self._delivered:
            self._delivered.remove(job_id)
            del self._outboxes[job_id]

    async def append_node(self, fact: NodeJoined | NodeLeaving | NodeLeft | DeviceFailed | DeviceRecovered) -> None:
        """Append a fact about this node, and wait until the fold has it."""
        subject = subjects.node(fact.node_id)
        await self._append(subject, commit(self._actor, (fact,)))
        await self._live.reached(self._heads[subject])

    async def _deliver(self, job_id: str, outbox: FactOutbox) -> None:
        ended = False
        while (commit := outbox.next()) is not None:
            await self._append(subjects.run(job_id), commit)
            outbox.done()
            ended = ended or any(isinstance(fact, RunEnded) for fact in commit.facts)
            if outbox.has_time and not self._giving_up.is_set():
                await asyncio.sleep(PACE_S)
        self._delivered.add(job_id)
        if ended:
            self.forget(job_id)

    async def _append(self, subject: str, commit: Commit) -> None:
        """Append a commit; after a conflict, read the other one first. Folds ignore facts that are out of date."""
        while True:
            expected = max(self._live.heads.get(subject, 0), self._heads.get(subject, 0))
            append = partial(self._bus.append, Append(subject=subject, commit=commit, expected=expected))
            try:
                self._heads[subject] = await until_available(append, "append", self._giving_up)
                return
            except Conflict:
                last = await until_available(partial(self._bus.last, subject), "last", self._giving_up)
            if last is not None:
                await self._live.reached(last.seq)
                self._heads[subject] = last.seq
                if last.commit.id == commit.id:
                    return


_FREQUENT: Final = (RunCheckpointed, RunWarned)
"""What a job's process brings about by saying so."""
_SHORT: Final = 200
MOST_WAITING: Final = 1000
"""Facts of one kind about one run that wait at the same time; of more, those in the middle are superseded."""
MOST_UNPACED: Final = 1000
"""Of what a job may say as often as it likes, so many facts of a kind about one run are told as fast as they come."""


def shortened(fact: RunFact) -> RunFact:
    """Return a fact without its long fields, for a server with a small limit: what must be known is short."""
    match fact:
        case RunEnded():
            return msgspec.structs.replace(fact, reason=fact.reason[:_SHORT], metrics={}, diverged=())
        case RunWarned():
            return msgspec.structs.replace(fact, warning=fact.warning[:_SHORT])
        case _:
            return fact


def _newest(facts: deque[RunFact], kind: tuple[str, int]) -> int:
    at = len(facts) - 1
    while (tag_of(facts[at]), facts[at].epoch) != kind:
        at -= 1
    return at


def _size(fact: RunFact) -> int:
    return len(encode(Commit(id="", actor="", facts=(fact,))))


_IDENTITY: Final[dict[type[AnyEvent], tuple[str, ...]]] = {
    RunStarted: ("job_id", "epoch"),
    RunEnded: ("job_id", "epoch"),
    RunCheckpointed: ("job_id", "epoch", "step", "tier"),
    RunRewound: ("job_id", "epoch", "lost_generation", "lost_step", "step"),
    RunWarned: ("job_id", "epoch", "warning"),
    RunIdle: ("job_id", "epoch", "since_s"),
    RunBusyAgain: ("job_id", "epoch", "at_s"),
    RunUnparked: ("job_id", "epoch"),
    RunMeasured: ("job_id", "epoch", "at_s"),  # the same may come again, and none is told by a later executor
    LaneChanged: ("job_id", "epoch", "at_s"),
    NodeJoined: ("incarnation",),
    NodeLeaving: ("incarnation",),
    NodeLeft: ("at_s",),
    DeviceFailed: ("index", "at_s"),
    DeviceRecovered: ("index", "at_s"),
}
"""What tells facts of one tag apart; the rest of a fact may differ from try to try, as its time does."""


def _gist(fact: AnyEvent) -> str:
    if type(fact) not in _IDENTITY:
        raise TypeError(f"an executor does not write {tag_of(fact)}; it writes run and node facts")
    return " ".join([tag_of(fact), *(str(getattr(fact, name)) for name in _IDENTITY[type(fact)])])
