"""The account of each run: when it waited and held devices, which part of them, and what was for nothing."""

from __future__ import annotations

import msgspec
import pytest
from gateway_cases import NOW_S, ended, joined, placed, preempted, started, submitted

from penstock_gateway import machine
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_gateway.run_accounts import MOST_RUNS, JobAccount
from penstock_log import (
    JobCancelled,
    JobsArchived,
    Placement,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunRewound,
    RunStarted,
    Slot,
)
from penstock_log.usage import MOST_PARTS, Usage, total, usage
from penstock_testing import Scenario


@pytest.fixture
def log() -> Scenario[GatewayState]:
    return Scenario(machine.decider(GatewaySettings())).at(NOW_S + 10)


def account(log: Scenario[GatewayState], job_id: str = "j1") -> JobAccount:
    return log.state.histories[job_id].account


def used(log: Scenario[GatewayState], job_id: str = "j1", now_s: float = NOW_S + 1000) -> Usage:
    found = account(log, job_id)
    return total(usage(run, now_s, measured=found.measured) for run in found.runs)


def both_nodes(job_id: str, epoch: int = 1, at_s: float = NOW_S + 1) -> RoundDecided:
    slots = (Slot(node_id="n1", devices=(0,)), Slot(node_id="n2", devices=(0, 1)))
    placement = Placement(job_id=job_id, epoch=epoch, kind="fast", slots=slots)
    return RoundDecided(at_s=at_s, pool="default", placements=(placement,))


def checkpointed(step: int, at_s: float, epoch: int = 1) -> RunCheckpointed:
    return RunCheckpointed(at_s=at_s, job_id="j1", epoch=epoch, node_id="n1", step=step)


def resumed(step: int, epoch: int, at_s: float) -> RunStarted:
    return RunStarted(at_s=at_s, job_id="j1", epoch=epoch, node_id="n1", devices=(0,), resumed_step=step)


def test_a_run_says_how_it_began_on_its_nodes(log: Scenario[GatewayState]) -> None:
    began = msgspec.structs.replace(started(), start="warm")
    log.given(joined(), submitted(), placed(), began, msgspec.structs.replace(began, start=""), ended(loop_s=2.0))
    (run,) = account(log).runs
    assert run.start == "warm"
    (shown,) = account(log).views(NOW_S, None)
    assert shown.start == "warm"


def test_a_run_is_accounted_from_submission_to_its_end(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted(), placed(), started(), ended(loop_s=2.0, loop_steps=4, steps=4))
    (run,) = account(log).runs
    assert (run.epoch, run.kind, run.gpus, run.outcome) == (1, "fast", 1, "completed")
    times = [run.pending_s, run.granted_s, run.started_s, run.ended_s]
    assert [at_s - NOW_S for at_s in times] == [0, 1, 2, 5]
    whole = used(log)
    assert (whole.requested_gpu_s, whole.waited_gpu_s, whole.held_gpu_s) == (5.0, 1.0, 4.0)
    assert (whole.used_gpu_s, whole.idle_gpu_s, whole.unmeasured_gpu_s, whole.lost_gpu_s) == (2.0, 2.0, 0.0, 0.0)
    assert (whole.jobs, whole.runs, whole.preemptions) == (1, 1, 0)


def test_a_command_without_iterations_is_unmeasured(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted(), placed(), started(), ended())
    assert (used(log).unmeasured_gpu_s, used(log).idle_gpu_s) == (4.0, 0.0)


def test_a_gang_holds_the_devices_of_a_node_until_its_processes_there_are_gone(log: Scenario[GatewayState]) -> None:
    log.given(joined(), joined("n2"), submitted(gpus=3), both_nodes("j1"), started())
    log.given(RunEnded(at_s=NOW_S + 4, job_id="j1", epoch=1, node_id="n2", outcome="completed"))
    assert account(log).runs[-1].outcome == ""
    log.given(ended(at_s=NOW_S + 9))
    assert account(log).runs[-1].parts == [(NOW_S + 1, 3.0), (NOW_S + 4, 1.0)]
    assert used(log).held_gpu_s == 3 * 3 + 1 * 5


