"""
Free aggregators of a pool, and which of them a run is given.

An agent has as many free places as it would run aggregators, less those that are allocated there and have not ended.
Nodes that are gone or drained have none for newcomers, nor has for a while a node whose aggregators fail to start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from penstock_cluster.nodes import Cluster
from penstock_log.aggregation_facts import aggregator_name, node_of
from penstock_scheduler.aggregation.aggregation_table import AggregationTable


class AggregatorRoom(msgspec.Struct, frozen=True):
    """
    What aggregators a pool could run.

    Attributes
    ----------
    most : int
        All that its agents would run, on nodes that are up.
    free : dict of str to int
        Node → how many more may be allocated there now; only where there is one.
    again_s : float
        When a node that holds back may be tried again; infinite where none does.
    """

    most: int
    free: dict[str, int]
    again_s: float = math.inf

    @property
    def total(self) -> int:
        """How many may be allocated now."""
        return sum(self.free.values())


def room_of(table: AggregationTable, cluster: Cluster, pool: str, now_s: float) -> AggregatorRoom:
    """Return what aggregators a pool could run, and which of them are free at a time."""
    most, free, again_s = 0, {}, math.inf
    for node_id, agent in sorted(table.agents.items()):
        node = cluster.nodes.get(node_id)
        if agent.pool != pool or (node is not None and node.gone):
            continue
        most += agent.most
        left = agent.most - table.used(node_id)
        if left <= 0 or (node is not None and not node.usable):
            continue
        if agent.until_s > now_s:
            again_s = min(again_s, agent.until_s)
        else:
            free[node_id] = left
    return AggregatorRoom(most, free, again_s)


def choose(
    table: AggregationTable, room: AggregatorRoom, count: int, near: Iterable[str], shunned: Iterable[str] = ()
) -> tuple[str, ...]:
    """
    Return names for new aggregators: up to ``count``, as many as there is room for.

    Each is on a node of ``near`` where there is one, and on the emptiest of these.

    Parameters
    ----------
    table : AggregationTable
    room : AggregatorRoom
        The room in the run's pool.
    count : int
    near : iterable of str
        Nodes that the run's ranks are on.
    shunned : iterable of str
        Nodes that come last: a rank could not reach an aggregator there.
    """
    left = dict(room.free)
    first, last = frozenset(near), frozenset(shunned)
    numbers = {node_id: table.agents[node_id].next_number for node_id in left}
    names: list[str] = []
    while len(names) < count and left:
        node_id = min(left, key=lambda one: (one in last, one not in first, -left[one], one))
        names.append(aggregator_name(node_id, numbers[node_id]))
        numbers[node_id] += 1
        left[node_id] -= 1
        if not left[node_id]:
            del left[node_id]
    return tuple(names)


def deal(sizes: Mapping[int, int], loads: Mapping[str, int]) -> dict[int, str]:
    """
    Return the aggregator of each part: the one with the fewest bytes so far, the longest part first.

    Parameters
    ----------
    sizes : mapping of int to int
        Part → bytes.
    loads : mapping of str to int
        Aggregator → bytes of the parts that it has already; one at least.

    Examples
    --------
    >>> deal({0: 4, 1: 4, 2: 2}, {"n1/0": 0, "n2/0": 0})
    {0: 'n1/0', 1: 'n2/0', 2: 'n1/0'}
    """
    bytes_at, found = dict(loads), {}
    for part in sorted(sizes, key=lambda one: (-sizes[one], one)):
        name = min(bytes_at, key=lambda one: bytes_at[one])
        found[part] = name
        bytes_at[name] += sizes[part]
    return dict(sorted(found.items()))


def nodes_of(names: Iterable[str]) -> set[str]:
    """Return the nodes of aggregators."""
    return {node_of(name) for name in names}
