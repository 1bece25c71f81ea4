"""The production deciders under virtual time: what holds whatever comes, and what policies differ in."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from virtual_invariants import Invariants

from penstock_bus.decider import Fold
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.machine import decider as gateway_decider
from penstock_log import JobFinished, NodeLeaving, NodeLeft, RunEnded, RunStarted, subjects
from penstock_simulator.engine.cluster_script import Failures, RunCosts, of_trace, relative
from penstock_simulator.engine.engine import EventEngine
from penstock_simulator.engine.executors import VirtualExecutors
from penstock_simulator.engine.policies import SIMULATED_POLICIES
from penstock_simulator.engine.simulation import SimulationOptions, play, simulate
from penstock_simulator.outcome import Outcome, summary
from penstock_simulator.trace import Trace
from penstock_simulator.traces.log_file import decode
from penstock_simulator.virtual_cluster import parse
from sweeps import examples

QUICK = {"min_run_s": 0.0, "overhead_share": 1.0}


def trace(*jobs: tuple[float, int, float], models: tuple[str, ...] = ()) -> Trace:
    """Return a trace of (submission, devices, length)."""
    submit_s, gpus, duration_s = zip(*jobs, strict=True)
    return Trace(
        name="test",
        job_ids=[f"j{row:03d}" for row in range(len(jobs))],
        submit_s=np.array(submit_s, dtype=np.float64),
        num_gpus=np.array(gpus, dtype=np.int64),
        duration_s=np.array(duration_s, dtype=np.float64),
        models=models,
    )


def checked(given: Trace, cluster: str, policy: str, **options: Any) -> Outcome:
    """Simulate with all invariants checked after every event."""
    found: list[Invariants] = []

    def watch(engine: EventEngine, executors: VirtualExecutors) -> None:
        found.append(Invariants(engine, executors))

    outcome = simulate(given, parse(cluster), policy, watch=watch, **options)
    assert found[0].checked > len(given)
    found[0].check_service()
    return outcome


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Draw small traces: bursts, gangs, and lengths that cross the thresholds."""
    count = draw(st.integers(1, 12))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.5, 3.0, 40.0]), min_size=count, max_size=count))
    gpus = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 4]), min_size=count, max_size=count))
    lengths = draw(st.lists(st.sampled_from([1.0, 7.5, 30.0, 200.0]), min_size=count, max_size=count))
    models = draw(st.lists(st.sampled_from(["mlp", "cnn"]), min_size=count, max_size=count))
    return trace(*zip(np.cumsum(gaps).tolist(), gpus, lengths, strict=True), models=tuple(models))


GANG_LOSES_A_NODE = trace(
    *[(0.0, 1, 1.0)] * 4,
    *[(40.0, 1, 7.5), (40.0, 4, 1.0), (40.0, 1, 7.5), (40.0, 1, 7.5), (40.0, 1, 7.5), (43.0, 1, 1.0)],
    models=("mlp",) * 10,
)
"""A gang over two nodes ends on one of them, and a job takes a device there, before the other is known to be lost."""


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    traces(),
    st.sampled_from(sorted(SIMULATED_POLICIES)),
    st.sampled_from(["1x4", "2x2+1x4@fast"]),
    st.booleans(),
    st.sampled_from([0.0, 2.5]),
)
@example(GANG_LOSES_A_NODE, "2d-gittins", "2x2+1x4@fast", True, 0.0)
def test_no_device_is_given_twice_no_job_is_lost_and_no_service(
    jobs: Trace, policy: str, cluster: str, failing: bool, cost_s: float
) -> None:
    outcome = checked(
        jobs,
        cluster,
        policy,
        settings={"thresholds_gpu_s": [10.0, 60.0], "min_run_s": 1.0},
        costs=RunCosts(start_s=cost_s, stop_s=cost_s / 2, checkpoint_s=20.0, parked_start_s=cost_s / 5 or None),
        speedups={"mlp": {"gpu": 1.0, "fast": 3.0}, "cnn": {"gpu": 1.0, "fast": 1.0}},
        failures=Failures(mtbf_s=300.0, repair_s=30.0) if failing else None,
        seed=len(jobs),
        timeline=True,
        spells=True,
    )
    assert outcome.finished.all()
    assert outcome.timeline is not None
    assert outcome.timeline.busy_gpus.max() <= outcome.gpus
    assert outcome.timeline.busy_gpus[-1] == outcome.timeline.waiting_jobs[-1] == 0
    assert outcome.spells is not None
    held_s = np.bincount(outcome.spells.job, outcome.spells.to_s - outcome.spells.from_s, len(jobs))
    if not failing:
        assert np.allclose(held_s, outcome.executed_s * jobs.num_gpus)


