"""
What can be set about the matcher's rounds: table ``[matcher]`` or ``PENSTOCK_MATCHER_…``.

The matcher goes by it, and so does whoever asks what its round would do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from penstock_events import Setting
from penstock_policies.order import Rules, Seconds
from penstock_policies.pools import overlaid
from penstock_policies.rounds.known import Known


class Settings(Rules, frozen=True, kw_only=True):
    """
    The parameters of its rounds, as :class:`penstock_policies.order.Rules` has them, and its own.

    Attributes
    ----------
    node_timeout_s : float
        A node whose heartbeats have stopped for this long is lost, and its jobs are placed again.
    forget_node_s : float
        A node that left or was lost so long ago is listed no more, unless it is drained; 0 keeps all.
    pools : dict of str to dict of str to object
        Pools in which some of the parameters are otherwise, ``[matcher.pools.NAME]``.
    """

    node_timeout_s: Seconds = 5.0
    forget_node_s: Seconds = 3600.0
    pools: dict[str, dict[str, Any]] = {}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.pools:
            self.of(name)  # what cannot be is better known now

    def of(self, pool: str) -> Rules:
        """
        Return what holds in a pool.

        Raises
        ------
        ValueError
            If a parameter of it is not known, or cannot be what it is set to.
        """
        own = self.pools.get(pool, {})
        unknown = sorted(own.keys() - set(Rules.__struct_fields__))
        if unknown:
            known = ", ".join(Rules.__struct_fields__)
            raise ValueError(f"pools.{pool} sets {', '.join(unknown)}, which it cannot; expected some of {known}")
        common = {name: getattr(self, name) for name in Rules.__struct_fields__}
        if not own:
            return Rules(**common)
        try:
            return msgspec.convert({**msgspec.to_builtins(common), **own}, Rules)
        except msgspec.ValidationError as error:
            raise ValueError(f"pools.{pool}: {error}") from error


class _Kept(NamedTuple):
    """Rules, and what they were worked out from."""

    settings: Settings
    live: Mapping[str, Setting] | None
    rules: Rules


def rules_of(known: Known, pool: str, settings: Settings) -> Rules:
    """Return what holds in a pool's rounds: what is set live for it, else what the file says of it, else of all."""
    live, of_pools = known.policies.get(pool), known.__dict__.setdefault("rules", {})
    kept: _Kept | None = of_pools.get(pool)
    if kept is None or kept.settings is not settings or kept.live is not live:  # as at every other round it is
        kept = of_pools[pool] = _Kept(settings, live, overlaid(settings.of(pool), live or {}))
    return kept.rules
