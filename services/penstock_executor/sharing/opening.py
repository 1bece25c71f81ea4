"""The floor of a node, as its settings want it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock_events import AnyEvent
from penstock_executor.host import Host
from penstock_executor.settings import ExecutorSettings
from penstock_executor.sharing.floor import Floor
from penstock_executor.sharing.lanes import Lanes
from penstock_executor.sharing.leases import LeaseRules
from penstock_lanes import Keeper
from penstock_policies.lanes import Rules


def open_floor(
    host: Host,
    settings: ExecutorSettings,
    *,
    life: str,
    clock: Callable[[], float],
    report: Callable[[AnyEvent], None],
    wake: Callable[[], None],
    again: Callable[[float], None],
) -> Floor:
    """Return a floor with a keeper that listens on the site's socket; whoever opens it closes its keeper."""
    rules = Rules(
        policy=settings.lane_policy, patience_s=settings.lane_patience_s, most_lanes=settings.lane_most or None
    )
    site = host.site
    return Floor(
        host,
        host.limits,
        Keeper(Path(site.lanes)),
        Lanes(site.node_id, site.devices, rules, settings.lane_reserve, settings.lane_turn_ms / 1e3),
        leases=LeaseRules(warn_s=settings.lane_warn_s, take_s=settings.lane_hang_s),
        hang=settings.lane_hang,
        life=life,
        clock=clock,
        report=report,
        wake=wake,
        again=again,
    )
