"""
Waiting at a slot: how a process sleeps, or spins, until it is next.

:class:`SlotWait` sleeps until the slot's wake-up word changes or, where the process is next, until shortly before that.
:class:`SpinTuner` decides when a process that is next wakes up by itself, and for how long it spins; it has no clock
and no page.

Waking a process up takes the kernel, and on a virtual machine its host, tens of microseconds. An iteration is
predictable. So the process that is named next sleeps until shortly before the holder's turn should end, and then looks
at its wake-up word until that changes. It spins for a small share of the turn only, and then sleeps as it would
without: a wrong prediction costs that much of a processor, and delays nobody.

References
----------
Karlin, Li, Manasse, Owicki, Empirical Studies of Competitive Spinning for a Shared-Memory Multiprocessor, SOSP 1991.
Xiao et al., Gandiva, OSDI 2018, and Yu and Chowdhury, Salus, MLSys 2020: iterations of training are predictable.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic_ns
from typing import Final, Literal, NamedTuple

from penstock_sharing.token.shared_page import (
    BEGUN,
    KEEN,
    LEAST_NS,
    NAMED,
    NOBODY,
    PACE_NS,
    SINCE_NS,
    FutexWord,
    SharedPage,
    named_word,
    slot_of,
    turn_of,
)


class SlotWait:
    """
    The waits of one slot.

    Parameters
    ----------
    page : SharedPage
    number : int
        Of the slot.
    spinning : SpinTuner
    wakeup : FutexWord or None
        The slot's wake-up word, if it is another than that of the page.
    clock : callable
        ``CLOCK_MONOTONIC``, in nanoseconds.
    breathe : callable
        Called while it spins: lets others run, other threads of this process as well.
    """

    def __init__(
        self,
        page: SharedPage,
        number: int,
        spinning: SpinTuner,
        *,
        wakeup: FutexWord | None = None,
        clock: Callable[[], int] = monotonic_ns,
        breathe: Callable[[], None] = os.sched_yield,
    ) -> None:
        self._page, self._words, self._number = page, page.words, number
        self._wakeup = wakeup or page.wakeup_word(number)
        self._spinning, self._clock, self._breathe = spinning, clock, breathe
        self._keen = page.first_word(number) + KEEN
        self._tried = 0

    def begin(self) -> None:
        """It asks from now on: let the broker know whether it wants to be woken up when it is named."""
        pays = self._spinning.pays
        self._words[self._keen] = int(pays)
        if not pays:
            self._spinning.passed_over()

    def until(self, deadline_ns: int, seen: int, look: Callable[[], bool]) -> bool:
        """
        Sleep until the wake-up word changes, or until a time; where it pays, wake up before that, and spin.

        Parameters
        ----------
        deadline_ns : int
        seen : int
            The wake-up word before the look whether the token is here: it has another value once it was woken up.
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
            self._wakeup.wait(seen, max(0, deadline_ns - now_ns) / 1e9)
            return look()
        return self._spin(spin, seen, look)

    def _plan(self, now_ns: int) -> Spin | None:
        """Return when to wake up for the token: where this slot is next, the holder has a pace, and once in a turn."""
        words, top = self._words, self._page.token()
        turn, holder = turn_of(top), slot_of(top)
        if holder in (NOBODY, self._number) or turn == self._tried or not self._spinning.pays:
            return None
        first = self._page.first_word(holder)
        pace_ns = words[first + PACE_NS]
        if words[first + NAMED] != named_word(turn, self._number) or not pace_ns:
            return None
        begun_ns = words[first + SINCE_NS] if words[first + BEGUN] == turn else None
        self._tried = turn
        return self._spinning.plan(now_ns, begun_ns, turn_ns(pace_ns, words[first + LEAST_NS], self._page.quantum))

    def _spin(self, spin: Spin, seen: int, look: Callable[[], bool]) -> bool:
        """Sleep until it is time, then look until the token is here, the time is over or the word changes."""
        wakeup, clock = self._wakeup.value, self._clock
        begun_ns = now_ns = clock()
        while now_ns < spin.wake_ns and wakeup.value == seen:
            self._wakeup.wait(seen, (spin.wake_ns - now_ns) / 1e9)
            now_ns = clock()
        overslept = wakeup.value != seen
        if not overslept and begun_ns < spin.wake_ns:
            self._spinning.woke(now_ns - spin.wake_ns)
        until_ns = now_ns + spin.most_ns
        while not (came := look()) and wakeup.value == seen and clock() < until_ns:
            self._breathe()
        self._spinning.ended("overslept" if overslept else "came" if came else "in vain")
        return came


