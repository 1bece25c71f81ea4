from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiler_facts import (
    KEY,
    ended,
    failed,
    lost,
    node,
    placed,
    profiled,
    ran,
    requested,
    sample_id,
    sampled,
    spec,
    submitted,
)

from penstock_log import (
    Device,
    JobCancelled,
    KindSpeed,
    NodeJoined,
    RunStarted,
    SamplesRequested,
    WorkloadProfiled,
    workload,
)
from penstock_profiler.machine import ProfilerSettings, ProfilerState, decider
from penstock_testing import Scenario

FAST_AND_SLOW = ("fast", "slow")


@pytest.fixture
def profiler() -> Scenario[ProfilerState]:
    return Scenario(decider()).at(1.0)


def the_answer(profiler: Scenario[ProfilerState]) -> WorkloadProfiled:
    (fact,) = profiler.facts()
    assert isinstance(fact, WorkloadProfiled)
    return fact


def speeds(answer: WorkloadProfiled) -> dict[str, tuple[float, bool]]:
    return {speed.kind: (pytest.approx(speed.speed), speed.predicted) for speed in answer.speeds}


# --- asking


def test_an_unseen_workload_is_sampled_twice_on_each_kind(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW)).when(submitted()).then(requested("fast", "slow")).then()


def test_a_bare_cpu_is_sampled_only_where_the_job_names_it(profiler):
    profiler.given(node("n1", "cpu", *FAST_AND_SLOW)).when(submitted(kinds=("cpu", "fast")))
    profiler.then(requested("cpu", "fast", kinds=("cpu", "fast")))


def test_devices_with_too_little_memory_are_not_sampled(profiler):
    small = Device(index=0, kind="small", memory_bytes=10, backend="cuda")
    profiler.given(node("n1", *FAST_AND_SLOW), NodeJoined(at_s=0.0, node_id="n2", devices=(small,)))
    profiler.when(submitted(memory_bytes=50)).then(requested("fast", "slow", memory_bytes=50))


def test_nodes_of_other_pools_are_not_sampled(profiler):
    profiler.given(node("n1", "fast"), node("n2", "slow", pool="other")).when(submitted())
    assert speeds(the_answer(profiler)) == {"fast": (1.0, True)}


def test_jobs_of_one_workload_are_sampled_once(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW)).when(submitted("j1"), submitted("j2")).then(requested(*FAST_AND_SLOW))
    profiler.when(submitted("j3")).then()


def test_sample_ids_are_valid_job_ids_of_their_own_whatever_the_kinds_are_called(profiler):
    kinds = ("NVIDIA H100 80GB HBM3", "x" * 80, "x" * 81, "Fast", "fast", "fa st", "fa-st")
    (fact,) = profiler.given(node("n1", *kinds)).when(submitted()).facts()
    assert isinstance(fact, SamplesRequested)
    ids = {sample.sample_id for sample in fact.samples}
    assert len(ids) == 2 * len(kinds)
    assert all(re.fullmatch("[a-z0-9][a-z0-9_-]{0,62}", sample_id) for sample_id in ids)
    assert f"s-{KEY[:8]}-fast-1" in ids


def test_the_number_of_iterations_can_be_set():
    profiler = Scenario(decider(ProfilerSettings(short_iterations=2, long_iterations=9)))
    (fact,) = profiler.given(node("n1", *FAST_AND_SLOW)).when(submitted()).facts()
    assert [sample.iterations for sample in fact.samples] == [2, 9, 2, 9]


@pytest.mark.parametrize(
    "fields", [{"model": "mlp"}, {"parent": "sweep"}, {"profile": "on"}, {"model": "mlp", "parent": "sweep"}]
)
def test_what_is_named_searched_over_or_asked_for_is_sampled(profiler, fields):
    asked = {"profile": "auto", **fields}
    profiler.given(node("n1", *FAST_AND_SLOW)).when(submitted(**asked)).then(requested("fast", "slow", **asked)).then()


def test_a_script_without_a_name_is_answered_at_once_and_never_sampled_whatever_changes(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW))
    for edit in range(5):
        job = {"profile": "auto", "digest": f"edit {edit}", "command": ("python", "train.py", str(edit))}
        answer = the_answer(profiler.when(submitted(f"j{edit}", **job)))
        assert "slow: taken as 1.0, no other workload to go by; not sampled, what runs there is measured" in answer.note
        assert profiler.settle() == [answer]
    profiler.when(node("n2", "huge"))
    assert not any(isinstance(fact, SamplesRequested) for fact in profiler.settle())