def test_a_device_that_lanes_share_counts_once(log: Scenario[GatewayState]) -> None:
    log.given(joined(), *(submitted(name, sharing="lane") for name in ("j1", "j2", "j3")))
    log.given(placed("j1", at_s=NOW_S + 1), placed("j2", at_s=NOW_S + 3), placed("j3", at_s=NOW_S + 5))
    log.given(started("j1"), ended("j2", at_s=NOW_S + 9), ended("j1", at_s=NOW_S + 11))
    assert account(log).runs[-1].parts == [(NOW_S + 1, 1), (NOW_S + 3, 1 / 2), (NOW_S + 5, 1 / 3), (NOW_S + 9, 1 / 2)]
    held_s = sum(used(log, name, NOW_S + 20).held_gpu_s for name in ("j1", "j2", "j3"))
    assert held_s == pytest.approx(19.0)  # since the first was granted
    log.given(ended("j3", at_s=NOW_S + 20))
    assert log.state.lane_grants.by_device == {}


def test_waiting_for_a_turn_is_no_idleness(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted("j1", sharing="lane"), submitted("j2", sharing="lane"))
    log.given(placed("j1"), placed("j2"), started("j1", at_s=NOW_S + 1), started("j2", at_s=NOW_S + 1))
    log.given(ended("j1", at_s=NOW_S + 11, loop_s=7.0, waited_s=3.0, loop_steps=7))
    assert (used(log).held_gpu_s, used(log).used_gpu_s, used(log).idle_gpu_s) == (5.0, 5.0, 0.0)


def test_a_fraction_holds_its_part_of_a_device(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted(sharing="fraction", fraction=0.25), placed(), started(), ended())
    assert (used(log).requested_gpu_s, used(log).held_gpu_s) == (1.25, 1.0)


def test_what_was_done_behind_the_last_checkpoint_is_lost(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted(), placed(), started(at_s=NOW_S + 1), checkpointed(60, NOW_S + 61))
    end = ended(outcome="preempted", at_s=NOW_S + 101, steps=100, loop_steps=100, loop_s=80.0)
    log.given(preempted(), end)
    assert account(log).runs[0].lost_part == 0.4
    assert used(log, now_s=NOW_S + 101).lost_gpu_s == pytest.approx(40.0)
    assert used(log, now_s=NOW_S + 101).used_gpu_s == pytest.approx(48.0)
    assert used(log, now_s=NOW_S + 101).preemptions == 1


def test_a_run_that_saves_when_it_is_stopped_loses_nothing(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted(), placed(), started(), preempted())
    log.given(ended(outcome="preempted", steps=9, loop_steps=9, loop_s=1.0, saves=True))
    assert account(log).runs[0].lost_part == 0.0


def test_a_later_run_says_what_was_kept(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted(), placed(), started(), checkpointed(50, NOW_S + 3))
    log.given(ended(outcome="lost", steps=100, loop_steps=100, loop_s=2.0))
    assert account(log).runs[0].kept_step == 50
    log.given(placed(epoch=2, at_s=NOW_S + 6), resumed(80, 2, NOW_S + 7))
    assert account(log).runs[0].kept_step == 80


def test_a_rewind_takes_work_from_all_runs_behind_it(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted(), placed(), started(), checkpointed(100, NOW_S + 4))
    log.given(ended(outcome="preempted", steps=100, loop_steps=100, loop_s=2.0, saves=True))
    log.given(placed(epoch=2, at_s=NOW_S + 6), resumed(100, 2, NOW_S + 7), checkpointed(150, NOW_S + 8, epoch=2))
    log.given(ended(epoch=2, outcome="lost", steps=150, loop_steps=50, loop_s=2.0, at_s=NOW_S + 9))
    log.given(placed(epoch=3, at_s=NOW_S + 10))
    log.given(
        RunRewound(
            at_s=NOW_S + 11, job_id="j1", epoch=3, node_id="n1", step=50, generation=1, lost_step=150, lost_generation=2
        )
    )
    log.given(resumed(50, 3, NOW_S + 12))
    first, second, third = account(log).runs
    assert (first.lost_part, second.lost_part, third.lost_part) == (0.5, 1.0, 0.0)


def test_a_failed_command_that_showed_no_iterations_was_for_nothing(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted(), placed(), started(), ended(outcome="failed", exit_code=3))
    assert (used(log).held_gpu_s, used(log).lost_gpu_s) == (4.0, 4.0)


