"""Run the matcher on a bus, with an ear for the nodes' heartbeats."""

from __future__ import annotations

import asyncio

from penstock_bus import Delivery
from penstock_bus.context import Shell
from penstock_bus.replica import run_decider
from penstock_bus.tasks import background
from penstock_events import NodeJoined, subjects
from penstock_matcher.liveness import Liveness
from penstock_matcher.machine import decider
from penstock_matcher.settings import Settings
from penstock_policies import matching


async def run(shell: Shell, settings: Settings) -> None:
    """Match until the shell is stopping; one replica leads, the others keep a hot fold and listen as well."""
    liveness = Liveness(shell.now_s())

    def on_delivery(delivery: Delivery) -> None:
        for fact in delivery.commit.facts:
            if isinstance(fact, NodeJoined):
                liveness.beat(fact.node_id, shell.now_s())

    async with background(_hear_nodes(shell, liveness), _hear_ourselves(shell, liveness)):
        await _warm(shell)
        await run_decider(shell, decider(settings, liveness.heard), on_delivery=on_delivery)


async def _warm(shell: Shell) -> None:
    """
    Have the matching's kernels ready before the first round, which would wait for them otherwise.

    Where no cache holds them, a stop that comes meanwhile takes effect when they are compiled.
    """
    before_s = shell.now_s()
    await asyncio.to_thread(matching.warm)
    shell.log.info("matching_warmed", took_s=round(shell.now_s() - before_s, 3))


async def _hear_nodes(shell: Shell, liveness: Liveness) -> None:
    async for subject, _ in shell.bus.listen(subjects.HEARTBEATS):
        liveness.beat(subject.rpartition(".")[2], shell.now_s())


async def _hear_ourselves(shell: Shell, liveness: Liveness) -> None:
    async for _ in shell.bus.listen(subjects.replica(shell.service, shell.replica_id)):
        liveness.echo(shell.now_s())
