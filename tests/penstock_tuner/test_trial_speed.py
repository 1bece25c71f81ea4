"""What trials show of their workload: penalties, packing, and what moving costs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner_facts import node, random_spec

from penstock_log import (
    Budget,
    JobSubmitted,
    Placement,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
    SweepSubmitted,
    TrialsMeasured,
    workload,
)
from penstock_testing import Scenario
from penstock_tuner.machine import decider, submission
from penstock_tuner.trial_speed import UNSEEN_ALPHA, TrialMeasures


def seen(*pairs: tuple[float, float]) -> TrialMeasures:
    """Measures of trials that on a width took so many times as long as on one device."""
    measures = TrialMeasures()
    for width, over in pairs:
        measures.compare(width, over)
    return measures


def test_what_was_not_seen_is_neither_free_nor_without_gain():
    assert (TrialMeasures().alpha, TrialMeasures().beta, TrialMeasures().packing(8)) == (UNSEEN_ALPHA, 1.0, 2)


def test_penalties_are_the_published_ones_of_what_was_seen():
    measures = seen((0.5, 1.3), (2.0, 1.05 / 2), (4.0, 1.05**3 / 4))
    assert (measures.alpha, measures.beta) == (pytest.approx(1.3), pytest.approx(1.05))
    assert measures.factor(0.5) == pytest.approx(1.3)


def test_one_trial_more_is_tried_on_a_device_as_long_as_that_brings_something():
    """The published example: iterations of 10, 12, 16, 22 and 31 s with 1 to 5 on a device; three are worth it."""
    assert seen((1 / 2, 1.2)).packing(8) == 3
    assert seen((1 / 2, 1.2), (1 / 3, 1.6)).packing(8) == 4
    assert seen((1 / 2, 1.2), (1 / 3, 1.6), (1 / 4, 2.2)).packing(8) == 3
    assert seen((1 / 2, 1.2), (1 / 3, 1.6)).packing(2) == 2, "no more than is allowed"


def test_devices_that_are_used_strictly_in_turns_are_not_worth_packing():
    assert seen((1 / 2, 2.0)).packing(8) == 1


@given(st.lists(st.tuples(st.sampled_from([0.25, 1 / 3, 0.5, 2.0, 3.0]), st.floats(1e-9, 1e9)), max_size=8))
def test_whatever_was_seen_leaves_numbers_to_work_with(pairs):
    measures = seen(*pairs)
    assert 1.0 <= measures.alpha <= 10.0 + 1e-9
    assert 1.0 <= measures.beta <= 10.0 + 1e-9
    assert 1 <= measures.packing(4) <= 4
    assert all(math.isfinite(measures.factor(width)) for width in (0.25, 1.0, 8.0))


def test_a_sweep_tells_what_it_has_seen_and_the_next_one_begins_with_it():
    """Two trials side by side take 12 s for what the promoted one then does in 10 s alone."""
    tuner = Scenario(decider()).at(1.0).given(node("n1", "a"))
    spec = random_spec(2, search="halving", budget=Budget(param="epochs", least=1, most=2, eta=2))
    tuner.given(SweepSubmitted(at_s=0.0, sweep_id="s1", spec=spec)).settle()
    told: list[TrialsMeasured] = []
    for loop_s, ran_s in ((12.0, 14.0), (10.0, 12.0)):
        running = list(tuner.state.sweeps["s1"].running.values())
        for trial in running:
            tuner.given(JobSubmitted(at_s=2.0, job_id=trial.job_id, spec=submission(tuner.state, trial.job_id)))
            slots = (Slot(node_id="n1", devices=(0,)),)
            placement = Placement(job_id=trial.job_id, epoch=1, kind="a", slots=slots)
            tuner.given(RoundDecided(at_s=3.0, pool="default", placements=(placement,)))
        for trial in running:
            tuner.given(RunStarted(at_s=4.0, job_id=trial.job_id, epoch=1, node_id="n1", devices=(0,)))
        for trial in running:
            about = {"job_id": trial.job_id, "epoch": 1, "node_id": "n1", "metrics": {"acc": trial.params["lr"]}}
            times = {"loop_s": loop_s - 2.0, "waited_s": 2.0, "loop_steps": 10}
            tuner.given(RunEnded(at_s=4.0 + ran_s, outcome="completed", **about, **times))
        told += [fact for fact in tuner.settle() if isinstance(fact, TrialsMeasured)]
    key = workload.key(spec.job)
    assert [(fact.key, fact.alpha, fact.packing, fact.overhead_s) for fact in told] == [
        (key, 0.0, 0, 3.0),
        (key, 1.2, 3, 3.0),
    ]
    tuner.given(SweepSubmitted(at_s=40.0, sweep_id="s2", spec=spec))
    assert tuner.state.sweeps["s2"].measures.alpha == pytest.approx(1.2)


def test_what_it_waited_after_its_node_was_lost_is_no_cost_of_starting():
    tuner = Scenario(decider()).at(1.0).given(node("n1", "a"), node("n2", "a"))
    tuner.given(SweepSubmitted(at_s=0.0, sweep_id="s1", spec=random_spec(1))).settle()
    (job_id,) = tuner.state.sweeps["s1"].running
    tuner.given(JobSubmitted(at_s=1.0, job_id=job_id, spec=submission(tuner.state, job_id)))
    for epoch, node_id, at_s in ((1, "n1", 2.0), (2, "n2", 60.0)):
        placement = Placement(job_id=job_id, epoch=epoch, kind="a", slots=(Slot(node_id=node_id, devices=(0,)),))
        tuner.given(RoundDecided(at_s=at_s, pool="default", placements=(placement,)))
        tuner.given(RunStarted(at_s=at_s, job_id=job_id, epoch=epoch, node_id=node_id, devices=(0,)))
        if epoch == 1:
            tuner.given(RoundDecided(at_s=10.0, pool="default", lost_nodes=("n1",)))
    measures = tuner.state.sweeps["s1"].measures
    about = {"job_id": job_id, "epoch": 2, "node_id": "n2", "metrics": {"acc": 0.5}}
    tuner.given(RunEnded(at_s=72.0, outcome="completed", loop_s=10.0, loop_steps=10, **about))
    assert measures.start_s.value == pytest.approx(2.0)
