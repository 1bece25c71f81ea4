"""The autoscaler on a bus: ``python -m penstock_autoscaler``."""

from __future__ import annotations

from penstock_autoscaler.machine import decider
from penstock_bus.replica import run_decider
from penstock_bus.settings import load
from penstock_bus.shell import Shell, main
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.sizing.problem import SizingSettings


async def run(shell: Shell, settings: SizingSettings) -> None:
    """Size jobs until the shell is stopping; one replica leads, the others keep a hot fold."""
    await run_decider(shell, decider(settings, load(MatcherSettings, "matcher")))


if __name__ == "__main__":
    main("autoscaler", SizingSettings, run)
