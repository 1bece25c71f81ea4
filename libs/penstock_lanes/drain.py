"""
Waiting for the device between two iterations, by a thread of its own.

A process that fetches its next batch does not look at its seat, and its device may still be at work on the iteration
before. Nobody can take the token from it then; so where somebody waits, this thread waits for the device in its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from penstock_lanes.seat import Seat

_LOOK_S: Final = 5.0


class Drain:
    """
    The thread of one seat.

    Parameters
    ----------
    seat : Seat
    settle : callable
        Returns once the device has done all that it was told.
    between : Lock
        Held while an iteration begins, and while the device is waited for.
    """

    def __init__(self, seat: Seat, settle: Callable[[], object], between: threading.Lock) -> None:
        self._seat, self._settle, self._between = seat, settle, between
        self._over = False
        self._word = seat.haste()
        threading.Thread(target=self._watch, name="penstock-drain", daemon=True).start()

    def end(self) -> None:
        """Have the thread end."""
        with self._between:
            self._over = True
        self._word.wake()

    def _watch(self) -> None:
        seen = self._seat.hastened  # not what it is now: this thread may be late
        while not self._over:
            self._word.wait(seen, _LOOK_S)
            now = self._word.value.value
            if now != seen:
                seen = now
                self._finish()

    def _finish(self) -> None:
        with self._between:
            if not self._over and self._seat.drains:
                self._settle()
                self._seat.drained()
