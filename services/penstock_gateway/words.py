"""How the gateway words durations, devices and lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock_events import Setting
from penstock_events.policy import worded


def duration(seconds: float) -> str:
    """
    Return a duration for people.

    Examples
    --------
    >>> duration(0.25), duration(75), duration(7_500), duration(200_000)
    ('0.2 s', '1 min 15 s', '2 h 5 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest_s = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def count(number: int, noun: str) -> str:
    """
    Return a number with its noun.

    Examples
    --------
    >>> count(1, "device"), count(2, "device")
    ('1 device', '2 devices')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Iterable[str], *, nothing: str = "none") -> str:
    """Return names with commas."""
    return ", ".join(names) or nothing


def pairs(settings: Mapping[str, Setting]) -> str:
    """
    Return settings as one writes them.

    Examples
    --------
    >>> pairs({"order": "las", "thresholds_gpu_s": [60.0, 600.0], "promote_knob": None})
    'order = las, thresholds_gpu_s = 60,600, promote_knob = off'
    """
    return ", ".join(f"{name} = {worded(value)}" for name, value in settings.items())
