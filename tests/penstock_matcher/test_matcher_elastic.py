"""New elastic jobs wait for their first size, but not for ever."""

from __future__ import annotations

from matcher_facts import causes, ended, job, matcher, node, queued, rounds, run_all, started, where

from penstock_log import Demand, JobSubmitted, ScaleDecided


def elastic(job_id: str) -> JobSubmitted:
    return job(job_id, min_gpus=1, max_gpus=4, batch_size=64)


def sized(job_id: str, gpus: int, at_s: float = 2.0) -> ScaleDecided:
    return ScaleDecided(at_s=at_s, pool="default", demands=(Demand(job_id=job_id, epoch=0, gpus=gpus),))


def test_a_new_elastic_job_is_not_placed_before_it_is_sized() -> None:
    it = matcher(await_profile_s=10.0).given(node("n1", fast=4), elastic("a"))
    assert not where(it.at(1.0).settle())
    assert causes(it) == {"a": "profiling"}
    it.then_wakes_at(11.0)
    assert where(it.at(2.0).when(sized("a", 3)).settle()) == {"a": "fast"}
    assert len(it.state.jobs["a"].placement.slots[0].devices) == 3


def test_without_anybody_to_size_it_an_elastic_job_starts_at_its_smallest_width() -> None:
    it = matcher(await_profile_s=10.0).given(node("n1", fast=4), elastic("a"))
    it.at(1.0).settle()
    assert where(it.at(11.0).settle()) == {"a": "fast"}
    assert it.state.jobs["a"].spec.gpus == 1


def test_an_elastic_job_that_has_run_waits_for_no_size() -> None:
    it = matcher(await_profile_s=10.0).given(node("n1", fast=4), elastic("a"), sized("a", 2))
    (placed,) = [p for fact in rounds(it.at(2.0).settle()) for p in fact.placements]
    it.given(*started(placed, 2.0), ended("a", 3.0, epoch=2, outcome="preempted"))
    assert where(it.at(3.0).settle()) == {"a": "fast"}


def test_others_pass_an_elastic_job_that_waits_for_its_size() -> None:
    it = matcher().given(node("n1", fast=1), elastic("a"), job("b", at_s=1.5))
    assert where(it.at(2.0).settle()) == {"b": "fast"}


def test_a_job_that_has_stopped_to_grow_goes_on_before_those_that_wait() -> None:
    it = matcher(await_profile_s=0.0, min_run_s=0.0).given(node("n1", fast=2), elastic("a"))
    run_all(it, 1.5)
    it.given(job("b", at_s=2.0, gpus=2), queued(2.0, b=0, a=0)).at(2.0).settle()
    wider = Demand(job_id="a", epoch=1, gpus=2)
    it.given(ScaleDecided(at_s=3.0, pool="default", demands=(wider,))).at(3.0).settle()
    it.given(ended("a", 4.0, outcome="preempted"))
    assert where(it.at(4.0).settle()) == {"a": "fast"}
    assert it.state.jobs["a"].spec.gpus == 2
