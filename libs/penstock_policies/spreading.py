"""
Which nodes a gang is spread over where no single node has enough: few and near each other, or the holes.

``rooms`` is how many devices each node has for the gang; ``paths`` is where a node stands, outermost domain first, such
as ``("zone-1", "rack-7")``. Nodes without a path stand anywhere. All paths are of one length.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

Path = tuple[str, ...]
"""The domains a node stands in, outermost first."""

Rooms = Mapping[str, int]
"""Node → how many devices it has."""


def fewest(rooms: Rooms, count: int, paths: Mapping[str, Path]) -> list[str]:
    """
    Return the fewest nodes that have ``count`` devices, fullest first; all nodes if all have fewer.

    Among as few nodes, one innermost domain if one will do, the one with the least left over; else one of the next
    level, and so on outwards. Within a domain that is wider than need be, or where none holds the gang, as few of the
    next inner domains as a greedy choice finds. The last node is the one where the rest fits best.

    Notes
    -----
    O(N log N) in N nodes, and for R domains that are combined O(R² k log k) for k nodes. The number of nodes is the
    least; the number of domains is the least where one is enough, and not proved where several are.

    Examples
    --------
    >>> fewest({"a": 4, "b": 4, "c": 2, "d": 3}, 6, {})
    ['a', 'c']
    >>> fewest({"a": 4, "b": 4, "c": 4}, 8, {"a": ("r1",), "b": ("r2",), "c": ("r2",)})
    ['b', 'c']
    """
    most = _least_number(rooms, count)

    def enough(nodes: Iterable[str]) -> bool:
        return _most_of(most, (rooms[node] for node in nodes)) >= count

    near, depth = _near(rooms, paths, enough)
    for level in range(depth + 1, _depth(paths) + 1):
        near = _few_domains(near, level, most, count, paths)
    return _fill(near, count)


def holes(rooms: Rooms, count: int, paths: Mapping[str, Path]) -> list[str]:
    """
    Return nodes that have ``count`` devices, those with the fewest first, so that what is whole stays whole.

    What the last one made superfluous is left out, the largest first. They stand in one innermost domain if one has
    enough, the one with the least left over; else in one of the next level, and so on outwards. In a wider domain, the
    inner domains with the fewest devices go first.

    Examples
    --------
    >>> holes({"a": 4, "b": 1, "c": 2}, 5, {})
    ['b', 'a']
    """
    near, _ = _near(rooms, paths, lambda nodes: sum(rooms[node] for node in nodes) >= count)
    totals: defaultdict[Path, int] = defaultdict(int)
    for node, room in near.items():
        for level in range(1, len(paths.get(node, ())) + 1):
            totals[paths[node][:level]] += room
    order = sorted(near, key=lambda node: (_sizes(paths.get(node, ()), totals), near[node], node))
    return _needed(order[: _least_index([near[node] for node in order], count)], near, count)


def _near(rooms: Rooms, paths: Mapping[str, Path], enough: Callable[[Iterable[str]], bool]) -> tuple[Rooms, int]:
    """Return the nodes of the innermost domain that is enough, the one with the least left over, and its level."""
    for level in range(_depth(paths), 0, -1):
        groups = [nodes for nodes in _groups(rooms, level, paths) if enough(nodes)]
        if groups:
            return min(groups, key=lambda nodes: (sum(nodes.values()), min(nodes))), level
    return rooms, 0


def _few_domains(rooms: Rooms, level: int, most: int, count: int, paths: Mapping[str, Path]) -> Rooms:
    """Add domains, each time the one that helps most, until ``most`` nodes of them have ``count`` devices."""
    groups, chosen = _groups(rooms, level, paths), {}
    tops = [sorted(group.values(), reverse=True)[:most] for group in groups]
    have: list[int] = []
    while sum(have) < count and groups:
        found = [_most_of(most, (*have, *top)) for top in tops]
        best = found.index(max(found))
        have = sorted((*have, *tops.pop(best)), reverse=True)[:most]
        chosen.update(groups.pop(best))
    return chosen


def _fill(rooms: Rooms, count: int) -> list[str]:
    """Return the fullest nodes, and last the one where the rest fits best."""
    left = sorted(rooms, key=lambda node: (-rooms[node], node))
    chosen: list[str] = []
    while left and count > 0:
        fitting = [node for node in left if rooms[node] >= count]
        node = min(fitting, key=lambda node: (rooms[node], node)) if fitting else left[0]
        left.remove(node)
        chosen.append(node)
        count -= rooms[node]
    return chosen


def _needed(nodes: Sequence[str], rooms: Rooms, count: int) -> list[str]:
    needed, over = list(nodes), sum(rooms[node] for node in nodes) - count
    for node in sorted(nodes, key=lambda node: -rooms[node]):
        if rooms[node] <= over:
            needed.remove(node)
            over -= rooms[node]
    return needed


def _groups(rooms: Rooms, level: int, paths: Mapping[str, Path]) -> list[dict[str, int]]:
    groups: defaultdict[Path, dict[str, int]] = defaultdict(dict)
    for node, room in rooms.items():
        groups[paths[node][:level] if node in paths else (node,)][node] = room
    return [groups[path] for path in sorted(groups)]


def _sizes(path: Path, totals: Mapping[Path, int]) -> Sequence[tuple[int, Path]]:
    return [(totals[path[:level]], path[:level]) for level in range(1, len(path) + 1)]


def _least_number(rooms: Rooms, count: int) -> int:
    return _least_index(sorted(rooms.values(), reverse=True), count)


def _least_index(sizes: Sequence[int], count: int) -> int:
    """Return how many of the sizes, from the first on, make up a count; all of them if they do not."""
    return next((i for i, total in enumerate(accumulate(sizes), start=1) if total >= count), len(sizes))


def _most_of(number: int, sizes: Iterable[int]) -> int:
    return sum(sorted(sizes, reverse=True)[:number])


def _depth(paths: Mapping[str, Path]) -> int:
    return max(map(len, paths.values()), default=0)
