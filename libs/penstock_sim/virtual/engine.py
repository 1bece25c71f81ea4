"""Virtual time: what happens next, who hears of it, and who is asked what to make of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

from penstock_bus import Decider, Delivery
from penstock_events import AnyEvent, Event
from penstock_sim.virtual.agenda import Agenda
from penstock_sim.virtual.log import Log
from penstock_sim.virtual.station import Delays, Station

E = TypeVar("E", bound=Event)

_RESTLESS: Final = 100_000


class Restless(RuntimeError):
    """A decider that goes on proposing although no time passes: a defect of the decider."""


class Engine:
    """
    Runs deciders under virtual time, as their shells would run them.

    All that happens at one time is folded in, then each decider is asked in turn, and what it proposes is appended with
    the sequence that its fold expects and folded in by all, until nobody has anything to say. Then time goes on to
    the next thing on the agenda, or to the next time at which a decider asked to be asked.

    Parameters
    ----------
    deciders : sequence of Decider
        In the order in which they are asked at one time.
    log : Log
    delays : mapping of str to Delays, optional
        By a decider's name; one that is not named is asked at once.
    """

    def __init__(
        self, deciders: Sequence[Decider[Any]], log: Log, delays: Mapping[str, Delays] = MappingProxyType({})
    ) -> None:
        self.agenda = Agenda()
        self.now_s = 0.0
        self.instants = 0
        self._stations = [Station(decider, delays.get(decider.name)) for decider in deciders]
        self._heard = [station.heard for station in self._stations]
        self._heeding = cache(self._who_heeds)
        self._log = log
        self._followers: defaultdict[type[Event], list[Callable[[Any], None]]] = defaultdict(list)
        self._witnesses: list[Callable[[Delivery], None]] = []

    @property
    def somebody_waits(self) -> bool:
        """Whether a decider is to be asked again."""
        return any(station.next_s < math.inf for station in self._stations)

    def follow(self, kind: type[E], follower: Callable[[E], None]) -> None:
        """Have a function called with every fact of a kind that a decider has proposed, once it is true."""
        self._followers[kind].append(follower)

    def witness(self, witness: Callable[[Delivery], None]) -> None:
        """Have a function called with every commit, whoever made it."""
        self._witnesses.append(witness)

    def append(self, subject: str, fact: AnyEvent, actor: str) -> None:
        """Make a fact true that no decider here has proposed."""
        self._spread(self._log.append(subject, (fact,), actor=actor, at_s=self.now_s))

    def wake(self) -> None:
        """Have every decider asked at this time: something changed that is not in the log, such as a node's silence."""
        for station in self._stations:
            station.wake(self.now_s)

    def run(self, more: Callable[[], bool] = lambda: True) -> None:
        """Let time pass until nothing more is to come, or until ``more``, asked after every instant, says so."""
        while (next_s := self._next_s()) < math.inf:
            self.now_s = next_s
            self.instants += 1
            self._settle()
            if not more():
                return

    def _next_s(self) -> float:
        next_s = self.agenda.next_s
        for station in self._stations:
            next_s = min(next_s, station.next_s)
        return max(self.now_s, next_s)

    def _settle(self) -> None:
        for _ in range(_RESTLESS):
            self.agenda.do_until(self.now_s)
            if not self._ask_all() and self.agenda.next_s > self.now_s:
                return
        raise Restless(f"at {self.now_s} s there is no end of proposals; the last commit is {self._log.last_seq}")

    def _ask_all(self) -> int:
        proposed, now_s = 0, self.now_s
        for station in self._stations:
            if station.next_s <= now_s:
                for proposal in station.decide(now_s):
                    proposed += 1
                    delivery = self._log.append(
                        proposal.subject,
                        proposal.facts,
                        actor=station.actor,
                        at_s=now_s,
                        cause=proposal.cause,
                        expected=station.fold.heads.get(proposal.subject, 0),
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
            for station in self._heeding(type(fact)):
                station.wake(self.now_s)

    def _who_heeds(self, kind: type[Event]) -> tuple[Station, ...]:
        """Return whom to ask after a fact of a kind."""
        return tuple(station for station in self._stations if kind not in station.ignores)
