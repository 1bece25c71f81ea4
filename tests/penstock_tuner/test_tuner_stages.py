from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tuner_facts import accepted, ended, node, sweep_spec

from penstock_log import (
    AnyEvent,
    Budget,
    RunStarted,
    SweepCancelled,
    SweepFinished,
    SweepSubmitted,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    Uniform,
)
from penstock_policies import search
from penstock_testing import Scenario
from penstock_tuner.machine import TunerState, decider, submission
from penstock_tuner.trial_speed import RunningMean, TrialMeasures, TrialSpeeds

BUDGET = Budget(param="epochs", least=1, most=9)


def staged(name: str = "halving", **fields: Any) -> SweepSubmitted:
    space = {"lr": Uniform(low=1e-3, high=1.0, log=True)}
    return SweepSubmitted(at_s=0.0, sweep_id="s1", spec=sweep_spec(search=name, space=space, budget=BUDGET, **fields))


@pytest.fixture
def tuner() -> Scenario[TunerState]:
    return Scenario(decider()).at(1.0).given(node("n1", "a", "a", "a", "a"))


def value_of(trial: Trial) -> float:
    return round(1.0 - abs(float(trial.params["lr"]) - 0.1) - 0.1 / trial.budget, 6)


def took(trial: Trial, seconds: float = 1.0) -> list[Any]:
    """Return a trial that ran, was accepted before and reported its value."""
    facts = ended(trial.job_id, at_s=3.0 + seconds, acc=value_of(trial))
    return [accepted(trial.job_id, gpus=trial.gpus), facts[0], started(trial), facts[1]]


def started(trial: Trial) -> Any:
    return RunStarted(at_s=3.0, job_id=trial.job_id, epoch=1, node_id="n1", devices=(0,))


def played(tuner: Scenario[TunerState]) -> Iterator[tuple[AnyEvent, ...]]:
    """Run all that is open, over and over; yield what the tuner says each time."""
    while True:
        said = tuple(tuner.settle())
        yield said
        running = [trial for sweep in tuner.state.sweeps.values() for trial in sweep.running.values()]
        if not running:
            return
        for trial in running:
            tuner.given(*took(trial))


def groups(said: Iterator[tuple[AnyEvent, ...]]) -> list[tuple[Trial, ...]]:
    return [fact.trials for facts in said for fact in facts if isinstance(fact, TrialGroupOpened)]


def test_each_rung_is_a_group_and_its_trials_go_on_from_the_one_before(tuner):
    tuner.given(staged())
    first, second, third = groups(played(tuner))
    assert [len(group) for group in (first, second, third)] == [9, 3, 1]
    best = sorted(first, key=value_of)[-3:]
    assert {trial.origin for trial in second} == {trial.job_id for trial in best}
    assert {(trial.number, tuple(trial.params.items())) for trial in second} == {
        (trial.number, tuple(trial.params.items())) for trial in best
    }
    assert [trial.job_id for trial in third] == [f"s1-t{third[0].number:03d}-r2"]
    assert third[0].origin == f"s1-t{third[0].number:03d}-r1"


def test_a_run_is_told_its_budget_and_where_to_begin(tuner):
    tuner.given(staged()).settle()
    first = [submission(tuner.state, job_id) for job_id in tuner.state.unaccepted]
    assert [(spec.params["epochs"], spec.begins_from, spec.keep_checkpoint) for spec in first] == [(1, "", True)] * 9
    for trial in list(tuner.state.sweeps["s1"].running.values()):
        tuner.given(*took(trial))
    tuner.settle()
    for job_id in tuner.state.unaccepted:
        spec = submission(tuner.state, job_id)
        assert (spec.params["epochs"], spec.begins_from) == (3, job_id.removesuffix("-r1"))
    for trial in list(tuner.state.sweeps["s1"].running.values()):
        tuner.given(*took(trial))
    tuner.settle()
    (last,) = (submission(tuner.state, job_id) for job_id in tuner.state.unaccepted)
    assert not last.keep_checkpoint, "nobody goes on from the last rung"


