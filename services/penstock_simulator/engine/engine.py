"""
Event queue, virtual log, decider hosts.

The :class:`EventEngine` runs production deciders under virtual time. The :class:`EventQueue` holds what is to happen at
which virtual time. A :class:`DeciderHost` is one service: its fold of the log, and the decider that the engine asks as
the service's shell would ask it. The :class:`VirtualLog` is the cluster's one log: it gives sequences and checks
expected ones, and :class:`LogFileWriter` writes its commits to a file.

Time stands still until no decider proposes anything more, and then jumps to the next event or wake-up.
"""

from __future__ import annotations

import gzip
import heapq
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, Final, TypeVar, cast

from penstock_bus import Decider, Decision, Delivery
from penstock_bus.decider import Fold, Proposal
from penstock_bus.replica import ReplicaPace
from penstock_log import AnyEvent, Commit, Event
from penstock_simulator.traces import log_file

E = TypeVar("E", bound=Event)

_RESTLESS: Final = 100_000


class EndlessProposals(RuntimeError):
    """A decider goes on proposing although no time passes: a defect of the decider."""


class EventEngine:
    """
    An engine that runs deciders under virtual time, as their shells would run them.

    All deciders fold in what happens at one time. Then the engine asks each decider in turn, appends its proposals with
    the sequence that the decider's fold expects, and all fold them in, until no decider proposes anything. Then time
    goes on to the next thing in the queue, or to the next time at which a decider wants to be asked.

    Parameters
    ----------
    deciders : sequence of Decider
        In the order in which they are asked at one time; without any, the queue alone says what happens.
    log : VirtualLog, optional
    delays : mapping of str to DecisionDelays, optional
        By a decider's name; the engine asks a decider that is not named at once.
    """

    def __init__(
        self,
        deciders: Sequence[Decider[Any]] = (),
        log: VirtualLog | None = None,
        delays: Mapping[str, DecisionDelays] = MappingProxyType({}),
    ) -> None:
        self.event_queue = EventQueue()
        self.now_s = 0.0
        self.instants = 0
        self._hosts = [_host(decider, delays.get(decider.name)) for decider in deciders]
        self._heard = [host.heard for host in self._hosts]
        self._wakes = cache(self._who_is_woken)
        self._log = log or VirtualLog()
        self._followers: defaultdict[type[Event], list[Callable[[Any], None]]] = defaultdict(list)
        self._witnesses: list[Callable[[Delivery], None]] = []

    @property
    def somebody_waits(self) -> bool:
        """Whether a decider waits for its next turn."""
        return any(host.next_s < math.inf for host in self._hosts)

    def follow(self, kind: type[E], follower: Callable[[E], None]) -> None:
        """Call a function with every fact of a kind that a decider has proposed, once the fact is in the log."""
        self._followers[kind].append(follower)

    def witness(self, witness: Callable[[Delivery], None]) -> None:
        """Call a function with every commit, whoever made it."""
        self._witnesses.append(witness)

    def append(self, subject: str, fact: AnyEvent, actor: str) -> None:
        """Append a fact that no decider of this engine has proposed."""
        self._spread(self._log.append(subject, (fact,), actor=actor, at_s=self.now_s))

    def wake(self) -> None:
        """Ask every decider at this time: something changed that is not in the log, such as a node's silence."""
        for host in self._hosts:
            host.wake(self.now_s)

    def run(self, more: Callable[[], bool] = lambda: True) -> None:
        """Let time pass until nothing more is to come, or until ``more``, called after every instant, returns false."""
        while (next_s := self._next_s()) < math.inf:
            self.now_s = next_s
            self.instants += 1
            self._settle()
            if not more():
                return

    def _next_s(self) -> float:
        return max(self.now_s, min([self.event_queue.next_s, *[host.next_s for host in self._hosts]]))

    def _settle(self) -> None:
        for _ in range(_RESTLESS):
            self.event_queue.do_until(self.now_s)
            if not self._ask_all() and self.event_queue.next_s > self.now_s:
                return
        raise EndlessProposals(
            f"at {self.now_s} s there is no end of proposals; the last commit is {self._log.last_seq}"
        )

    def _ask_all(self) -> int:
        proposed, now_s = 0, self.now_s
        for host in self._hosts:
            if host.next_s <= now_s:
                for proposal in host.decide(now_s):
                    proposed += 1
                    delivery = self._log.append(
                        proposal.subject,
                        proposal.facts,
                        actor=host.actor,
                        at_s=now_s,
                        cause=proposal.cause,
                        expected=host.fold.heads.get(proposal.subject, 0),
                    )
                    self._spread(delivery)
                    for fact in proposal.facts:
                        for follower in self._followers.get(type(fact), ()):
                            follower(fact)
        return proposed

    def _spread(self, delivery: Delivery) -> None:
        for heard in self._heard:
            heard.append(delivery)
        for witness in self._witnesses:
            witness(delivery)
        for fact in delivery.commit.facts:
            for wake in self._wakes(type(fact)):
                wake(self.now_s)

    def _who_is_woken(self, kind: type[Event]) -> tuple[Callable[[float], None], ...]:
        """Return how the hosts are woken that are to be asked after a fact of a kind."""
        return tuple(host.wake for host in self._hosts if host.heeds(kind))


