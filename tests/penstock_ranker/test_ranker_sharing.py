"""The order of jobs that share devices: their service counts with their share."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranker_facts import ended, rank, ranked, running, submitted

from penstock_log import AnyEvent, JobSubmitted
from penstock_ranker import machine
from penstock_ranker.machine import RankerSettings
from penstock_testing import Scenario
from sweeps import examples


@pytest.fixture
def ranker() -> Scenario[machine.RankerState]:
    return Scenario(machine.decider(RankerSettings(thresholds_gpu_s=(4.0, 8.0))))


def sharing(job_id: str, at_s: float, **fields: object) -> JobSubmitted:
    fact = submitted(job_id, at_s)
    return msgspec.structs.replace(fact, spec=msgspec.structs.replace(fact.spec, **{"sharing": "lane", **fields}))


def test_two_who_share_a_device_are_demoted_at_half_the_pace(ranker):
    ranker.given(sharing("a", 0.0), sharing("b", 1.0)).settle()
    ranker.given(*running("a", 10.0), *running("b", 10.0)).at(13.0).then().then_wakes_at(18.0)
    ranker.at(18.0).then(ranked(18.0, rank("a", 1, 18.0, 4.0), rank("b", 1, 18.0, 4.0)))


def test_who_is_alone_again_goes_on_at_full_pace(ranker):
    ranker.given(sharing("a", 0.0), sharing("b", 1.0)).settle()
    ranker.given(*running("a", 10.0), *running("b", 10.0), ended("b", 14.0, outcome="completed"))
    ranker.at(14.5).then().then_wakes_at(16.0)
    ranker.at(16.0).then(ranked(16.0, rank("a", 1, 16.0, 4.0)))


def test_a_quarter_of_a_device_counts_a_quarter(ranker):
    ranker.given(sharing("a", 0.0, sharing="fraction", fraction=0.25)).settle()
    ranker.given(*running("a", 10.0)).at(10.5).then().then_wakes_at(26.0)


def test_service_of_shared_and_of_own_runs_adds_up(ranker):
    ranker.given(sharing("a", 0.0), sharing("b", 1.0)).settle()
    ranker.given(*running("a", 10.0), *running("b", 10.0), ended("a", 14.0), *running("a", 20.0, epoch=2))
    ranker.given(ended("b", 22.0)).at(22.5).settle()
    assert [ranker.state.jobs[name].attained_gpu_s(22.5) for name in "ab"] == [3.5, 9.0]


steps = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.25, 3.0)), min_size=1, max_size=20)


@settings(max_examples=examples(40), deadline=None)
@given(steps)
def test_whatever_comes_and_goes_ranks_agree_with_the_service_that_the_log_shows(changes):
    """Deciding also checks that replay equals live, and that a snapshot in the middle changes nothing."""
    ranker = Scenario(machine.decider(RankerSettings(thresholds_gpu_s=(4.0, 8.0))))
    now_s, epochs, up = 1.0, dict.fromkeys("abc", 0), set[str]()
    ranker.given(*(sharing(name, 1.0) for name in "abc")).at(now_s).settle()
    for name, wait_s in changes:
        now_s += wait_s
        ranker.at(now_s).settle()
        facts: list[AnyEvent] = [ended(name, now_s, epochs[name])] if name in up else []
        if not facts:
            epochs[name] += 1
            facts = running(name, now_s, epoch=epochs[name])
        up ^= {name}
        ranker.given(*facts).settle()
        for job_id, place in ranker.state.places.items():
            attained = ranker.state.jobs[job_id].attained_gpu_s(now_s)
            assert place.queue == sum(attained >= limit - 1e-9 for limit in (4.0, 8.0))
