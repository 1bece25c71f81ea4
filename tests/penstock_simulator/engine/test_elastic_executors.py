"""Elastic jobs on a virtual cluster, sized by the production autoscaler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcome_rows import random_trace, trace_of
from virtual_invariants import Invariants

from penstock_log import Job, ScaleDecided
from penstock_policies.elastic import ThroughputProfile
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_simulator import fast
from penstock_simulator.engine.cluster_script import Failures, RunCosts
from penstock_simulator.engine.elastic_executors import ElasticTrace
from penstock_simulator.engine.engine import EventEngine
from penstock_simulator.engine.executors import VirtualExecutors
from penstock_simulator.engine.simulation import simulate
from penstock_simulator.outcome import Outcome
from penstock_simulator.replay.history import read_log
from penstock_simulator.replay.replay import replay
from penstock_simulator.trace import Trace
from penstock_simulator.traces import log_file
from penstock_simulator.virtual_cluster import parse

NET = ThroughputProfile(
    b_min=8, b_max=64, per_gpu_cap=16, batch_step=8, t_proc_s={8: 1.0, 16: 1.6}, t_comm_s={2: 0.4, 4: 0.4}
)
AT_ONCE = SizingSettings(horizon_s=3600.0, min_run_s=0.0, unseen_cost_s=0.0)


def run(trace: Trace, gpus: int, rules: SizingSettings = AT_ONCE, **more: Any) -> Outcome:
    return simulate(trace, parse(f"1x{gpus}"), "fifo", elastic=ElasticTrace({"*": NET}, 4, rules), **more)


def load(jobs: int = 30) -> Trace:
    trace = random_trace(jobs, seed=3, most_gpus=4)
    return replace(trace, duration_s=np.clip(trace.duration_s, 60, 4000))


def test_a_job_grows_to_what_it_may_have_and_shrinks_when_another_comes(tmp_path: Path) -> None:
    # 640 samples each. Alone it has 32 a second, with 16 on each of four devices; on three 24, on one 10: together more
    # than on two and two, of 16 each.
    found = run(trace_of([(0, 1, 80), (10, 1, 80)]), 4, log=tmp_path / "log")
    assert found.end_s.tolist() == pytest.approx([10 + 320 / 24, 10 + 40 / 3 + (640 - 400 / 3) / 32])
    assert found.held_gpu_s is not None
    assert found.held_gpu_s.tolist() == pytest.approx([4 * 10 + 3 * 40 / 3, 40 / 3 + (640 - 400 / 3) / 8])
    facts = [fact for one in log_file.decode((tmp_path / "log").read_text().splitlines()) for fact in one.commit.facts]
    sizes = [
        (demand.job_id, demand.gpus, demand.batch_size)
        for fact in facts
        if isinstance(fact, ScaleDecided)
        for demand in fact.demands
    ]
    assert sizes == [("j0", 4, 64), ("j0", 3, 48), ("j1", 1, 16), ("j1", 4, 64)]


def test_the_services_and_the_count_agree_about_what_elastic_jobs_take() -> None:
    trace = load()
    found = run(trace, 8)
    count = fast.simulate(trace, parse("1x8"), "elastic", settings={"most_gpus": 4}, profiles={"*": NET})
    assert found.finished.all()
    assert found.jct_s.mean() == pytest.approx(count.jct_s.mean(), rel=0.03)
    assert found.held_gpu_s is not None
    assert count.held_gpu_s is not None
    assert found.held_gpu_s.sum() == pytest.approx(count.held_gpu_s.sum(), rel=0.03)
    assert 0.7 < found.preemptions.sum() / count.preemptions.sum() < 1.3


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1000), st.integers(4, 6), st.booleans())
def test_no_device_is_given_twice_and_every_elastic_job_ends(seed: int, gpus: int, fails: bool) -> None:
    rng = np.random.default_rng(seed)
    jobs = [
        (float(at), int(rng.integers(1, 5)), float(rng.integers(20, 200))) for at in np.cumsum(rng.integers(0, 60, 6))
    ]
    checked: list[Invariants] = []

    def watch(engine: EventEngine, executors: VirtualExecutors) -> None:
        checked.append(Invariants(engine, executors))

    found = run(
        trace_of(jobs),
        gpus,
        SizingSettings(horizon_s=600.0, min_run_s=5.0),
        costs=RunCosts(start_s=3.0, stop_s=1.0, checkpoint_s=10.0),
        failures=Failures(mtbf_s=400.0, repair_s=20.0) if fails else None,
        seed=seed,
        watch=watch,
    )
    assert found.finished.all()
    assert checked[0].checked > 10


def test_the_replay_of_elastic_jobs_under_the_same_settings_sizes_them_alike(tmp_path: Path) -> None:
    outcome = run(load(12), 8, costs=RunCosts(start_s=3.0, stop_s=1.0, iteration_s=0.1), log=tmp_path / "log")
    assert outcome.preemptions.sum() > 0
    history = read_log((tmp_path / "log").read_text().splitlines())
    jobs: list[Job] = history.replayable()
    assert all(job.spec.elastic for job in jobs)
    again = replay(history, "fifo", autoscaler=AT_ONCE)
    assert again.measured.jct_s.mean() == pytest.approx(outcome.jct_s.mean(), abs=0.01)
    assert again.replayed.end_s == pytest.approx(again.measured.end_s, abs=0.01)
    assert again.replayed.preemptions.tolist() == outcome.preemptions.tolist()
    assert again.replayed.held_gpu_s == pytest.approx(outcome.held_gpu_s, abs=0.1)
