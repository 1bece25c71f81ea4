"""Who makes room: whose loss is lightest, and whose loss is not worth it."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from run_rows import columns_of

from penstock_log import Device, Job, JobSpec
from penstock_policies.queue_policies import DispatchMode
from penstock_policies.workload_stats import PreemptionCost
from penstock_scheduler.preemption import PreemptionCandidates
from penstock_scheduler.round_types import PreemptibleRun, RankedJob, RoundContext, RoundRules

NOW_S = 1000.0


def device(index: int) -> Device:
    return Device(index=index, kind="fast", memory_bytes=8, backend="emulated")


def new(queue: int = 0, gpus: int = 1, position: float = 0.0) -> RankedJob:
    spec = JobSpec(name="new", command=("true",), gpus=gpus)
    return RankedJob(queue, position, "new", Job(id="new", spec=spec, submitted_s=0.0))


def run(name: str, unsaved_s: float = 50.0, gpus: int = 1, queue: int = 1, left_s: float = math.inf) -> PreemptibleRun:
    """A run that has executed for 500 s, and whose last checkpoint is so long ago."""
    job = Job(
        id=name,
        spec=JobSpec(name=name, command=("true",), gpus=gpus),
        submitted_s=0.0,
        started_s=NOW_S - 500.0,
        checkpointed_s=NOW_S - unsaved_s,
    )
    ranked = RankedJob(queue, float(ord(name[0])), name, job)
    return PreemptibleRun(ranked, "fast", tuple((name, device(i)) for i in range(gpus)), left_s)


def context(preempts: str = "queue", cost: PreemptionCost | None = None, **rules: float) -> RoundContext:
    found = RoundContext(NOW_S, lambda *_: 1.0, lambda jobs: [1.0] * len(jobs), RoundRules(**rules))  # type: ignore[arg-type]
    mode = DispatchMode(preempts=preempts)  # type: ignore[arg-type]
    return replace(found, mode=mode, cost=lambda _: cost or PreemptionCost())


def candidates(runs: list[PreemptibleRun], seen: RoundContext) -> PreemptionCandidates:
    return PreemptionCandidates(columns_of(runs, seen), seen)


def chosen(
    runs: list[PreemptibleRun], lacking: int, ranked: RankedJob | None = None, seen: RoundContext | None = None
) -> list[str]:
    choice = candidates(runs, seen or context()).choose(ranked or new(), "fast", lacking)
    return sorted(run.ranked.job_id for run in choice.runs) if choice else []


def test_the_run_that_saved_last_goes_first_whatever_its_rank():
    assert chosen([run("a", unsaved_s=5.0), run("b", unsaved_s=50.0, queue=2)], 1) == ["a"]


def test_devices_count_as_well_as_seconds():
    assert chosen([run("a", unsaved_s=30.0), run("b", unsaved_s=10.0, gpus=4)], 1) == ["a"]


def test_equal_losses_go_by_rank_lowest_first():
    assert chosen([run("a", queue=2), run("b"), run("c", queue=2)], 1) == ["c"]


def test_a_few_small_runs_are_lighter_than_a_large_one_and_a_large_one_than_many():
    assert chosen([run("a", 10.0), run("b", 10.0), run("g", 30.0, gpus=2)], 2) == ["a", "b"]
    assert chosen([run("a", 40.0), run("b", 40.0), run("g", 30.0, gpus=2)], 2) == ["g"]


def test_never_within_a_queue_and_never_above():
    assert chosen([run("a", queue=0)], 1) == []
    assert chosen([run("a", queue=1)], 1, new(queue=2)) == []


def test_who_is_about_to_end_anyway_is_waited_for():
    cost = PreemptionCost(stop_s=4.0, resume_s=6.0)
    assert chosen([run("a", unsaved_s=0.0, left_s=10.0)], 1, seen=context(cost=cost)) == []
    assert chosen([run("a", unsaved_s=0.0, left_s=10.5)], 1, seen=context(cost=cost)) == ["a"]


def test_more_work_than_is_left_is_not_thrown_away():
    assert chosen([run("a", unsaved_s=300.0, left_s=200.0)], 1) == []
    assert chosen([run("a", unsaved_s=300.0, left_s=200.0)], 1, seen=context(cost=PreemptionCost(saves=True))) == ["a"]


@pytest.mark.parametrize(("overhead_s", "ripe"), [(99.0, True), (101.0, False)])
def test_a_run_pays_its_overhead_before_it_is_stopped(overhead_s, ripe):
    seen = context(cost=PreemptionCost(resume_s=overhead_s), overhead_share=0.2)
    victims = candidates([run("a")], seen)
    assert victims.below(new()) == ripe
    assert victims.ripe_s(new()) == (math.inf if ripe else 500.0 + 505.0)


def test_the_order_may_forbid_it_or_go_by_positions():
    runs = [run("a"), run("c"), run("e", queue=2)]
    assert chosen(runs, 1, seen=context("never")) == []
    by_position = context("position")
    assert chosen(runs, 2, new(1, position=float(ord("b"))), by_position) == ["c", "e"]
    assert chosen(runs, 3, new(1, position=float(ord("b"))), by_position) == []


def test_what_is_taken_is_gone():
    victims = candidates([run("a", 1.0), run("b", 2.0), run("g", 9.0, gpus=2)], context())
    names = []
    while (choice := victims.choose(new(), "fast", 1)) is not None:
        names += [run.ranked.job_id for run in choice.runs]
        victims.take(choice)
    assert names == ["a", "b", "g"]
    assert not victims.below(new())


losses = st.lists(st.tuples(st.one_of(st.sampled_from([0, 6, 12]), st.integers(0, 40)), st.integers(1, 4)), max_size=9)
"""Seconds unsaved, and devices; sums of different numbers of runs are often equal."""


@given(losses, st.integers(1, 8))
def test_no_other_set_of_runs_frees_enough_at_a_lighter_loss(losses, lacking):
    runs = [run(f"{chr(97 + i)}", float(unsaved_s), gpus) for i, (unsaved_s, gpus) in enumerate(losses)]
    choice = candidates(runs, context()).choose(new(gpus=lacking), "fast", lacking)

    def loss(some: tuple[PreemptibleRun, ...]) -> float:
        return sum(len(one.devices) * one.ranked.job.unsaved_by(NOW_S) for one in some)

    enough = [
        some
        for size in range(len(runs) + 1)
        for some in combinations(runs, size)
        if sum(len(one.devices) for one in some) >= lacking
    ]
    if choice is None:
        assert not enough
    else:
        best = min((loss(some), len(some)) for some in enough)
        assert (choice.loss_gpu_s, len(choice.runs)) == pytest.approx(best)
        assert sum(len(one.devices) for one in choice.runs) >= lacking


@given(losses, st.lists(st.integers(1, 3), max_size=6), st.sampled_from(["queue", "position"]))
def test_nobody_is_taken_twice(losses, wanted, preempts):
    runs = [run(f"{chr(97 + i)}", float(unsaved_s), gpus) for i, (unsaved_s, gpus) in enumerate(losses)]
    victims, taken = candidates(runs, context(preempts)), []
    for lacking in wanted:
        choice = victims.choose(new(gpus=lacking), "fast", lacking)
        if choice is not None:
            taken += [one.ranked.job_id for one in choice.runs]
            victims.take(choice)
    assert len(taken) == len(set(taken))
    assert victims.below(new()) == (len(taken) < len(runs))
