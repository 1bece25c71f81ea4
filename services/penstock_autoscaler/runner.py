"""Run the autoscaler on a bus."""

from __future__ import annotations

from penstock_autoscaler.machine import decider
from penstock_autoscaler.settings import Settings
from penstock_bus.context import Shell
from penstock_bus.replica import run_decider


async def run(shell: Shell, settings: Settings) -> None:
    """Size jobs until the shell is stopping; one replica leads, the others keep a hot fold."""
    await run_decider(shell, decider(settings))
