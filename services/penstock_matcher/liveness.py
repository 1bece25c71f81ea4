"""
Which nodes are alive, by their heartbeats, and which heartbeats are answered.

:class:`Liveness` says which nodes are silent, and only while the bus is known to carry heartbeats. A replica hears its
own heartbeats through the bus as well. When those stop, the bus or this process is silent (a server restart, a
suspended machine), and nothing is held against the nodes: silence counts only up to the last own heartbeat, and after a
gap every node gets the whole time again. It gets it as well when a replica begins to lead.

The replica that leads answers heartbeats: an executor lets its runs go on only for so long after one that was answered.
So no heartbeat may be answered of a node that is lost, or that a decision on its way to the log says is lost. An
earlier leader's decision may still come to the log after this one has answered: then the pool's next grants wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from penstock_bus import Decision
from penstock_cluster.nodes import Cluster
from penstock_log import RoundDecided
from penstock_log.request_bodies import NodeHeard, NodeHeartbeat

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
        self._condemned: frozenset[str] = frozenset()
        self._barred_s: dict[str, float] = {}

    def beat(self, node_id: str, now_s: float) -> None:
        """Note that a node was heard: its heartbeat, or that it joined."""
        self._beats_s[node_id] = now_s

    def echo(self, now_s: float) -> None:
        """Note that our own heartbeat came back."""
        if now_s - self._echo_s > GAP_S:
            self._since_s = now_s
        self._echo_s = now_s

    def heard(self, nodes: Iterable[str], now_s: float, term_s: float = math.inf) -> dict[str, float]:
        """
        Return when each node was last heard; a time in which the bus may have been silent is left out.

        Parameters
        ----------
        term_s : float
            For how long this replica leads. Before, another one may have answered heartbeats that it did not hear.
        """
        shift_s = max(0.0, now_s - self._echo_s)
        since_s = max(self._since_s, now_s - term_s)
        return {node: max(since_s, self._beats_s.get(node, since_s)) + shift_s for node in nodes}

    def note_decision(self, decision: Decision) -> None:
        """Note which nodes are lost by a decision that is not in the log yet; it replaces the one before."""
        facts = (fact for proposal in decision.proposals for fact in proposal.facts)
        self._condemned = frozenset(
            node for fact in facts if isinstance(fact, RoundDecided) for node in fact.lost_nodes
        )

    def bar(self, pool: str, until_s: float) -> None:
        """Give nothing in a pool until then: another replica has just given up a node of which this one has heard."""
        self._barred_s[pool] = until_s

    def permitted(self, decision: Decision, now_s: float) -> Decision:
        """Return a decision without the rounds of pools that are barred, to be made again when they are not."""
        self._barred_s = {pool: until_s for pool, until_s in self._barred_s.items() if until_s > now_s}
        if not self._barred_s:
            return decision
        proposals = [
            proposal
            for proposal in decision.proposals
            if not any(isinstance(fact, RoundDecided) and fact.pool in self._barred_s for fact in proposal.facts)
        ]
        wake_s = min(*self._barred_s.values(), math.inf if decision.wake_at_s is None else decision.wake_at_s)
        return Decision(proposals=proposals, wake_at_s=wake_s)

    def answer(self, beat: NodeHeartbeat, node_id: str, cluster: Cluster) -> NodeHeard | None:
        """Return the answer to a heartbeat; None where the node is lost, is about to be, or has joined anew since."""
        node = cluster.nodes.get(node_id)
        if node is None or not node.present or node_id in self._condemned or node.incarnation != beat.incarnation:
            return None
        return NodeHeard(incarnation=beat.incarnation, ticks_s=beat.ticks_s)