def test_the_same_seed_gives_the_same_log_to_the_byte(tmp_path: Path) -> None:
    jobs = trace(*[(i * 3.0, 1 + i % 3, 20.0 + i) for i in range(12)])
    logs = [tmp_path / name for name in ("a", "b", "c")]
    for log, seed in zip(logs, (1, 1, 2), strict=True):
        simulate(jobs, parse("2x2"), "2d-las", seed=seed, failures=Failures(mtbf_s=60.0, repair_s=9.0), log=log)
    assert logs[0].read_bytes() == logs[1].read_bytes() != logs[2].read_bytes()


_WRITE = """
import sys
from pathlib import Path
import numpy as np
from penstock_simulator.virtual_cluster import parse
from penstock_simulator.trace import Trace
from penstock_simulator.engine.cluster_script import Failures, RunCosts
from penstock_simulator.engine.simulation import simulate
rows = np.arange(16)
jobs = Trace(
    "t", [f"j{row}" for row in rows], rows * 3.0, 1 + rows % 3, 20.0 + rows,
    users=["ada", "bob", "cy", "dan"] * 4, models=["mlp", "cnn"] * 8,
)
simulate(
    jobs, parse("2x2@fast+2x2@slow"), "allox+2d-gittins", profile=True, costs=RunCosts(iteration_s=0.1, start_s=1.0),
    speedups={"mlp": {"fast": 4.0, "slow": 1.0}}, failures=Failures(mtbf_s=60.0, repair_s=9.0), log=Path(sys.argv[1]),
    settings={"node_timeout_s": 5.0},  # less than repair_s, else no node is lost
)
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_the_same_seed_gives_the_same_log_however_strings_are_hashed(tmp_path: Path) -> None:
    logs = [tmp_path / name for name in ("a", "b")]
    for log, hashing in zip(logs, ("1", "2"), strict=True):
        environment = {**os.environ, "PYTHONHASHSEED": hashing}
        subprocess.run([sys.executable, "-c", _WRITE, str(log)], env=environment, check=True, timeout=120.0)
    assert logs[0].read_bytes() == logs[1].read_bytes()
    assert b"profile.samples_requested.v1" in logs[0].read_bytes()
    assert b'"lost_nodes":["n' in logs[0].read_bytes()


def test_a_log_is_compressed_where_its_name_says_so_and_still_the_same_to_the_byte(tmp_path: Path) -> None:
    jobs = trace(*[(i * 3.0, 1 + i % 2, 20.0 + i) for i in range(6)])
    logs = [tmp_path / name for name in ("plain", "a.gz", "b.gz")]
    for log in logs:
        simulate(jobs, parse("1x2"), "2d-las", log=log)
    assert gzip.decompress(logs[1].read_bytes()) == logs[0].read_bytes()
    assert logs[1].read_bytes() == logs[2].read_bytes()


def test_what_rounds_say_of_those_who_wait_is_written_where_it_is_asked_for_and_changes_nothing(tmp_path: Path) -> None:
    jobs = trace(*[(i * 3.0, 1 + i % 2, 20.0 + i) for i in range(8)])
    quiet, told = tmp_path / "quiet", tmp_path / "told"
    outcomes = [
        simulate(jobs, parse("1x2"), "2d-las", settings=settings, log=log)
        for log, settings in ((quiet, None), (told, {"max_waits": 5}))
    ]
    assert b'"cause":"capacity"' in told.read_bytes()
    assert b'"cause":"capacity"' not in quiet.read_bytes()
    assert outcomes[0].end_s.tolist() == outcomes[1].end_s.tolist()


def test_every_end_is_announced_as_the_gateway_announces_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    simulate(trace(*[(i * 3.0, 1 + i % 2, 20.0 + i) for i in range(6)]), parse("1x2"), "2d-las", log=log)
    gateway, announced = Fold(gateway_decider(GatewaySettings())), 0
    with log.open("rb") as lines:
        for delivery in decode(lines):
            proposals = gateway.decider.decide(gateway.state, delivery.stored_s).proposals
            owed = [fact for proposal in proposals for fact in proposal.facts]
            ends = [fact for fact in delivery.commit.facts if isinstance(fact, JobFinished)]
            assert all(fact in owed for fact in ends)
            announced += len(ends)
            gateway.apply(delivery)
    assert announced == 6
    assert not gateway.state.to_announce


def test_first_come_first_served_lets_nobody_overtake_a_gang_that_waits() -> None:
    jobs = trace((0.0, 1, 10.0), (1.0, 2, 10.0), (2.0, 1, 10.0))
    assert checked(jobs, "1x2", "fifo").start_s.tolist() == [0.0, 10.0, 20.0]
    assert checked(jobs, "1x2", "fifo-backfill").start_s.tolist() == [0.0, 12.0, 2.0]


def test_a_preempted_job_keeps_its_work_and_pays_for_stopping_and_starting() -> None:
    jobs = trace((0.0, 1, 100.0), (20.0, 1, 5.0))
    thresholds = {"thresholds_gpu_s": [10.0], **QUICK}
    outcome = checked(jobs, "1x1", "2d-las", settings=thresholds, costs=RunCosts(start_s=2.0, stop_s=1.0))
    assert outcome.preemptions.tolist() == [1, 0]
    assert outcome.start_s.tolist() == [0.0, 21.0]
    assert outcome.end_s.tolist() == [112.0, 28.0]  # 18 s of work by 20 s, 82 s from 28 + 2 on
    assert outcome.executed_s.tolist() == [21.0 + 84.0, 7.0]


PARKED = RunCosts(start_s=2.0, stop_s=1.0, parked_start_s=0.5)
PREEMPTED_ONCE = {"thresholds_gpu_s": [10.0], **QUICK}


def test_a_preempted_job_goes_on_where_it_is_parked_without_a_start(tmp_path: Path) -> None:
    jobs, log = trace((0.0, 1, 100.0), (20.0, 1, 5.0)), tmp_path / "log"
    outcome = checked(jobs, "1x1", "2d-las", settings=PREEMPTED_ONCE, costs=PARKED, log=log)
    assert outcome.preemptions.tolist() == [1, 0]
    assert outcome.end_s.tolist() == [110.5, 28.0]  # 18 s of work by 20 s, 82 s from 28 + 0.5 on
    text = log.read_text()
    assert (text.count('"parked":true'), text.count('"start":"parked"')) == (1, 1)


def test_of_two_jobs_that_make_way_the_longest_parked_gives_its_room_and_starts_anew(tmp_path: Path) -> None:
    jobs = trace((0.0, 1, 100.0), (0.5, 1, 100.0), (20.0, 1, 5.0), (21.5, 1, 5.0))
    starts = []
    for most in (2, 1, 0):
        log, costs = tmp_path / f"log{most}", replace(PARKED, most_parked=most)
        checked(jobs, "1x2", "2d-las", settings=PREEMPTED_ONCE, costs=costs, log=log)
        starts.append((log.read_text().count('"start":"parked"'), log.read_text().count("run.unparked.v1")))
    assert starts == [(2, 0), (1, 1), (0, 0)]


def test_a_gang_and_a_job_that_had_not_come_to_its_loop_are_not_parked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    checked(trace((0.0, 2, 100.0), (20.0, 1, 5.0)), "1x2", "2d-las", settings=PREEMPTED_ONCE, costs=PARKED, log=log)
    assert '"parked"' not in log.read_text()


def test_no_job_goes_on_where_its_node_was_gone_meanwhile(tmp_path: Path) -> None:
    jobs, log = trace(*[(4.0 * i, 1, 40.0) for i in range(20)]), tmp_path / "log"
    checked(
        jobs,
        "2x2",
        "2d-las",
        settings=PREEMPTED_ONCE,
        costs=replace(PARKED, checkpoint_s=5.0),
        failures=Failures(mtbf_s=60.0, repair_s=10.0),
        seed=2,
        log=log,
    )
    text = log.read_text()
    assert 0 < text.count('"start":"parked"') < text.count('"parked":true')


def test_a_job_that_is_about_to_be_parked_is_not_where_its_node_leaves(tmp_path: Path) -> None:
    log, cluster, options = tmp_path / "log", parse("1x1"), {"settings": PREEMPTED_ONCE, "costs": PARKED}
    jobs = trace((0.0, 1, 100.0), (20.0, 1, 5.0), (26.0, 1, 5.0))
    script = of_trace(jobs, cluster, relative(None, cluster), PARKED)
    (node,) = script.nodes
    left = NodeLeft(at_s=21.5, node_id=node.node_id, reason="shutdown")  # within stop_s of the preemption at 21
    back = msgspec.structs.replace(node, at_s=25.0, incarnation="2")
    facts = [(subjects.node(node.node_id), fact, "test") for fact in (left, back)]
    outcome = play(replace(script, facts=facts), "2d-las", SimulationOptions(log=log, **options))
    assert outcome.preemptions.tolist() == [1, 0, 0]
    assert outcome.finished.all()
    assert '"parked"' not in log.read_text()


def test_a_job_is_preempted_once_its_node_begins_to_leave_and_not_when_it_has_left(tmp_path: Path) -> None:
    log, cluster = tmp_path / "log", parse("2x1")
    jobs, costs = trace((0.0, 1, 100.0), (0.0, 1, 100.0)), RunCosts(stop_s=2.0)
    script = of_trace(jobs, cluster, relative(None, cluster), costs)
    node = script.nodes[0]
    leaving = NodeLeaving(at_s=20.0, node_id=node.node_id)
    left = NodeLeft(at_s=30.0, node_id=node.node_id)
    back = msgspec.structs.replace(node, at_s=60.0, incarnation="2")
    facts = [(subjects.node(node.node_id), fact, "test") for fact in (leaving, left, back)]
    outcome = play(replace(script, facts=facts), "fifo", SimulationOptions(log=log, costs=costs))
    assert outcome.preemptions.tolist().count(1) == 1
    told = [fact for delivery in decode(log.read_text().splitlines()) for fact in delivery.commit.facts]
    assert [fact.at_s for fact in told if isinstance(fact, RunEnded) and fact.outcome == "preempted"] == [22.0]
    assert [fact.at_s for fact in told if isinstance(fact, RunStarted)][-1] == 60.0
    assert outcome.finished.all()


def test_a_job_of_a_failed_node_resumes_from_its_last_checkpoint() -> None:
    jobs = trace((0.0, 1, 100.0))
    costs, failures = RunCosts(checkpoint_s=10.0), Failures(mtbf_s=80.0, repair_s=1000.0)
    outcome = checked(jobs, "1x1", "fifo", costs=costs, failures=failures, seed=3)
    assert outcome.finished.all()
    lost_s = outcome.executed_s[0] - 100.0
    assert lost_s > 0.0


def test_a_node_is_declared_lost_by_the_matcher_itself_once_it_is_silent(tmp_path: Path) -> None:
    log = tmp_path / "log"
    simulate(
        trace((0.0, 1, 500.0)),
        parse("1x1"),
        "fifo",
        failures=Failures(mtbf_s=60.0, repair_s=50.0),
        costs=RunCosts(checkpoint_s=5.0),
        log=log,
        settings={"node_timeout_s": 5.0},
    )
    text = log.read_text()
    assert '"lost_nodes":["n' in text
    assert '"epoch":2' in text


def test_jobs_wait_for_a_faster_device_where_that_ends_them_sooner() -> None:
    jobs = trace((0.0, 1, 10.0), (0.5, 1, 10.0), models=("mlp", "mlp"))
    speedups = {"mlp": {"fast": 4.0, "slow": 1.0}}
    outcome = checked(jobs, "1x1@fast+1x1@slow", "allox", speedups=speedups)
    assert outcome.end_s.tolist() == [10.0, 20.0]


def test_unseen_workloads_are_sampled_by_the_production_profiler_if_asked(tmp_path: Path) -> None:
    jobs = trace((0.0, 1, 50.0), (1.0, 1, 50.0), models=("mlp", "mlp"))
    log = tmp_path / "log"
    outcome = checked(
        jobs,
        "1x1@fast+1x1@slow",
        "allox+2d-gittins",
        profile=True,
        speedups={"mlp": {"fast": 2.0, "slow": 1.0}},
        costs=RunCosts(iteration_s=0.1),
        log=log,
    )
    assert outcome.finished.all()
    text = log.read_text()
    assert text.count("profile.samples_requested.v1") == 1
    assert '"kind":"slow","iteration_s":0.2,"speed":0.5' in text


def test_wrong_estimates_of_lengths_change_the_order_but_nothing_else() -> None:
    jobs = trace(*[(0.0, 1, 10.0 * (1 + i % 7)) for i in range(20)])
    right, wrong = (checked(jobs, "1x2", "allox", length_error=error, seed=1) for error in (0.0, 2.0))
    assert right.finished.all()
    assert wrong.finished.all()
    assert summary(right).avg_jct_s < summary(wrong).avg_jct_s
    assert right.executed_s.sum() == pytest.approx(wrong.executed_s.sum())


def test_jobs_that_never_fit_wait_for_ever_and_the_rest_ends() -> None:
    outcome = checked(trace((0.0, 8, 10.0), (1.0, 1, 10.0)), "1x4", "fifo-backfill", timeline=True)
    assert outcome.finished.tolist() == [False, True]


def test_a_simulation_that_is_told_to_stop_gives_what_it_has() -> None:
    jobs = trace(*[(float(i), 1, 10.0) for i in range(2000)])
    outcome = simulate(jobs, parse("1x12"), "fifo", progress=lambda ended: ended < 300)
    assert 300 <= outcome.finished.sum() < 1000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"policy": "lifo"}, "there is no policy 'lifo'; expected one of fifo"),
        ({"policy": "fifo", "settings": {"patience": 1}}, "there is no setting 'patience'"),
        ({"policy": "fifo", "settings": {"patience_s": "soon"}}, "patience_s"),
    ],
)
def test_what_cannot_be_simulated_is_said(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        simulate(trace((0.0, 1, 1.0)), parse("1x1"), **arguments)
