"""How it is said that a setting is not what it should be."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


def said(error: msgspec.ValidationError, values: Mapping[str, object]) -> str:
    """
    Return what is wrong with one of some named values, with the value as it was given.

    Examples
    --------
    >>> said(msgspec.ValidationError("Expected `float` > 0.0 - at `$.promote_knob`"), {"promote_knob": "-2"})
    "promote_knob is '-2': Expected `float` > 0.0"
    """
    wrong, _, place = str(error).partition(" - at `$.")
    name = place.rstrip("`").partition("[")[0]
    return f"{name} is {values[name]!r}: {wrong}" if name in values else str(error)
