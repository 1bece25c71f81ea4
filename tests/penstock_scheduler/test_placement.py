"""Which devices a job gets."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock_log import Device, JobSpec
from penstock_scheduler.placement import FreeDevices, device_class, slots


def device(index: int, kind: str = "fast", memory_bytes: int = 8) -> Device:
    return Device(index=index, kind=kind, memory_bytes=memory_bytes, backend="emulated")


def job(gpus: int = 1, memory_bytes: int = 0, skew: float = 0.0) -> JobSpec:
    return JobSpec(name="a", command=("true",), gpus=gpus, memory_bytes=memory_bytes, skew=skew)


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, list[Device]]:
    kinds = st.lists(st.sampled_from(["fast", "slow"]), max_size=5)
    sizes = st.sampled_from([4, 8])
    return {f"n{i}": [device(j, kind, draw(sizes)) for j, kind in enumerate(draw(kinds))] for i in range(4)}


@given(nodes(), st.integers(1, 8), st.sampled_from([0, 8]), st.sampled_from([0.0, 0.7]))
def test_as_many_as_asked_for_of_one_kind_and_none_twice(held, gpus, memory_bytes, skew):
    spec, free = job(gpus, memory_bytes, skew), FreeDevices(held)
    chosen = free.choose(spec, "fast", gpus)
    assert len(chosen) == min(gpus, free.count(spec, "fast")) == len({(n, d.index) for n, d in chosen})
    assert all(d.kind == "fast" and d.memory_bytes >= memory_bytes for _, d in chosen)


@given(nodes(), st.integers(1, 8), st.sampled_from([0, 8]))
def test_a_skewed_model_gets_the_fewest_nodes_and_any_model_one_if_one_will_do(held, gpus, memory_bytes):
    for skew in (0.7, 0.0):
        spec, free = job(gpus, memory_bytes, skew), FreeDevices(held)
        least, chosen = fewest(held, spec), free.choose(spec, "fast", gpus)
        if least and (skew or least == 1):
            assert len({node_id for node_id, _ in chosen}) == least


def fewest(held: dict[str, list[Device]], spec: JobSpec) -> int:
    counts = [FreeDevices({"n": devices}).count(spec, "fast") for devices in held.values()]
    return next((k for k in range(1, 5) if any(sum(c) >= spec.gpus for c in itertools.combinations(counts, k))), 0)


@given(nodes(), st.integers(1, 6))
def test_what_is_taken_is_gone_and_what_is_given_back_is_there(held, gpus):
    free, before = FreeDevices(held), FreeDevices(held)
    chosen = free.choose(job(), "slow", gpus)
    free.take(chosen)
    assert len(free) == len(before) - len(chosen)
    assert not set(free) & set(chosen)
    assert free.kinds(job()) == FreeDevices(free.by_node()).kinds(job())
    free.give(chosen)
    assert sorted(map(str, free)) == sorted(map(str, before))
    assert free.kinds(job()) == before.kinds(job())


wanted = st.tuples(st.integers(1, 6), st.sampled_from(["fast", "slow"]), st.sampled_from([0, 8]), st.booleans())


@given(nodes(), st.lists(st.tuples(wanted, st.booleans()), max_size=12), wanted)
def test_after_any_number_of_changes_it_chooses_as_one_that_is_made_anew(held, changes, then):
    racks = {f"n{i}": (f"z{i // 3}", f"r{i % 2}") for i in range(4)}
    free, taken = FreeDevices(held, racks), []
    for (gpus, kind, memory_bytes, together), gives_back in changes:
        if gives_back and taken:
            free.give(taken.pop())
        else:
            taken.append(free.choose(job(gpus, memory_bytes), kind, gpus, together=together))
            free.take(taken[-1])
    gpus, kind, memory_bytes, together = then
    anew = FreeDevices(free.by_node(), racks)
    found, expected = (one.choose(job(gpus, memory_bytes), kind, gpus, together=together) for one in (free, anew))
    assert found == expected
    assert free.classes() == anew.classes()
    for like in anew.classes():
        assert free.choose_like(like) == anew.choose_like(like)


def test_a_single_goes_where_it_breaks_the_least():
    free = FreeDevices({"n1": [device(i) for i in range(4)], "n2": [device(0)]})
    assert [n for n, _ in free.choose(job(), "fast", 1)] == ["n2"]
    assert [n for n, _ in free.choose_like(device_class(device(0)))] == ["n2"]


def test_of_equal_nodes_the_one_where_a_job_begins_sooner_is_taken_and_no_worse_one():
    free = FreeDevices({"n1": [device(0)], "n2": [device(0)], "n3": [device(0), device(1)]})
    assert [n for n, _ in free.choose(job(), "fast", 1, near="n2")] == ["n2"]
    assert [n for n, _ in free.choose_like(device_class(device(0)), near="n2")] == ["n2"]
    for elsewhere in ("n3", "n9", ""):
        assert [n for n, _ in free.choose(job(), "fast", 1, near=elsewhere)] == ["n1"]
        assert [n for n, _ in free.choose_like(device_class(device(0)), near=elsewhere)] == ["n1"]


def test_a_gang_of_no_skew_fills_the_holes_and_leaves_whole_nodes_whole():
    free = FreeDevices({f"n{size}": [device(i) for i in range(size)] for size in (1, 2, 3, 4)})
    assert used(free.choose(job(gpus=6), "fast", 6)) == {"n1": 1, "n2": 2, "n3": 3}
    assert used(free.choose(job(gpus=6, skew=0.7), "fast", 6)) == {"n4": 4, "n2": 2}
    assert used(free.choose(job(gpus=6), "fast", 6, together=True)) == {"n4": 4, "n2": 2}


def test_a_node_in_the_rack_with_the_least_room_is_taken_first():
    racks = {"n1": ("r1",), "n2": ("r1",), "n3": ("r2",)}
    free = FreeDevices({name: [device(0), device(1)] for name in racks}, racks)
    assert [n for n, _ in free.choose_like(device_class(device(0)))] == ["n3"]
    assert used(free.choose(job(gpus=2), "fast", 2)) == {"n3": 2}
    free.take(free.choose(job(gpus=2), "fast", 2))
    free.take([("n1", device(0)), ("n1", device(1))])
    free.give([("n3", device(0)), ("n3", device(1))])
    assert used(free.choose(job(gpus=2), "fast", 2)) == {"n2": 2}


def used(chosen: list[tuple[str, Device]]) -> dict[str, int]:
    return dict(Counter(node_id for node_id, _ in chosen))


def test_the_smallest_memory_that_will_do_goes_first():
    free = FreeDevices({"n1": [device(0, memory_bytes=24), device(1, memory_bytes=8)]})
    assert [d.index for _, d in free.choose(job(), "fast", 1)] == [1]
    assert [d.index for _, d in free.choose(job(memory_bytes=16), "fast", 1)] == [0]


def test_slots_name_nodes_and_devices_in_order():
    found = slots([("n2", device(1)), ("n1", device(3)), ("n2", device(0))])
    assert [(slot.node_id, slot.devices) for slot in found] == [("n1", (3,)), ("n2", (0, 1))]


@given(nodes(), st.integers(1, 8))
def test_first_fit_takes_the_first_node_that_has_enough_and_else_the_first_that_have(held, gpus):
    free = FreeDevices(held)
    rooms = {node_id: sum(d.kind == "fast" for d in devices) for node_id, devices in sorted(held.items())}
    chosen = [node_id for node_id, _ in free.choose(job(gpus), "fast", gpus, first_fit=True)]
    enough = [node_id for node_id, room in rooms.items() if room >= gpus]
    in_order = [node_id for node_id, room in rooms.items() for _ in range(room)]
    assert chosen == ([enough[0]] * gpus if enough else in_order[:gpus])


def test_first_fit_of_one_device_breaks_up_what_best_fit_leaves_whole():
    free = FreeDevices({"n1": [device(0), device(1)], "n2": [device(0)]})
    (like,) = free.classes()
    assert [node for node, _ in free.choose_like(like)] == ["n2"]
    assert [node for node, _ in free.choose_like(like, first_fit=True)] == ["n1"]
