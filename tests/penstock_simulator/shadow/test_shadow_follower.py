"""A shadow follows a log: what it decides, how long jobs take there, and what it may not know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadow_cases import (
    LONG_S,
    SET,
    commits,
    ended,
    followed,
    jcts_s,
    lengths_of,
    measured_s,
    node,
    placed,
    plan,
    recorded,
    recorded_load,
    started,
    submitted,
)
from virtual_invariants import Invariants

from penstock_bus import Delivery
from penstock_log import (
    Batch,
    Demand,
    JobCancelled,
    JobHeld,
    NodeLeaving,
    NodeLeft,
    PolicySet,
    Preemption,
    RoundDecided,
    RunEnded,
    SamplesRequested,
    ScaleDecided,
    subjects,
)
from penstock_simulator.engine.cluster_script import Failures, RunCosts
from penstock_simulator.replay.history import of_deliveries
from penstock_simulator.replay.replay import replay
from penstock_simulator.shadow import shadow_follower
from penstock_simulator.shadow.plan import ShadowPlan
from penstock_simulator.shadow.shadow_follower import ShadowFollower
from sweeps import examples

pytestmark = pytest.mark.slow

SMALL = (
    node(),
    submitted("j1", 2.0),
    placed("j1", 2.1),
    started("j1", 2.2),
    submitted("j2", 5.0),
    ended("j1", 22.2),
    placed("j2", 22.3),
    started("j2", 22.4),
    ended("j2", 25.4),
)
"""One device; a long job first, which really keeps it, then a short one."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[Delivery]:
    return recorded(tmp_path_factory.mktemp("log"))


def rounds(deliveries: list[Delivery]) -> list[RoundDecided]:
    return [fact for one in deliveries for fact in one.commit.facts if isinstance(fact, RoundDecided)]


def starts(deliveries: list[Delivery]) -> list[tuple[float, str]]:
    return [(one.at_s, placement.job_id) for one in rounds(deliveries) for placement in one.placements]


@pytest.mark.parametrize("begins", [0.0, 0.3, 0.5, 0.8])
def test_a_shadow_of_the_clusters_own_policy_that_knows_all_lengths_is_the_cluster(
    log: list[Delivery], begins: float
) -> None:
    before = log[: int(len(log) * begins)]
    shadow = followed(plan("configured", before, **SET), log, lengths_of(log))
    found_s, really_s = jcts_s(shadow), measured_s(shadow)
    assert len(found_s) >= 5
    assert np.mean(list(found_s.values())) == pytest.approx(np.mean([really_s[job_id] for job_id in found_s]), rel=0.02)


def test_under_another_policy_it_takes_about_as_long_as_the_replay_of_the_same_log(log: list[Delivery]) -> None:
    again = replay(of_deliveries(log), "fifo", costs=RunCosts(checkpoint_s=10.0))
    _, replayed_s = again.average_jct_s()
    shadow = followed(plan("fifo"), log, lengths_of(log))
    assert np.mean(list(jcts_s(shadow).values())) == pytest.approx(replayed_s, rel=0.1)  # where profiles come later
    assert replayed_s > 1.5 * np.mean(list(measured_s(shadow).values()))


def test_no_device_is_given_twice_and_no_job_is_lost(log: list[Delivery]) -> None:
    shadow = ShadowFollower(plan("2d-las", **SET))
    checked = Invariants(shadow.engine, shadow.executors)
    for one in log:
        shadow.feed(one)
    shadow.advance(LONG_S)
    assert checked.checked > 150
    assert all(np.isfinite(jct_s) for jct_s in jcts_s(shadow).values())


def test_a_live_shadow_ends_no_job_before_it_really_ended(log: list[Delivery]) -> None:
    shadow = followed(plan("fewest-gpus"), log)
    really_s = measured_s(shadow)
    assert all(jct_s >= really_s[job_id] - 1e-6 for job_id, jct_s in jcts_s(shadow).items())
    assert shadow.executors.ahead > 0


