"""Which devices a job gets."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock_events import Device, JobSpec
from penstock_policies.placement import Free, device_class, slots


def device(index: int, kind: str = "fast", memory_bytes: int = 8) -> Device:
    return Device(index=index, kind=kind, memory_bytes=memory_bytes, backend="emulated")


def job(gpus: int = 1, memory_bytes: int = 0) -> JobSpec:
    return JobSpec(name="a", command=("true",), gpus=gpus, memory_bytes=memory_bytes)


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, list[Device]]:
    kinds = st.lists(st.sampled_from(["fast", "slow"]), max_size=5)
    sizes = st.sampled_from([4, 8])
    return {f"n{i}": [device(j, kind, draw(sizes)) for j, kind in enumerate(draw(kinds))] for i in range(4)}


@given(nodes(), st.integers(1, 8), st.sampled_from([0, 8]))
def test_as_many_as_asked_for_of_one_kind_on_the_fewest_nodes(held, gpus, memory_bytes):
    spec, free = job(gpus, memory_bytes), Free(held)
    chosen = free.choose(spec, "fast", gpus)
    assert len(chosen) == min(gpus, free.count(spec, "fast")) == len({(n, d.index) for n, d in chosen})
    assert all(d.kind == "fast" and d.memory_bytes >= memory_bytes for _, d in chosen)
    if len(chosen) == gpus:
        assert len({node_id for node_id, _ in chosen}) == fewest(held, spec)


def fewest(held: dict[str, list[Device]], spec: JobSpec) -> int:
    counts = [Free({"n": devices}).count(spec, "fast") for devices in held.values()]
    return next(k for k in range(1, 5) if any(sum(c) >= spec.gpus for c in itertools.combinations(counts, k)))


@given(nodes(), st.integers(1, 6))
def test_what_is_taken_is_gone_and_what_is_given_back_is_there(held, gpus):
    free, before = Free(held), Free(held)
    chosen = free.choose(job(), "slow", gpus)
    free.take(chosen)
    assert len(free) == len(before) - len(chosen)
    assert not set(free) & set(chosen)
    assert free.kinds(job()) == Free(free.by_node()).kinds(job())
    free.give(chosen)
    assert sorted(map(str, free)) == sorted(map(str, before))
    assert free.kinds(job()) == before.kinds(job())


def test_a_single_goes_where_it_breaks_the_least():
    free = Free({"n1": [device(i) for i in range(4)], "n2": [device(0)]})
    assert [n for n, _ in free.choose(job(), "fast", 1)] == ["n2"]
    assert [n for n, _ in free.choose_like(device_class(device(0)))] == ["n2"]


def test_the_smallest_memory_that_will_do_goes_first():
    free = Free({"n1": [device(0, memory_bytes=24), device(1, memory_bytes=8)]})
    assert [d.index for _, d in free.choose(job(), "fast", 1)] == [1]
    assert [d.index for _, d in free.choose(job(memory_bytes=16), "fast", 1)] == [0]


def test_slots_name_nodes_and_devices_in_order():
    found = slots([("n2", device(1)), ("n1", device(3)), ("n2", device(0))])
    assert [(slot.node_id, slot.devices) for slot in found] == [("n1", (3,)), ("n2", (0, 1))]
