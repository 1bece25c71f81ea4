"""The fold of nodes, and whose devices are free."""

from __future__ import annotations

import pytest

from penstock_cluster.nodes import Cluster, Node, fits
from penstock_log import (
    Device,
    Job,
    JobSpec,
    NodeDrained,
    NodeJoined,
    NodeLeft,
    NodeResumed,
    Placement,
    RoundDecided,
    Slot,
)


def device(index: int, kind: str = "fast", memory_bytes: int = 8) -> Device:
    return Device(index=index, kind=kind, memory_bytes=memory_bytes, backend="cpu" if kind == "cpu" else "emulated")


def joined(node_id: str = "n1", at_s: float = 1.0, pool: str = "default", count: int = 2) -> NodeJoined:
    return NodeJoined(node_id=node_id, at_s=at_s, pool=pool, devices=tuple(device(i) for i in range(count)))


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.apply(joined())
    return cluster


def grant(*slots: Slot, open_nodes: set[str]) -> Job:
    placement = Placement(job_id="j1", epoch=1, kind="fast", slots=slots)
    spec = JobSpec(name="a", command=("true",))
    return Job(id="j1", spec=spec, submitted_s=0.0, placement=placement, open_nodes=open_nodes)


def free(cluster: Cluster, *jobs: Job) -> dict[str, list[int]]:
    return {node_id: [d.index for d in devices] for node_id, devices in cluster.free(jobs).items()}


def test_a_device_is_taken_while_the_lease_is_open_on_its_node(cluster):
    assert free(cluster) == {"n1": [0, 1]}
    assert free(cluster, grant(Slot(node_id="n1", devices=(1,)), open_nodes={"n1"})) == {"n1": [0]}
    assert free(cluster, grant(Slot(node_id="n1", devices=(1,)), open_nodes=set())) == {"n1": [0, 1]}


def test_no_field_of_a_node_keeps_its_default_because_the_fact_has_another_name() -> None:
    own = {"id", "joined_s", "drained", "evicting", "gone", "gone_s"}
    assert set(Node.__struct_fields__) - set(NodeJoined.__struct_fields__) == own


def test_a_gang_keeps_only_the_nodes_on_which_it_still_runs(cluster):
    cluster.apply(joined("n2"))
    gang = grant(Slot(node_id="n1", devices=(0, 1)), Slot(node_id="n2", devices=(0,)), open_nodes={"n2"})
    assert free(cluster, gang) == {"n1": [0, 1], "n2": [1]}


@pytest.mark.parametrize(
    ("fact", "present", "usable"),
    [
        (NodeDrained(node_id="n1", at_s=2.0), True, False),
        (NodeLeft(node_id="n1", at_s=2.0), False, False),
        (RoundDecided(pool="default", at_s=2.0, lost_nodes=("n1",)), False, False),
        (RoundDecided(pool="default", at_s=2.0), True, True),
        (NodeResumed(node_id="n1", at_s=2.0), True, True),
    ],
)
def test_what_a_fact_does_to_a_node(cluster, fact, present, usable):
    cluster.apply(fact)
    assert bool(list(cluster.present())) == present
    assert bool(list(cluster.usable("default"))) == usable


def test_facts_about_unknown_nodes_change_nothing(cluster):
    assert not cluster.apply(NodeDrained(node_id="n9", at_s=2.0))
    assert not cluster.apply(RoundDecided(pool="default", at_s=2.0, lost_nodes=("n9",)))
    assert list(cluster.nodes) == ["n1"]


def test_all_lost_nodes_of_a_round_are_gone(cluster):
    cluster.apply(joined("n2"))
    assert cluster.apply(RoundDecided(pool="default", at_s=2.0, lost_nodes=("n1", "n2")))
    assert list(cluster.present()) == []


def test_joining_again_ends_being_lost_but_not_being_drained(cluster):
    cluster.apply(NodeDrained(node_id="n1", at_s=2.0, preempt=True))
    cluster.apply(RoundDecided(pool="default", at_s=3.0, lost_nodes=("n1",)))
    cluster.apply(joined(at_s=4.0))
    node = cluster.nodes["n1"]
    assert (node.present, node.usable, node.evicting, node.joined_s) == (True, False, True, 4.0)


def test_pools_are_apart(cluster):
    cluster.apply(joined("n2", pool="lab"))
    assert list(cluster.free([], "lab")) == ["n2"]
    assert cluster.pools() == {"default", "lab"}


@pytest.mark.parametrize(
    ("fields", "kind", "fitting"),
    [
        ({}, "fast", True),
        ({}, "cpu", False),
        ({"kinds": ("cpu",)}, "cpu", True),
        ({"kinds": ("slow",)}, "fast", False),
        ({"memory_bytes": 8}, "fast", True),
        ({"memory_bytes": 9}, "fast", False),
    ],
)
def test_what_fits(fields, kind, fitting):
    assert fits(JobSpec(name="a", command=("true",), **fields), device(0, kind)) is fitting
