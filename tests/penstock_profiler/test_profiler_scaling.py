"""How the profiler finds out, and says, how elastic workloads go with batch size and devices."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiler_facts import (
    ELASTIC,
    ELASTIC_KEY,
    ended,
    ends,
    ends_with,
    lost,
    machine_s,
    node,
    placed,
    requested,
    sampled,
    spec,
    submitted,
)

from penstock_log import (
    Batch,
    Demand,
    JobCancelled,
    Placement,
    ProfileSample,
    RoundDecided,
    SamplesRequested,
    Scalability,
    ScaleDecided,
    Slot,
    WorkloadProfiled,
    WorkloadScaled,
    workload,
)
from penstock_policies import scaling_model
from penstock_profiler.machine import ProfilerState, decider
from penstock_testing import Scenario
from sweeps import examples


@pytest.fixture
def profiler() -> Scenario[ProfilerState]:
    return Scenario(decider()).at(1.0)


def asked(profiler: Scenario[ProfilerState]) -> tuple[ProfileSample, ...]:
    """Make the one decision true, which has to be a request, and return its samples."""
    (fact,) = profiler.facts()
    assert isinstance(fact, SamplesRequested)
    profiler.then(fact)
    return fact.samples


def answers(profiler: Scenario[ProfilerState]) -> tuple[WorkloadProfiled, WorkloadScaled]:
    speeds, scales = profiler.facts()
    assert isinstance(speeds, WorkloadProfiled)
    assert isinstance(scales, WorkloadScaled)
    return speeds, scales


def the_scaling(profiler: Scenario[ProfilerState], kind: str = "fast") -> Scalability:
    (found,) = (
        each
        for fact in profiler.facts()
        if isinstance(fact, WorkloadScaled)
        for each in fact.kinds
        if each.kind == kind
    )
    return found


def sizes(samples: Any) -> list[tuple[str, int, int]]:
    return [(sample.kind, sample.gpus, sample.batch_size) for sample in samples]


def timings(found: Scalability) -> dict[tuple[int, int], float]:
    return {(each.gpus, each.local_batch): pytest.approx(each.iteration_s) for each in found.timings}


def elastic(job_id: str = "j1", **fields: Any) -> Any:
    return submitted(job_id, **(ELASTIC | fields))


ON_TWO = [("fast", 1, 32), ("fast", 1, 181), ("fast", 1, 1024), ("fast", 2, 362)]


# --- asking


def test_an_elastic_workload_is_sampled_at_several_sizes_where_there_is_one_kind_alone(profiler):
    samples = asked(profiler.given(node("n1", "fast", "fast")).when(elastic()))
    assert sizes(samples) == ON_TWO
    assert samples[3].sample_id == f"s-{ELASTIC_KEY[:8]}-fast-2x362"
    assert {sample.iterations for sample in samples} == {25}


def test_the_samples_are_jobs_of_their_size(profiler):
    for sample in asked(profiler.given(node("n1", "fast", "fast")).when(elastic())):
        job = profiler.state.jobs[sample.sample_id]
        assert (job.spec.gpus, job.spec.batch_size, job.spec.elastic) == (sample.gpus, sample.batch_size, False)


def test_each_kind_is_sampled_as_wide_as_it_goes_and_not_once_more_to_compare_it(profiler):
    samples = asked(profiler.given(node("n1", "fast", "fast", "slow")).when(elastic()))
    assert sizes(samples) == [*ON_TWO, ("slow", 1, 64), ("slow", 1, 256), ("slow", 1, 1024)]


def test_a_kind_with_too_few_devices_is_not_sampled_for_scaling(profiler):
    profiler.given(node("n1", "fast")).when(elastic(min_gpus=2, gpus=2))
    _, scales = answers(profiler)
    assert [each.note for each in scales.kinds] == ["its smallest width is 2, and the devices there are 1; not sampled"]
    profiler.settle()
    widest = [("fast", 1, 32), ("fast", 1, 128), ("fast", 1, 512), ("fast", 2, 256)]
    assert sizes(asked(profiler.when(node("n2", "fast")))) == widest


def test_a_second_job_of_the_workload_is_not_sampled_again(profiler):
    known(profiler).when(elastic("j2"), elastic("j3", batch=Batch(min=64, max=512))).then()


def test_wider_jobs_and_larger_batches_are_sampled_alone(profiler):
    known(profiler).when(elastic("j2", batch=Batch(min=64, max=4096)))
    assert sizes(asked(profiler)) == [("fast", 1, 4096)]


def test_devices_that_come_are_sampled_at_the_width_that_they_allow(profiler):
    known(profiler).when(node("n2", "fast", "fast"))
    assert sizes(asked(profiler)) == [("fast", 1, 16), ("fast", 4, 512)]


def test_devices_that_come_after_the_last_elastic_job_are_not_sampled(profiler):
    known(profiler).given(JobCancelled(at_s=2.0, job_id="j1")).when(node("n2", "fast", "fast")).then()


def test_a_new_kind_is_sampled(profiler):
    known(profiler).when(node("n2", "slow"))
    assert {sample.kind for sample in asked(profiler)} == {"slow"}


def test_what_no_device_holds_is_sought_by_halves(profiler):
    samples = asked(profiler.given(node("n1", "fast")).when(elastic()))
    profiler.given(*ends(samples[:2]), *ends_with(samples[2], "failed", out_of_memory=True))
    assert sizes(asked(profiler)) == [("fast", 1, 512)]


def test_other_jobs_of_the_workload_are_still_compared_between_kinds(profiler):
    same = {"model": "net", "batch_size": 64, "min_gpus": 1, "max_gpus": 2}
    fixed = {"model": "net", "batch_size": 64}
    profiler.given(node("n1", "fast", "slow"), submitted("j0", **fixed), requested("fast", "slow", **fixed))
    key = workload.key(spec(**fixed))
    profiler.given(*sampled("fast", 0.1, key), *sampled("slow", 0.2, key)).settle()
    assert sizes(asked(profiler.when(submitted("j1", **same)))) == [("fast", 1, 64), ("slow", 1, 64)]


# --- answering


def known(profiler: Scenario[ProfilerState]) -> Scenario[ProfilerState]:
    profiler.given(node("n1", "fast", "fast"), elastic())
    profiler.given(*ends(asked(profiler))).settle()
    return profiler


def test_both_answers_come_with_the_last_sample_of_a_kind(profiler):
    samples = asked(profiler.given(node("n1", "fast", "fast")).when(elastic()))
    profiler.given(*ends(samples[:3])).then().then_wakes_at(13.0)
    profiler.when(*ends(samples[3:]))
    speeds, scales = answers(profiler)
    (found,) = scales.kinds
    assert timings(found) == {(1, 32): 0.042, (1, 181): 0.191, (1, 1024): 1.034, (2, 181): 0.211}
    assert (found.per_gpu_cap, found.note, found.timings[0].error_s) == (0, "", 1e-4)
    assert speeds.speeds[0].iteration_s == pytest.approx(machine_s(1, 64))
    assert profiler.settle() == [speeds, scales]
    profiler.then()


def test_kinds_are_compared_by_the_same_samples(profiler):
    samples = asked(profiler.given(node("n1", "fast", "fast", "slow")).when(elastic()))
    profiler.given(*ends(s for s in samples if s.kind == "fast"))
    profiler.given(*ends((s for s in samples if s.kind == "slow"), lambda gpus, local: machine_s(gpus, local, 0.5)))
    (speeds,) = (fact for fact in profiler.settle() if isinstance(fact, WorkloadProfiled))
    assert {each.kind: each.speed for each in speeds.speeds} == pytest.approx({"fast": 1.0, "slow": 0.5})
    assert not any(each.predicted for each in speeds.speeds)


def test_a_kind_is_answered_as_soon_as_it_is_known(profiler):
    samples = asked(profiler.given(node("n1", "fast", "fast", "slow")).when(elastic()))
    profiler.when(*ends(s for s in samples if s.kind == "fast"))
    (scales,) = profiler.facts()
    assert isinstance(scales, WorkloadScaled)
    notes = {each.kind: each.note for each in scales.kinds}
    assert notes["fast"] == ""
    assert notes["slow"].startswith("not measured yet: one device with 64 samples, ")
    profiler.then(scales).when(*ends(s for s in samples if s.kind == "slow"))
    assert len(the_scaling(profiler, "slow").timings) == 3


def test_nobody_waits_for_samples_for_ever(profiler):
    samples = asked(profiler.given(node("n1", "fast", "fast")).when(elastic()))
    profiler.given(*ends(samples[:3]), placed(samples[3].sample_id, "fast")).at(120.9).then().at(121.0)
    _, scales = answers(profiler)
    assert scales.kinds[0].note == "not measured yet: 2 devices with 181 samples each"
    assert len(scales.kinds[0].timings) == 3
    profiler.settle()
    profiler.when(*ends(samples[3:]))
    assert (2, 181) in timings(the_scaling(profiler))


def test_a_gang_that_finds_no_devices_is_not_waited_for_long_once_all_others_are_over(profiler):
    samples = asked(profiler.given(node("n1", "fast", "fast")).when(elastic()))
    profiler.given(*ends(samples[:2])).at(20.0).then().then_wakes_at(121.0)
    profiler.given(*ends([samples[2]])).at(12.9).then().at(13.0)
    _, scales = answers(profiler)
    assert scales.kinds[0].note == "not measured yet: 2 devices with 181 samples each"
    profiler.settle()
    profiler.when(*ends(samples[3:]))
    assert the_scaling(profiler).note == ""


def test_a_second_request_makes_nobody_wait_longer(profiler):
    samples = asked(profiler.given(node("n1", "fast")).when(elastic()))
    profiler.at(100.0).given(*ends(samples[:2]), *ends_with(samples[2], "failed", out_of_memory=True))
    asked(profiler)
    profiler.then().then_wakes_at(121.0)


def test_a_job_that_wants_no_samples_is_answered_at_once_with_nothing(profiler):
    profiler.given(node("n1", "fast", "fast")).when(elastic(profile="off"))
    _, scales = answers(profiler)
    assert scales.kinds == (Scalability(kind="fast", timings=(), note="not sampled: its profile is off"),)
    profiler.settle()
    profiler.then()


def test_a_job_that_wants_samples_after_one_that_did_not_waits_for_them(profiler):
    profiler.given(node("n1", "fast", "fast"), elastic(profile="off")).settle()
    samples = asked(profiler.when(elastic("j2")))
    profiler.then()
    profiler.when(*ends(samples))
    assert len(the_scaling(profiler).timings) == 4


def test_what_is_asked_for_later_is_no_news_before_it_is_over(profiler):
    samples = asked(known(profiler).when(elastic("j2", batch=Batch(min=64, max=4096))))
    profiler.then()
    profiler.when(*ends(samples))
    assert (1, 4096) in timings(the_scaling(profiler))


def test_a_job_that_no_device_fits_is_answered_at_once_and_measured_when_some_come(profiler):
    profiler.when(elastic())
    _, scales = answers(profiler)
    assert scales.kinds == ()
    profiler.settle()
    assert sizes(asked(profiler.when(node("n1", "fast", "fast")))) == ON_TWO


def test_a_smallest_batch_that_fits_no_device_is_said(profiler):
    job = elastic(batch=Batch(min=4096, max=8192), max_gpus=8, batch_size=4096)
    samples = asked(profiler.given(node("n1", *["fast"] * 8)).when(job))
    profiler.given(*(fact for s in samples for fact in ends_with(s, "failed", out_of_memory=True)))
    note = the_scaling(profiler).note
    assert note.startswith("its smallest batch of 4096 does not fit on 8 devices of 511 samples each; ")
    assert note.endswith(", 8 devices with 512 samples each: it ran out of memory")


def test_a_limit_that_its_user_has_set_counts_where_there_are_fewer_devices_than_hoped(profiler):
    job = elastic(batch=Batch(min=4096, max=8192, per_gpu_max=64), max_gpus=64, batch_size=4096)
    profiler.given(*ends(asked(profiler.given(node("n1", *["fast"] * 8)).when(job))))
    assert the_scaling(profiler).note == "its smallest batch of 4096 does not fit on 8 devices of 64 samples each"


def test_a_point_that_ran_out_of_memory_lowers_the_cap(profiler):
    samples = asked(profiler.given(node("n1", "fast", "fast")).when(elastic()))
    profiler.given(*ends([*samples[:2], samples[3]]), *ends_with(samples[2], "failed", out_of_memory=True))
    profiler.given(*ends_with(asked(profiler)[0], "failed", out_of_memory=True))  # 431
    profiler.given(*ends(asked(profiler)))  # 279
    found = the_scaling(profiler)
    assert found.per_gpu_cap == 279
    assert found.note == "one device with 1024 samples, one device with 431 samples: it ran out of memory"


def test_an_iteration_time_that_is_none_is_refused_and_said(profiler):
    samples = asked(profiler.given(node("n1", "fast", "fast")).when(elastic()))
    profiler.given(*ends(samples[:3]), *ends_with(samples[3], iteration_s=-1.0))
    found = the_scaling(profiler)
    assert found.note == (
        "2 devices with 181 samples each: it gave an iteration time of -1 s; expected a number above 0"
    )
    assert len(found.timings) == 3


def test_a_script_that_uses_another_batch_than_it_was_given_is_found_out(profiler):
    samples = asked(profiler.given(node("n1", "fast")).when(elastic()))
    profiler.given(*ends(samples[1:]), *ends_with(samples[0], iteration_s=0.1, batch_size=128))
    assert the_scaling(profiler).note == ("one device with 64 samples: it was to use a batch of 64 and used 128")


def test_an_opaque_command_is_answered_with_the_reason(profiler):
    samples = asked(profiler.given(node("n1", "fast")).when(elastic()))
    profiler.given(*(fact for s in samples for fact in ends_with(s, loop_steps=0, batch_size=0)))
    speeds, scales = answers(profiler)
    assert "its sample failed: opaque" in speeds.note
    assert scales.kinds[0].note.startswith("one device with 64 samples, one device with 256 samples, ")
    assert scales.kinds[0].note.endswith(": opaque: it reported no iterations")
    profiler.settle()
    profiler.when(node("n2", "slow"))
    assert the_scaling(profiler, "slow").note == "not sampled: samples elsewhere failed"


def test_a_gang_lost_twice_is_not_waited_for(profiler):
    samples = asked(profiler.given(node("n1", "fast", "fast")).when(elastic()))
    gang = samples[3].sample_id
    profiler.given(*ends(samples[:3]))
    for epoch in (1, 2):
        profiler.given(placed(gang, "fast", epoch=epoch), lost("n1"), node("n1", "fast", "fast"))
    assert the_scaling(profiler).note == "2 devices with 181 samples each: its node was lost"


# --- real runs


def run(job_id: str, gpus: int, batch: int, iteration_s: float, **more: Any) -> list[Any]:
    """Have a job run with a size, as the autoscaler has it."""
    demand = Demand(job_id=job_id, epoch=0, gpus=gpus, batch_size=batch)
    fields = {"loop_steps": 500, "batch_size": batch, "iteration_s": iteration_s, "error_s": 1e-4} | more
    return [
        ScaleDecided(at_s=2.0, pool="default", demands=(demand,)),
        placed(job_id, "fast", epoch=2),
        ended(job_id, **({"outcome": "completed", "epoch": 2} | fields)),
    ]


def test_a_real_run_that_agrees_is_not_announced(profiler):
    known(profiler).when(*run("j1", 2, 362, 0.215)).then()
    profiler.when(elastic("j2"), *run("j2", 2, 256, machine_s(2, 128)))
    assert profiler.facts() == [], "a size between those known, as was to be expected"


def test_a_real_run_that_differs_is_averaged_in_and_announced_once(profiler):
    known(profiler).when(*run("j1", 2, 362, 0.4))
    found = the_scaling(profiler)
    (timing,) = (each for each in found.timings if each.gpus == 2)
    assert 0.23 < timing.iteration_s < 0.4
    assert timing.runs == 2
    profiler.settle()
    profiler.then()


def test_a_difference_within_its_error_is_not_announced(profiler):
    known(profiler).when(*run("j1", 2, 362, 0.8, error_s=0.4)).then()


def test_a_size_that_does_not_go_as_expected_is_announced(profiler):
    known(profiler).when(*run("j1", 2, 256, 3 * machine_s(2, 128)))
    assert (2, 128) in timings(the_scaling(profiler))


def test_a_run_counts_at_the_size_that_it_had_and_not_at_the_one_it_makes_way_for(profiler):
    known(profiler).given(*run("j1", 1, 64, 1.0)[:2])
    profiler.given(
        ScaleDecided(at_s=3.0, pool="default", demands=(Demand(job_id="j1", epoch=2, gpus=2, batch_size=512),))
    )
    end = ended("j1", "preempted", epoch=2, loop_steps=500, batch_size=64, iteration_s=1.0)
    profiler.when(end)
    assert profiler.state.jobs["j1"].spec.gpus == 2
    found = {(each.gpus, each.local_batch): each.runs for each in the_scaling(profiler).timings}
    assert found == {(1, 32): 1, (1, 64): 1, (1, 181): 1, (1, 1024): 1, (2, 181): 1}


@pytest.mark.parametrize(
    "fields",
    [{"loop_steps": 5}, {"outcome": "failed"}, {"batch_size": 0}, {"iteration_s": -1.0}],
    ids=["few steps", "failed", "no batch size", "no time"],
)
def test_runs_that_tell_nothing_change_nothing(profiler, fields):
    curve = known(profiler).state.workloads[ELASTIC_KEY].curves["fast"]
    before = list(curve.timings)
    profiler.when(*run("j1", 2, 362, **{"iteration_s": 9.0} | fields)).then()
    assert profiler.state.workloads[ELASTIC_KEY].curves["fast"].timings == before


def test_runs_of_jobs_that_are_not_elastic_say_nothing_of_sizes(profiler):
    fixed = {"model": "net", "batch_size": 64}
    sized = {"min_gpus": 1, "max_gpus": 2}
    profiler.given(node("n1", "fast", "fast"), submitted("j1", **fixed | sized))
    profiler.given(*ends(asked(profiler))).settle()
    profiler.given(submitted("j2", **fixed))
    profiler.when(placed("j2", "fast"), ended("j2", loop_steps=500, loop_s=50.0, batch_size=64))
    assert [type(fact) for fact in profiler.facts()] == [WorkloadProfiled]


def test_a_real_run_without_enough_memory_lowers_the_cap_and_the_limit_is_sought_anew(profiler):
    known(profiler).when(*run("j1", 2, 1024, 0.0, outcome="failed", out_of_memory=True))
    assert sizes(asked(profiler)) == [("fast", 1, 304)]
    assert the_scaling(profiler).per_gpu_cap == 181


# --- what the answers are good for


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_times_between_the_samples_come_out_within_their_errors_most_of_the_time(noise):
    rng = np.random.default_rng(7)
    job, sizes = (
        spec(**(ELASTIC | {"max_gpus": 8})),
        [(1, 64), (1, 400), (2, 300), (4, 800), (8, 640), (8, 1024), (6, 480)],
    )
    held = []
    for _ in range(40):
        known = one_measured(job, noise, rng)
        for gpus, batch in sizes:
            speed, error = scaling_model.throughput(known, job, batch, gpus)
            true = batch / machine_s(gpus, -(-batch // gpus))
            held.append(abs(speed - true) <= 2 * error)
    assert np.mean(held) >= 0.85


def one_measured(job: Any, noise: float, rng: np.random.Generator) -> Scalability:
    """Have a workload sampled on eight devices whose iterations scatter, and return what is said of it."""
    profiler = (
        Scenario(decider()).at(1.0).given(node("n1", *["fast"] * 8), submitted("j1", **ELASTIC | {"max_gpus": 8}))
    )
    for sample in asked(profiler):
        true_s = machine_s(sample.gpus, -(-sample.batch_size // sample.gpus))
        times_s = true_s * rng.normal(1.0, noise, 20)
        mean_s, error_s = float(times_s.mean()), float(times_s.std(ddof=1) / np.sqrt(20))
        profiler.given(*ends_with(sample, iteration_s=mean_s, error_s=error_s))
    return the_scaling(profiler)


# --- what must always hold


@st.composite
def stories(draw: Any) -> list[Any]:
    """Jobs, elastic or not, with any ranges; nodes that come and go; ends of runs."""
    facts: list[Any] = []
    kinds = st.sampled_from(["fast", "slow"])
    for number in range(draw(st.integers(1, 10))):
        low = draw(st.sampled_from([8, 64]))
        ranges = draw(st.sampled_from([ELASTIC, {"batch_size": 64}, {"batch_size": 64, "min_gpus": 1, "max_gpus": 3}]))
        batch = {"batch": Batch(min=low, max=low * draw(st.sampled_from([1, 8, 100])))} if "batch" in ranges else {}
        job = submitted(
            f"j{number}", **(ranges | batch | {"model": "net", "profile": draw(st.sampled_from(["auto", "on", "off"]))})
        )
        facts += draw(
            st.sampled_from(
                [
                    [job],
                    [node(draw(st.sampled_from(["n1", "n2"])), *draw(st.lists(kinds, max_size=4)))],
                    [lost("n1")],
                    [job, *run(f"j{number}", draw(st.integers(1, 4)), 64, draw(st.floats(-1, 9)))],
                    [JobCancelled(at_s=4.0, job_id=f"j{max(0, number - 1)}")],
                ]
            )
        )
    return facts


endings = st.sampled_from(["well", "oom", "failed", "nan", "never"])


@settings(max_examples=examples(25))
@given(story=stories(), how=st.lists(endings, min_size=1, max_size=30))
def test_every_elastic_workload_is_answered_in_time_and_no_size_is_sampled_twice(story, how):
    profiler, said, number = Scenario(decider()).at(2.0), [], 0
    for fact in [*story, None, None, None]:
        said += profiler.given(*([fact] if fact else [])).settle()
        for sample in [s for f in said[-3:] if isinstance(f, SamplesRequested) for s in f.samples]:
            number += 1
            said += profiler.given(*_ending(sample, how[number % len(how)])).settle()
    said += profiler.at(1000.0).settle()
    ids = [s.sample_id for fact in said if isinstance(fact, SamplesRequested) for s in fact.samples]
    assert len(ids) == len(set(ids))
    answered = {fact.key for fact in said if isinstance(fact, WorkloadScaled)}
    assert answered == {key for key, each in profiler.state.workloads.items() if each.elastic is not None}
    for known in profiler.state.workloads.values():
        told = tuple((known.scaled or {}).values())
        assert all(each.iteration_s > 0 for found in told for each in found.timings)
        assert msgspec.convert(msgspec.to_builtins(told), tuple[Scalability, ...]) == told


def _ending(sample: ProfileSample, how: str) -> list[Any]:
    match how:
        case "well":
            return ends([sample])
        case "oom":
            return ends_with(sample, "failed", out_of_memory=True)
        case "failed":
            return ends_with(sample, "failed", reason="exit code 1")
        case "nan":
            return ends_with(sample, iteration_s=-1.0)
        case _:
            return []


@pytest.mark.parametrize("last", ["n1", "n2"])
def test_a_gang_over_two_nodes_is_timed_by_the_one_with_its_first_process_whichever_ends_last(profiler, last):
    samples = asked(profiler.given(node("n1", "fast"), node("n2", "fast")).when(elastic()))
    alone, (gang,) = [s for s in samples if s.gpus == 1], [s for s in samples if s.gpus == 2]
    slots = (Slot(node_id="n1", devices=(0,)), Slot(node_id="n2", devices=(0,)))
    placement = Placement(job_id=gang.sample_id, epoch=1, kind="fast", slots=slots)
    told = ended(gang.sample_id, loop_steps=25, batch_size=gang.batch_size, iteration_s=0.3, error_s=1e-4)
    mute = msgspec.structs.replace(ended(gang.sample_id), node_id="n2")
    both = (mute, told) if last == "n1" else (told, mute)
    profiler.given(*ends(alone), RoundDecided(at_s=2.0, pool="default", placements=(placement,))).when(*both)
    assert timings(the_scaling(profiler))[2, 181] == pytest.approx(0.3)


def test_what_one_node_told_of_a_gang_is_forgotten_with_the_other_node(profiler):
    profiler.given(node("n1", "fast"), node("n2", "fast"))
    (gang,) = [sample for sample in asked(profiler.when(elastic())) if sample.gpus == 2]
    slots = (Slot(node_id="n1", devices=(0,)), Slot(node_id="n2", devices=(0,)))
    placement = Placement(job_id=gang.sample_id, epoch=1, kind="fast", slots=slots)
    profiler.given(
        RoundDecided(at_s=2.0, pool="default", placements=(placement,)), ended(gang.sample_id, loop_steps=25)
    )
    assert profiler.state.loops
    profiler.given(lost("n2"))
    assert not profiler.state.loops
