"""What came of a simulated sweep."""

from __future__ import annotations

import msgspec


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    One sweep under one way of filling devices.

    Attributes
    ----------
    makespan_s : float
    target_s : float or None
        When a trial first reached the target; None where none did, or there is none.
    best : float or None
        Of the runs with the largest budget.
    utilisation : float
        Device-seconds held over those that there were, 0 to 1.
    goodput : float
        Device-seconds of iterations of promoted and best trials over those held.
    trials, runs, resizes : int
        Points tried, runs of them, and how often a running one was moved to another width.
    """

    makespan_s: float
    target_s: float | None
    best: float | None
    utilisation: float
    goodput: float
    trials: int
    runs: int
    resizes: int
