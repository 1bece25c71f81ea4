"""The fold of nodes, and whose devices are free."""

from __future__ import annotations

import msgspec
import pytest

from penstock_cluster.nodes import Cluster, Node, fits
from penstock_log import (
    Device,
    DeviceDrained,
    DeviceFailed,
    DeviceRecovered,
    DeviceResumed,
    Job,
    JobSpec,
    NodeDrained,
    NodeJoined,
    NodeLeaving,
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
    own = {"id", "joined_s", "drained", "evicting", "drain_reason", "outages", "leaving", "gone", "gone_s"}
    assert set(Node.__struct_fields__) - set(NodeJoined.__struct_fields__) == own


def test_a_gang_keeps_only_the_nodes_on_which_it_still_runs(cluster):
    cluster.apply(joined("n2"))
    gang = grant(Slot(node_id="n1", devices=(0, 1)), Slot(node_id="n2", devices=(0,)), open_nodes={"n2"})
    assert free(cluster, gang) == {"n1": [0, 1], "n2": [1]}


@pytest.mark.parametrize(
    ("fact", "present", "usable"),
    [
        (NodeDrained(node_id="n1", at_s=2.0), True, False),
        (NodeLeaving(node_id="n1", at_s=2.0), True, False),
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


def test_joining_again_ends_leaving_and_resuming_does_not(cluster):
    cluster.apply(NodeLeaving(node_id="n1", at_s=2.0))
    cluster.apply(NodeResumed(node_id="n1", at_s=3.0))
    assert not cluster.nodes["n1"].usable
    assert [node.id for node in cluster.away()] == ["n1"]
    cluster.apply(joined(at_s=4.0))
    assert cluster.nodes["n1"].usable
    assert not [*cluster.away()]


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


def outage_of(cluster, index=0, node_id="n1"):
    return cluster.nodes[node_id].outage(index)


def failed(index=0, **fields):
    return DeviceFailed(node_id="n1", at_s=2.0, index=index, code="xid 79", reason="XID 79: off the bus", **fields)


def test_a_failed_device_is_not_free_and_the_others_of_its_node_are(cluster):
    assert cluster.apply(failed())
    assert free(cluster) == {"n1": [1]}
    assert outage_of(cluster).state == "failed"
    assert outage_of(cluster).evicting
    assert cluster.apply(DeviceRecovered(node_id="n1", at_s=3.0, index=0))
    assert free(cluster) == {"n1": [0, 1]}


def test_a_device_that_was_drained_stays_so_when_it_recovers_and_when_its_executor_starts_again(cluster):
    cluster.apply(DeviceDrained(node_id="n1", at_s=2.0, index=1, reason="a fan is loud"))
    cluster.apply(failed(1))
    cluster.apply(DeviceRecovered(node_id="n1", at_s=3.0, index=1))
    cluster.apply(joined(at_s=4.0))
    assert (outage_of(cluster, 1).state, outage_of(cluster, 1).reason) == ("drained", "a fan is loud")
    assert not outage_of(cluster, 1).evicting
    cluster.apply(DeviceResumed(node_id="n1", at_s=5.0, index=1))
    assert free(cluster) == {"n1": [0, 1]}


def test_an_outage_follows_the_device_where_others_have_its_number_after_a_restart():
    cluster = Cluster()
    gpus = [msgspec.structs.replace(device(i, "fast"), uuid=f"GPU-{i}") for i in range(3)]
    cluster.apply(NodeJoined(at_s=1.0, node_id="n1", devices=tuple(gpus)))
    cluster.apply(failed(1))
    renumbered = [gpus[0], msgspec.structs.replace(gpus[2], index=1)]
    cluster.apply(NodeJoined(at_s=3.0, node_id="n1", devices=tuple(renumbered)))
    assert free(cluster) == {"n1": [0, 1]}
    cluster.apply(NodeJoined(at_s=4.0, node_id="n1", devices=tuple(gpus)))
    assert free(cluster) == {"n1": [0, 2]}


def test_facts_about_unknown_devices_change_nothing(cluster):
    assert not cluster.apply(failed(9))
    assert not cluster.apply(DeviceResumed(node_id="n1", at_s=2.0, index=0))
    assert not cluster.apply(DeviceDrained(node_id="n9", at_s=2.0, index=0))
    assert not cluster.nodes["n1"].outages


def test_a_node_that_is_resumed_keeps_its_failed_devices(cluster):
    cluster.apply(NodeDrained(node_id="n1", at_s=2.0))
    cluster.apply(failed())
    cluster.apply(NodeResumed(node_id="n1", at_s=3.0))
    assert free(cluster) == {"n1": [1]}
