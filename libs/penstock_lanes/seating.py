"""Who sits where in a lane, which seats are free, and what is counted at them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from penstock_lanes.news import Counters
from penstock_lanes.page import (
    BEGUN,
    BUSY,
    HELD_NS,
    ITERATIONS,
    KEEN,
    LEAST_NS,
    NAMED,
    PACE_NS,
    SINCE_NS,
    STATE,
    TURNS,
    Page,
)
from penstock_lanes.pulse import Pulse
from penstock_lanes.wire import Who


class NoRoom(Exception):
    """All seats of a lane are taken."""


@dataclass(slots=True, eq=False)
class Sitter:
    """
    A member in its seat.

    Attributes
    ----------
    pulse : Pulse
        Of its process.
    asks : bool
        Whether it has been told of that this one waits for its turn.
    """

    who: Who
    pulse: Pulse
    asks: bool = False


class Seating:
    """
    The seats of a page, by their numbers.

    A seat that is left is free, unless the holder of this turn has been told to give the token there: it may still do.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._sitters: dict[int, Sitter] = {}
        self._named: set[int] = set()
        self._left: deque[tuple[int, int]] = deque()  # turn that has to be over, seat

    def __contains__(self, number: int) -> bool:
        return number in self._sitters

    def __getitem__(self, number: int) -> Sitter:
        return self._sitters[number]

    def __iter__(self) -> Iterator[tuple[int, Sitter]]:
        return iter(self._sitters.items())

    def number(self, who: Who) -> int | None:
        """Return where somebody sits; None for nowhere."""
        return next((number for number, sitter in self._sitters.items() if sitter.who == who), None)

    def who(self, number: int) -> Who | None:
        """Return who sits somewhere; None for nobody."""
        return self._sitters[number].who if number in self._sitters else None

    def take(self, who: Who, pid: int, turn: int) -> int:
        """
        Give somebody a seat, in a turn; return its number.

        Raises
        ------
        NoRoom
            If there is none left.
        """
        if self._left and self._left[0][0] < turn:
            number = self._left.popleft()[1]
        elif self._page.used < self._page.seats:
            number = self._page.used
            self._page.used = number + 1
        else:
            raise NoRoom(f"the lane has {self._page.seats} seats, and all are taken; use another lane")
        self._sitters[number] = Sitter(who, Pulse(pid))
        return number

    def take_back(self, who: Who, pid: int, number: int) -> None:
        """
        Let somebody sit where it sat before.

        Raises
        ------
        ValueError
            If there is no such seat, or somebody sits there.
        """
        if not 0 <= number < min(self._page.used, self._page.seats) or number in self._sitters:
            raise ValueError(f"the lane has no free seat {number} that was ever given out")
        self._sitters[number] = Sitter(who, Pulse(pid))

    def leave(self, number: int, turn: int) -> None:
        """Somebody has left, in a turn."""
        self._sitters.pop(number).pulse.close()
        if number in self._named:
            self._left.append((turn, number))
        else:
            self._left.appendleft((0, number))

    def named(self, number: int) -> None:
        """The holder of this turn has been told to give the token there."""
        self._named.add(number)

    def turned(self) -> None:
        """Another turn has begun."""
        self._named.clear()

    def close(self) -> None:
        """Let go of what is known of the processes."""
        for sitter in self._sitters.values():
            sitter.pulse.close()

    def clear(self, number: int) -> None:
        """Count anew at a seat."""
        first = self._page.seat(number)
        for word in (STATE, NAMED, ITERATIONS, HELD_NS, TURNS, SINCE_NS, LEAST_NS, PACE_NS, KEEN, BEGUN):
            self._page.words[first + word] = 0

    def counters(self) -> Iterator[Counters]:
        """Yield what each member has counted."""
        words = self._page.words
        for number, sitter in self._sitters.items():
            first = self._page.seat(number)
            yield Counters(
                who=sitter.who,
                iterations=words[first + ITERATIONS],
                busy=words[first + STATE] == BUSY,
                held_ns=words[first + HELD_NS],
                turns=words[first + TURNS],
            )
