"""Trials that are moved to other widths, by what they have shown: facts in, demands out."""

from __future__ import annotations

from typing import Any

import pytest
from tuner_facts import node, random_spec, sweep_spec

from penstock_log import (
    Budget,
    Choice,
    Demand,
    JobCancelled,
    JobSubmitted,
    Placement,
    Preemption,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
    SweepCancelled,
    SweepSubmitted,
    TrialFinished,
    TrialGroupOpened,
    TrialsScaled,
    Wait,
)
from penstock_testing import Scenario
from penstock_tuner.machine import TunerState, decider, submission

Tuner = Scenario[TunerState]


def opened(trials: int, devices: int = 4, **fields: Any) -> Tuner:
    """A sweep over so many points, on so many devices, with its trials accepted."""
    space = {"lr": Choice(values=tuple(range(1, trials + 1)))}
    spec = sweep_spec(**{"space": space, "max_gpus": 4, **fields})
    tuner = Scenario(decider()).at(1.0).given(node("n1", *"a" * devices))
    tuner.given(SweepSubmitted(at_s=0.0, sweep_id="s1", spec=spec)).settle()
    accept(tuner)
    return tuner


def accept(tuner: Tuner) -> None:
    for job_id in list(tuner.state.unaccepted):
        tuner.given(JobSubmitted(at_s=1.0, job_id=job_id, spec=submission(tuner.state, job_id)))


def name(number: int) -> str:
    return f"s1-t{number:03d}"


def start(tuner: Tuner, number: int, *devices: int, at_s: float = 2.0) -> None:
    job = tuner.state.jobs[name(number)]
    placement = Placement(job_id=job.id, epoch=job.epoch + 1, kind="a", slots=(Slot(node_id="n1", devices=devices),))
    tuner.given(RoundDecided(at_s=at_s, pool="default", placements=(placement,)))
    tuner.given(RunStarted(at_s=at_s, job_id=job.id, epoch=job.epoch, node_id="n1", devices=devices))


def end(
    tuner: Tuner, number: int, at_s: float, outcome: Any = "completed", *, loop_s: float = 0.0, saves: bool = True
) -> None:
    epoch = tuner.state.jobs[name(number)].epoch
    about = {"job_id": name(number), "epoch": epoch, "node_id": "n1", "outcome": outcome, "metrics": {"acc": 0.5}}
    about["saves"] = saves
    tuner.given(RunEnded(at_s=at_s, loop_s=loop_s, loop_steps=10 if loop_s else 0, **about))


def moved(tuner: Tuner, at_s: float) -> tuple[Demand, ...]:
    said = [fact for fact in tuner.at(at_s).settle() if isinstance(fact, TrialsScaled)]
    assert len(said) <= 1
    return said[0].demands if said else ()


def width(demand: Demand) -> tuple[str, int, str, int]:
    return demand.job_id, demand.gpus, demand.sharing, demand.sharers


# --- narrow trials
def test_trials_beyond_the_devices_take_turns_on_them_and_at_most_c_on_one():
    tuner = opened(6)
    specs = [tuner.state.jobs[name(number)].spec for number in range(6)]
    assert {(spec.gpus, spec.sharing, spec.sharers, spec.share_with) for spec in specs} == {(1, "lane", 2, "user")}


def test_without_intra_each_trial_has_a_device_to_itself():
    tuner = opened(6, intra=False)
    assert {tuner.state.jobs[name(number)].spec.sharing for number in range(6)} == {"exclusive"}


def test_devices_that_jobs_of_others_hold_are_not_filled():
    tuner = Scenario(decider()).at(1.0).given(node("n1", *"aaaa"))
    tuner.given(JobSubmitted(at_s=0.5, job_id="other", spec=sweep_spec().job))
    slots = (Slot(node_id="n1", devices=(0, 1)),)
    placement = Placement(job_id="other", epoch=1, kind="a", slots=slots)
    tuner.given(RoundDecided(at_s=0.6, pool="default", placements=(placement,)))
    tuner.given(SweepSubmitted(at_s=0.7, sweep_id="s1", spec=sweep_spec(max_gpus=4)))
    (group,) = tuner.settle()
    assert [trial.gpus for trial in group.trials] == [1, 1], "the other two are another job's"


