"""The ranker on a bus: ``python -m penstock_ranker``."""

from __future__ import annotations

from penstock_bus.replica import run_decider
from penstock_bus.shell import Shell, main
from penstock_ranker import machine
from penstock_ranker.machine import RankerSettings


async def run(shell: Shell, settings: RankerSettings) -> None:
    """Rank until the shell is stopping; one replica leads, the others keep a hot fold."""
    await run_decider(shell, machine.decider(settings, settings.priors()))


if __name__ == "__main__":
    main("ranker", RankerSettings, run)