@settings(max_examples=examples(10), deadline=None)
@given(looks=st.lists(st.floats(0.0, 1.0), max_size=20), cut=st.floats(0.0, 1.0))
def test_whoever_reads_the_log_again_finds_the_same_decisions(looks: list[float], cut: float) -> None:
    log = commits(*SMALL)
    chosen = plan("2d-las", log[: int(cut * len(log))], thresholds_gpu_s=[4.0], min_run_s=0.0)
    plain = followed(chosen, log, until_s=100.0)
    moved = ShadowFollower(chosen)
    for one, following_one in zip(log, [*log[1:], None], strict=True):
        moved.feed(one)
        moved.begin()
        gap_s = (following_one.stored_s if following_one else 100.0) - one.stored_s
        for look in sorted(looks):
            moved.advance(one.stored_s + look * gap_s)
    moved.advance(100.0)
    assert [one.commit for one in moved.take()] == [one.commit for one in plain.take()]


def test_a_job_that_is_ahead_holds_its_device_until_its_length_is_known() -> None:
    log = commits(*SMALL)
    shadow = ShadowFollower(plan("2d-las", thresholds_gpu_s=[4.0], min_run_s=0.0))
    for one in log[:-1]:
        shadow.feed(one)
    shadow.advance(25.0)
    assert [job_id for _, job_id in starts(shadow.take())] == ["j1", "j2"]  # j2 preempted j1 when it had had its share
    assert set(shadow.executors.runs) == {"j2"}
    shadow.feed(log[-1])
    shadow.advance(60.0)
    assert shadow.executors.ahead == 1
    (ready_s,) = shadow.executors.ready_s.values()
    assert ready_s < 25.4 == shadow.executors.tasks["j2"].end_s
    assert shadow.executors.ahead_gpu_s == pytest.approx(25.4 - ready_s)
    assert shadow.executors.tasks["j1"].over


def test_it_says_only_what_it_decides_itself(log: list[Delivery]) -> None:
    shadow = followed(plan("fifo", log[:100]), log)
    made = shadow.take()
    assert {subjects.entity_of(one.subject)[0] for one in made} == {"rank", "round", "run"}
    assert {one.commit.actor.partition("/")[0] for one in made} == {"ranker", "matcher", "executor"}
    assert min(one.stored_s for one in made) >= log[99].stored_s
    assert shadow.take() == []


def test_a_cancelled_job_ends_here_too() -> None:
    cancelled = JobCancelled(job_id="j1", by="ada", at_s=4.0)
    shadow = followed(plan("fifo"), commits(node(), submitted("j1", 2.0), cancelled, submitted("j2", 5.0)))
    ends = [fact for one in shadow.take() for fact in one.commit.facts if isinstance(fact, RunEnded)]
    assert [(one.job_id, one.at_s) for one in ends] == [("j1", 4.0)]
    assert set(shadow.executors.runs) == {"j2"}
    assert (shadow.status().waiting, shadow.status().running) == (0, 1)


def test_a_job_cancelled_while_it_waits_never_starts() -> None:
    cancelled = JobCancelled(job_id="j2", by="ada", at_s=4.0)
    shadow = followed(plan("fifo"), commits(node(), submitted("j1", 2.0), submitted("j2", 3.0), cancelled))
    assert [job_id for _, job_id in starts(shadow.take())] == ["j1"]
    assert shadow.status().waiting == 0


def test_a_held_job_is_held_here_too() -> None:
    held = JobHeld(job_id="j1", by="ada", at_s=2.0)
    shadow = followed(plan("fifo"), commits(submitted("j1", 2.0), held, node(3.0)))
    assert starts(shadow.take()) == []


def test_the_jobs_of_a_lost_node_are_placed_again() -> None:
    lost = RoundDecided(pool="default", lost_nodes=("n1",), at_s=9.0)
    shadow = followed(plan("fifo"), commits(node(), submitted("j1", 2.0), lost, node(20.0)))
    assert [at_s for at_s, _ in starts(shadow.take())] == [2.0, 20.0]