class EventQueue:
    """
    Things to do, by time; those of one time in the order in which they were added.

    Examples
    --------
    >>> queue, done = EventQueue(), []
    >>> queue.at(2.0, done.append, "late")
    >>> queue.at(1.0, done.append, "early")
    >>> queue.next_s
    1.0
    >>> queue.do_until(1.0)
    1
    >>> done
    ['early']
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float:
        """The time of the next thing; infinite where there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def at(self, at_s: float, what: Callable[..., Any], *arguments: Any) -> None:
        """Have ``what`` called at a time; an infinite time means never, and adds nothing."""
        if at_s == math.inf:
            return
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, what, arguments))

    def do_until(self, now_s: float) -> int:
        """Do everything that is due, also what becomes due meanwhile; return how many things that were."""
        done, heap = 0, self._heap
        while heap and heap[0][0] <= now_s:
            _, _, what, arguments = heapq.heappop(heap)
            what(*arguments)
            done += 1
        return done


_PACE = ReplicaPace()
_AT_ONCE_S = 1e-4


@dataclass(frozen=True)
class DecisionDelays:
    """
    Delays between what a service heeds and its decision.

    Attributes
    ----------
    lag_s : float
        Time from a commit that the service heeds to its decision.
    stalls : sequence of (float, float)
        Spells, from and until, in which it decided nothing because its host or bus was busy; rising, disjoint.
    now_s : callable, optional
        Returns the lag for what has just happened; None: the lag is always ``lag_s``.

    Examples
    --------
    >>> DecisionDelays(0.5, ((10.0, 12.0),)).end_s(9.0), DecisionDelays(0.5, ((10.0, 12.0),)).end_s(9.75)
    (9.5, 12.0)
    """

    lag_s: float = 0.0
    stalls: Sequence[tuple[float, float]] = ()
    now_s: Callable[[], float | None] | None = None

    def end_s(self, now_s: float) -> float:
        """Return when the service decides on what it hears at a time."""
        lag_s = self.now_s() if self.now_s is not None else None
        at_s = now_s + (self.lag_s if lag_s is None else lag_s)
        following = bisect_left(self.stalls, (at_s - _AT_ONCE_S, 0.0))  # one that begins with this decision is its own
        return max(at_s, self.stalls[following - 1][1]) if following else at_s


class DeciderHost:
    """
    One decider under virtual time: its fold of the log, and when the engine asks it again.

    Attributes
    ----------
    actor : str
        The name under which it writes.
    heeds : callable
        Says whether the engine has to ask it after a fact of a kind.
    next_s : float
        When the engine asks it next; infinite where it has heard nothing that it heeds and wants nothing.
    heard : list of Delivery
        Commits since its last decision: the engine adds each delivery, and the host folds them in before it decides.
    """

    def __init__(self, decider: Decider[Any]) -> None:
        self.actor, self.heeds = f"{decider.name}/sim", decider.heeds_kind
        self.fold: Fold[Any] = Fold(decider)
        self.heard: list[Delivery] = []
        self.next_s = 0.0
        self._decide = decider.decide

    def wake(self, now_s: float) -> None:
        """Have the engine ask this host for what it has heard."""
        self.next_s = now_s  # never later than before: time does not pass a host by that is to be asked

    def decide(self, now_s: float) -> Sequence[Proposal]:
        """Ask the decider; return its proposals."""
        self.fold.apply_all(self.heard)
        self.heard.clear()
        decision = self._decide(self.fold.state, now_s)
        self.next_s = _wake_s(decision, now_s)
        return decision.proposals