# --- running trials
def four_on_four(**fields: Any) -> Tuner:
    tuner = opened(4, **fields)
    for number in range(4):
        start(tuner, number, number)
    return tuner


def test_a_trial_that_goes_on_alone_grows_onto_the_devices_that_come_free():
    tuner = four_on_four()
    for number in range(3):
        end(tuner, number, 102.0 - number, loop_s=90.0)
    (demand,) = moved(tuner, 30.0)
    assert width(demand) == (name(3), 4, "exclusive", 0)
    assert demand.epoch == 1
    assert demand.reason == "4 devices instead of 1 device: 27.8 s left, moving included, instead of 71.0 s"


def test_a_move_that_would_gain_less_than_it_costs_is_not_made():
    tuner = four_on_four()
    for number in range(3):
        end(tuner, number, 102.0, loop_s=90.0)  # ten of a hundred seconds go into starting
    assert moved(tuner, 92.0) == (), "10 s are left: 2.5 on four devices, and 11 for moving"


@pytest.mark.parametrize("off", [{"dynamic": False}, {"inter": False}, {"filling": "one"}, {"filling": "fixed"}])
def test_each_mechanism_can_be_switched_off(off):
    tuner = four_on_four(**off)
    for number in range(3):
        end(tuner, number, 102.0, loop_s=90.0)
    assert moved(tuner, 30.0) == ()


def test_nobody_is_moved_while_another_job_waits_for_devices():
    tuner = four_on_four()
    tuner.given(JobSubmitted(at_s=1.0, job_id="other", spec=sweep_spec().job))
    wait = Wait(job_id="other", cause="capacity", evidence="all devices are taken")
    tuner.given(RoundDecided(at_s=3.0, pool="default", waits=(wait,)))
    for number in range(3):
        end(tuner, number, 102.0, loop_s=90.0)
    assert moved(tuner, 30.0) == ()


def test_a_trial_is_moved_once_and_those_that_are_over_never():
    tuner = four_on_four()
    for number in range(3):
        end(tuner, number, 102.0, "failed" if number else "completed", loop_s=90.0)
    assert [width(demand) for demand in moved(tuner, 30.0)] == [(name(3), 4, "exclusive", 0)]
    assert moved(tuner, 31.0) == ()
    preemption = Preemption(job_id=name(3), epoch=1)
    tuner.given(RoundDecided(at_s=32.0, pool="default", preemptions=(preemption,)))
    end(tuner, 3, 33.0, "preempted", loop_s=25.0)
    assert tuner.state.jobs[name(3)].spec.gpus == 4
    assert moved(tuner, 33.0) == ()
    start(tuner, 3, 0, 1, 2, 3, at_s=34.0)
    assert moved(tuner, 35.0) == ()
    assert tuner.state.sweeps["s1"].measures.move_s.value == 2.0, "from being asked to the next start"


def test_a_cancelled_sweep_moves_nobody():
    tuner = four_on_four()
    for number in range(3):
        end(tuner, number, 102.0, loop_s=90.0)
    tuner.given(SweepCancelled(at_s=29.0, sweep_id="s1"), JobCancelled(at_s=29.0, job_id=name(3)))
    assert moved(tuner, 30.0) == ()