def test_one_job_that_asks_has_its_workload_sampled_whoever_else_submits_it(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW), submitted("j1", profile="auto")).settle()
    profiler.given(submitted("j2")).when(submitted("j3", profile="auto")).then(requested("fast", "slow"))


# --- answering at once


def test_one_kind_needs_no_samples(profiler):
    note = "fast: not measured, the only kind that fits"
    speed = KindSpeed(kind="fast", iteration_s=0.0, speed=1.0, predicted=True)
    profiler.given(node("n1", "fast")).when(submitted()).then(profiled(speed, at_s=1.0, note=note)).then()


def test_a_job_that_wants_no_samples_gets_predictions(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW)).when(submitted(profile="off"))
    answer = the_answer(profiler)
    assert speeds(answer) == {"fast": (1.0, True), "slow": (1.0, True)}
    assert "slow: taken as 1.0, no other workload to go by; not sampled" in answer.note


def test_a_job_that_nothing_fits_is_answered_and_measured_when_devices_come(profiler):
    note = "no device of pool default fits at present; speeds follow when one joins"
    profiler.when(submitted()).then(profiled(at_s=1.0, note=note)).then()
    profiler.when(node("n1", *FAST_AND_SLOW)).then(requested(*FAST_AND_SLOW))


# --- answering after samples


def test_the_slopes_of_both_samples_give_the_speeds(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW))
    profiler.given(*sampled("fast", 0.1)).then()
    profiler.at(9.0).when(*sampled("slow", 0.25))
    answer = the_answer(profiler)
    assert speeds(answer) == {"fast": (1.0, False), "slow": (0.4, False)}
    assert [speed.iteration_s for speed in answer.speeds] == pytest.approx([0.1, 0.25])
    assert answer.note == ""
    assert profiler.settle() == [answer]


def test_the_peak_memory_of_samples_is_kept(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW), *sampled("slow", 0.2))
    profiler.given(*ran(sample_id("fast", 1), "fast", 5, 1.0, peak_memory_bytes=70))
    profiler.given(*ran(sample_id("fast", 2), "fast", 25, 2.0, peak_memory_bytes=90))
    assert [speed.memory_bytes for speed in the_answer(profiler).speeds] == [90, 0]


def test_a_longer_sample_that_took_less_time_counts_by_its_average(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW), *sampled("slow", 0.2))
    profiler.given(*ran(sample_id("fast", 1), "fast", 5, 9.0), *ran(sample_id("fast", 2), "fast", 25, 2.5))
    assert the_answer(profiler).speeds[0].iteration_s == 0.1


def test_an_opaque_command_is_answered_with_predictions_that_say_why(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW))
    profiler.given(*failed("fast"), *ran(sample_id("slow", 1), "slow", 0, 0.0))
    profiler.when(*ran(sample_id("slow", 2), "slow", 0, 0.0))
    answer = the_answer(profiler)
    assert speeds(answer) == {"fast": (1.0, True), "slow": (1.0, True)}
    assert "fast: taken as 1.0, no other workload to go by; its sample failed: opaque" in answer.note
    assert "its sample failed: opaque: it reported no iterations" in answer.note


def test_a_command_that_its_client_found_to_be_opaque_is_answered_without_samples(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW)).when(submitted(opaque=True))
    answer = the_answer(profiler)
    assert speeds(answer) == {"fast": (1.0, True), "slow": (1.0, True)}
    assert "fast: taken as 1.0, no other workload to go by; not sampled" in answer.note


@pytest.mark.parametrize("fields", [{"profile": "off"}, {"profile": "auto", "opaque": True}])
def test_what_must_not_be_sampled_is_not_run_as_another_jobs_sample(profiler, fields):
    """Both are of one workload, and the one that came last is not to be tried."""
    profiler.given(node("n1", *FAST_AND_SLOW), submitted("j1"))
    profiler.when(submitted("j2", env={"ACCOUNT": "real"}, **fields)).then(requested(*FAST_AND_SLOW))


def test_an_opaque_command_is_not_sampled_on_kinds_that_come_later(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW), *failed("fast"), *failed("slow"))
    profiler.settle()
    profiler.when(node("n2", "huge"))
    answer = the_answer(profiler)
    assert "huge: taken as 1.0, no other workload to go by; samples elsewhere failed" in answer.note
    assert profiler.settle() == [answer]


