"""The past of nodes: when each was up, drained, or gone, as timelines show it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from penstock_log import Event, NodeDrained, NodeJoined, NodeLeaving, NodeLeft, NodeRemoved, NodeResumed, RoundDecided

MOST_CHANGES: Final = 200
"""Changes of a node that are kept; the oldest are dropped."""
UP: Final = "up"


class NodeHistory(msgspec.Struct):
    """
    The changes of one node's state.

    Attributes
    ----------
    changes : list of (float, str)
        Since when it is in which state: ``up``, ``drained``, ``leaving``, ``lost`` or ``left``. Before the first it was
        not here.
    drained : bool
        Whether it takes no new jobs; that survives a restart of its executor.
    """

    changes: list[tuple[float, str]] = msgspec.field(default_factory=list)
    drained: bool = False

    def change(self, at_s: float, state: str) -> None:
        """Note a state from now on."""
        if self.changes:
            last_s, before = self.changes[-1]
            if before == state:
                return
            at_s = max(at_s, last_s)
        self.changes.append((at_s, state))
        del self.changes[:-MOST_CHANGES]

    def down(self, since_s: float, until_s: float) -> Iterator[tuple[float, float, str]]:
        """Yield from when to when within a window it took no new jobs, and how it was called then."""
        ends = [at_s for at_s, _ in self.changes[1:]] + [until_s]
        for (begin_s, state), end_s in zip(self.changes, ends, strict=True):
            if state != UP and begin_s < until_s and end_s > since_s:
                yield max(begin_s, since_s), min(end_s, until_s), state


def note(histories: dict[str, NodeHistory], event: Event) -> None:
    """
    Note what a fact says of nodes.

    Examples
    --------
    >>> histories: dict[str, NodeHistory] = {}
    >>> for event in (NodeJoined(at_s=1.0, node_id="n1", devices=()), NodeLeft(at_s=5.0, node_id="n1")):
    ...     note(histories, event)
    >>> list(histories["n1"].down(0.0, 9.0))
    [(5.0, 9.0, 'left')]
    """
    match event:
        case NodeJoined():
            found = histories.setdefault(event.node_id, NodeHistory())
            found.change(event.at_s, "drained" if found.drained else UP)
        case NodeLeaving():
            _change(histories, event.node_id, event.at_s, "leaving")
        case NodeLeft():
            _change(histories, event.node_id, event.at_s, "left")
        case RoundDecided():
            for node_id in event.lost_nodes:
                _change(histories, node_id, event.at_s, "lost")
            for node_id in event.forgotten_nodes:
                histories.pop(node_id, None)
        case NodeDrained():
            _drain(histories, event.node_id, event.at_s, drained=True)
        case NodeResumed():
            _drain(histories, event.node_id, event.at_s, drained=False)
        case NodeRemoved():
            histories.pop(event.node_id, None)
        case _:
            pass


def _change(histories: dict[str, NodeHistory], node_id: str, at_s: float, state: str) -> None:
    if (found := histories.get(node_id)) is not None:
        found.change(at_s, state)


def _drain(histories: dict[str, NodeHistory], node_id: str, at_s: float, *, drained: bool) -> None:
    found = histories.get(node_id)
    if found is None:
        return
    found.drained = drained
    if found.changes and found.changes[-1][1] in {UP, "drained"}:
        found.change(at_s, "drained" if drained else UP)
