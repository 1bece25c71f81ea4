"""Times and spans, as people read and type them."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final

from penstock.cli.errors import bad_input

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def now_s() -> float:
    """Return the time by this machine's clock, to show ages and to resolve ``--at 10m``."""
    return time.time()  # noqa: TID251 - the command line shows ages to people; nothing is decided by them


def span(seconds: float | None) -> str:
    """
    Return a span in at most two units; a dash for none.

    Examples
    --------
    >>> [span(s) for s in (None, 0.04, 9.96, 59.9, 61, 7265, 90061)]
    ['-', '0.0s', '10.0s', '59.9s', '1m01s', '2h01m', '1d01h']
    """
    if seconds is None:
        return "-"
    if seconds < 59.95:
        return f"{max(0.0, seconds):.1f}s"
    whole = int(seconds + 0.5)
    for size, unit, part, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{small}"
    raise AssertionError(whole)


def clock(at_s: float | None) -> str:
    """Return a moment in the local time zone, to the second; a dash for none."""
    return "-" if at_s is None else datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def moment(text: str | None, now: float | None = None, option: str = "--at") -> int | float | str | None:
    """
    Return what ``--at`` means to the gateway: a sequence, seconds since the epoch, or RFC 3339; ``10m`` is so long ago.

    Examples
    --------
    >>> moment("12"), moment("1.5m", now=100.0), moment("2026-01-02T03:04:05Z")
    (12, 10.0, '2026-01-02T03:04:05Z')
    """
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    if ago := re.fullmatch(r"-?(\d+(?:\.\d+)?)([smhd])", text):
        return (now_s() if now is None else now) - float(ago[1]) * _UNITS[ago[2]]
    try:
        return float(text)
    except ValueError:
        return _rfc3339(text, option)


def _rfc3339(text: str, option: str) -> str:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        bad_input(
            f"{option} {text!r} is no moment; expected a stream sequence, a span such as 10m, seconds since the epoch, "
            "or a time such as 2026-01-31T09:30:00Z"
        )
    return text if parsed.tzinfo else parsed.astimezone().isoformat()