def test_the_best_is_whoever_trained_longest_and_then_the_best_value(tuner):
    tuner.given(staged())
    said = [fact for facts in played(tuner) for fact in facts]
    (finish,) = [fact for fact in said if isinstance(fact, SweepFinished)]
    last = [fact for fact in said if isinstance(fact, TrialFinished)][-1]
    assert (finish.state, finish.best_job_id, finish.best_value) == ("completed", last.job_id, last.value)
    assert finish.best_job_id.endswith("-r2")


def test_brackets_are_groups_of_their_own(tuner):
    tuner.given(staged("hyperband"))
    opened = groups(played(tuner))
    assert [(group[0].bracket, group[0].rung, len(group)) for group in opened[:3]] == [(0, 0, 9), (1, 0, 5), (2, 0, 3)]
    assert all(len({(trial.bracket, trial.rung) for trial in group}) == 1 for group in opened)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["halving", "hyperband", "bohb", "asha", "bohb-async", "pbt"])
def test_a_replica_that_takes_over_anywhere_goes_on_with_the_same_trials_and_none_twice(tuner, name):
    tuner.given(staged(name, trials=0 if name in {"halving", "hyperband", "bohb"} else 6))
    opened = groups(played(tuner))
    ids = [trial.job_id for group in opened for trial in group]
    assert len(set(ids)) == len(ids)
    for cut in range(1, len(tuner.log), 7):
        replica = Scenario(decider()).at(1.0)
        for stored in tuner.log[:cut]:
            replica._append(*stored.commit.facts, subject=stored.subject)
        if replica.state.sweeps and any(sweep.ended for sweep in replica.state.sweeps.values()):
            continue  # reports come first
        later = [f for stored in tuner.log[cut:] for f in stored.commit.facts]
        next_group = next((fact for fact in later if isinstance(fact, TrialGroupOpened)), None)
        (said,) = replica.facts() or [None]
        assert said is None or isinstance(said, SweepFinished) or said == next_group


def test_longer_trials_get_more_devices_by_what_they_were_seen_to_take(tuner):
    tuner.given(staged(trials=3, max_gpus=4)).settle()
    slow, quick, other = tuner.state.sweeps["s1"].running.values()
    assert [trial.gpus for trial in (slow, quick, other)] == [1, 1, 1], "nothing is known of them yet"
    budget = Budget(param="epochs", least=1, most=4, eta=2)
    wide = Scenario(decider()).at(1.0).given(node("n1", *"aaaa"))
    spec = sweep_spec(search="halving", space=staged().spec.space, budget=budget, trials=4, max_gpus=4)
    wide.given(SweepSubmitted(at_s=0.0, sweep_id="s1", spec=spec)).settle()
    trials = list(wide.state.sweeps["s1"].running.values())
    best = sorted(trials, key=value_of)[-2:]
    for trial in trials:
        wide.given(*took(trial, seconds=30.0 if trial is best[0] else 10.0))
    (group,) = [fact for fact in wide.settle() if isinstance(fact, TrialGroupOpened)]
    assert {trial.number: trial.gpus for trial in group.trials} == {best[0].number: 3, best[1].number: 1}


@pytest.mark.parametrize(("wide_s", "beta", "then"), [(5.0, 1.0, 4), (7.5, 1.5, 2), (12.0, 2.4, 1)])
def test_a_sweep_learns_from_its_own_trials_how_far_scaling_out_pays(tuner, wide_s, beta, then):
    budget = Budget(param="epochs", least=1, most=16, eta=2)
    spec = sweep_spec(search="halving", space=staged().spec.space, budget=budget, trials=8, max_gpus=4)
    tuner.given(SweepSubmitted(at_s=0.0, sweep_id="s1", spec=spec)).settle()
    sweep = tuner.state.sweeps["s1"]
    for _ in range(4):  # 8 and 4 trials on one device each, then 2 on two, then one on as many as pay
        running = list(sweep.running.values())
        for trial in running:
            done = sweep.past.runs[sweep.job_ids.index(trial.origin)].budget if trial.origin else 0
            unit_s = {1: 10.0, 2: wide_s}[trial.gpus]
            tuner.given(*took(trial, seconds=unit_s * (trial.budget - done)))
        tuner.settle()
        if len(running) == 2:
            break
    assert sweep.measures.beta == pytest.approx(beta)
    (last,) = sweep.running.values()
    assert last.gpus == then
    while "s1" in tuner.state.sweeps:
        for trial in list(sweep.running.values()):
            tuner.given(*took(trial, seconds=0.0))
        tuner.settle()
    another = msgspec.structs.replace(spec, trials=2, budget=Budget(param="epochs", most=1))
    tuner.given(SweepSubmitted(at_s=0.0, sweep_id="s2", spec=another)).settle()
    known = tuner.state.sweeps["s2"]
    assert {trial.gpus for trial in known.running.values()} == {min(2, then)}, "what was learned outlives the sweep"


