"""
Which nodes are silent, judged by heartbeats and only while the bus is known to carry any.

A replica hears its own heartbeats through the bus as well. When those stop, it is the bus or this process that is
silent (a server restart, a suspended machine), and nothing is held against the nodes: silence counts only up to the
last beat of our own, and after a gap everybody gets the whole time again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

GAP_S: Final = 2.5
"""Own heartbeats come every second; a longer pause than this is a gap."""


class Liveness:
    """
    When each node was last heard.

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
