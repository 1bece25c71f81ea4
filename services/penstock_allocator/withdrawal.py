"""
For how long pilots that wait for their start have been too many.

A pilot may wait in its provider's queue for hours, and the jobs that it was planned for may be over by then. It is not
withdrawn at the first look that finds it spare: jobs come in bursts, and a place in a queue is lost by leaving it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

_LOOKS: Final = 4
"""Looks at one allocation while its pilots are found spare."""


class SpareLook(NamedTuple):
    """
    What the looks at one allocation have found.

    Attributes
    ----------
    seq, at_s
        The last change that the last look saw, and when it was.
    mark : float
        When pilots were withdrawn last.
    spare : int
        The fewest pilots that were spare at any look since ``since_s``.
    """

    seq: int
    at_s: float
    mark: float
    spare: int
    since_s: float


class SpareWatch:
    """For how long pilots of each allocation have been spare."""

    def __init__(self) -> None:
        self._looks: dict[str, SpareLook] = {}

    def over(
        self, name: str, moment: tuple[int, float], hold_s: float, mark: float, spare: Callable[[], int]
    ) -> tuple[int, float]:
        """
        Return how many pilots have been spare for long enough, and when to ask again though nothing happens.

        Parameters
        ----------
        moment : (int, float)
            The last change and the time: while there is no other change, what was found stays.
        hold_s : float
            For so many seconds a pilot has to be spare.
        mark : float
            When pilots were withdrawn last; for those that are left, the time begins anew.
        spare : callable
            Returns how many are spare now; it is asked some times in ``hold_s``.
        """
        seq, now_s = moment
        last = self._looks.get(name)
        if last is None or last.mark != mark:
            last = SpareLook(seq, now_s, mark, spare(), now_s)
        ripe_s, next_s = last.since_s + hold_s, last.at_s + hold_s / _LOOKS
        is_ripe = last.spare > 0 and now_s >= ripe_s  # what is withdrawn is spare at this moment
        if last.at_s < now_s and (is_ripe or (last.seq != seq and now_s >= next_s)):
            found = spare()
            since_s = last.since_s if last.spare and found else now_s
            last = SpareLook(seq, now_s, mark, min(last.spare or found, found), since_s)
            ripe_s, next_s = since_s + hold_s, now_s + hold_s / _LOOKS
        self._looks[name] = last
        if last.spare and now_s >= ripe_s:
            return last.spare, math.inf
        waits = ([ripe_s] if last.spare else []) + ([next_s] if last.seq != seq else [])
        return 0, min(waits, default=math.inf)

    def forget(self, name: str) -> None:
        """Begin anew with an allocation: none of its pilots waits."""
        self._looks.pop(name, None)
