"""What a waiting job could do otherwise: whatever is named starts the job in the very next round."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from matcher_facts import GIB, Matcher, device, ended, job, matcher, node, profiled, rounds, run_all, spec, where

from penstock_log import (
    Alternative,
    JobCancelled,
    JobRank,
    JobReleased,
    JobsRanked,
    JobState,
    JobSubmitted,
    KindSpeed,
    NodeJoined,
    WorkloadProfiled,
    workload,
)
from penstock_scheduler.pool.pool_index import PoolIndex
from penstock_scheduler.round import decide_pool
from penstock_scheduler.round_types import RoundRules
from penstock_scheduler.what_if import Alternatives, wait_of
from penstock_testing import Scenario
from sweeps import examples

KINDS = ("fast", "slow", "cpu")
MODELS = ("mlp", "lstm", "")


@st.composite
def nodes(draw: st.DrawFn) -> list[NodeJoined]:
    sizes = st.sampled_from([4 * GIB, 8 * GIB])
    made = []
    for number in range(draw(st.integers(1, 3))):
        kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
        devices = tuple(device(i, kind, draw(sizes)) for i, kind in enumerate(kinds))
        made.append(NodeJoined(node_id=f"n{number}", at_s=0.5, devices=devices))
    return made


@st.composite
def jobs(draw: st.DrawFn) -> list[JobSubmitted]:
    fields = st.fixed_dictionaries(
        {
            "gpus": st.integers(1, 4),
            "kinds": st.lists(st.sampled_from(KINDS), max_size=2, unique=True).map(tuple),
            "memory_bytes": st.sampled_from([0, 0, 6 * GIB, 80 * GIB]),
            "model": st.sampled_from(MODELS),
            "profile": st.sampled_from(["off", "auto", "on"]),
            "duration_s": st.sampled_from([0.0, 5.0, 500.0]),
            "hold": st.sampled_from([False, False, False, True]),
            "user": st.sampled_from(["ann", "bob"]),
        }
    )
    drawn = draw(st.lists(fields, min_size=2, max_size=8))
    return [job(f"j{number}", at_s=1.0 + number / 10, **one) for number, one in enumerate(drawn)]


@st.composite
def profiles(draw: st.DrawFn) -> list[WorkloadProfiled]:
    known = draw(st.lists(st.sampled_from(MODELS), unique=True))
    speeds = st.sampled_from([0.1, 0.4, 1.0])
    return [profiled(spec(model=model), fast=1.0, slow=draw(speeds), cpu=0.1) for model in known]


@settings(max_examples=examples(40), deadline=None)
@given(nodes(), jobs(), profiles(), st.sampled_from([1.0, 0.5]), st.lists(st.integers(0, 7), max_size=3))
def test_every_alternative_that_is_named_starts_the_job(there, asked, known, alpha, done):
    one = matcher(alpha=alpha, max_tries=100).given(*there, *known, *asked)
    placed = run_all(one, 2.0)
    finish(one, [f"j{number}" for number in done if f"j{number}" in placed])
    for fact in rounds(one.at(3.5).facts()):
        after = again(one).given(fact)
        for wait in fact.waits:
            if wait.alternative is not None:
                assert taken(after, wait.job_id, wait.alternative, 3.5) == wait.alternative.kind
    one.settle()
    pool = one.state.pool("default", one.state.jobs, RoundRules().topology)
    looking = Alternatives(pool, 4.0, RoundRules(alpha=alpha), tries=1_000)
    for waiting in [found for found in one.state.jobs if found.state is JobState.PENDING]:
        if (best := looking.best(waiting)) is not None:
            assert taken(one, waiting.id, best, 4.0) == best.kind


@settings(max_examples=examples(40), deadline=None)
@given(nodes(), jobs(), profiles(), st.sampled_from([1.0, 0.5]))
def test_the_cause_of_one_job_is_the_one_that_a_round_gives_among_those_of_all(there, asked, known, alpha):
    one = matcher(alpha=alpha).given(*there, *known, *asked)
    run_all(one, 2.0)
    rules = RoundRules(alpha=alpha, max_waits=10_000, explain_every_s=0.0)
    pool = one.state.pool("default", one.state.jobs, rules.topology)
    unsaid = msgspec.structs.replace(pool, explained={}, explained_s=0.0)
    found, _ = decide_pool(unsaid, 4.0, rules)
    waits = {wait.job_id: wait for wait in found.waits} if found is not None else {}
    for job_id in one.state.jobs.by_id:
        assert wait_of(pool, job_id, 4.0, rules) == waits.get(job_id)


def finish(one: Matcher, job_ids: list[str]) -> None:
    for job_id in job_ids:
        found = one.state.jobs.get(job_id)
        if found is not None and found.placement is not None:
            one.given(*(ended(job_id, 3.0, slot.node_id) for slot in found.placement.slots))


def again(one: Matcher) -> Matcher:
    """Return another matcher with the same log."""
    other = Scenario(one.decider)
    for stored in one.log:
        other.log.append(stored)
        other.fold.apply(stored)
    return other


def taken(one: Matcher, job_id: str, alternative: Alternative, at_s: float) -> str:
    """Take an alternative as a user does; return on what the job starts in the next round, nothing if it does not."""
    if alternative.change.get("hold") is False:
        anew: tuple[Any, ...] = (JobReleased(job_id=job_id, at_s=at_s),)
    else:
        changed = msgspec.structs.replace(one.state.jobs[job_id].spec, **alternative.change)
        job_id, cancelled = "anew", JobCancelled(job_id=job_id, at_s=at_s)
        anew = cancelled, JobSubmitted(job_id="anew", at_s=at_s, spec=changed)
    return where(again(one).given(*anew).at(at_s).facts()).get(job_id, "")


def alternatives(one: Matcher) -> list[Alternative | None]:
    return [wait.alternative for fact in rounds(one.facts()) for wait in fact.waits]


def test_a_slower_kind_is_named_with_its_speed():
    mlp = spec(model="mlp")
    one = matcher().given(node("n1", fast=1, slow=1), profiled(mlp, fast=1.0, slow=0.4))
    one.given(job("a", model="mlp", kinds=("fast",), duration_s=500.0))
    run_all(one, 2.0)
    one.given(job("b", at_s=3.0, model="mlp", kinds=("fast",))).at(3.0)
    assert alternatives(one) == [
        Alternative(
            change={"kinds": ("fast", "slow")},
            kind="slow",
            speed=0.4,
            text="accept kind `slow` too: it starts now, at 0.4x speed",
        )
    ]


def test_a_speed_that_nobody_has_measured_is_said_to_be_predicted():
    mlp = spec(model="mlp")
    guessed = tuple(
        KindSpeed(kind=kind, iteration_s=0.0, speed=speed, predicted=kind == "slow")
        for kind, speed in (("fast", 1.0), ("slow", 0.4))
    )
    one = matcher().given(node("n1", fast=1, slow=1), job("a", model="mlp", kinds=("fast",), duration_s=500.0))
    one.given(WorkloadProfiled(key=workload.key(mlp), at_s=1.0, speeds=guessed))
    run_all(one, 2.0)
    one.given(job("b", at_s=3.0, model="mlp", kinds=("fast",))).at(3.0)
    assert [found.text for found in alternatives(one) if found] == [
        "accept kind `slow` too: it starts now, at a predicted 0.4x speed"
    ]


def test_where_it_would_wait_for_the_faster_kind_the_slower_one_is_named_alone():
    mlp = spec(model="mlp")
    one = matcher().given(node("n1", fast=1, slow=1), profiled(mlp, fast=1.0, slow=0.4))
    one.given(job("a", model="mlp", kinds=("fast",), duration_s=5.0))
    run_all(one, 2.0)
    one.given(job("b", at_s=3.0, model="mlp", kinds=("fast",), duration_s=50.0)).at(3.0)
    assert [found.change for found in alternatives(one) if found] == [{"kinds": ("slow",)}]


def test_the_fastest_of_several_alternatives_is_named():
    mlp = spec(model="mlp")
    one = matcher().given(node("n1", fast=2, slow=3, mid=1), profiled(mlp, fast=1.0, slow=0.3, mid=0.9))
    one.given(job("a", model="mlp", kinds=("fast",)))
    run_all(one, 2.0)
    one.given(job("g", at_s=3.0, model="mlp", kinds=("fast",), gpus=2)).at(3.0)
    found = alternatives(one)[0]  # one fast device makes half of it, three slow ones 0.3
    assert found is not None
    assert found.change == {"gpus": 1}
    assert found.text == "ask for at most 1 device: it starts now on `fast`"


def test_what_would_start_it_in_its_place_is_not_named_where_a_new_submission_comes_behind_others():
    for others, expected in (((), ["ask for at most 1 device: it starts now on `fast`"]), (("small",), [])):
        one = matcher().given(node("n1", fast=2), job("first"))
        run_all(one, 2.0)
        one.given(job("wide", at_s=3.0, gpus=2), *(job(other, at_s=4.0) for other in others))
        names = ("first", "wide", *others)
        ranks = tuple(JobRank(job_id=name, queue=0, position=float(at)) for at, name in enumerate(names))
        one.given(JobsRanked(pool="default", at_s=4.0, ranks=ranks, backfills=False, preempts="never"))
        assert [found.text for found in alternatives(one.at(5.0)) if found] == expected


def test_what_waits_for_its_speeds_may_do_without():
    one = matcher().given(node("n1", fast=1, slow=1), job("a", at_s=2.0, profile="on")).at(2.0)
    found = alternatives(one)[0]
    assert found is not None
    assert found.change in ({"kinds": ("fast",)}, {"kinds": ("slow",)}, {"profile": "off"})


def test_a_held_job_starts_when_it_is_released_where_a_device_is_idle():
    one = matcher().given(node("n1", fast=1), job("a", hold=True)).at(2.0)
    assert [(found.change, found.kind) for found in alternatives(one) if found] == [({"hold": False}, "fast")]
    one.given(job("b"))
    run_all(one, 2.0)
    assert not any(alternatives(one.at(4.0)))


def test_nothing_is_named_where_nothing_is_idle_or_nothing_may_be_tried():
    for most in (8, 0):
        one = matcher(max_tries=most).given(node("n1", fast=1, slow=1), job("a", kinds=("fast",)))
        run_all(one, 2.0)
        one.given(job("b", at_s=3.0, kinds=("fast",)), *([job("c", at_s=2.9, kinds=("slow",))] if most else []))
        assert alternatives(one.at(3.0)) == [None]


def test_trying_leaves_no_trace():
    one = matcher().given(node("n1", fast=1, slow=1), job("a", kinds=("fast",)), job("b", kinds=("fast",)))
    run_all(one, 2.0)
    pool = one.state.pool("default", one.state.jobs, RoundRules().topology)
    before = standing(pool.index)
    assert Alternatives(pool, 3.0, RoundRules()).best(one.state.jobs["b"]) is not None
    assert standing(pool.index) == before


def standing(index: PoolIndex) -> list[Any]:
    groups = {demand: (list(group.keys), list(group.since)) for demand, group in index.groups.items()}
    return [list(index.waiting), list(index.granted), groups, list(index.free), index.held, list(index.fresh)]