def test_a_node_that_left_and_came_back_runs_jobs_again() -> None:
    left = NodeLeft(node_id="n1", at_s=9.0)
    shadow = followed(plan("fifo"), commits(node(), submitted("j1", 2.0), left, node(20.0)))
    assert [at_s for at_s, _ in starts(shadow.take())] == [2.0, 20.0]
    assert shadow.executors.tasks["j1"].preemptions == 1


def test_a_job_goes_on_elsewhere_once_its_node_begins_to_leave() -> None:
    leaving, left = NodeLeaving(node_id="n1", at_s=9.0), NodeLeft(node_id="n1", at_s=15.0)
    facts = (node(), submitted("j1", 2.0), node(3.0, "n2"), leaving, left)
    shadow = followed(plan("fifo"), commits(*facts))
    assert [at_s for at_s, _ in starts(shadow.take())] == [2.0, 9.0]


def test_an_executor_that_was_started_again_keeps_its_runs() -> None:
    shadow = followed(plan("fifo"), commits(node(), submitted("j1", 2.0), node(9.0)))
    assert [at_s for at_s, _ in starts(shadow.take())] == [2.0]
    assert set(shadow.executors.runs) == {"j1"}


def test_lost_nodes_and_failures_of_a_whole_log_are_lived_through(tmp_path: Path) -> None:
    patient = {**SET, "node_timeout_s": 5.0}  # the order of a few jobs hangs on it, and with that their mean
    log = recorded(tmp_path, Failures(mtbf_s=200.0, repair_s=30.0), settings=patient)
    assert any(one.lost_nodes for one in rounds(log))
    shadow = followed(plan("configured", **patient), log, lengths_of(log))
    found_s, really_s = jcts_s(shadow), measured_s(shadow)
    assert np.mean(list(found_s.values())) == pytest.approx(np.mean([really_s[job_id] for job_id in found_s]), rel=0.1)


def test_other_pools_are_no_business_of_a_shadow_of_one() -> None:
    log = commits(
        node(),
        node(1.0, "n2", pool="night"),
        submitted("j1", 2.0),
        submitted("j2", 2.0, pool="night"),
    )
    chosen = ShadowPlan(name="night", policy="fifo", pool="night", from_seq=0, from_s=0.0)
    shadow = followed(chosen, log)
    assert starts(shadow.take()) == [(2.0, "j2")]


def test_what_people_set_live_holds_only_for_the_clusters_own_policy() -> None:
    def facts(policy: str) -> set[str]:
        live = PolicySet(pool="default", settings={"order": "fifo"}, at_s=1.5)
        shadow = followed(plan(policy), commits(node(), live, submitted("j1", 2.0)))
        return {str(host.fold.state.live) for host in shadow.engine._hosts if host.actor == "ranker/sim"}

    assert facts("2d-las") == {"{}"}
    assert facts("configured") == {"{'default': {'order': 'fifo'}}"}


def test_samples_take_devices_here_as_they_do_really(log: list[Delivery]) -> None:
    asked = {
        sample.sample_id
        for one in log
        for fact in one.commit.facts
        if isinstance(fact, SamplesRequested)
        for sample in fact.samples
    }
    assert asked
    assert asked <= {job_id for _, job_id in starts(followed(plan("fifo"), log).take())}


