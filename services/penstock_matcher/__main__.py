"""
The matcher on a bus, with the nodes' heartbeats: ``python -m penstock_matcher``.

:class:`Liveness` says which nodes are silent, and only while the bus is known to carry heartbeats. A replica hears its
own heartbeats through the bus as well. When those stop, the bus or this process is silent (a server restart, a
suspended machine), and nothing is held against the nodes: silence counts only up to the last own heartbeat, and after a
gap every node gets the whole time again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock_bus import Delivery
from penstock_bus.follower import background
from penstock_bus.replica import run_decider
from penstock_bus.shell import Shell, main
from penstock_log import NodeJoined, subjects
from penstock_matcher.machine import decider
from penstock_scheduler.kernel_warmup import MatchingKernels
from penstock_scheduler.pool.pool_settings import MatcherSettings


async def run(shell: Shell, settings: MatcherSettings) -> None:
    """
    Match until the shell is stopping; one replica leads, the others keep a hot fold and listen as well.

    The matcher decides rounds before its kernels are compiled, so the first job does not wait for the compiler.
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
    async for subject, _ in shell.bus.subscribe(subjects.HEARTBEATS):
        liveness.beat(subject.rpartition(".")[2], shell.now_s())


async def _hear_ourselves(shell: Shell, liveness: Liveness) -> None:
    async for _ in shell.bus.subscribe(subjects.replica(shell.service, shell.replica_id)):
        liveness.echo(shell.now_s())


GAP_S: Final = 2.5
"""Own heartbeats come every second; a longer pause than this is a gap."""


class Liveness:
    """
    The times at which nodes were last heard.

    Parameters
    ----------
    now_s : float
        When this replica began to listen.

    Examples
    --------
    >>> liveness = Liveness(0.0)
    >>> liveness.beat("n1", 3.0)
    >>> for second in range(1, 8):
    ...     liveness.echo(float(second))
    >>> liveness.heard(["n1", "n2"], 7.5)
    {'n1': 3.5, 'n2': 0.5}
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = self._echo_s = now_s
        self._beats_s: dict[str, float] = {}

    def beat(self, node_id: str, now_s: float) -> None:
        """Note that a node was heard: its heartbeat, or that it joined."""
        self._beats_s[node_id] = now_s

    def echo(self, now_s: float) -> None:
        """Note that our own heartbeat came back."""
        if now_s - self._echo_s > GAP_S:
            self._since_s = now_s
        self._echo_s = now_s

    def heard(self, nodes: Iterable[str], now_s: float) -> dict[str, float]:
        """Return when each node was last heard; a time in which the bus may have been silent is left out."""
        shift_s = max(0.0, now_s - self._echo_s)
        return {node: max(self._since_s, self._beats_s.get(node, self._since_s)) + shift_s for node in nodes}


if __name__ == "__main__":
    main("matcher", MatcherSettings, run)
