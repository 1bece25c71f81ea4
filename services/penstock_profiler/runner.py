"""The profiler on a bus: its decider, and a look at which replicas are alive."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock_bus.context import Shell
from penstock_bus.replica import Replica
from penstock_bus.tasks import background
from penstock_profiler.machine import State, decider
from penstock_profiler.settings import Settings
from penstock_profiler.sharing import mine

LOOK_S: Final = 0.5


async def run(shell: Shell, settings: Settings) -> None:
    """Profile workloads until the shell is stopping; those of a replica that dies are taken over."""
    machine = decider(settings, mine=lambda key: mine(key, shell.peers(), shell.replica_id))
    replica = Replica(shell, machine)
    async with background(_wake_on_change(shell, replica)):
        await replica.run()


async def _wake_on_change(shell: Shell, replica: Replica[State]) -> None:
    peers = shell.peers()
    while True:
        await asyncio.sleep(LOOK_S)
        before, peers = peers, shell.peers()
        if peers != before:
            shell.log.info("replicas_changed", replicas=peers)
            replica.wake()