def test_jobs_that_are_over_are_dropped_and_it_makes_no_difference(
    log: list[Delivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, spare = ShadowFollower(plan("2d-las", **SET)), ShadowFollower(plan("2d-las", **SET), forgets=True)
    monkeypatch.setattr(shadow_follower, "_PRUNE_EVERY", 10)
    for one in log:
        whole.feed(one)
        spare.feed(one)
    assert [one.commit for one in spare.take()] == [one.commit for one in whole.take()]
    assert len(spare.measured.jobs) < len(whole.measured.jobs) / 2
    assert spare.status() == whole.status()


def test_nothing_is_kept_of_the_ends_of_runs_whose_length_nobody_knew(log: list[Delivery]) -> None:
    shadow = followed(plan("2d-las", **SET), log)
    assert len(shadow.executors.tasks) > 10
    assert len(shadow.engine.event_queue) == 0


def test_a_run_that_starts_up_for_longer_than_others_is_not_taken_to_be_ahead() -> None:
    log = commits(
        node(),
        submitted("j1", 2.0),
        placed("j1", 2.1),
        started("j1", 2.2),
        ended("j1", 32.2, steps=100, loop_steps=100, loop_s=10.0),
    )
    shadow = followed(plan("fifo"), log)
    assert shadow.executors.tasks["j1"].end_s == pytest.approx(32.2)
    assert shadow.executors.ahead == 0


def test_a_shadow_of_the_clusters_own_policy_is_the_cluster_to_the_job_on_nearly_every_small_load(
    tmp_path: Path,
) -> None:
    """Single loads differ where a threshold is crossed at the very moment of a decision."""
    otherwise, loads = 0, 0
    for seed in range(16):
        log = recorded_load(tmp_path, seed)
        lengths = lengths_of(log)
        for begins in (0, len(log) // 2):
            shadow = followed(plan("configured", log[:begins], **SET), log, lengths)
            found_s, really_s = jcts_s(shadow), measured_s(shadow)
            loads += 1
            otherwise += any(abs(found_s[job_id] - really_s[job_id]) > 0.5 for job_id in found_s)
    assert loads == 32
    assert otherwise <= 2


def scaled(job_id: str, at_s: float, gpus: int, epoch: int = 0) -> ScaleDecided:
    return ScaleDecided(
        pool="default", at_s=at_s, demands=(Demand(job_id=job_id, epoch=epoch, gpus=gpus, batch_size=8 * gpus),)
    )


ELASTIC = (
    node(devices=4),
    submitted("j1", 2.0, max_gpus=4, gpus=1, min_gpus=1, batch_size=8, batch=Batch(min=8, max=64)),
    scaled("j1", 2.1, 2),
    placed("j1", 2.2, epoch=2),
    started("j1", 2.3, epoch=2),
    scaled("j1", 12.0, 4, epoch=2),
    RoundDecided(pool="default", at_s=12.1, preemptions=(Preemption(job_id="j1", epoch=2),)),
    ended("j1", 12.3, epoch=2, outcome="preempted", loop_s=10.0, loop_steps=100, steps=100),
    placed("j1", 12.4, epoch=3),
    started("j1", 12.5, epoch=3, step=100),
    ended("j1", 17.5, epoch=3, loop_s=5.0, loop_steps=100, steps=200),
)
"""A job is given two devices before it starts, and four when it runs."""


@pytest.mark.parametrize("cut", range(len(ELASTIC) + 1))
def test_an_elastic_job_is_given_its_first_size_and_keeps_what_it_has(cut: int) -> None:
    log = commits(*ELASTIC)
    shadow = followed(plan("configured", log[:cut]), log, lengths_of(log), until_s=100.0)
    if cut == len(log):
        assert not starts(shadow.take())
        return
    task = shadow.executors.tasks["j1"]
    assert task.over
    assert shadow.executors.busy == 0
    assert task.gpus == (2 if cut <= 5 else 4)  # a demand that was made before the shadow began is met here too
    assert task.executed_s >= 4.9


def test_a_job_that_was_dropped_for_want_of_room_is_dropped_here_too() -> None:
    dropped = ScaleDecided(pool="default", at_s=2.1, demands=(), dropped=("j1",))
    log = commits(*ELASTIC[:2], dropped)
    shadow = followed(plan("fifo"), log, until_s=100.0)
    assert not starts(shadow.take())
    assert shadow.status().waiting == 0
