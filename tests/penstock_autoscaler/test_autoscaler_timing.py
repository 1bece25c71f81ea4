"""When it decides, and when it leaves things as they are."""

from __future__ import annotations

import pytest
from scaling_facts import (
    autoscaler,
    decisions,
    demands,
    elastic,
    ended,
    fixed,
    job,
    node,
    placed,
    preempted,
    ranked,
    scaled,
    seasoned,
    spread,
    widths,
)

from penstock_log import (
    KindSpeed,
    ProfileSample,
    RunCheckpointed,
    RunStarted,
    SamplesRequested,
    WorkloadProfiled,
    workload,
)
from penstock_scheduler.sizing import pool_sizes

WORK = elastic()


def test_a_new_job_waits_for_its_profile_while_its_smallest_width_is_left_alone() -> None:
    other = elastic(command=("python", "other.py"))
    it = autoscaler(await_profile_s=8.0).given(node(fast=4), scaled(WORK), job("b", other, 0.9)).at(1.0)
    assert widths(it.when(job("a")).settle()) == {"a": 3}
    it.then_wakes_at(8.9)
    it.at(4.0).when(scaled(other, 4.0))
    (decided,) = decisions(it.settle())
    assert widths([decided]) == {"a": 2, "b": 2}
    assert decided.because == "profile"


def test_a_job_whose_profile_does_not_come_is_sized_by_assumption_at_its_smallest_width() -> None:
    it = autoscaler(await_profile_s=8.0).given(node(fast=4)).at(1.0).when(job("a")).then()
    (decided,) = decisions(it.at(9.0).settle())
    assert widths([decided]) == {"a": 1}
    assert decided.because == "arrival"


def test_the_first_place_of_a_new_job_is_part_of_its_arrival() -> None:
    it = autoscaler().given(node(fast=4), scaled(WORK)).at(1.0).when(job("a"), ranked(a=1.0))
    (decided,) = decisions(it.settle())
    assert decided.because == "arrival"


def test_a_job_that_is_not_to_be_profiled_is_sized_at_once() -> None:
    it = autoscaler().given(node(fast=4)).at(1.0).when(job("a", elastic(profile="off")))
    assert widths(it.settle()) == {"a": 1}


def test_an_interval_is_waited_for_where_nothing_happens() -> None:
    it = seasoned(interval_s=30.0).then()
    it.then_wakes_at(130.0).at(130.0).then().then_wakes_at(160.0)


def test_a_run_that_is_too_young_to_be_resized_is_looked_at_again_when_it_is_old_enough() -> None:
    it = seasoned(min_run_s=10.0).at(5.0).when(job("b", at_s=5.0))
    assert widths(it.settle()) == {"b": 1}
    it.then_wakes_at(12.0)
    (decided,) = decisions(it.at(12.0).settle())
    assert widths([decided]) == {"a": 2, "b": 2}
    assert decided.because == "interval"


@pytest.mark.parametrize(("horizon_s", "grows"), [(40.0, {}), (400.0, {"a": 4})])
def test_idle_devices_are_taken_where_that_gains_more_over_the_horizon_than_it_costs(
    horizon_s: float, grows: dict[str, int]
) -> None:
    it = seasoned(2, horizon_s=horizon_s, unseen_cost_s=30.0)
    assert widths(it.when(node("n2", 100.0, fast=2)).settle()) == grows


def test_what_runs_have_shown_of_the_cost_is_gone_by() -> None:
    it = seasoned(horizon_s=100.0, unseen_cost_s=0.5)
    it.given(job("b", at_s=100.0)).settle()
    stop = preempted(it, "a", 101.0)
    it.given(*stop[:1], ended(it, "a", 171.0, "preempted")).at(171.0).settle()  # 70 s until it had saved
    it.given(*placed(it, "a", 171.0, 0, 1), *placed(it, "b", 171.0, 2, 3)).at(300.0)
    it.given(ended(it, "b", 300.0))
    assert not widths(it.settle())
    assert it.state.costs.of(workload.key(WORK)).stop_s == 70.0