def test_a_kind_whose_samples_failed_is_predicted_from_other_workloads(profiler):
    other = {"model": "other"}
    other_key = workload.key(spec(**other))
    profiler.given(node("n1", *FAST_AND_SLOW), submitted("j0", **other), requested(*FAST_AND_SLOW, **other))
    profiler.given(*sampled("fast", 0.1, other_key), *sampled("slow", 0.5, other_key))
    profiler.settle()
    profiler.given(submitted(), requested(*FAST_AND_SLOW), *sampled("fast", 1.0), *failed("slow", "exit code 1"))
    answer = the_answer(profiler)
    assert speeds(answer) == {"fast": (1.0, False), "slow": (0.2, True)}
    assert answer.note == "slow: predicted from other workloads; its sample failed: exit code 1"
    assert answer.speeds[1].iteration_s == 0.0


def test_one_good_sample_of_two_is_enough(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW), *sampled("slow", 0.2))
    profiler.given(placed(sample_id("fast", 1), "fast"), ended(sample_id("fast", 1), "failed", reason="exit code 1"))
    profiler.when(*ran(sample_id("fast", 2), "fast", 25, 2.5))
    assert speeds(the_answer(profiler)) == {"fast": (1.0, False), "slow": (0.5, False)}


def test_a_sample_lost_once_is_waited_for_and_one_lost_twice_is_not(profiler):
    first, second = sample_id("fast", 1), sample_id("fast", 2)
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW), *sampled("slow", 0.2))
    profiler.given(placed(first, "fast"), lost("n1"), node("n1", *FAST_AND_SLOW), placed(second, "fast")).then()
    profiler.given(ended(second, "failed"), placed(first, "fast", epoch=2), lost("n1"))
    profiler.when(node("n1", *FAST_AND_SLOW))
    assert "its sample failed: its node was lost" in the_answer(profiler).note


def test_a_cancelled_sample_is_not_waited_for(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW), *sampled("slow", 0.2))
    profiler.when(*(JobCancelled(at_s=5.0, job_id=sample_id("fast", n), by="ada") for n in (1, 2)))
    assert "its sample failed: cancelled by ada" in the_answer(profiler).note


def test_jobs_do_not_wait_for_samples_for_ever(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW, at_s=10.0))
    profiler.given(*sampled("slow", 0.2))
    profiler.at(129.0).then().then_wakes_at(130.0)
    profiler.at(130.0)
    answer = the_answer(profiler)
    assert speeds(answer) == {"fast": (1.0, True), "slow": (1.0, False)}
    assert "its samples have not ended yet" in answer.note
    assert profiler.settle() == [answer]


def test_samples_that_end_late_correct_the_answer(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW), *sampled("slow", 0.2))
    profiler.at(200.0).settle()
    profiler.when(*sampled("fast", 0.1))
    assert speeds(the_answer(profiler)) == {"fast": (1.0, False), "slow": (0.5, False)}


def test_a_workload_whose_jobs_were_all_cancelled_is_still_answered(profiler):
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW))
    profiler.given(JobCancelled(at_s=2.0, job_id="j1")).then()
    profiler.when(*sampled("fast", 0.1), *sampled("slow", 0.2))
    assert speeds(the_answer(profiler)) == {"fast": (1.0, False), "slow": (0.5, False)}


# --- known workloads


def known(profiler: Scenario[ProfilerState]) -> Scenario[ProfilerState]:
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(), requested(*FAST_AND_SLOW))
    profiler.given(*sampled("fast", 0.1), *sampled("slow", 0.2)).settle()
    return profiler


def test_a_known_workload_is_not_sampled_again(profiler):
    known(profiler).when(submitted("j2"), node("n2", *FAST_AND_SLOW)).then()


def test_a_new_kind_is_sampled_alone(profiler):
    known(profiler).when(node("n2", "huge")).then(requested("huge")).then()
    profiler.when(*sampled("huge", 0.05))
    assert speeds(the_answer(profiler)) == {"fast": (0.5, False), "huge": (1.0, False), "slow": (0.25, False)}


def test_a_new_kind_is_not_sampled_for_workloads_that_nobody_runs(profiler):
    known(profiler).given(*ran("j1", "fast", 100, 10.0)).then()
    profiler.when(node("n2", "huge")).then()
    profiler.when(submitted("j2")).then(requested("huge"))


def test_a_real_run_that_agrees_is_not_announced(profiler):
    known(profiler).when(*ran("j1", "fast", 1000, 105.0)).then()


