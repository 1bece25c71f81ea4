"""
The simplest owner of a broker: who asks longest is next. For benches and tests, and to read how a broker is driven.

A node's executor asks the policies instead, and gives slots only to processes that it has started itself.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable
from typing import assert_never

from penstock_sharing.token.protocol import (
    ClientGone,
    JoinRequested,
    LaneClientId,
    PageCorrupted,
    TokenEvent,
    TokenPassed,
    TokenRevoked,
    TurnRequested,
)
from penstock_sharing.token.token_broker import TokenBroker


class FifoOwner:
    """
    Serve processes in the order in which they ask.

    Parameters
    ----------
    broker : TokenBroker
    lanes_of : callable
        Returns the lanes of a process that asks to join, in the order in which it takes them; none: it is refused.

    Attributes
    ----------
    events : list of TokenEvent
        All that has happened, in order.
    gone : int
        How many processes have left.
    """

    def __init__(self, broker: TokenBroker, lanes_of: Callable[[LaneClientId], list[str]]) -> None:
        self.broker = broker
        self.events: list[TokenEvent] = []
        self.gone = 0
        self._lanes_of = lanes_of
        self._places: dict[LaneClientId, list[str]] = {}
        self._asking: dict[str, deque[LaneClientId]] = {}
        self._poll = select.poll()
        self._poll.register(broker.fileno(), select.POLLIN)
        self._woken = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._woken, select.POLLIN)

    def serve(self, until: Callable[[], bool]) -> None:
        """Go on until it is over, which is asked each time that something happened, or :meth:`wake` was called."""
        while not until():
            wait_s = self.broker.wait_s
            for fd, _ in self._poll.poll(None if wait_s is None else 1e3 * wait_s):
                if fd == self._woken:
                    os.eventfd_read(fd)
            self.turn()

    def wake(self) -> None:
        """Have :meth:`serve` ask whether it is over, from any thread."""
        os.eventfd_write(self._woken, 1)

    def close(self) -> None:
        """Let go of its descriptor."""
        os.close(self._woken)

    def turn(self) -> None:
        """Take in what has happened."""
        for event in self.broker.poll():
            self.events.append(event)
            match event:
                case JoinRequested(who):
                    self.assign_slots(who, self._lanes_of(who))
                case TurnRequested(lane, who) if lane in self._places.get(who, ()):
                    asking = self._asking.setdefault(lane, deque())
                    if who not in asking:  # one that was moved away and back may be reported twice
                        asking.append(who)
                    self._name_next(lane)
                case TokenPassed(lane, _, taker):
                    self._drop(lane, taker)
                    self._name_next(lane)
                case ClientGone(who):
                    self.gone += 1
                    self._places.pop(who, None)
                    for lane in self._asking:
                        self._drop(lane, who)
                        self._name_next(lane)
                case TurnRequested() | TokenRevoked() | PageCorrupted():
                    pass
                case _:
                    assert_never(event)

    def assign_slots(self, who: LaneClientId, lanes: list[str]) -> None:
        """Give a process that is here its slots, or move it; without a lane it is refused."""
        if not lanes:
            self.broker.refuse(who, "it is not on the rota")
            return
        for lane in lanes:
            self.broker.open(lane)
        left, self._places[who] = self._places.get(who, []), lanes
        self.broker.assign_slots(who, lanes)
        for lane in left:
            if lane not in lanes:
                self._drop(lane, who)
                self._name_next(lane)

    def _name_next(self, lane: str) -> None:
        asking = self._asking.get(lane)
        if asking:
            self.broker.name_next(lane, asking[0])

    def _drop(self, lane: str, who: LaneClientId | None) -> None:
        asking = self._asking.get(lane)
        if asking and who is not None and who in asking:
            asking.remove(who)
