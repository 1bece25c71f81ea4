"""Jobs with an image: they come to nodes that can run it alone, and whoever waits for one is told so."""

from __future__ import annotations

import msgspec
import pytest
from matcher_facts import Matcher, causes, ended, job, matcher, node, rounds, run_all

from penstock_cluster.nodes import HostUsage, Node, asks, runs
from penstock_log import JobRank, JobSpec, JobsRanked, NodeJoined
from penstock_log.spec import runtimes_of


def able(node_id: str, *containers: str, **kinds: int) -> NodeJoined:
    """A node that has these runtimes."""
    return msgspec.structs.replace(node(node_id, **kinds), containers=containers)


def places(one: Matcher) -> dict[str, list[str]]:
    """Job → the nodes where the last round has placed it."""
    found = [placed for fact in rounds(one.settle()) for placed in fact.placements]
    return {placed.job_id: [slot.node_id for slot in placed.slots] for placed in found}


@pytest.mark.parametrize(
    ("image", "containers"),
    [("a/b:1", "docker"), ("a/b:1", "podman"), ("/images/a.sif", "apptainer"), ("/images/a", "bubblewrap")],
)
def test_a_job_goes_to_the_node_that_can_run_its_image(image: str, containers: str) -> None:
    one = matcher().given(able("n1", fast=4), able("n2", containers, fast=4), job("a", image=image)).at(2.0)
    assert places(one) == {"a": ["n2"]}


def test_a_gang_with_an_image_takes_its_devices_of_nodes_that_can_run_it() -> None:
    nodes = able("n1", "docker", fast=2), able("n2", fast=4), able("n3", "podman", fast=2)
    one = matcher().given(*nodes, job("a", image="a/b:1", gpus=4)).at(2.0)
    assert {node_id for ids in places(one).values() for node_id in ids} == {"n1", "n3"}


def test_a_job_that_no_node_can_run_never_fits_and_is_told_what_is_lacking() -> None:
    one = matcher().given(able("n1", "bubblewrap", fast=4), job("a", image="a/b:1")).at(2.0)
    (fact,) = rounds(one.settle())
    (wait,) = fact.waits
    assert wait.cause == "never_fits"
    assert wait.evidence == (
        "its image `a/b:1` needs docker or podman or apptainer; no node of pool `default` with such devices has it"
    )


def test_a_job_waits_for_nodes_that_can_run_its_image_while_others_are_idle() -> None:
    jobs = job("a", image="a/b:1"), job("b", image="a/b:1", at_s=2.0)
    one = matcher().given(able("n1", fast=4), able("n2", "docker", fast=1), *jobs)
    assert run_all(one, 2.0) == {"a": "fast"}
    assert causes(one) == {"b": "image"}
    one.given(ended("a", 5.0, node_id="n2"))
    assert run_all(one, 5.0) == {"b": "fast"}


@pytest.mark.parametrize(("first", "preempted"), [("", ["b"]), ("docker", ["a"])])
def test_what_others_hold_where_the_image_cannot_run_is_not_preempted_for_it(first: str, preempted: list[str]) -> None:
    nodes = able("n1", *filter(None, [first]), fast=1), able("n2", "docker", fast=1)
    one = matcher(min_run_s=1.0).given(*nodes, job("a"), job("b", image="a/b:1", at_s=1.5))
    assert set(run_all(one, 2.0)) == {"a", "b"}
    ranks = tuple(JobRank(job_id=name, queue=0, position=at) for name, at in (("c", 0.0), ("b", 5.0), ("a", 6.0)))
    order = JobsRanked(pool="default", at_s=30.0, ranks=ranks, preempts="position", order="fewest-gpus")
    one.given(job("c", image="a/b:1", at_s=30.0), order).at(30.0)
    assert [each.job_id for fact in rounds(one.settle()) for each in fact.preemptions] == preempted


def test_a_job_without_an_image_asks_for_nothing_of_that_kind() -> None:
    spec = JobSpec(name="a", command=("true",))
    bare = Node(id="n1")
    assert not asks(spec)
    assert runs(spec, bare)
    assert HostUsage([bare]).all_run(spec)
    assert runtimes_of("") == ()


@pytest.mark.parametrize("image", ["-v", "./here", "a b", "a\n", "/a\nb", "a;b", "$(x)", "<script>", "/" + "a" * 600])
def test_what_is_no_image_is_refused(image: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "a", "command": ["true"], "image": image}, JobSpec)


def test_a_node_that_runs_in_an_image_has_what_jobs_of_that_image_need() -> None:
    pod = msgspec.structs.replace(able("n2", fast=4), image="lab/torch:1")
    jobs = job("a", image="lab/torch:1"), job("b", image="lab/torch:2")
    assert places(matcher().given(able("n1", fast=4), pod, *jobs).at(2.0)) == {"a": ["n2"]}
