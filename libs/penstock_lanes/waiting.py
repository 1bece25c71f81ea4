"""How a member sleeps until its bell rings: for good, or, where it is next, until shortly before that."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic_ns

from penstock_lanes.futex import Word
from penstock_lanes.page import BEGUN, KEEN, LEAST_NS, NAMED, NOBODY, PACE_NS, SINCE_NS, Page, seat_of, told, turn_of
from penstock_lanes.spinning import Spin, Spinning, turn_ns


class Waiting:
    """
    The waits of one seat.

    Parameters
    ----------
    page : Page
    number : int
        Of the seat.
    spinning : Spinning
    bell : Word or None
        The seat's, if it is another than that of the page.
    clock : callable
        ``CLOCK_MONOTONIC``, in nanoseconds.
    breathe : callable
        Called while it spins: lets others run, other threads of this process as well.
    """

    def __init__(
        self,
        page: Page,
        number: int,
        spinning: Spinning,
        *,
        bell: Word | None = None,
        clock: Callable[[], int] = monotonic_ns,
        breathe: Callable[[], None] = os.sched_yield,
    ) -> None:
        self._page, self._words, self._number = page, page.words, number
        self._bell = bell or page.bell(number)
        self._spinning, self._clock, self._breathe = spinning, clock, breathe
        self._keen = page.seat(number) + KEEN
        self._tried = 0

    def begin(self) -> None:
        """It asks from now on: let the keeper know whether it wants its bell rung when it is named."""
        pays = self._spinning.pays
        self._words[self._keen] = int(pays)
        if not pays:
            self._spinning.passed_over()

    def until(self, deadline_ns: int, seen: int, look: Callable[[], bool]) -> bool:
        """
        Sleep until the bell rings, or until a time; where it pays, wake up before that, and spin.

        Parameters
        ----------
        deadline_ns : int
        seen : int
            The bell before it was looked whether the token is here: it has rung if it says something else.
        look : callable
            Whether the token is here.

        Returns
        -------
        bool
            Whether it is. It may also return for no reason.
        """
        now_ns = self._clock()
        spin = self._plan(now_ns)
        if spin is None or spin.wake_ns >= deadline_ns:
            self._bell.wait(seen, max(0, deadline_ns - now_ns) / 1e9)
            return look()
        return self._spin(spin, seen, look)

    def _plan(self, now_ns: int) -> Spin | None:
        """Return when to wake up for the token: where this seat is next, the holder has a pace, and once in a turn."""
        words, top = self._words, self._page.token()
        turn, holder = turn_of(top), seat_of(top)
        if holder in (NOBODY, self._number) or turn == self._tried or not self._spinning.pays:
            return None
        first = self._page.seat(holder)
        pace_ns = words[first + PACE_NS]
        if words[first + NAMED] != told(turn, self._number) or not pace_ns:
            return None
        begun_ns = words[first + SINCE_NS] if words[first + BEGUN] == turn else None
        self._tried = turn
        return self._spinning.plan(now_ns, begun_ns, turn_ns(pace_ns, words[first + LEAST_NS], self._page.lease))

    def _spin(self, spin: Spin, seen: int, look: Callable[[], bool]) -> bool:
        """Sleep until it is time, and look until the token is here: no longer than planned, nor than the bell rests."""
        bell, clock = self._bell.value, self._clock
        begun_ns = now_ns = clock()
        while now_ns < spin.wake_ns and bell.value == seen:
            self._bell.wait(seen, (spin.wake_ns - now_ns) / 1e9)
            now_ns = clock()
        overslept = bell.value != seen
        if not overslept and begun_ns < spin.wake_ns:
            self._spinning.woke(now_ns - spin.wake_ns)
        until_ns = now_ns + spin.most_ns
        while not (came := look()) and bell.value == seen and clock() < until_ns:
            self._breathe()
        self._spinning.ended("overslept" if overslept else "came" if came else "in vain")
        return came
