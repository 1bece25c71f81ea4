"""Dates and spans of accounting files as seconds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock_sim.trace import Floats

_SPAN: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")


def epoch_s(times: Sequence[str], *, ahead_s: float = 0.0) -> Floats:
    """
    Return seconds since 1970 of local times, ``2020-06-09 18:41:01`` or with a ``T``, or of seconds already.

    Parameters
    ----------
    times : sequence of str, (N,)
    ahead_s : float
        How far local time is ahead of UTC.

    Returns
    -------
    (N,) float array, seconds
        nan for what is no time: ``None``, ``Unknown``, nothing.

    Examples
    --------
    >>> epoch_s(["1970-01-01T00:01:00", "1970-01-01 08:00:01", "60", "Unknown", ""]).tolist()
    [60.0, 28801.0, 60.0, nan, nan]
    """
    try:
        if any(map(str.isdigit, times)):  # for numpy these are years
            raise ValueError
        local = np.array(times, "datetime64[ms]")
    except ValueError:
        return np.array([_one_s(time, ahead_s) for time in times], np.float64)
    return np.where(np.isnat(local), np.nan, local.astype(np.int64) / 1e3 - ahead_s)


def _one_s(time: str, ahead_s: float) -> float:
    if time.isdigit():
        return float(time)
    try:
        moment = np.datetime64(time or "NaT", "ms")
    except ValueError:
        return float("nan")
    return float("nan") if np.isnat(moment) else float(moment.astype(np.int64)) / 1e3 - ahead_s


def span_s(text: str) -> float:
    """
    Return the seconds of ``[D-][HH:]MM:SS``; nan for what is no span.

    Examples
    --------
    >>> span_s("1-02:03:04"), span_s("02:03"), span_s("0:00:01.5"), span_s("soon")
    (93784.0, 123.0, 1.5, nan)
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        return float("nan")
    days, hours, minutes, seconds = found.groups()
    return int(days or 0) * 86400 + int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds)
