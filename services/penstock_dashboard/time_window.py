"""
The window of time that a chart shows: from its address, with the links that move and zoom it.

A window that ends now moves on in steps of its size, so that a chart that is looked at changes seldom.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock_dashboard.gateway_port import PageRefused

_LAST_S: Final = 253_402_300_799.0
"""The end of the year 9999."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw])")
_LEAST_S: Final = 10.0
_STEPS: Final = 500
"""Steps in which a window that ends now moves on, in its width."""
_TICKS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800),
)
_SHOWN: Final = ("10m", "30m", "1h", "3h", "6h")
"""Widths of a window of which nothing is said: the least that has the whole log, or the last."""
_MOST_TICKS: Final = 8
PRESETS: Final = (("10m", "10 min"), ("1h", "1 h"), ("6h", "6 h"), ("1d", "1 day"), ("7d", "7 days"))


class TimeWindow(msgspec.Struct, frozen=True, kw_only=True):
    """
    A window of time.

    Attributes
    ----------
    from_s, to_s : float
        Seconds since the epoch.
    now_s : float
        The present of the page, which may be a moment of the past.
    follows : bool
        Whether it ends now, and moves on.
    """

    from_s: float
    to_s: float
    now_s: float
    follows: bool

    @classmethod
    def of(cls, since: str, until: str, now_s: float, first_s: float) -> TimeWindow:
        """
        Return the window that an address names.

        Parameters
        ----------
        since, until : str
            A span before the end (before now), seconds since the epoch, a UTC day, or an RFC 3339 time; may be empty.
        first_s : float
            When the log begins: a window of which nothing is said shows all of a young log, else six hours.

        Raises
        ------
        PageRefused
            400 where a bound cannot be read, or the window ends before it begins.

        Examples
        --------
        >>> window = TimeWindow.of("1h", "", 10_000.0, 0.0)
        >>> window.from_s, window.to_s, window.follows
        (6400.8, 10000.8, True)
        >>> TimeWindow.of("1970-01-01", "9000", 10_000.0, 0.0).width_s
        9000.0
        """
        to_s = min(_time("until", until, now_s), now_s) if until else now_s
        begins = [_time("since", one, to_s) for one in ([since] if since else _SHOWN)]
        begin_s = next((one for one in begins if one <= first_s), begins[-1])
        if begin_s >= to_s:
            end = until or "now"
            raise PageRefused(400, f"since={since} is not before the window's end, until={end}; name an earlier one")
        width_s = max(to_s - begin_s, _LEAST_S)
        if until or not (since == "" or _SPAN.fullmatch(since)):
            return cls(from_s=to_s - width_s, to_s=to_s, now_s=now_s, follows=not until)
        step_s = width_s / _STEPS
        end_s = round(math.ceil(to_s / step_s) * step_s, 3)
        return cls(from_s=round(end_s - width_s, 3), to_s=end_s, now_s=now_s, follows=True)

    @property
    def width_s(self) -> float:
        """How long it is, in seconds."""
        return self.to_s - self.from_s

    def x(self, at_s: float) -> float:
        """Return where a time is, in percent of the width."""
        return min(max(100.0 * (at_s - self.from_s) / self.width_s, 0.0), 100.0)

    def moved(self, part: float) -> dict[str, str]:
        """Return the fields of the address of a window that is moved by a part of its width, to now at the latest."""
        by_s = part * self.width_s
        if self.to_s + by_s >= self.now_s:
            return {"since": _span(self.width_s), "until": ""}
        return {"since": f"{self.from_s + by_s:.0f}", "until": f"{self.to_s + by_s:.0f}"}

    def zoomed(self, factor: float) -> dict[str, str]:
        """Return the fields of the address of a window so many times as wide: about its middle, or ending now."""
        width_s = max(self.width_s * factor, _LEAST_S)
        if self.follows:
            return {"since": _span(width_s), "until": ""}
        middle_s = (self.from_s + self.to_s) / 2
        end_s = min(middle_s + width_s / 2, self.now_s)
        return {"since": f"{end_s - width_s:.0f}", "until": f"{end_s:.0f}"}

    def ticks(self) -> list[tuple[float, float, str]]:
        """Return times of round hours, minutes or days, each with its place in percent and its UTC text."""
        step_s = next((step for step in _TICKS if self.width_s / step <= _MOST_TICKS), self.width_s / _MOST_TICKS)
        form = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 86400 else "%m-%d"
        first = math.ceil(self.from_s / step_s)
        times = [number * step_s for number in range(first, math.floor(self.to_s / step_s) + 1)]
        return [(at_s, self.x(at_s), datetime.fromtimestamp(at_s, UTC).strftime(form)) for at_s in times]


def _span(width_s: float) -> str:
    return f"{width_s:.0f}s" if width_s % 60 else f"{width_s / 60:.0f}m"


def _time(name: str, text: str, before_s: float) -> float:
    text = text.strip()
    if span := _SPAN.fullmatch(text):
        return max(0.0, before_s - float(span[1]) * _UNITS[span[2]])
    if re.fullmatch(r"\d{1,12}(\.\d{1,3})?", text):
        return min(float(text), _LAST_S)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise PageRefused(
            400,
            f"{name}={text!r} is no time; expected a span ago (6h), a UTC day (2026-01-31), a time "
            "(2026-01-31T12:00:00Z), or seconds since the epoch",
        ) from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
