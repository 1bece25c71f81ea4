"""
When one that is next wakes up by itself, and for how long it spins: decisions without a clock or a page.

To wake up who sleeps takes the kernel, and on a virtual machine its host, tens of microseconds. An iteration is
predictable, so the one that is named next sleeps until shortly before the holder's turn should end, and then looks at
its bell until it rings. It spins for a small share of the turn only, and then sleeps as it would have without: a wrong
prediction costs that much of a processor, and delays nobody.

References
----------
Karlin, Li, Manasse, Owicki, Empirical Studies of Competitive Spinning for a Shared-Memory Multiprocessor, SOSP 1991.
Xiao et al., Gandiva, OSDI 2018, and Yu and Chowdhury, Salus, MLSys 2020: iterations of training are predictable.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias, assert_never

SHARE: Final = 0.02
"""Of the turn that it waits for: the most that one spins,"""
LEAST_NS: Final = 30_000
"""but so long at least, which is what a wake-up takes that it saves;"""
MOST_NS: Final = 200_000
"""and no longer than this."""
FIRST_LATE_NS: Final = 60_000
"""How late one wakes up, before that has been measured."""
MOST_LATE_NS: Final = 500_000
STEP_NS: Final = 2_000
MOST_CREDIT: Final = 8
MOST_SKIPPED: Final = 64

Outcome: TypeAlias = Literal["came", "overslept", "in vain"]
"""Of a try: the token came while it spun; it came before; or it did not come."""


def turn_ns(pace_ns: int, least_ns: int, lease: tuple[int, int]) -> int:
    """
    Return how long a turn will be: it ends with an iteration.

    Parameters
    ----------
    pace_ns : int
        Of an iteration, above 0.
    least_ns : int
        For how long the turn goes on at least.
    lease : (int, int)
        Iterations, and nanoseconds (0: any), after one of which it may end.

    Examples
    --------
    >>> turn_ns(400, 1_500, (1, 0)), turn_ns(400, 0, (3, 0)), turn_ns(400, 0, (3, 500))
    (1600, 1200, 800)
    """
    iterations, most_ns = lease
    if most_ns:
        iterations = min(iterations, -(-most_ns // pace_ns))
    return max(1, iterations, -(-least_ns // pace_ns)) * pace_ns


class Spin(NamedTuple):
    """
    What one that is next does before it sleeps for good.

    Attributes
    ----------
    wake_ns : int
        When it wakes up to spin.
    most_ns : int
        For how long it spins.
    """

    wake_ns: int
    most_ns: int


class Spinning:
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
        most_ns = min(MOST_NS, max(LEAST_NS, int(length_ns * SHARE)))
        end_ns = (now_ns + self._late_ns if begun_ns is None else begun_ns) + length_ns
        if not self.pays or now_ns > end_ns + most_ns // 2:
            return None
        return Spin(max(now_ns, end_ns - self._late_ns - most_ns // 2 - self._ahead_ns), most_ns)

    def woke(self, late_ns: int) -> None:
        """It woke up so much later than it wanted to."""
        self._late_ns += (min(max(late_ns, 0), MOST_LATE_NS) - self._late_ns) // 8

    def ended(self, outcome: Outcome) -> None:
        """Learn from a try: to wake up earlier or later, and to try less often where over two thirds are of no use."""
        match outcome:
            case "came":
                self._credit, self._given_up = min(MOST_CREDIT, self._credit + 2), 0
                return
            case "overslept":
                self._ahead_ns = min(self._ahead_ns + STEP_NS, MOST_NS)
            case "in vain":
                self._ahead_ns = max(self._ahead_ns - STEP_NS, -MOST_NS)
            case _:
                assert_never(outcome)
        self._credit -= 1
        if self._credit <= 0:
            self._credit, self._given_up = 1, self._given_up + 1
            self._skip = min(MOST_SKIPPED, 1 << self._given_up)

    def passed_over(self) -> None:
        """A turn is waited for without a try."""
        self._skip = max(0, self._skip - 1)
