"""What people see of a sweep while it runs, and afterwards."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gateway_cases import NOW_S, ended, joined, placed, preempted, spec, started, submitted, sweep_spec

from penstock_gateway import answers
from penstock_gateway.answers import ReadModel
from penstock_gateway.machine import GatewayState, apply
from penstock_log import (
    AnyEvent,
    Budget,
    NodeDrained,
    ProfileSample,
    SamplesRequested,
    SweepCancelled,
    SweepFinished,
    SweepSubmitted,
    Trial,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
    workload,
)
from penstock_log.request_bodies import SweepsRequest

BUDGET = Budget(param="steps", least=1, most=3)


def model(*facts: AnyEvent, now_s: float = NOW_S + 20) -> ReadModel:
    state = GatewayState()
    for seq, fact in enumerate(facts, 1):
        apply(state, fact, seq)
    return ReadModel(state, now_s, len(facts))


def shown(*facts: AnyEvent, **more: Any) -> Any:
    now = model(*facts, **more)
    return answers.sweep(now, now.state.sweeps["s1"])


def swept(**fields: Any) -> SweepSubmitted:
    spec = sweep_spec(**{"search": "halving", "budget": BUDGET, "trials": 3, **fields})
    return SweepSubmitted(at_s=NOW_S, sweep_id="s1", spec=spec)


def opened(group: int, *trials: Trial) -> TrialGroupOpened:
    return TrialGroupOpened(at_s=NOW_S, sweep_id="s1", group=group, trials=trials)


def trial(number: int, rung: int = 0, gpus: int = 1) -> Trial:
    name = f"s1-t{number:03d}"
    return Trial(
        job_id=f"{name}-r{rung}" if rung else name,
        params={"lr": 0.1},
        gpus=gpus,
        number=number,
        rung=rung,
        budget=3**rung,
        origin=name if rung else "",
    )


def ran(of: Trial, value: float | None, loop_s: float = 4.0, took_s: float = 5.0) -> list[AnyEvent]:
    start_s = NOW_S + 2
    state, problem = ("completed", "") if value is not None else ("failed", "crashed")
    return [
        submitted(of.job_id, parent="s1", gpus=of.gpus),
        placed(of.job_id, *range(of.gpus)),
        started(of.job_id, at_s=start_s),
        ended(of.job_id, "completed" if value is not None else "failed", at_s=start_s + took_s, loop_s=loop_s),
        TrialFinished(
            at_s=start_s + took_s, sweep_id="s1", job_id=of.job_id, state=state, value=value, problem=problem
        ),
    ]


FIRST = [trial(0), trial(1), trial(2)]
RUNG = [*ran(FIRST[0], 0.5), *ran(FIRST[1], 0.9), *ran(FIRST[2], None)]
SECOND = trial(1, rung=1, gpus=2)


def test_a_rung_shows_how_many_are_over_and_went_on():
    view = shown(joined(), swept(), opened(0, *FIRST), *RUNG, opened(1, SECOND))
    assert [(r.rung, r.budget, r.opened, r.over, r.promoted, r.best_value) for r in view.rungs] == [
        (0, 1, 3, 3, 1, 0.9),
        (1, 3, 1, 0, 0, None),
    ]
    assert [(t.number, t.promoted, t.problem) for t in view.trials] == [
        (0, False, ""),
        (1, True, ""),
        (2, False, "crashed"),
        (1, False, ""),
    ]
    assert (view.opened, view.done, view.wanted) == (3, 3, 4)


def test_a_run_that_is_done_once_more_counts_once_and_after_a_cancellation_there_is_no_other():
    again = msgspec.structs.replace(FIRST[0], job_id="s1-t000-a")
    retried = TrialRetried(at_s=NOW_S + 3, sweep_id="s1", job_id="s1-t000", trial=again, reason="it wanted more")
    view = shown(joined(), swept(), opened(0, *FIRST), retried, *ran(again, 0.5))
    assert (view.done, view.opened, view.rungs[0].opened, view.rungs[0].over) == (1, 3, 3, 1)
    assert [(t.job_id, t.problem) for t in view.trials][::3] == [("s1-t000", "memory"), ("s1-t000-a", "")]
    cancelled = SweepCancelled(at_s=NOW_S + 3, sweep_id="s1")
    view = shown(joined(), swept(), opened(0, *FIRST), cancelled, retried)
    assert (len(view.trials), view.done) == (3, 0)


def test_runs_that_failed_are_counted_and_the_first_of_them_says_why():
    crash = TrialFinished(
        at_s=NOW_S + 9,
        sweep_id="s1",
        job_id=SECOND.job_id,
        state="failed",
        problem="crashed",
        reason="exit code 1: NameError: name 'loss' is not defined",
    )
    facts = [joined(), swept(), opened(0, *FIRST), *ran(FIRST[0], 0.5), *ran(FIRST[1], 0.9), opened(1, SECOND), crash]
    view = shown(*facts)
    assert (view.failed, view.failed_promotions, view.first_failed) == (1, 1, "s1-t001-r1")
    assert view.first_error == view.trials[-1].reason == "exit code 1: NameError: name 'loss' is not defined"
    assert shown(*facts[:-1]).failed == 0
    silent = TrialFinished(at_s=NOW_S + 8, sweep_id="s1", job_id="s1-t002", state="completed", problem="no_report")
    view = shown(*facts, silent)
    assert (view.failed, view.failed_promotions, view.first_failed) == (2, 1, "s1-t002")
    assert view.first_error == "it ended without a report of the metric"
    diverged = msgspec.structs.replace(silent, problem="diverged")
    assert shown(*facts, diverged).failed == 1, "it has shown that these hyper-parameters do not do"


def test_the_best_so_far_is_known_before_the_end_and_prefers_who_trained_longer():
    facts = [joined(), swept(), opened(0, *FIRST), *RUNG]
    assert (shown(*facts).best_job_id, shown(*facts).best_value) == ("s1-t001", 0.9)
    view = shown(*facts, opened(1, SECOND), *ran(SECOND, 0.8))
    assert (view.best_job_id, view.best_value) == ("s1-t001-r1", 0.8)


def test_where_less_is_better_the_best_is_the_least():
    facts = [swept(mode="min"), opened(0, *FIRST), *ran(FIRST[0], 0.5), *ran(FIRST[1], 0.9)]
    view = shown(joined(), *facts)
    assert (view.best_job_id, view.rungs[0].best_value) == ("s1-t000", 0.5)


def test_the_time_left_is_that_of_the_work_left_at_the_pace_so_far():
    facts = [joined(), swept(), opened(0, *FIRST), *RUNG]
    view = shown(*facts, now_s=NOW_S + 30)
    whole_s = 4 * 1 + 5 * 4
    assert view.eta_s == pytest.approx(30 * (whole_s / 15 - 1)), "3 of 4 starts of 1 s, 3 of 5 units of 4 s took 30 s"
    over = SweepFinished(at_s=NOW_S + 31, sweep_id="s1", state="completed")
    assert shown(*facts, over, now_s=NOW_S + 99).eta_s is None


def test_where_trials_never_ran_the_time_left_is_judged_by_what_was_to_be_trained():
    refused = [
        TrialFinished(at_s=NOW_S + 1, sweep_id="s1", job_id=one.job_id, state="failed", problem="refused")
        for one in FIRST
    ]
    assert shown(swept(), opened(0, *FIRST), *refused, now_s=NOW_S + 30).eta_s == pytest.approx(20)


def test_goodput_counts_iterations_of_trials_that_went_on_or_are_the_best():
    facts = [joined(), swept(), opened(0, *FIRST), *RUNG, opened(1, SECOND), *ran(SECOND, 0.8)]
    goodput = shown(*facts).goodput
    assert goodput.allocated_gpu_s == 5 + 5 + 5 + 2 * 5
    assert goodput.useful_gpu_s == 4 + 2 * 4, "the promoted run, and the best one on two devices"
    assert goodput.stopped_gpu_s == 4
    assert goodput.failed_gpu_s == 5
    assert goodput.overhead_gpu_s == 1 + 1 + 2
    assert goodput.share == pytest.approx(12 / 25)


def test_what_a_run_holds_counts_as_running_until_it_is_over():
    start = [submitted("s1-t000", parent="s1"), placed("s1-t000"), started("s1-t000", at_s=NOW_S + 2)]
    view = shown(joined(), swept(), opened(0, *FIRST), *start, now_s=NOW_S + 12)
    assert (view.goodput.running_gpu_s, view.goodput.allocated_gpu_s) == (10, 0)
    assert view.utilisation == pytest.approx(10 / (2 * 12)), "one of two devices, from the second second on"
    assert view.makespan_s == 12


def test_stopping_and_going_on_again_is_told_apart_from_starting():
    again = [
        submitted("s1-t000", parent="s1"),
        placed("s1-t000"),
        started("s1-t000", at_s=NOW_S + 2),
        preempted("s1-t000"),
        ended("s1-t000", "preempted", at_s=NOW_S + 7, loop_s=4.0),
        placed("s1-t000", 0, 1, epoch=2, at_s=NOW_S + 8),
        started("s1-t000", epoch=2, at_s=NOW_S + 8),
        ended("s1-t000", epoch=2, at_s=NOW_S + 12, loop_s=1.0),
        TrialFinished(at_s=NOW_S + 12, sweep_id="s1", job_id="s1-t000", state="completed", value=0.5),
    ]
    goodput = shown(joined(), swept(), opened(0, *FIRST), *again).goodput
    assert goodput.allocated_gpu_s == 5 + 2 * 4, "as many devices as each run had"
    assert (goodput.useful_gpu_s, goodput.overhead_gpu_s, goodput.rescale_gpu_s) == (4 + 2 * 1, 1, 2 * 3)


def test_of_a_device_on_which_two_trials_take_turns_each_holds_half_and_its_own_turns_count():
    both = [trial(0), trial(1)]
    facts = [fact for one in both for fact in (submitted(one.job_id, parent="s1", sharing="lane"), placed(one.job_id))]
    facts += [started(one.job_id, at_s=NOW_S + 2) for one in both]
    for one in both:
        facts += [
            ended(one.job_id, at_s=NOW_S + 12, loop_s=4.0),
            TrialFinished(at_s=NOW_S + 12, sweep_id="s1", job_id=one.job_id, state="completed", value=0.5),
        ]
    goodput = shown(joined(), swept(), opened(0, *both), *facts).goodput
    assert goodput.allocated_gpu_s == pytest.approx(10)
    assert goodput.useful_gpu_s == goodput.stopped_gpu_s == pytest.approx(4)


def test_samples_that_were_taken_for_its_workload_count_as_profiling():
    sample = ProfileSample(sample_id="sample-1", kind="fast", iterations=5)
    key = workload.key(spec())
    asked = SamplesRequested(at_s=NOW_S + 1, key=key, spec=spec(), samples=(sample,))
    ran_for = [placed("sample-1"), started("sample-1", at_s=NOW_S + 2), ended("sample-1", at_s=NOW_S + 5)]
    goodput = shown(joined(), swept(), asked, *ran_for, opened(0, *FIRST), *ran(FIRST[0], 0.5)).goodput
    assert (goodput.profile_gpu_s, goodput.allocated_gpu_s) == (3, 3 + 5)
    later = SweepSubmitted(at_s=NOW_S + 9, sweep_id="s1", spec=sweep_spec())
    before = shown(joined(), asked, *ran_for, later)
    assert before.goodput.profile_gpu_s == 0, "the sweep came later, and found the workload known"


def test_the_time_to_the_target_is_that_of_the_first_value_as_good():
    facts = [joined(), swept(target=0.9), opened(0, *FIRST), *RUNG]
    assert shown(*facts).target_s == 7
    assert shown(joined(), swept(target=0.95), opened(0, *FIRST), *RUNG).target_s is None
    assert shown(joined(), swept(), opened(0, *FIRST), *RUNG).target_s is None


def test_devices_that_go_are_not_counted_as_unused():
    drained = NodeDrained(at_s=NOW_S + 10, node_id="n2", by="u")
    over = SweepFinished(at_s=NOW_S + 20, sweep_id="s1", state="completed")
    facts = [joined(), joined("n2"), swept(), opened(0, FIRST[0]), *ran(FIRST[0], 0.5), drained, over]
    assert shown(*facts, now_s=NOW_S + 99).utilisation == pytest.approx(5 / (4 * 10 + 2 * 10))


def test_a_sweep_before_its_first_trial_has_no_goodput_and_no_estimate():
    view = shown(swept())
    assert (view.goodput.share, view.eta_s, view.rungs, view.best_job_id) == (0.0, None, (), "")


def test_a_search_that_is_not_known_here_any_more_is_shown_all_the_same():
    assert shown(swept(search="gone", budget=None), opened(0, FIRST[0])).done == 0


def test_a_part_of_the_sweeps_is_of_the_open_ones_and_then_the_newest_that_are_over():
    facts: list[AnyEvent] = []
    for number in range(6):
        job = spec(user="ada" if number % 2 else "bob", team="vision")
        facts.append(SweepSubmitted(at_s=NOW_S, sweep_id=f"s{number}", spec=sweep_spec(job=job)))
        if number not in {1, 2}:
            end = "completed" if number > 3 else "failed"
            facts.append(SweepFinished(at_s=NOW_S, sweep_id=f"s{number}", state=end))

    def ids(**asked: Any) -> tuple[list[str], int]:
        view = answers.sweeps(model(*facts), SweepsRequest(**asked))
        return [one.id for one in view.sweeps], view.total

    assert ids() == (["s0", "s3", "s4", "s5", "s1", "s2"], 6)
    assert ids(limit=3) == (["s5", "s1", "s2"], 6)
    assert ids(limit=2, offset=3) == (["s3", "s4"], 6)
    assert ids(offset=6) == ([], 6)
    assert ids(user="ada") == (["s3", "s5", "s1"], 3)
    assert ids(state=("failed", "running"), limit=3) == (["s3", "s1", "s2"], 4)
    assert ids(team="speech") == ([], 0)


def test_a_list_of_sweeps_leaves_their_runs_out():
    (view,) = answers.sweeps(model(swept(), opened(0, *FIRST)), SweepsRequest()).sweeps
    assert (view.trials, view.rungs, view.goodput, view.opened) == ((), (), None, 3)