def packed() -> Tuner:
    """Two trials on each of two devices."""
    tuner = opened(4, devices=2)
    for number in range(4):
        start(tuner, number, number // 2)
    return tuner


def test_of_two_on_one_device_one_stays_where_both_are_to_have_their_own():
    tuner = packed()
    for number in (0, 1):
        end(tuner, number, 102.0, loop_s=90.0)
    demands = moved(tuner, 30.0)
    assert [width(demand) for demand in demands] == [(name(3), 1, "exclusive", 0)]
    assert demands[0].reason.startswith("1 device instead of 1/2 of a device")


def test_one_whose_neighbour_has_ended_has_a_device_already():
    tuner = packed()
    for number in (0, 2):
        end(tuner, number, 102.0, loop_s=90.0)
    assert moved(tuner, 30.0) == ()


def halving(budget: Budget) -> Tuner:
    tuner = Scenario(decider()).at(1.0).given(node("n1", *"aaaa"))
    spec = random_spec(2, search="halving", budget=budget, max_gpus=4)
    tuner.given(SweepSubmitted(at_s=0.0, sweep_id="s1", spec=spec)).settle()
    accept(tuner)
    return tuner


def test_a_trial_too_wide_for_what_is_idle_is_filled_anew_while_it_waits():
    budget = Budget(param="epochs", least=1, most=2, eta=2)
    tuner = halving(budget)
    for number in range(2):
        start(tuner, number, *range(2 * number, 2 * number + 2))
    end(tuner, 0, 20.0, loop_s=9.0)
    end(tuner, 1, 20.0, loop_s=9.0)
    tuner.settle()
    accept(tuner)
    (promoted,) = tuner.state.sweeps["s1"].running
    assert tuner.state.jobs[promoted].spec.gpus == 4
    tuner.given(JobSubmitted(at_s=1.0, job_id="other", spec=sweep_spec().job))
    slots = (Slot(node_id="n1", devices=(0, 1)),)
    placement = Placement(job_id="other", epoch=1, kind="a", slots=slots)
    tuner.given(RoundDecided(at_s=21.0, pool="default", placements=(placement,)))
    (demand,) = moved(tuner, 22.0)
    assert width(demand) == (promoted, 2, "exclusive", 0)
    assert demand.reason == "2 devices are idle, and it waits for 4"


def test_a_tuner_that_takes_over_moves_the_same_trials_and_none_twice():
    tuner = four_on_four()
    for number in range(3):
        end(tuner, number, 102.0, loop_s=90.0)
    tuner.at(30.0).settle()
    again = Scenario(decider()).at(30.0)
    for stored in tuner.log:
        again._append(*stored.commit.facts, subject=stored.subject)
    assert again.settle() == []
    finished = {fact.job_id for stored in tuner.log for fact in stored.commit.facts if isinstance(fact, TrialFinished)}
    groups = [fact for stored in tuner.log for fact in stored.commit.facts if isinstance(fact, TrialGroupOpened)]
    assert finished == {name(0), name(1), name(2)}
    assert len(groups) == 1


def test_trials_that_save_no_checkpoints_are_never_moved():
    tuner = four_on_four()
    for number in range(3):
        end(tuner, number, 102.0, loop_s=90.0, saves=False)
    assert moved(tuner, 30.0) == ()


def test_a_trial_that_got_more_devices_than_they_are_worth_gives_them_back():
    tuner = opened(2)
    for number in range(2):
        start(tuner, number, 2 * number, 2 * number + 1)
    end(tuner, 0, 22.0, loop_s=19.0)
    (reports,) = tuner.decider.decide(tuner.state, 22.0).proposals
    for fact in reports.facts:
        tuner.decider.apply(tuner.state, fact, 99)
    tuner.state.sweeps["s1"].measures.compare(2.0, 1.1)  # β is 2.2, as other sweeps would have shown
    (proposal,) = tuner.decider.decide(tuner.state, 22.5).proposals
    ((demand,),) = (fact.demands for fact in proposal.facts)
    assert width(demand) == (name(1), 1, "exclusive", 0)
    assert demand.reason.startswith("1 device instead of 2 devices: ")


def test_a_trial_that_runs_once_more_alone_is_packed_no_more():
    tuner = opened(4, devices=2)
    for number in (0, 1, 3):
        start(tuner, number, number // 2)
    about = {"job_id": name(0), "epoch": 1, "node_id": "n1"}
    tuner.given(RunEnded(at_s=5.0, outcome="failed", out_of_memory=True, **about)).settle()
    accept(tuner)
    for number in (1, 3):
        end(tuner, number, 102.0, loop_s=90.0)
    alone = f"{name(0)}-a"
    placement = Placement(job_id=alone, epoch=1, kind="a", slots=(Slot(node_id="n1", devices=(0,)),))
    tuner.given(RoundDecided(at_s=10.0, pool="default", placements=(placement,)))
    tuner.given(RunStarted(at_s=10.0, job_id=alone, epoch=1, node_id="n1", devices=(0,)))
    start(tuner, 2, 1, at_s=20.0)
    assert moved(tuner, 30.0) == (), "half a device would do for what is left of it"
