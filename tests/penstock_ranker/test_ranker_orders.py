"""Every order through the ranker's decisions: what is learnt, priors, pools of their own, and taking over."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ranker_facts import ended, rank, ranked, running, spec, submitted

from penstock_bus import Decision
from penstock_bus.decider import Fold
from penstock_bus.settings import SettingsError, load
from penstock_log import AnyEvent, Demand, JobCancelled, JobSubmitted, ScaleDecided
from penstock_policies.queue_policies import QUEUE_POLICIES
from penstock_ranker import machine
from penstock_ranker.machine import PoolSettings, RankerSettings
from penstock_testing import Scenario, delivery
from sweeps import examples

LIMITS = (4.0, 8.0)


def ranker(**chosen) -> Scenario[machine.RankerState]:
    found = RankerSettings(**{"thresholds_gpu_s": LIMITS, **chosen})
    return Scenario(machine.decider(found, found.priors()))


def finished(scenario: Scenario[machine.RankerState], lengths_s: list[float], start_s: float = 1000.0) -> None:
    """Let one-device jobs of these lengths come, run and complete, one after the other."""
    for number, length_s in enumerate(lengths_s):
        job_id = f"old-{number}"
        scenario.given(submitted(job_id, start_s), *running(job_id, start_s))
        scenario.given(ended(job_id, start_s + length_s, outcome="completed"))
        start_s += length_s


def test_by_index_new_jobs_come_in_the_order_of_their_submission():
    scenario = ranker(order="2d-gittins")
    scenario.at(3.0).when(submitted("a", 2.0), submitted("b", 1.0))
    scenario.then(ranked(3.0, rank("b", 0, -1.0, since_s=1.0), rank("a", 0, -1.0, since_s=2.0), order="2d-gittins"))


def test_by_index_a_job_that_comes_nearer_to_a_likely_end_is_ranked_before_those_that_have_not_run():
    scenario = ranker(order="2d-gittins")
    finished(scenario, [3.0] * 4 + [20.0] * 4)
    scenario.given(submitted("a", 2000.0), submitted("b", 2000.0)).at(2000.0).settle()
    scenario.given(*running("b", 2000.0), ended("b", 2002.5)).at(2002.5)
    (fact,) = scenario.settle()
    (item,) = fact.ranks
    assert (item.job_id, item.queue, item.since_s) == ("b", 0, 2000.0)
    assert item.position < -1.0


def test_by_index_the_last_queue_is_first_come_first_served():
    scenario = ranker(order="2d-gittins")
    scenario.given(submitted("a", 10.0), *running("a", 10.0)).at(19.0)
    scenario.then(ranked(19.0, rank("a", 2, -1.0, 9.0, since_s=18.0), order="2d-gittins"))


def test_what_is_learnt_moves_those_that_have_run_and_nobody_else():
    scenario = ranker(order="2d-gittins")
    scenario.given(submitted("a", 1.0), submitted("b", 1.0), *running("b", 1.0), ended("b", 3.5)).at(4.0).settle()
    finished(scenario, [3.0] * 4 + [20.0] * 3)
    scenario.at(2000.0).then().then_wakes_at(None)
    finished(scenario, [20.0], start_s=2000.0)
    (fact,) = scenario.at(2020.0).settle()
    assert [item.job_id for item in fact.ranks] == ["b"]


def test_thresholds_are_learnt_from_the_jobs_that_completed_and_jobs_fall_by_them():
    scenario = ranker(thresholds_gpu_s="learnt")
    scenario.given(submitted("a", 1000.0), *running("a", 1000.0)).at(1000.0).settle()
    scenario.at(1000.0).then().then_wakes_at(4600.0)  # after the default, an hour
    finished(scenario, [1.0] * 7 + [900.0], start_s=1000.0)
    (fact,) = scenario.at(1907.0).settle()
    assert [(item.job_id, item.queue) for item in fact.ranks] == [("a", 1)]
    scenario.when(submitted("b", 1908.0)).at(1908.0).settle()
    scenario.given(*running("b", 1908.0)).at(1908.0).then().then_wakes_at(pytest.approx(1909.1))


def test_thresholds_that_are_set_stay_whatever_is_learnt():
    scenario = ranker(thresholds_gpu_s=(50.0,))
    finished(scenario, [1.0] * 7 + [900.0])
    scenario.given(submitted("a", 3000.0)).at(3000.0).settle()
    scenario.given(*running("a", 3000.0)).at(3000.0).then().then_wakes_at(3050.0)


def test_seconds_of_execution_are_not_learnt_from_gpu_seconds():
    scenario = ranker(order="las", thresholds_gpu_s="learnt")
    finished(scenario, [1.0] * 7 + [900.0])
    scenario.given(submitted("a", 3000.0)).at(3000.0).settle()
    scenario.given(*running("a", 3000.0)).at(3000.0).then().then_wakes_at(6600.0)


def test_only_jobs_that_completed_are_learnt_from():
    scenario = ranker(order="2d-gittins")
    for number, outcome in enumerate(("failed", "cancelled", "completed")):
        job_id = f"j{number}"
        scenario.given(submitted(job_id, 1.0, gpus=2), *running(job_id, 1.0, gpus=2))
        if outcome == "cancelled":
            scenario.given(JobCancelled(job_id=job_id, at_s=3.0))
        scenario.given(ended(job_id, 4.0, outcome=outcome))
    assert [gpu_s for _, gpu_s in scenario.state.lengths["default"].kept] == [6.0]


def test_a_prior_file_stands_in_until_the_pool_has_finished_jobs_of_its_own(tmp_path):
    prior = tmp_path / "prior.csv"
    prior.write_text("gpu_s\n3\n3\n3\n20\n")
    scenario = ranker(order="2d-gittins", prior_file=str(prior))
    scenario.given(submitted("a", 1.0), submitted("b", 1.0), *running("b", 1.0), ended("b", 3.5)).at(4.0)
    (fact,) = scenario.settle()
    assert [item.job_id for item in fact.ranks] == ["b", "a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read: .*; make it readable"), ("3\nlong\n", "line 2 is 'long'; expected one number")],
)
def test_a_prior_file_that_cannot_be_used_stops_the_service_at_its_start(tmp_path, content, message):
    prior = tmp_path / "prior.csv"
    if content is not None:
        prior.write_text(content)
    with pytest.raises(SettingsError, match=rf"\[ranker\]: prior_file .*prior.csv:? {message}"):
        load(RankerSettings, "ranker", environ={"PENSTOCK_RANKER_PRIOR_FILE": str(prior)})


def test_each_pool_may_have_an_order_of_its_own():
    scenario = ranker(order="fewest-gpus", pools={"lab": PoolSettings(order="fifo")})
    scenario.at(5.0).when(
        *(submitted(f"a{gpus}", 1.0, gpus=gpus) for gpus in (2, 1)),
        *(submitted(f"b{gpus}", 2.0 - gpus / 4, gpus=gpus, pool="lab") for gpus in (2, 1)),
    )
    scenario.then(
        ranked(5.0, rank("a1", 0, 1.0, since_s=None), rank("a2", 0, 2.0, since_s=1.0), order="fewest-gpus"),
        ranked(5.0, rank("b2", 0, 1.5), rank("b1", 0, 1.75), pool="lab", order="fifo"),
    )


def test_settings_of_a_pool_are_read_from_the_environment_and_what_is_left_out_is_as_for_all():
    text = '{"lab": {"order": "2d-gittins", "promote_knob": 3.0}}'
    found = load(RankerSettings, "ranker", environ={"PENSTOCK_RANKER_POOLS": text, "PENSTOCK_RANKER_ORDER": "las"})
    assert (found.of("lab").order, found.of("lab").promote_knob) == ("2d-gittins", 3.0)
    assert found.of("lab").thresholds_gpu_s == found.thresholds_gpu_s
    assert (found.of("other").order, found.of("other").promote_knob) == ("las", None)


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ('{"lab": {"order": "best"}}', "order is 'best': expected one of fifo, fifo-backfill"),
        ('{"lab": {"orders": "fifo"}}', "unknown field `orders`"),
        ('{"lab": {"thresholds_gpu_s": [5, 3]}}', "expected rising numbers of GPU-seconds"),
    ],
)
def test_wrong_settings_of_a_pool_are_refused(pools, message):
    with pytest.raises(SettingsError, match=message):
        load(RankerSettings, "ranker", environ={"PENSTOCK_RANKER_POOLS": pools})


def test_srtf_follows_what_is_left_of_the_declared_length_and_puts_the_others_last():
    scenario = ranker(order="srtf")
    scenario.given(submitted("long", 0.0, duration_s=50.0), submitted("short", 1.0, duration_s=40.0))
    (fact,) = scenario.given(submitted("unknown", 0.5)).at(2.0).settle()
    assert [item.job_id for item in fact.ranks] == ["short", "long", "unknown"]
    scenario.given(*running("long", 2.0), ended("long", 22.0)).at(22.0)
    scenario.then(ranked(22.0, rank("long", 0, 30.0, 20.0, since_s=0.0, falls_per_s=1.0), order="srtf"))


def test_an_order_that_only_differs_in_how_it_is_walked_is_told_although_no_place_changes():
    before = ranker(order="fifo")
    before.at(2.0).when(submitted("a", 1.0)).then(ranked(2.0, rank("a", 0, 1.0), order="fifo"))
    after = ranker(order="fifo-backfill")
    after.given(*(fact for stored in before.log for fact in stored.commit.facts))
    after.at(3.0).then(ranked(3.0, order="fifo-backfill")).then()


def test_another_order_after_a_restart_ranks_those_that_wait_anew():
    before = ranker(order="2d-gittins")
    before.given(submitted("a", 1.0), submitted("b", 2.0), *running("b", 2.0), ended("b", 8.0)).at(9.0).settle()
    after = ranker(order="2d-las")
    after.given(*(fact for stored in before.log for fact in stored.commit.facts))
    after.at(10.0).then(ranked(10.0, rank("a", 0, 1.0), rank("b", 1, 8.0, 6.0))).then_wakes_at(None)


def test_many_jobs_at_once_are_ranked_in_facts_of_bounded_size():
    scenario = Scenario(machine.decider())
    for number in range(machine.MOST_RANKS + 500):
        scenario.fold.apply(delivery(number + 1, submitted(f"j{number}", float(number))))
    first = scenario.decider.decide(scenario.state, 1e4)
    (proposal,) = first.proposals
    assert len(proposal.facts[0].ranks) == machine.MOST_RANKS
    assert first.wake_at_s == 1e4
    scenario.fold.apply(delivery(scenario.fold.last_seq + 1, *proposal.facts))
    second = scenario.decider.decide(scenario.state, 1e4)
    assert len(second.proposals[0].facts[0].ranks) == 500
    assert second.wake_at_s is None


class Leader:
    """A ranker, and a history that is told to it."""

    def __init__(self, order: str, knob: float | None) -> None:
        self.decider = machine.decider(RankerSettings(order=order, thresholds_gpu_s=LIMITS, promote_knob=knob))
        self.fold = Fold(self.decider)
        self.now_s = 1.0
        self.epochs: dict[str, int] = {}

    def tell(self, *facts: AnyEvent) -> None:
        for fact in facts:
            self.fold.apply(delivery(self.fold.last_seq + 1, fact))

    def decide(self) -> Decision:
        return self.decider.decide(self.fold.state, self.now_s)

    def settle(self) -> None:
        for proposal in self.decide().proposals:
            self.tell(*proposal.facts)

    def act(self, act: str, pick: int, number: int) -> None:
        ids = [job.id for job in self.fold.state.jobs]
        if act == "decide":
            self.settle()
        elif act == "submit" or not ids:
            self.tell(submitted(f"j{number}", self.now_s, gpus=1 + pick % 2, duration_s=10.0 * pick))
        elif act == "cancel":
            self.tell(JobCancelled(job_id=ids[pick % len(ids)], at_s=self.now_s))
        elif act == "start":
            self._start(ids[pick % len(ids)])
        else:
            job_id = ids[pick % len(ids)]
            self.tell(ended(job_id, self.now_s, epoch=self.epochs.get(job_id, 0), outcome=act))

    def _start(self, job_id: str) -> None:
        if self.fold.state.jobs[job_id].placement is None:
            self.epochs[job_id] = self.epochs.get(job_id, 0) + 1
            self.tell(*running(job_id, self.now_s, epoch=self.epochs[job_id]))


acts = st.sampled_from(["submit", "start", "preempted", "failed", "completed", "cancel", "decide"])


@settings(deadline=None, max_examples=examples(60))
@given(
    st.sampled_from(sorted(QUEUE_POLICIES)),
    st.sampled_from([None, 0.5]),
    st.lists(st.tuples(acts, st.integers(0, 5)), max_size=40),
)
def test_a_standby_that_takes_over_at_any_moment_decides_as_the_leader_would(order, knob, history):
    leader = Leader(order, knob)
    for number, (act, pick) in enumerate(history):
        leader.now_s += pick / 2
        leader.act(act, pick, number)
        standby = Fold(leader.decider)
        assert standby.restore(leader.fold.snapshot())
        assert leader.decider.decide(standby.state, leader.now_s) == leader.decide()
        assert standby.encoded() == leader.fold.encoded()
    for _ in range(3):
        leader.settle()
    assert not leader.decide().proposals, "it does not come to rest"


@pytest.mark.parametrize("order", QUEUE_POLICIES)
def test_no_place_depends_on_how_many_devices_an_elastic_job_is_given(order: str):
    """What it is given depends on its place: else the ranker and the autoscaler would go on for ever."""
    scenario = ranker(order=order, thresholds_gpu_s=(1e6,))
    asked = msgspec.structs.replace(spec(duration_s=60.0), min_gpus=1, max_gpus=4, batch_size=64)
    scenario.given(JobSubmitted(job_id="a", at_s=0.0, spec=asked)).at(0.0).settle()
    scenario.given(*running("a", 0.0), ended("a", 2.5)).at(3.0).settle()
    for gpus in (2, 4, 1):
        demand = Demand(job_id="a", epoch=scenario.state.jobs["a"].epoch, gpus=gpus, batch_size=64)
        scenario.given(ScaleDecided(at_s=3.0, pool="default", demands=(demand,))).then()
        assert scenario.state.jobs["a"].spec.gpus == gpus, "the demand was not heeded"