def test_a_measurement_beyond_belief_leaves_numbers_to_work_with():
    paces = TrialSpeeds(measures=TrialMeasures(spread={"2": RunningMean(2000.0, 1)}))
    paces.unit_s, paces.widths = {"s1-t000": 3.0}, {"s1-t000": 300.0}
    assert paces.measures.beta == pytest.approx(10.0)
    assert 0.0 < paces.work_s("s1-t000") < 1.0


@pytest.mark.parametrize(("filling", "gpus"), [("water", 2), ("one", 1), ("fixed", 2)])
def test_the_baselines_give_one_device_or_an_equal_part(tuner, filling, gpus):
    tuner.given(staged("pbt", trials=2, max_gpus=4, filling=filling)).settle()
    assert {trial.gpus for trial in tuner.state.sweeps["s1"].running.values()} == {gpus}


@pytest.mark.parametrize(("leftover", "gpus"), [(False, [1, 1, 1]), (True, [2, 1, 1])])
def test_devices_left_over_are_handed_out_where_the_sweep_says_so(tuner, leftover, gpus):
    tuner.given(staged("pbt", trials=3, max_gpus=4, leftover=leftover)).settle()
    assert [trial.gpus for trial in tuner.state.sweeps["s1"].running.values()] == gpus


def test_an_asynchronous_search_grows_with_the_cluster(tuner):
    tuner.given(staged("asha", trials=20)).settle()
    assert len(tuner.state.sweeps["s1"].running) == 4
    tuner.given(node("n2", "a", "a")).settle()
    assert len(tuner.state.sweeps["s1"].running) == 6


def test_a_search_that_waits_is_not_asked_again_until_something_happens(tuner, monkeypatch):
    asked = []
    monkeypatch.setattr(search, "next_runs", lambda *args: asked.append(args) or [])
    tuner.given(staged())
    (trial,) = (Trial(job_id="s1-t000", params={"lr": 0.1}, budget=1),)
    tuner.given(TrialGroupOpened(at_s=1.0, sweep_id="s1", group=0, trials=(trial,)))
    for _ in range(5):
        tuner.then()
        tuner.given(accepted("stranger", parent=""))
    assert len(asked) == 1
    tuner.given(node("n2", "a")).then()
    assert len(asked) == 2


def test_a_rung_of_which_nobody_reported_fails_the_sweep_with_how_they_ended(tuner):
    tuner.given(staged(trials=2)).settle()
    for trial in list(tuner.state.sweeps["s1"].running.values()):
        tuner.given(accepted(trial.job_id), *ended(trial.job_id))
    *reports, finish = tuner.settle()
    assert [report.problem for report in reports] == ["no_report", "no_report"]
    assert finish.state == "failed"
    assert finish.reason.startswith(
        "no trial gave a finite 'acc' (2 without a report of it); expected `session.report(acc=...)`"
    )


def test_a_cancelled_search_opens_no_further_rung(tuner):
    tuner.given(staged(trials=3)).settle()
    for trial in list(tuner.state.sweeps["s1"].running.values()):
        tuner.given(*took(trial))
    tuner.given(SweepCancelled(at_s=4.0, sweep_id="s1"))
    said = tuner.settle()
    assert [type(fact) for fact in said] == [TrialFinished] * 3 + [SweepFinished]


def test_a_sweep_all_of_whose_trials_diverged_says_so(tuner):
    tuner.given(staged(trials=2)).settle()
    for trial in list(tuner.state.sweeps["s1"].running.values()):
        placed, run = ended(trial.job_id)
        tuner.given(accepted(trial.job_id), placed, msgspec.structs.replace(run, diverged=("acc",)))
    *_, finish = tuner.settle()
    assert finish.reason == "no trial gave a finite 'acc' (2 diverged)"
