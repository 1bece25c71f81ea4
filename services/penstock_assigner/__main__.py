"""The assigner on a bus: ``python -m penstock_assigner``."""

from __future__ import annotations

from penstock_assigner.machine import decider
from penstock_bus.replica import run_decider
from penstock_bus.shell import Shell, main
from penstock_scheduler.aggregation.assignment_step import AssignerSettings


async def run(shell: Shell, settings: AssignerSettings) -> None:
    """Assign parts until the shell is stopping; one replica leads, the others keep a hot fold."""
    await run_decider(shell, decider(settings))


if __name__ == "__main__":
    main("assigner", AssignerSettings, run)
