"""Orders that are set while the cluster runs."""

from __future__ import annotations

import pytest
from ranker_facts import ended, rank, ranked, running, submitted

from penstock_log import PolicySet, Setting
from penstock_ranker import machine
from penstock_ranker.machine import RankerSettings
from penstock_testing import Scenario


@pytest.fixture
def ranker() -> Scenario[machine.RankerState]:
    return Scenario(machine.decider(RankerSettings(thresholds_gpu_s=(4.0, 8.0))))


def set_live(at_s: float, pool: str = "default", **settings: Setting) -> PolicySet:
    return PolicySet(pool=pool, settings=settings, at_s=at_s)


def test_an_order_that_is_set_live_puts_every_job_of_the_pool_in_place_anew(ranker):
    ranker.given(submitted("wide", 1.0, gpus=4), submitted("narrow", 2.0), submitted("other", 3.0, pool="lab")).settle()
    ranker.at(10.0).when(set_live(10.0, order="fewest-gpus"))
    ranker.then(
        ranked(10.0, rank("narrow", 0, 1.0, since_s=2.0), rank("wide", 0, 4.0, since_s=1.0), order="fewest-gpus")
    )


def test_other_thresholds_put_a_job_where_its_service_belongs(ranker):
    ranker.given(submitted("j1", 0.0)).settle()
    ranker.given(*running("j1", 10.0), ended("j1", 15.0)).at(16.0).settle()
    assert ranker.state.places["j1"].queue == 1
    ranker.at(17.0).when(set_live(17.0, thresholds_gpu_s=[10.0])).then(ranked(17.0, rank("j1", 0, 0.0, 5.0)))
    ranker.at(18.0).when(set_live(18.0, thresholds_gpu_s=[1.0, 2.0, 3.0]))
    ranker.then(ranked(18.0, rank("j1", 3, 15.0, 5.0)))


def test_what_is_no_longer_set_live_is_as_the_settings_say(ranker):
    ranker.given(submitted("j1", 0.0)).given(*running("j1", 10.0), ended("j1", 15.0)).at(16.0).settle()
    ranker.given(set_live(17.0, order="fifo")).settle()
    assert ranker.state.places["j1"].queue == 0
    ranker.at(18.0).when(set_live(18.0)).then(ranked(18.0, rank("j1", 1, 15.0, 5.0)))


def test_settings_of_others_change_nothing_here(ranker):
    ranker.given(submitted("j1", 0.0)).settle()
    ranker.at(1.0).when(set_live(1.0, patience_s=5.0)).then()


def test_a_setting_of_another_version_is_named_with_what_to_do(ranker):
    ranker.given(submitted("j1", 0.0), set_live(1.0, order="by-mood"))
    with pytest.raises(ValueError, match=r"by-mood.*upgrade"):
        ranker.at(2.0).facts()
