"""Which nodes, racks and zones a gang is spread over."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock_cluster.nodes import Cluster, fewest, holes
from penstock_log import NodeJoined

rooms_strategy = st.dictionaries(st.sampled_from([f"n{i}" for i in range(7)]), st.integers(1, 5), min_size=1)
racks = st.lists(st.sampled_from([("z1", "r1"), ("z1", "r2"), ("z2", "r1")]), min_size=7, max_size=7)


def least(rooms: dict[str, int], count: int) -> int:
    """Return the least number of nodes, by trying all sets."""
    sets = (nodes for k in range(1, len(rooms) + 1) for nodes in itertools.combinations(rooms, k))
    return next((len(nodes) for nodes in sets if sum(rooms[n] for n in nodes) >= count), len(rooms))


def domains(nodes: list[str], paths: dict[str, tuple[str, ...]], level: int) -> set[tuple[str, ...]]:
    return {paths[node][:level] for node in nodes}


@given(rooms_strategy, racks, st.integers(1, 20))
def test_never_more_nodes_than_any_other_choice_needs(rooms, where, count):
    paths = {f"n{i}": path for i, path in enumerate(where)}
    chosen = fewest(rooms, count, paths)
    assert len(chosen) == len(set(chosen)) == least(rooms, count)
    assert sum(rooms[n] for n in chosen) >= min(count, sum(rooms.values()))


@given(rooms_strategy, racks, st.integers(1, 20))
def test_one_rack_or_else_one_zone_where_so_few_nodes_of_one_will_do(rooms, where, count):
    paths = {f"n{i}": path for i, path in enumerate(where)}
    chosen, most = fewest(rooms, count, paths), least(rooms, count)
    for level in (2, 1):
        groups = [[n for n in rooms if paths[n][:level] == path] for path in domains(list(rooms), paths, level)]
        best = (sorted((rooms[n] for n in group), reverse=True)[:most] for group in groups)
        if any(sum(sizes) >= count for sizes in best):
            assert len(domains(chosen, paths, level)) == 1


@given(rooms_strategy, racks, st.integers(1, 20))
def test_holes_suffice_and_none_of_them_is_superfluous(rooms, where, count):
    paths = {f"n{i}": path for i, path in enumerate(where)}
    for at in (paths, {}):
        chosen = holes(rooms, count, at)
        total = sum(rooms[n] for n in chosen)
        assert len(chosen) == len(set(chosen))
        assert total >= min(count, sum(rooms.values()))
        assert total < count or all(total - rooms[n] < count for n in chosen)


def test_few_racks_where_no_single_one_is_enough():
    rooms = {"a1": 4, "b1": 4, "b2": 4, "c1": 4, "c2": 4}
    paths = {name: (name[0],) for name in rooms}
    assert {name[0] for name in fewest(rooms, 16, paths)} == {"b", "c"}


def test_the_rack_with_the_least_left_over_is_taken():
    rooms = {"a1": 4, "a2": 4, "a3": 4, "b1": 4, "b2": 4}
    paths = {name: (name[0],) for name in rooms}
    assert fewest(rooms, 8, paths) == ["b1", "b2"]
    assert holes(rooms, 8, paths) == ["b1", "b2"]


def test_labels_say_where_nodes_stand():
    cluster = Cluster()
    for name, labels in (("n1", {"topology.zone": "z", "topology.rack": "r"}), ("n2", {"topology.zone": "z"})):
        cluster.apply(NodeJoined(at_s=0.0, node_id=name, devices=(), labels=labels))
    assert cluster.paths(("zone", "rack")) == {"n1": ("z", "r"), "n2": ("z", "node n2")}
    assert cluster.paths(("rack",)) == {"n1": ("r",), "n2": ("node n2",)}
    assert cluster.paths(("row",)) == cluster.paths(()) == {}