def test_a_job_under_way_to_another_size_is_left_alone_until_it_has_started() -> None:
    it = seasoned().given(job("b", at_s=100.0))
    assert widths(it.settle()) == {"a": 2, "b": 2}
    it.when(job("c", at_s=100.5)).at(100.5)
    assert widths(it.settle()) == {"b": 1, "c": 1}  # a is to have its two
    stop = preempted(it, "a", 101.0)
    it.given(stop[0]).at(101.0).then()
    assert not widths(it.given(stop[1]).at(101.5).settle())


def test_a_job_that_has_stopped_to_grow_comes_before_those_that_wait() -> None:
    it = seasoned(1, elastic(1, 2)).given(job("g", fixed(2), 95.0), ranked(96.0, a=5.0), ranked(96.0, g=1.0))
    it.given(node("n2", 100.0, fast=1))
    assert widths(it.settle()) == {"a": 2}
    it.given(*preempted(it, "a", 101.0)).at(102.0).then()
    assert it.state.returning == {"a": "fast"}
    it.given(*spread(it, "a", 103.0, {"n1": (0,), "n2": (0,)})).then()
    assert not it.state.returning


def test_a_job_that_the_matcher_stops_for_another_is_told_nothing_until_it_waits() -> None:
    it = seasoned()
    stop = preempted(it, "a", 100.0, for_job="b")
    it.given(job("b", fixed(2), 1.0), stop[0]).then()
    assert widths(it.when(stop[1]).settle()) == {"a": 2}


def test_nothing_is_worked_out_again_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    it, asked = seasoned(interval_s=60.0), []
    it.then()
    monkeypatch.setattr(pool_sizes, "decide", lambda *given: asked.append(given))
    it.at(110.0)
    for fact in (RunCheckpointed(at_s=105.0, job_id="a", epoch=4, node_id="n1", step=9), job("l", fixed(pool="far"))):
        assert not it.when(fact).decision().proposals
    assert not asked


def test_the_start_of_a_fixed_job_changes_nothing() -> None:
    it = seasoned(4, elastic(1, 3)).given(job("b", fixed(), 50.0))
    place, start = placed(it, "b", 99.0, 3)
    it.given(place).then()
    change = it.state.pools["default"].change
    assert isinstance(start, RunStarted)
    it.when(start).then()
    assert it.state.pools["default"].change == change


def test_nobody_grows_onto_what_is_free_between_two_samples() -> None:
    it = seasoned(2)
    sample = ProfileSample(sample_id="s1", kind="fast", iterations=5)
    it.given(node("n2", 100.0, fast=2), SamplesRequested(at_s=100.0, key="k", spec=fixed(), samples=(sample,))).then()
    it.given(*placed(it, "s1", 101.0, 0, node_id="n2")).then()
    assert widths(it.when(ended(it, "s1", 102.0)).settle()) == {"a": 4}


def test_news_of_a_workload_moves_its_jobs() -> None:
    it = seasoned()
    (decided,) = decisions(it.when(job("b", at_s=100.0), scaled(WORK, 100.0, {1: 0.1, 2: 0.2, 4: 0.4})).settle())
    assert widths([decided]) == {"a": 1, "b": 1}
    assert decided.because == "profile"


def test_speeds_of_kinds_without_timings_are_gone_by() -> None:
    it = autoscaler().given(node(fast=1, slow=8), scaled(WORK)).at(1.0)
    speeds = (KindSpeed(kind="fast", iteration_s=0.4, speed=1.0), KindSpeed(kind="slow", iteration_s=0.5, speed=0.8))
    it.when(WorkloadProfiled(at_s=1.0, key=workload.key(WORK), speeds=speeds), job("a"))
    found = demands(it.settle())["a"]
    assert (found.gpus, found.kinds) == (8, ("slow",))


def test_a_first_checkpoint_shows_that_a_run_can_be_moved() -> None:
    it = autoscaler().given(node(fast=2), scaled(WORK), job("a")).at(1.0)
    it.settle()
    it.given(*placed(it, "a", 2.0, 0, 1), node("n2", 3.0, fast=2)).at(100.0).then()
    it.when(RunCheckpointed(at_s=100.0, job_id="a", epoch=2, node_id="n1", step=50))
    assert widths(it.settle()) == {"a": 4}