def test_a_cancelled_run_is_not_lost(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted(), placed(), started(), JobCancelled(at_s=NOW_S + 3, job_id="j1"))
    log.given(ended(outcome="cancelled"))
    assert (used(log).held_gpu_s, used(log).lost_gpu_s, used(log).unmeasured_gpu_s) == (4.0, 0.0, 4.0)


def test_a_lost_node_loses_what_came_after_the_last_checkpoint(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted(), placed(), started(at_s=NOW_S + 1), checkpointed(90, NOW_S + 91))
    log.given(RoundDecided(at_s=NOW_S + 101, pool="default", lost_nodes=("n1",)))
    run = account(log).runs[0]
    assert (run.outcome, run.end_step, run.kept_step) == ("lost", 100, 90)
    assert used(log, now_s=NOW_S + 101).lost_gpu_s == pytest.approx(10.0)
    assert used(log, now_s=NOW_S + 101).unmeasured_gpu_s == pytest.approx(90.0)


def test_a_run_that_is_lost_and_placed_by_one_round_is_two_runs(log: Scenario[GatewayState]) -> None:
    log.given(joined(), joined("n2"), submitted(), placed(), started())
    again = placed(epoch=2, node="n2", at_s=NOW_S + 5)
    log.given(msgspec.structs.replace(again, lost_nodes=("n1",)))
    assert [(run.outcome, run.epoch, run.granted_s - NOW_S) for run in account(log).runs] == [
        ("lost", 1, 1),
        ("", 2, 5),
    ]


def test_a_job_that_is_cancelled_while_it_waits_has_waited(log: Scenario[GatewayState]) -> None:
    log.given(submitted(gpus=4), JobCancelled(at_s=NOW_S + 30, job_id="j1"))
    found = used(log)
    assert (found.requested_gpu_s, found.waited_gpu_s, found.held_gpu_s, found.runs) == (120.0, 120.0, 0.0, 0)
    assert account(log).runs[-1].outcome == "cancelled"


def test_a_job_that_was_preempted_very_often_keeps_bounded_accounts(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted())
    for epoch in range(1, 2 * MOST_RUNS + 1):
        at_s = NOW_S + 10_000 * epoch
        log.given(placed(epoch=epoch, at_s=at_s), started(epoch=epoch, at_s=at_s + 1))
        log.given(
            ended(epoch=epoch, at_s=at_s + 100, outcome="preempted", steps=3, loop_steps=3, saves=True, loop_s=3.0)
        )
    found = account(log)
    assert (len(found.runs), found.left_out) == (MOST_RUNS, MOST_RUNS + 1)
    before = total(sums for of_kind in found.before.values() for sums in of_kind.values())
    assert (before.held_gpu_s, before.jobs, before.preemptions) == (
        pytest.approx(100 * (MOST_RUNS + 1)),
        1,
        MOST_RUNS + 1,
    )
    assert len(found.before["fast"]) > 10


def test_many_changes_of_a_share_are_kept_as_their_mean(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted("j1", sharing="lane"), placed("j1", at_s=NOW_S))
    for number in range(MOST_PARTS):
        name, at_s = f"k{number}", NOW_S + 10 * number
        log.given(submitted(name, sharing="lane"), placed(name, at_s=at_s + 5), ended(name, at_s=at_s + 10))
    assert len(account(log).runs[-1].parts) == MOST_PARTS
    assert used(log, now_s=NOW_S + 10 * MOST_PARTS).held_gpu_s == pytest.approx(7.5 * MOST_PARTS)


def test_a_job_that_is_archived_while_it_seems_to_run_leaves_its_device(log: Scenario[GatewayState]) -> None:
    log.given(joined(), submitted("j1", sharing="lane"), submitted("j2", sharing="lane"), placed("j1"), placed("j2"))
    log.given(JobsArchived(at_s=NOW_S + 7, archive="log", job_ids=("j2",)))
    assert account(log).runs[-1].parts == [(NOW_S + 1, 0.5), (NOW_S + 7, 1.0)]


def test_a_gang_of_which_one_node_has_ended_has_lost_nothing_yet(log: Scenario[GatewayState]) -> None:
    log.given(joined(), joined("n2"), submitted(gpus=3), both_nodes("j1"), started(), preempted())
    log.given(ended(outcome="preempted", steps=45, loop_steps=45, loop_s=2.0))
    assert (account(log).runs[-1].outcome, used(log).lost_gpu_s) == ("", 0.0)