def test_what_a_script_said_of_its_model_is_announced_once_whatever_the_run_came_to(profiler):
    known(profiler).when(placed("j1", "fast"), ended("j1", "failed", skew=0.7441)).then(the_answer(profiler))
    assert profiler.log[-1].commit.facts[0].skew == 0.744
    profiler.given(submitted("j2")).when(placed("j2", "fast"), ended("j2", "failed", skew=0.7442)).then()
    profiler.given(submitted("j3")).when(placed("j3", "fast"), ended("j3", "failed")).then()


def test_real_runs_that_differ_are_averaged_in_and_announced(profiler):
    known(profiler).when(*ran("j1", "fast", 1000, 200.0))
    answer = the_answer(profiler)
    assert [speed.iteration_s for speed in answer.speeds] == pytest.approx([0.13, 0.2])
    assert speeds(answer) == {"fast": (1.0, False), "slow": (0.65, False)}
    assert profiler.settle() == [answer]


@pytest.mark.parametrize("case", ["gang", "short", "failed", "no time", "shared"])
def test_runs_that_say_nothing_about_an_iteration_change_nothing(profiler, case):
    fields: dict[str, Any] = {"gang": {"gpus": 2}, "shared": {"sharing": "lane"}}.get(case, {})
    known(profiler).given(submitted("j2", **fields), placed("j2", "fast"))
    steps = 10 if case == "short" else 100
    loop_s = 0.0 if case == "no time" else 99.0
    outcome = "failed" if case == "failed" else "completed"
    profiler.when(ended("j2", outcome, loop_steps=steps, loop_s=loop_s)).then()


def test_a_real_run_measures_a_kind_that_was_only_predicted(profiler):
    profiler.given(node("n1", "fast"), submitted()).settle()
    profiler.when(*ran("j1", "fast", 100, 5.0))
    assert the_answer(profiler).speeds == (KindSpeed(kind="fast", iteration_s=0.05, speed=1.0),)


def unnamed(profiler: Scenario[ProfilerState], job_id: str = "j1", **fields: Any) -> Scenario[ProfilerState]:
    profiler.given(node("n1", *FAST_AND_SLOW), submitted(job_id, profile="auto", **fields)).settle()
    return profiler


@pytest.mark.parametrize("outcome", ["completed", "preempted", "cancelled"])
def test_the_first_real_run_of_a_script_without_a_name_measures_it(profiler, outcome):
    unnamed(profiler).when(*ran("j1", "slow", 100, 25.0, outcome=outcome))
    answer = the_answer(profiler)
    assert speeds(answer) == {"fast": (1.0, True), "slow": (1.0, False)}
    profiler.settle()
    unnamed(profiler, "j2").when(*ran("j2", "fast", 100, 10.0))
    assert speeds(the_answer(profiler)) == {"fast": (1.0, False), "slow": (0.4, False)}


def whole_run(job_id: str, kind: str, run_s: float, **more: Any) -> list[Any]:
    started = RunStarted(at_s=10.0, job_id=job_id, epoch=1, node_id="n1", devices=(0,))
    return [placed(job_id, kind), started, ended(job_id, at_s=10.0 + run_s, **more)]


def test_whole_runs_tell_the_kinds_apart_where_a_command_has_no_iterations(profiler):
    unnamed(profiler).when(*whole_run("j1", "slow", 30.0)).settle()
    unnamed(profiler, "j2").when(*whole_run("j2", "fast", 12.0))
    answer = the_answer(profiler)
    assert speeds(answer) == {"fast": (1.0, False), "slow": (0.4, False)}
    assert [(speed.iteration_s, speed.run_s) for speed in answer.speeds] == [(0.0, 12.0), (0.0, 30.0)]


@pytest.mark.parametrize(
    "other",
    [
        {"command": ("python", "train.py", "--epochs", "9"), "model": "mlp"},
        {"params": {"epochs": 9}},
        {"env": {"EPOCHS": "9"}},
    ],
)
def test_whole_runs_of_other_work_are_not_compared(profiler, other):
    same = {"profile": "auto", "opaque": True, **({"model": "mlp"} if "model" in other else {})}
    profiler.given(node("n1", *FAST_AND_SLOW), submitted("j1", **same)).settle()
    profiler.given(submitted("j2", **{**same, **other})).settle()
    profiler.when(*whole_run("j1", "slow", 30.0)).settle()
    profiler.when(*whole_run("j2", "fast", 60.0))
    assert speeds(the_answer(profiler)) == {"fast": (1.0, False), "slow": (1.0, True)}


