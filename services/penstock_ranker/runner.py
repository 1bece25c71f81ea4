"""Run the ranker on a bus."""

from __future__ import annotations

from penstock_bus.context import Shell
from penstock_bus.replica import run_decider
from penstock_ranker import machine
from penstock_ranker.settings import Settings


async def run(shell: Shell, settings: Settings) -> None:
    """Rank until the shell is stopping; one replica leads, the others keep a hot fold."""
    await run_decider(shell, machine.decider(settings, settings.priors()))