SHARE: Final = 0.02
"""Of the turn that it waits for: the most that one spins,"""
LEAST_SPIN_NS: Final = 30_000
"""but so long at least, which is what a wake-up takes that it saves;"""
MOST_SPIN_NS: Final = 200_000
"""and no longer than this."""
FIRST_LATE_NS: Final = 60_000
"""How late one wakes up, before that has been measured."""
MOST_LATE_NS: Final = 500_000
STEP_NS: Final = 2_000
MOST_CREDIT: Final = 8
MOST_SKIPPED: Final = 64

Outcome = Literal["came", "overslept", "in vain"]
"""Of a try: the token came while it spun; it came before; or it did not come."""


def turn_ns(pace_ns: int, least_ns: int, quantum: tuple[int, int]) -> int:
    """
    Return how long a turn will be: it ends with an iteration.

    Parameters
    ----------
    pace_ns : int
        Of an iteration, above 0.
    least_ns : int
        For how long the turn goes on at least.
    quantum : (int, int)
        Iterations, and nanoseconds (0: any), after one of which it may end.

    Examples
    --------
    >>> turn_ns(400, 1_500, (1, 0)), turn_ns(400, 0, (3, 0)), turn_ns(400, 0, (3, 500))
    (1600, 1200, 800)
    """
    iterations, most_ns = quantum
    if most_ns:
        iterations = min(iterations, -(-most_ns // pace_ns))
    return max(1, iterations, -(-least_ns // pace_ns)) * pace_ns


class Spin(NamedTuple):
    """When a process that is next wakes up to spin, and for how long it spins at most, before it sleeps for good."""

    wake_ns: int
    most_ns: int


class SpinTuner:
    """
    Whether it pays for one process to spin, learnt from how it went.

    Parameters
    ----------
    processors : int
        That the process may run on; on one, whoever spins keeps the holder from its work.
    """

    def __init__(self, processors: int) -> None:
        self._processors = processors
        self._late_ns = FIRST_LATE_NS
        self._ahead_ns = 0
        self._credit = MOST_CREDIT // 2
        self._given_up = self._skip = 0

    @property
    def pays(self) -> bool:
        """Whether to try in the turn that begins now."""
        return self._processors > 1 and self._skip == 0

    def plan(self, now_ns: int, begun_ns: int | None, length_ns: int) -> Spin | None:
        """
        Return when to wake up, so that the end of the holder's turn is in the middle of the spin; None: not at all.

        Parameters
        ----------
        now_ns : int
        begun_ns : int or None
            When the turn began; None: its holder is about to wake up.
        length_ns : int
            Of the turn.
        """
        most_ns = min(MOST_SPIN_NS, max(LEAST_SPIN_NS, int(length_ns * SHARE)))
        end_ns = (now_ns + self._late_ns if begun_ns is None else begun_ns) + length_ns
        if not self.pays or now_ns > end_ns + most_ns // 2:
            return None
        return Spin(max(now_ns, end_ns - self._late_ns - most_ns // 2 - self._ahead_ns), most_ns)

    def woke(self, late_ns: int) -> None:
        """It woke up so much later than it wanted to."""
        self._late_ns += (min(max(late_ns, 0), MOST_LATE_NS) - self._late_ns) // 8

    def ended(self, outcome: Outcome) -> None:
        """Learn from a try: to wake up earlier or later, and to try less often where over two thirds are of no use."""
        if outcome == "came":
            self._credit, self._given_up = min(MOST_CREDIT, self._credit + 2), 0
            return
        step_ns = STEP_NS if outcome == "overslept" else -STEP_NS
        self._ahead_ns = max(-MOST_SPIN_NS, min(self._ahead_ns + step_ns, MOST_SPIN_NS))
        self._credit -= 1
        if self._credit <= 0:
            self._credit, self._given_up = 1, self._given_up + 1
            self._skip = min(MOST_SKIPPED, 1 << self._given_up)

    def passed_over(self) -> None:
        """A turn is waited for without a try."""
        self._skip = max(0, self._skip - 1)
