"""What came of a simulated sweep."""

from __future__ import annotations

from typing import Final

import msgspec

PARTS: Final = ("stopped", "failed", "rescale", "overhead")
"""Of the device-seconds held, what was not goodput; as in :class:`penstock_policies.search.spending.Account`."""


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
        Device-seconds of iterations of promoted and best runs over those held.
    stopped, failed, rescale, overhead : float
        The rest of those held, as shares: iterations of the other runs, runs that diverged, moving, and starting.
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
    stopped: float = 0.0
    failed: float = 0.0
    rescale: float = 0.0
    overhead: float = 0.0
