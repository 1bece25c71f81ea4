"""What stopping and resuming costs, from the ends of runs."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_log import (
    Job,
    JobSpec,
    JobSubmitted,
    JobTable,
    Placement,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunStarted,
    Slot,
)
from penstock_policies.workload_stats import WORKLOADS, PreemptionCost, PreemptionCosts


def running(started_s: float = 10.0, **fields: Any) -> Job:
    """A gang, its first process on n1."""
    slots = tuple(Slot(node_id=node_id, devices=(0,)) for node_id in ("n1", "n2"))
    placement = Placement(job_id="j", epoch=1, kind="fast", slots=slots)
    spec = JobSpec(name="j", command=("true",), gpus=2)
    return Job(id="j", spec=spec, submitted_s=0.0, started_s=started_s, placement=placement, **fields)


def ended(at_s: float, outcome: str = "preempted", node_id: str = "n1", **fields: Any) -> RunEnded:
    return RunEnded(job_id="j", epoch=1, node_id=node_id, at_s=at_s, outcome=outcome, **fields)  # type: ignore[arg-type]


def learnt(*ends: RunEnded, asked_s: float | None = None, job: Job | None = None) -> PreemptionCost:
    costs = PreemptionCosts()
    for end in ends:
        if asked_s is not None:
            costs.ask("j", asked_s)
        costs.end(job or running(), "key", end)
    return costs.of("key")


def test_nothing_measured_costs_nothing():
    assert PreemptionCosts().of("unseen") == PreemptionCost()
    assert PreemptionCosts().of("unseen").overhead_s == 0.0


def test_stopping_is_measured_from_the_round_that_asks_for_it_and_starting_is_the_rest():
    cost = learnt(ended(40.0, steps=20, loop_steps=20, loop_s=20.0), asked_s=37.0)
    assert cost == PreemptionCost(stop_s=3.0, resume_s=7.0, redo_s=0.0, saves=True)  # 30 s, 20 of them loop, 3 stopping


def test_a_run_that_comes_to_its_end_shows_what_starting_takes_and_nothing_about_stopping():
    assert learnt(ended(40.0, "completed", steps=20, loop_steps=20, loop_s=25.0)) == PreemptionCost(
        resume_s=5.0, saves=True
    )


def test_a_command_without_a_loop_does_all_of_it_again():
    cost = learnt(ended(40.0), asked_s=38.0)
    assert (cost.stop_s, cost.resume_s, cost.redo_s, cost.saves) == (2.0, None, 30.0, False)


def test_steps_behind_the_checkpoint_are_done_again():
    cost = learnt(ended(40.0, steps=15, loop_steps=20, loop_s=20.0))
    assert (cost.redo_s, cost.saves) == (5.0, False)
    resumed = learnt(ended(40.0, steps=35, loop_steps=20, loop_s=20.0), job=running(resumed_step=15))
    assert (resumed.redo_s, resumed.saves) == (0.0, True)


def test_checkpoints_of_the_run_itself_are_not_steps_that_it_began_with():
    jobs = JobTable()
    spec, slots = JobSpec(name="j", command=("true",)), (Slot(node_id="n1", devices=(0,)),)
    jobs.apply(JobSubmitted(at_s=0.0, job_id="j", spec=spec))
    placement = Placement(job_id="j", epoch=1, kind="fast", slots=slots)
    jobs.apply(RoundDecided(at_s=1.0, pool="default", placements=(placement,)))
    jobs.apply(RunStarted(at_s=10.0, job_id="j", epoch=1, node_id="n1", devices=(0,)))
    jobs.apply(RunCheckpointed(at_s=20.0, job_id="j", epoch=1, node_id="n1", step=10))
    cost = learnt(ended(40.0, steps=20, loop_steps=20, loop_s=20.0), job=jobs["j"])
    assert (cost.redo_s, cost.saves) == (0.0, True)


@pytest.mark.parametrize("steps_there", [0, 20])
def test_of_a_gang_on_several_nodes_the_one_of_its_first_process_tells(steps_there):
    job, costs = running(), PreemptionCosts()
    costs.ask("j", 37.0)
    costs.end(job, "key", ended(39.0, node_id="n2", steps=20, loop_steps=steps_there))
    job.steps = 20  # as the fold has it after that
    costs.end(job, "key", ended(40.0, steps=20, loop_steps=20, loop_s=20.0))
    assert costs.of("key") == PreemptionCost(stop_s=3.0, resume_s=7.0, redo_s=0.0, saves=True)
    costs.forget("j")
    assert costs.asked_s == {}


def test_the_last_run_counts_half():
    fast, slow = ended(20.0, "completed", loop_steps=1, loop_s=8.0), ended(20.0, "completed", loop_steps=1, loop_s=4.0)
    assert learnt(fast, slow).resume_s == pytest.approx((2.0 + 6.0) / 2)


@pytest.mark.parametrize("end", [ended(40.0, "lost"), ended(40.0, "failed"), ended(40.0, "completed")])
def test_ends_that_show_nothing_change_nothing(end):
    assert learnt(end) == PreemptionCost()


def test_a_script_that_has_lost_steps_when_asked_to_stop_is_not_taken_to_save_by_a_run_that_was_not_asked():
    bad, fine = ended(40.0, loop_steps=4, loop_s=4.0), ended(40.0, "completed", loop_steps=4, loop_s=4.0)
    assert learnt(fine).saves
    assert not learnt(bad, fine).saves


def test_only_so_many_workloads_are_remembered_and_those_measured_last_stay():
    costs = PreemptionCosts()
    for i in range(WORKLOADS + 5):
        costs.end(running(), f"k{i}", ended(40.0))
    assert len(costs.by_key) == WORKLOADS
    assert costs.of("k0") == PreemptionCost()
    assert costs.of(f"k{WORKLOADS + 4}") != PreemptionCost()


def test_what_stopping_loses_is_what_has_been_done_since_the_last_checkpoint():
    assert PreemptionCost().lost_s(running(), 100.0) == 90.0
    assert PreemptionCost().lost_s(running(checkpointed_s=80.0), 100.0) == 20.0
    assert PreemptionCost().lost_s(running(checkpointed_s=5.0), 100.0) == 90.0  # of an earlier run
    assert PreemptionCost(saves=True).lost_s(running(), 100.0) == 0.0
    assert PreemptionCost().lost_s(running(started_s=0.0), 100.0) == 0.0
