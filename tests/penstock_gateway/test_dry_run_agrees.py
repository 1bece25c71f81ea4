"""A dry run says what the deciders then do: asked of random clusters, with the job submitted afterwards."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from gateway_cluster import BEGIN_S, Dice, Settings, VirtualCluster, job, node, random_class, random_cluster, random_job

from penstock_gateway.dry_run import dry_run
from penstock_gateway.why import WaitExplainer
from penstock_log import JobSpec
from penstock_log.views import DryRunView
from penstock_ranker.machine import RankerSettings
from penstock_scheduler.pool.pool_settings import MatcherSettings
from sweeps import sampled

pytestmark = pytest.mark.slow

CASES = 30
SEEN_TO_DIFFER = {
    5019: "its samples take what is idle",
    5454: "the same, before a gang",
    23642: "it is not sampled, but another job of its workload is, and now on a second kind",
    21018: "the profiler said nothing of how it scales while its samples were open, and it was sized by that",
    21836: "the ranker and the autoscaler went on for ever",
    5277: "the autoscaler chooses a kind on which it waits",
    21054: "the same, and it waits for those before it",
    21310: "the autoscaler chooses another kind than the matcher would",
    22391: "the same, and a quota keeps it waiting there",
    21934: "an elastic workload that is known is sampled at further sizes",
    22325: "a round stops a run for it, and the next one starts it on what is idle",
    22869: "the same, for its quota",
}
"""Seeds whose dry run, or whose end, was another once: why."""

DECLARED_CASES = 25
RESERVED_CASES = 12
CLASSED_CASES = 12


class Answer(NamedTuple):
    """Whether a job starts, and on what; else why it waits."""

    starts: bool
    kind: str = ""
    devices: tuple[str, ...] = ()
    cause: str = ""


def asked(cluster: VirtualCluster, spec: JobSpec) -> DryRunView:
    return dry_run(cluster.state, spec, cluster.now_s, cluster.settings.matcher)


def promised(view: DryRunView) -> Answer:
    return Answer(view.starts, view.kind, tuple(sorted(view.devices)), view.cause)


def seen(cluster: VirtualCluster, spec: JobSpec, work_s: float, *, sized: bool) -> Answer:
    """Return what the deciders make of a job; of one that they size, not where they put it."""
    one = cluster.submit(spec, work_s)
    if one.placement is None:
        view = WaitExplainer(cluster.state, cluster.now_s, cluster.settings.matcher).explain(one)
        return Answer(starts=False, cause=view.cause)
    if sized:
        return Answer(starts=True)
    nodes = cluster.state.cluster.nodes
    named = [
        f"{slot.node_id}/{nodes[slot.node_id].devices[index].kind}{index}"
        for slot in one.placement.slots
        for index in slot.devices
    ]
    return Answer(starts=True, kind=one.placement.kind, devices=tuple(sorted(named)))


def both(seed: int, *, reserved: bool = False, classed: bool = False) -> tuple[Answer, Answer]:
    """Return what the dry run of a random job on a random cluster says, and what becomes of the job."""
    cluster, rng = random_cluster(seed, reserved=reserved, classed=classed), Dice(seed, stream=1)
    spec, work_s = random_job(rng, "new")
    spec = random_class(rng, spec) if classed else spec
    before = promised(asked(cluster, spec))
    if spec.elastic:
        before = before._replace(kind="", devices=())
    return before, seen(cluster, spec, work_s, sized=spec.elastic)


@pytest.mark.parametrize("seed", [*sampled(range(CASES)), *SEEN_TO_DIFFER])
def test_a_dry_run_says_what_the_deciders_then_do(seed: int) -> None:
    said, became = both(seed)
    assert said == became


@pytest.mark.parametrize("seed", [*sampled(range(100, 100 + RESERVED_CASES)), 148])
def test_a_dry_run_knows_what_is_reserved(seed: int) -> None:
    said, became = both(seed, reserved=True)
    assert said == became


@pytest.mark.parametrize("seed", sampled(range(200, 200 + CLASSED_CASES)))
def test_a_dry_run_knows_priority_classes(seed: int) -> None:
    said, became = both(seed, classed=True)
    assert said == became


def declared_cluster(seed: int) -> tuple[VirtualCluster, JobSpec]:
    """Return a cluster whose jobs are served in order and say truly how long they take, and a job that comes."""
    rng = Dice(seed)
    rules = MatcherSettings(alpha=1.0, patience_s=1e6, explain_every_s=0.0, max_tries=0)
    cluster = VirtualCluster(Settings(RankerSettings(order="fifo"), rules))
    cluster.at(BEGIN_S, *[node(f"n{number}", fast=3 - number) for number in range(1 + rng.below(3))])
    until_s = BEGIN_S + rng.between(1.0, 60.0)
    for number in range(3 + rng.below(11)):
        work_s = rng.between(5.0, 100.0)
        spec = job(f"j{number}", gpus=rng.one([1, 1, 2, 3]), duration_s=work_s)
        cluster.submit_at(rng.between(BEGIN_S + 0.5, until_s), spec, work_s)
    cluster.run_until(until_s)
    return cluster, job("new", gpus=rng.one([1, 1, 2]), duration_s=10.0)


def waited_s(cluster: VirtualCluster, spec: JobSpec) -> float:
    """Submit a job, and let time pass until it has started; return how long that took."""
    at_s = cluster.now_s
    cluster.submit(spec, spec.duration_s)
    cluster.run_until(at_s + 3_000.0)
    return cluster.state.jobs[spec.id].first_started_s - at_s


@pytest.mark.parametrize("seed", sampled(range(DECLARED_CASES)))
def test_where_nobody_overtakes_and_all_say_truly_how_long_they_take_the_estimate_is_exact(seed: int) -> None:
    cluster, spec = declared_cluster(seed)
    view = asked(cluster, spec)
    assert view.start_in_s is not None
    assert waited_s(cluster, spec) == pytest.approx(view.start_in_s, abs=0.1)


def test_a_command_that_cannot_be_sampled_starts_at_once_on_an_idle_cluster() -> None:
    cluster = VirtualCluster()
    cluster.now(node("n0", fast=2, slow=2))
    spec = job(command=("sleep", "1"), profile="on", opaque=True)
    assert asked(cluster, spec).starts
    assert cluster.submit(spec, 1.0).placement is not None


def test_of_an_elastic_job_that_is_sampled_it_says_that_it_waits_for_its_size() -> None:
    cluster = VirtualCluster()
    cluster.now(node("n0", fast=2, slow=2))
    spec = job(profile="on", min_gpus=1, max_gpus=2, batch_size=64)
    assert promised(asked(cluster, spec)) == seen(cluster, spec, 1.0, sized=True) == Answer(False, cause="profiling")


def test_the_place_of_a_new_job_is_that_which_its_order_gives() -> None:
    """By what is left to do: a long job comes behind a shorter one that waits, and has nobody stopped for it."""
    cluster = VirtualCluster(Settings(RankerSettings(order="srtf"), MatcherSettings(min_run_s=0.0)))
    cluster.now(node("n0", fast=1))
    cluster.submit(job("runs", duration_s=50.0), 50.0)
    cluster.run_until(BEGIN_S + 5.0)
    spec = job(duration_s=500.0)
    view = asked(cluster, spec)
    assert (view.cause, view.start_in_s) == ("capacity", pytest.approx(45.0))
    cluster.submit(spec, 500.0)
    assert cluster.state.jobs["runs"].state == "R"
