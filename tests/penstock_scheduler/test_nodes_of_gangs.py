"""Devices for jobs that take several of a node at a time, or that ask for or against nodes."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock_cluster.nodes import HostUsage, Node
from penstock_log import Device, JobSpec, SweepSpec, validation
from penstock_log.spec import Uniform
from penstock_scheduler.placement import FreeDevices

_NODES = {"a": 3, "b": 4, "c": 2}


def free(*, with_hosts: bool, **nodes: int) -> FreeDevices:
    held = {
        name: [Device(index=i, kind="fast", memory_bytes=8, backend="emulated") for i in range(count)]
        for name, count in nodes.items()
    }
    hosts = [Node(id=name, devices=tuple(some)) for name, some in held.items()] if with_hosts else None
    return FreeDevices(held, hosts=hosts)


def job(gpus: int, each: int = 0, *, nodes: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> JobSpec:
    return JobSpec(name="a", command=("true",), gpus=gpus, gpus_per_node=each, nodes=nodes, exclude=exclude)


@pytest.mark.parametrize("with_hosts", [True, False])
@pytest.mark.parametrize(
    ("spec", "count", "chosen"),
    [
        (job(4, 4), 4, {"b": 4}),
        (job(4, 2), 8, {"b": 4}),
        (job(6, 2), 8, {"b": 4, "c": 2}),
        (job(3, 3), 6, {"a": 3}),
        (job(5, 5), 0, {}),
        (job(2, nodes=("c",)), 2, {"c": 2}),
        (job(4, 2, exclude=("b",)), 4, {"a": 2, "c": 2}),
        (job(4, exclude=("b", "c")), 3, {}),
    ],
)
def test_devices_of_a_node_are_given_in_whole_parts(
    spec: JobSpec, count: int, chosen: dict[str, int], *, with_hosts: bool
) -> None:
    devices = free(with_hosts=with_hosts, **_NODES)
    assert devices.count(spec, "fast") == devices.kinds(spec).get("fast", 0) == count
    if count >= spec.gpus:
        found = Counter(node_id for node_id, _ in devices.choose(spec, "fast", spec.gpus))
        assert found.total() == spec.gpus
        assert all(number % max(1, spec.gpus_per_node) == 0 for number in found.values())
        assert all(spec.may_be_on(node_id) for node_id in found)
        assert len(found) == len(chosen)


def test_a_gang_that_waits_has_the_free_devices_of_the_nodes_kept_on_which_it_could_be() -> None:
    whole = free(with_hosts=True, a=4, b=4, c=2)
    left = free(with_hosts=True, a=3, b=1, c=2)
    kept = Counter(node_id for node_id, _ in left.roomiest(job(4, 4), whole))
    assert kept == {"a": 3}
    assert Counter(node_id for node_id, _ in left.roomiest(job(8, 4), whole)) == {"a": 3, "b": 1}


def test_any_devices_do_for_a_job_that_takes_them_as_they_come() -> None:
    nodes = [Node(id="a", devices=())]
    assert not HostUsage(nodes).all_run(job(4, 2))
    assert HostUsage(nodes).all_run(job(4))


_REFUSED = pytest.mark.parametrize(
    ("spec", "why"),
    [
        (job(4, 3), "4 devices are no whole multiple of 3"),
        (job(2, nodes=("a", "b"), exclude=("b",)), "b is one of its nodes"),
        (
            JobSpec(name="a", command=("true",), gpus=1, min_gpus=1, max_gpus=4, batch_size=8, gpus_per_node=1),
            "elastic",
        ),
    ],
)


@_REFUSED
def test_what_cannot_be_meant_so_is_refused_of_a_sweeps_job_too(spec: JobSpec, why: str) -> None:
    space = {"lr": Uniform(low=0.1, high=1.0)}
    sweep = SweepSpec(name="s", metric="loss", trials=2, space=space, job=spec)
    with pytest.raises(validation.BadInput, match=r"\$\.job\..*" + ("gpus" if why == "elastic" else why)):
        validation.check(sweep)


@_REFUSED
def test_what_cannot_be_meant_so_is_refused(spec: JobSpec, why: str) -> None:
    with pytest.raises(validation.BadInput, match=why):
        validation.check(spec)
