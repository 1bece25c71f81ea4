"""Run the matcher on a bus, with an ear for the nodes' heartbeats."""

from __future__ import annotations

from penstock_bus import Delivery
from penstock_bus.context import Shell
from penstock_bus.kernels import MatchingKernels
from penstock_bus.replica import run_decider
from penstock_bus.tasks import background
from penstock_events import NodeJoined, subjects
from penstock_matcher.liveness import Liveness
from penstock_matcher.machine import decider
from penstock_matcher.settings import Settings


async def run(shell: Shell, settings: Settings) -> None:
    """
    Match until the shell is stopping; one replica leads, the others keep a hot fold and listen as well.

    Rounds are decided before the kernels are compiled: nobody's first job waits for the compiler.
    """
    liveness = Liveness(shell.now_s())

    def on_delivery(delivery: Delivery) -> None:
        for fact in delivery.commit.facts:
            if isinstance(fact, NodeJoined):
                liveness.beat(fact.node_id, shell.now_s())

    async with (
        background(_hear_nodes(shell, liveness), _hear_ourselves(shell, liveness)),
        MatchingKernels(shell) as kernels,
    ):
        await kernels.usable()
        await run_decider(shell, decider(settings, liveness.heard), on_delivery=on_delivery)


async def _hear_nodes(shell: Shell, liveness: Liveness) -> None:
    async for subject, _ in shell.bus.listen(subjects.HEARTBEATS):
        liveness.beat(subject.rpartition(".")[2], shell.now_s())


async def _hear_ourselves(shell: Shell, liveness: Liveness) -> None:
    async for _ in shell.bus.listen(subjects.replica(shell.service, shell.replica_id)):
        liveness.echo(shell.now_s())
