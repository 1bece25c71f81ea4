"""
The moment that a page is about, as its address names it and as its visitor reads and moves it.

:func:`settled` turns what people type into a moment that stays the same while links carry it on. :class:`MomentBar` is
the bar above each page: where in the log the page is, a slider from the log's first commit to now, and the way back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from penstock_dashboard.gateway_port import PageRefused
from penstock_log.views import MomentView

_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGO: Final = re.compile(r"-?\s*(\d{1,9}(?:\.\d{1,3})?)\s*(s|min|m|h|d|w)(?:\s+ago)?")
_NUMBER: Final = re.compile(r"\d+(\.\d+)?(e\d{1,2})?")
"""As the gateway reads them."""
_STEPS: Final = 1000
_LEAST_STEP_S: Final = 0.1


def settled(text: str, now_s: float) -> str:
    """
    Return a moment that does not move with time: what is so long ago becomes a time; all else is as it was typed.

    Examples
    --------
    >>> settled("2h", 10_000.0), settled("90 s ago", 10_000.0), settled("120", 10_000.0)
    ('2800.000', '9910.000', '120')
    >>> settled(" 2026-01-31 12:00:00 UTC ", 0.0)
    '2026-01-31 12:00:00+00:00'

    Raises
    ------
    PageRefused
        400 where it lies before the year 1970, or is of no form that the gateway or this function reads.
    """
    text = text.strip()
    if text.lower() in {"", "now"}:
        return ""
    if (ago := _AGO.fullmatch(text.lower())) is None:
        found = re.sub(r"\s*\bUTC$", "+00:00", text)
        if _NUMBER.fullmatch(found) or _is_time(found):
            return found
        raise PageRefused(  # the gateway's own words would leave out spans, which it does not read
            400,
            f"at={text!r} is no moment; expected a span ago (2h), a sequence (120), seconds (1.7e9) or "
            "2026-01-31T12:00:00Z",
        )
    at_s = now_s - float(ago[1]) * _UNITS[ago[2]]
    if at_s < 0:
        raise PageRefused(400, f"at={text}: so long ago nothing was counted yet; expected a shorter span, such as 2h")
    return f"{at_s:.3f}"


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


class MomentBar(msgspec.Struct, frozen=True, kw_only=True):
    """
    The bar above a page.

    Attributes
    ----------
    path : str
        Of the page.
    kept : mapping
        The fields of its address, but for the moment.
    at : str
        The moment, as the address has it; empty for now.
    view : MomentView or None
        Where that is in the log; None where nobody can say.
    wrong : bool
        Whether what the address has is no moment of the log; then ``view`` is about now.
    """

    path: str
    kept: Mapping[str, str]
    at: str
    view: MomentView | None
    wrong: bool = False

    @property
    def movable(self) -> bool:
        """Whether the log has a first moment, from which a slider can go to now."""
        return self.view is not None and self.view.first_seq > 0 and self.end_s > self.view.first_s

    @property
    def end_s(self) -> float:
        """The right end of the slider: now."""
        return max(self.view.now_s, self.view.last_s) if self.view is not None else 0.0

    @property
    def max_s(self) -> float:
        """The slider's end: now, or up to a step later, since a browser shows nothing between two steps."""
        if self.view is None:
            return 0.0
        return self.view.first_s + math.ceil((self.end_s - self.view.first_s) / self.step_s) * self.step_s

    @property
    def value_s(self) -> float:
        """Where the slider is."""
        if self.view is None:
            return 0.0
        return min(max(self.view.at_s, self.view.first_s), self.end_s) if self.at and not self.wrong else self.max_s

    @property
    def step_s(self) -> float:
        """How far one key moves the slider, in whole milliseconds."""
        if self.view is None:
            return 1.0
        return math.ceil(1e3 * max((self.end_s - self.view.first_s) / _STEPS, _LEAST_STEP_S)) / 1e3

    @property
    def before_log(self) -> bool:
        """Whether the moment is before all that the log holds."""
        return bool(self.at) and self.view is not None and self.view.seq == 0

    @property
    def earlier(self) -> str:
        """The moment one commit before; empty where there is none."""
        if self.view is None or self.view.seq <= max(self.view.first_seq, 1):
            return ""
        return str(self.view.seq - 1)

    @property
    def later(self) -> str:
        """The moment one commit after; empty where that is now."""
        if not self.at or self.wrong or self.view is None or self.view.seq >= self.view.last_seq:
            return ""
        return str(max(self.view.seq + 1, self.view.first_seq))