class DelayedHost(DeciderHost):
    """
    A host that the engine asks only some time after what it heeds.

    Attributes
    ----------
    wake_at_s : float
        When it wants to be asked again; infinite where it does not.
    woken_s : float
        When the engine asks it for what it has heard; infinite where it has heard nothing that it heeds.
    """

    def __init__(self, decider: Decider[Any], delays: DecisionDelays) -> None:
        super().__init__(decider)
        self._delays, self.woken_s, self.wake_at_s = delays, 0.0, math.inf
        self._wakes: list[tuple[float, int]] = []  # when it is asked, and how many of those heard it goes by then

    def wake(self, now_s: float) -> None:
        """Have the engine ask this host after its delay; it decides on what it has heard up to now."""
        at_s = self._delays.end_s(now_s)
        self._wakes.append((at_s, len(self.heard)))
        self.woken_s = min(self.woken_s, at_s)
        self.next_s = min(self.woken_s, self.wake_at_s)

    def decide(self, now_s: float) -> Sequence[Proposal]:
        """Ask the decider, which knows what it had heard when it was woken; return its proposals."""
        known = self._known(now_s)
        self.fold.apply_all(self.heard[:known])
        del self.heard[:known]
        self._wakes = [(at_s, count - known) for at_s, count in self._wakes if count > known]
        decision = self._decide(self.fold.state, now_s)
        self.woken_s = min((max(at_s, now_s) for at_s, _ in self._wakes), default=math.inf)
        self.wake_at_s = _wake_s(decision, now_s)
        self.next_s = min(self.woken_s, self.wake_at_s)
        return decision.proposals

    def _known(self, now_s: float) -> int:
        """Return how many of the commits heard a decision goes by; commits that come meanwhile are for the next one."""
        if self.wake_at_s <= now_s:
            return len(self.heard)
        asked = max((count for at_s, count in self._wakes if at_s <= now_s), default=len(self.heard))
        own = max((at + 1 for at, one in enumerate(self.heard) if one.commit.actor == self.actor), default=0)
        return max(asked, own)


def _host(decider: Decider[Any], delays: DecisionDelays | None) -> DeciderHost:
    return DeciderHost(decider) if delays is None else DelayedHost(decider, delays)


def _wake_s(decision: Decision, now_s: float) -> float:
    """Return when a decider wants to be asked again, as the shell has it: a time that has passed means soon."""
    wake_s = decision.wake_at_s
    if wake_s is None:
        return math.inf
    return wake_s if wake_s > now_s else now_s + _PACE.least_wait_s


_AT_ONCE: Final = 100
"""Commits that are encoded together, while they are still at hand for the processor."""


class UnexpectedSequence(RuntimeError):
    """A proposal expected another sequence: a defect, for under virtual time nobody else appends in between."""


class VirtualLog:
    """
    Appends commits and gives them sequences.

    Parameters
    ----------
    keep : callable, optional
        Called with every delivery, such as :meth:`LogFileWriter.add`.
    """

    def __init__(self, keep: Callable[[Delivery], None] | None = None) -> None:
        self.last_seq = 0
        self._heads: dict[str, int] = {}
        self._keep = keep

    def append(
        self,
        subject: str,
        facts: tuple[AnyEvent, ...],
        *,
        actor: str,
        at_s: float,
        cause: int = 0,
        expected: int | None = None,
    ) -> Delivery:
        """
        Store a commit as the bus would, and return its delivery.

        Raises
        ------
        UnexpectedSequence
            If the subject's last sequence is not the expected one; None takes any.
        """
        if expected is not None and expected != self._heads.get(subject, 0):
            raise UnexpectedSequence(f"{subject} is at {self._heads.get(subject, 0)}; {actor} expected {expected}")
        self.last_seq = seq = self.last_seq + 1
        self._heads[subject] = seq
        commit = Commit(id=f"{seq:x}", actor=actor, facts=facts, cause=cause)
        delivery = Delivery(seq=seq, subject=subject, stored_s=at_s, pending=0, commit=commit)
        if self._keep is not None:
            self._keep(delivery)
        return delivery


class LogFileWriter:
    """A log's file of JSON lines, written in batches, compressed where its name ends in ``.gz``; a context manager."""

    def __init__(self, path: Path) -> None:
        self._raw = path.open("wb")
        self._file = _compressed(self._raw) if path.suffix == ".gz" else self._raw
        self._batch: list[Delivery] = []

    def add(self, delivery: Delivery) -> None:
        """Write a commit with the next batch."""
        self._batch.append(delivery)
        if len(self._batch) >= _AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._file.write(log_file.encode(*self._batch))
        self._batch.clear()

    def __enter__(self) -> LogFileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._flush()
        self._file.close()
        self._raw.close()


def _compressed(raw: BinaryIO) -> BinaryIO:
    """Return a compressing writer: the same log gives the same bytes, so it stores no name and no time."""
    return cast("BinaryIO", gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0))
