"""By which policies a pool is run. Written by the gateway on ``evt.policy.<pool>``."""

from __future__ import annotations

from penstock_events.base import Event

Setting = str | bool | int | float | list[str | float] | None
"""A value as TOML has it; None where a setting is to be off."""


class PolicySet(Event, frozen=True, kw_only=True, tag="policy.set.v1"):
    """
    From here on a pool is run by these settings; what they leave out is as the services' own settings say.

    Attributes
    ----------
    settings : dict of str to Setting
        All that are set live, by name as in ``[ranker.pools.NAME]`` and ``[matcher.pools.NAME]``; none: nothing is.
    """

    pool: str
    settings: dict[str, Setting]
    by: str = ""
    reason: str = ""


def worded(value: Setting) -> str:
    """
    Return a setting as people write it.

    Examples
    --------
    >>> worded("fifo"), worded([60.0, 600.0]), worded(True), worded(None), worded([])
    ('fifo', '60,600', 'true', 'off', '[]')
    """
    match value:
        case None:
            return "off"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case list():
            return ",".join(worded(one) for one in value) or "[]"
        case _:
            return str(value)
