"""Whether a holder for whom others wait still uses its turn: what the keeper looks at, at each tick."""

from __future__ import annotations

from typing import Final, Literal

from penstock_lanes.page import BUSY, ITERATIONS, SINCE_NS, STATE, Page, seat_of, turn_of
from penstock_lanes.seating import Seating

RETURN_NS: Final = 3_000_000_000
"""How long a keeper that found a lane waits for the member that has its token."""
GRACE_NS: Final = 4_000_000
"""For how long a holder may be between two iterations while somebody waits."""
STOPPED_NS: Final = 20_000_000
"""How long a turn lasts before it is taken from a process that is stopped."""
ENDING_NS: Final = 3_000_000
"""For how long a process ends before its turn is taken; of most it is heard before that."""

Verdict = Literal["wait", "recall", "overrule", "tell and overrule"]


class Watch:
    """
    The holder of a lane's token, as long as somebody waits for it.

    Parameters
    ----------
    page : Page
    seating : Seating
    """

    def __init__(self, page: Page, seating: Seating) -> None:
        self._page, self._words, self._seating = page, page.words, seating
        self._away: tuple[int, int] | None = None  # turn and iterations with which the holder was found away
        self._away_ns = self._found_ns = 0
        self._ends: tuple[int, int] | None = None  # turn in which the holder was found to end, and when

    def begin(self) -> None:
        """Somebody else waits from now on."""
        self._away = None

    def look(self, top: int, now_ns: int) -> Verdict:
        """
        Say what is to become of the holder's turn.

        Parameters
        ----------
        top : int
            The token.
        now_ns : int

        Returns
        -------
        str
            ``recall``: it is long between two iterations; ``overrule``: it has not come back to this keeper;
            ``tell and overrule``: its process does not run.
        """
        holder = seat_of(top)
        if holder not in self._seating:
            self._found_ns = self._found_ns or now_ns
            return "overrule" if now_ns - self._found_ns >= RETURN_NS else "wait"
        if self._words[self._page.seat(holder) + STATE] == BUSY:
            self._away = None
            return "wait" if self._runs(holder, turn_of(top), now_ns) else "tell and overrule"
        seen = turn_of(top), self._words[self._page.seat(holder) + ITERATIONS]
        if self._away != seen:
            self._away, self._away_ns = seen, now_ns
        return "recall" if now_ns - self._away_ns >= GRACE_NS else "wait"

    def _runs(self, holder: int, turn: int, now_ns: int) -> bool:
        """Whether its process runs; one that ends is waited for: most are gone by the next tick."""
        state = self._seating[holder].pulse.feel()
        if state != "ends":
            self._ends = None
        elif self._ends is None or self._ends[0] != turn:
            self._ends = turn, now_ns
        if self._ends is not None:
            return now_ns - self._ends[1] < ENDING_NS
        since_ns = self._words[self._page.seat(holder) + SINCE_NS]
        return state != "stopped" or now_ns - since_ns <= STOPPED_NS