def test_whole_runs_of_an_array_are_compared(profiler):
    unnamed(profiler, env={"PENSTOCK_ARRAY_INDEX": "0"}).when(*whole_run("j1", "slow", 30.0)).settle()
    unnamed(profiler, "j2", env={"PENSTOCK_ARRAY_INDEX": "1"}).when(*whole_run("j2", "fast", 12.0))
    assert speeds(the_answer(profiler)) == {"fast": (1.0, False), "slow": (0.4, False)}


@pytest.mark.parametrize(
    ("run_s", "more"),
    [(0.5, {}), (30.0, {"outcome": "failed"}), (30.0, {"outcome": "preempted"}), (30.0, {"steps": 9})],
)
def test_a_run_without_iterations_tells_nothing_if_it_was_short_or_not_whole(profiler, run_s, more):
    unnamed(profiler).when(*whole_run("j1", "slow", run_s, **more)).then()


def test_runs_of_gangs_are_compared_with_each_other_until_one_has_fewer_devices(profiler):
    unnamed(profiler, "j1", gpus=4).when(*ran("j1", "slow", 100, 20.0)).settle()
    unnamed(profiler, "j2", gpus=4).when(*ran("j2", "fast", 100, 10.0))
    assert speeds(the_answer(profiler)) == {"fast": (1.0, False), "slow": (0.5, False)}
    profiler.settle()
    unnamed(profiler, "j3", gpus=8).when(*ran("j3", "fast", 100, 1.0)).then()
    unnamed(profiler, "j4", gpus=2).when(*ran("j4", "fast", 100, 80.0))
    assert [(speed.iteration_s, speed.predicted) for speed in the_answer(profiler).speeds] == [
        (0.8, False),
        (0.0, True),
    ]


def test_an_answer_keeps_what_is_known_of_kinds_that_do_not_fit_now(profiler):
    known(profiler).when(submitted("j2", kinds=("fast",)), *ran("j1", "fast", 1000, 200.0))
    assert [speed.kind for speed in the_answer(profiler).speeds] == ["fast", "slow"]


# --- sharing


def test_a_replica_asks_only_for_its_own_keys():
    other = Scenario(decider(mine=lambda key: key != KEY))
    other.given(node("n1", *FAST_AND_SLOW)).when(submitted()).then().then_wakes_at(None)


# --- what must always hold


kinds = st.sampled_from(["fast", "slow", "huge"])
steps = st.integers(0, 60)


@st.composite
def stories(draw):
    """Any jobs, nodes, and runs of jobs and samples, in any order."""
    facts: list[Any] = []
    for number in range(draw(st.integers(1, 25))):
        job_id = draw(st.sampled_from([f"j{n}" for n in range(number + 1)] + [sample_id(k, 1) for k in FAST_AND_SLOW]))
        facts += draw(
            st.sampled_from(
                [
                    [submitted(f"j{number}", profile=draw(st.sampled_from(["auto", "on", "off"])))],
                    [node(draw(st.sampled_from(["n1", "n2"])), *draw(st.lists(kinds, max_size=3)))],
                    ran(job_id, draw(kinds), draw(steps), draw(st.floats(0, 100))),
                    [placed(job_id, draw(kinds), epoch=draw(st.integers(1, 3)))],
                    [ended(job_id, draw(st.sampled_from(["failed", "lost"])), epoch=draw(st.integers(1, 3)))],
                    [lost("n1")],
                    [JobCancelled(at_s=4.0, job_id=job_id)],
                ]
            )
        )
    return facts


@given(story=stories())
def test_every_workload_is_answered_in_time_and_the_profiler_comes_to_rest(story):
    profiler = Scenario(decider()).at(2.0)
    said: list[Any] = []
    for fact in story:
        said += profiler.when(fact).settle()
    said += profiler.at(1000.0).settle()
    answered = [fact for fact in said if isinstance(fact, WorkloadProfiled)]
    assert {fact.key for fact in answered} == profiler.state.workloads.keys()
    assert all(0.0 < speed.speed <= 1.0 and math.isfinite(speed.speed) for fact in answered for speed in fact.speeds)
    sample_ids = [s.sample_id for fact in said if isinstance(fact, SamplesRequested) for s in fact.samples]
    assert len(sample_ids) == len(set(sample_ids)), "a kind was sampled twice"
    assert all(before != after for before, after in pairwise(answered))


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="expected 1 <= short_iterations < long_iterations"):
        ProfilerSettings(short_iterations=25, long_iterations=5)
    with pytest.raises(ValueError, match="answer_within_s is 0"):
        ProfilerSettings(answer_within_s=0)
