"""Lengths of time in words."""

from __future__ import annotations


def length(seconds: float) -> str:
    """
    Return a length of time in words.

    Examples
    --------
    >>> length(40), length(5400), length(86_400 * 129.4)
    ('40 s', '1.5 h', '129.4 d')
    """
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.3g} s"
