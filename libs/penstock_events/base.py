"""What every fact has: a tag of its own, an entity, and the time at which it became true."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """
    A fact of the past, about one entity.

    Every subclass repeats ``frozen=True, kw_only=True`` and gives a versioned ``tag``: the tag is what the log holds,
    the class name is free to change. Fields are only ever added, with defaults; a change of meaning is a new tag and
    an entry in :mod:`penstock_events.upcasts`.

    Attributes
    ----------
    at_s : float
        Seconds since the Unix epoch at which the fact became true, by the writer's clock.
    """

    at_s: float
