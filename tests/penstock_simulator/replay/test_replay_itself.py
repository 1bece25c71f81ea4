"""The log of a simulated cluster, replayed under the same settings, is that cluster again: for jobs of every kind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock_log import (
    AnyEvent,
    Demand,
    DeviceDrained,
    DeviceFailed,
    DeviceRecovered,
    DeviceResumed,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSpec,
    JobSubmitted,
    NodeDrained,
    NodeResumed,
    PolicySet,
    ProfileSample,
    ReservationMade,
    SamplesRequested,
    TrialsScaled,
    subjects,
)
from penstock_simulator.engine import cluster_script
from penstock_simulator.engine.cluster_script import Outage, RunCosts, Script
from penstock_simulator.engine.simulation import SimulationOptions, play
from penstock_simulator.engine.tasks import VirtualTask
from penstock_simulator.outcome import Outcome
from penstock_simulator.replay.history import read_log
from penstock_simulator.replay.replay import Replay, replay
from penstock_simulator.trace import Trace
from penstock_simulator.virtual_cluster import parse

KINDS = ("fast", "slow")
STEP_S = 0.001
TOLERANCE_S = 20 * STEP_S
"""Steps are counted whole in a log: what a run that is stopped does of the next one is not in it."""
SPEED = {"mlp": {"fast": 1.0, "slow": 0.25}, "cnn": {"fast": 1.0, "slow": 0.6}}
SET = {"min_run_s": 4.0, "thresholds_gpu_s": [8.0, 60.0]}


CLASSES: dict[str, Any] = {
    "class.urgent.weight": 10,
    "class.urgent.preempts": True,
    "class.gold.weight": 5,
    "class.gold.most_gpus": 1,
    "class.night.weight": -5,
}

OF_EACH_KIND = (
    "opaque",
    "steps",
    "gang",
    "array",
    "failed and retried",
    "cancelled",
    "held",
    "lane",
    "fraction",
    "trial",
    "drained node",
    "drained device",
    "failed device",
    "policy set",
    "reservation",
    "class",
)


class Load:
    """
    A random mixed workload, as what happens to a cluster from outside.

    Parameters
    ----------
    seed : int
    jobs : int
    only : str, optional
        One kind of job, instead of all of them.
    """

    def __init__(self, seed: int, jobs: int, only: str = "") -> None:
        self._rng, self._only = np.random.default_rng(seed), only
        self._facts: list[tuple[str, AnyEvent, str]] = []
        self._tasks: list[VirtualTask] = []
        self._submitted: list[JobSubmitted] = []
        self._opaque: set[str] = set()
        self._now_s = cluster_script.ORIGIN_S
        for number in range(jobs):
            self._add(f"j{number:03d}")
            self._now_s += float(self._rng.exponential(1.5))

    def script(self, outages: bool = False) -> Script:
        """Return it on two nodes."""
        nodes = [_at(joined, cluster_script.ORIGIN_S) for joined in cluster_script.nodes(parse("1x2@fast+1x2@slow"))]
        return Script(
            trace=Trace(
                name="mixed",
                job_ids=[task.id for task in self._tasks],
                submit_s=np.array([fact.at_s for fact in self._submitted]),
                num_gpus=np.array([task.gpus for task in self._tasks], dtype=np.int64),
                duration_s=np.array([task.work_s for task in self._tasks]),
            ),
            tasks=self._tasks,
            submitted=lambda row: self._submitted[row],
            nodes=nodes,
            speed=lambda model, kind: SPEED.get(model, {"fast": 1.0, "slow": 0.5})[kind],
            sampled=self._sampled,
            shift_s=0.0,
            facts=self._facts,
            outages=[Outage("n2", 9.0, nodes[1].__class__(**_later(nodes[1], 20.0)))] if outages else [],
        )

    def _add(self, job_id: str) -> None:
        kinds: dict[str, Callable[[str], None]] = {
            "opaque": self._add_opaque,
            "steps": self._add_steps,
            "gang": self._add_gang,
            "array": self._add_array,
            "failed and retried": self._add_failing,
            "cancelled": self._add_cancelled,
            "held": self._add_held,
            "lane": self._add_lane,
            "fraction": self._add_fraction,
            "trial": self._add_trial,
            "drained node": self._add_drain,
            "drained device": self._add_device_drain,
            "failed device": self._add_device_failure,
            "policy set": self._add_policy,
            "reservation": self._add_reservation,
            "class": self._add_class,
        }
        # devices are tried alone, so that the seeds make what they made
        mixed = [kind for kind in kinds if not kind.endswith("device")]
        kinds[self._only or str(self._rng.choice(mixed))](job_id)

    def _length_s(self, most_s: float = 12.0) -> float:
        return round(float(self._rng.uniform(0.5, most_s)), 2)

    def _submit(self, job_id: str, work_s: float, *, steps: bool = False, **more: Any) -> VirtualTask:
        fields = {key: more.pop(key) for key in ("failures", "saves") if key in more}
        model = str(self._rng.choice(["mlp", "cnn"])) if steps else ""
        command = ("python", "train.py") if steps else ("sh", "-c", f"sleep {work_s}")
        profile = str(self._rng.choice(["auto", "on", "off"]))
        user = str(self._rng.choice(["ada", "bob"]))
        spec = JobSpec(name="job", command=command, model=model, user=user, **{"profile": profile, **more})
        if not steps:
            self._opaque.add(cluster_script.workload.key(spec))
        task = VirtualTask(
            job_id,
            len(self._tasks),
            spec.gpus,
            model,
            work_s,
            starting_s=0.5 if steps else 0.0,
            iteration_s=STEP_S if steps else math.inf,
            **{"saves": steps, **fields},
        )
        self._tasks.append(task)
        self._submitted.append(JobSubmitted(at_s=self._now_s, job_id=job_id, spec=spec))
        return task

    def _say(self, after_s: float, subject: str, fact: AnyEvent) -> None:
        self._facts.append((subject, _at(fact, self._now_s + after_s), "gateway/sim"))

    def _add_opaque(self, job_id: str) -> None:
        self._submit(job_id, self._length_s())

    def _add_steps(self, job_id: str) -> None:
        self._submit(job_id, self._length_s(), steps=True, saves=bool(self._rng.random() < 0.7))

    def _add_gang(self, job_id: str) -> None:
        self._submit(job_id, self._length_s(), steps=bool(self._rng.random() < 0.5), gpus=2)

    def _add_array(self, job_id: str) -> None:
        for number in range(3):
            self._submit(f"{job_id}-{number}", 1.5, params={"index": number})

    def _add_failing(self, job_id: str) -> None:
        steps, work_s = bool(self._rng.random() < 0.5), self._length_s() + 1.0
        at_s = round(work_s * 0.4, 2)
        failures = [(at_s, round(at_s / 2, 2) if steps else 0.0)] * int(self._rng.integers(1, 3))
        retries = int(self._rng.integers(0, 3))
        self._submit(job_id, work_s, steps=steps, failures=failures, retries=retries, backoff_s=1.5)

    def _add_cancelled(self, job_id: str) -> None:
        gpus = int(self._rng.choice([1, 2, 4]))
        self._submit(job_id, self._length_s(30.0), steps=bool(self._rng.random() < 0.5), gpus=min(gpus, 2))
        self._say(float(self._rng.uniform(0.1, 8.0)), subjects.job(job_id), JobCancelled(at_s=0.0, job_id=job_id))

    def _add_held(self, job_id: str) -> None:
        self._submit(job_id, self._length_s(), hold=bool(self._rng.random() < 0.5))
        self._say(0.3, subjects.job(job_id), JobHeld(at_s=0.0, job_id=job_id))
        self._say(float(self._rng.uniform(1, 9)), subjects.job(job_id), JobReleased(at_s=0.0, job_id=job_id))

    def _add_lane(self, job_id: str) -> None:
        self._submit(job_id, self._length_s(), steps=True, sharing="lane")

    def _add_fraction(self, job_id: str) -> None:
        self._submit(job_id, self._length_s(), sharing="fraction", fraction=0.5)

    def _add_trial(self, job_id: str) -> None:
        self._submit(job_id, self._length_s(), steps=True, parent="w1")
        demand = Demand(job_id=job_id, epoch=0, gpus=1, sharing="lane", sharers=2)
        fact = TrialsScaled(at_s=self._now_s + 0.01, sweep_id="w1", demands=(demand,))
        self._facts.append((subjects.sweep("w1"), fact, "tuner/sim"))

    def _add_drain(self, job_id: str) -> None:
        self._add_opaque(job_id)
        preempt = bool(self._rng.random() < 0.5)
        self._say(0.5, subjects.request("n1"), NodeDrained(at_s=0.0, node_id="n1", by="ada", preempt=preempt))
        self._say(float(self._rng.uniform(2, 6)), subjects.request("n1"), NodeResumed(at_s=0.0, node_id="n1", by="ada"))

    def _add_device_drain(self, job_id: str) -> None:
        self._add_opaque(job_id)
        subject, preempt = subjects.request("n1"), bool(self._rng.random() < 0.5)
        self._say(0.5, subject, DeviceDrained(at_s=0.0, node_id="n1", index=0, by="ada", preempt=preempt))
        self._say(float(self._rng.uniform(2, 6)), subject, DeviceResumed(at_s=0.0, node_id="n1", index=0, by="ada"))

    def _add_device_failure(self, job_id: str) -> None:
        self._add_opaque(job_id)
        subject = subjects.node("n1")
        self._say(0.5, subject, DeviceFailed(at_s=0.0, node_id="n1", index=0, code="lost", reason="it is lost"))
        self._say(float(self._rng.uniform(2, 6)), subject, DeviceRecovered(at_s=0.0, node_id="n1", index=0))

    def _add_policy(self, job_id: str) -> None:
        self._add_steps(job_id)
        order = str(self._rng.choice(["fifo", "2d-las", "las"]))
        self._say(0.2, subjects.policy("default"), PolicySet(at_s=0.0, pool="default", settings={"order": order}))

    def _add_reservation(self, job_id: str) -> None:
        self._add_opaque(job_id)
        from_s = self._now_s + float(self._rng.uniform(1.0, 4.0))
        made = ReservationMade(
            at_s=0.0,
            pool="default",
            reservation_id=f"a-{job_id}",
            team="a",
            gpus=1,
            from_s=from_s,
            until_s=from_s + float(self._rng.uniform(1.0, 6.0)),
        )
        self._say(0.2, subjects.policy("default"), made)

    def _add_class(self, job_id: str) -> None:
        name = str(self._rng.choice(["urgent", "gold", "night"]))
        self._submit(job_id, self._length_s(), steps=bool(self._rng.random() < 0.5), priority_class=name)
        self._say(0.1, subjects.policy("default"), PolicySet(at_s=0.0, pool="default", settings=CLASSES))

    def _sampled(self, asked: SamplesRequested, sample: ProfileSample) -> VirtualTask:
        name = sample.sample_id
        if asked.key in self._opaque:  # an executor refuses it: it could do anything
            return VirtualTask(name, -1, 1, "", 1.0, failures=[(0.0, 0.0)], iteration_s=math.inf, saves=False)
        work_s = sample.iterations * STEP_S
        return VirtualTask(name, -1, 1, asked.spec.model, work_s, starting_s=0.5, iteration_s=STEP_S)


def _at(fact: Any, at_s: float) -> Any:
    return fact.__class__(**{**{name: getattr(fact, name) for name in fact.__struct_fields__}, "at_s": at_s})


def _later(joined: Any, at_s: float) -> dict[str, Any]:
    fields = {name: getattr(joined, name) for name in joined.__struct_fields__}
    return {**fields, "at_s": at_s, "incarnation": "2"}


def again(load: Load, folder: Path, *, outages: bool = False, profile: bool = True) -> tuple[Outcome, Replay]:
    """Return what became of a cluster, and of the replay of its log."""
    log = folder / "log"
    costs = RunCosts(stop_s=0.4, checkpoint_s=0.0)
    was = play(
        load.script(outages), "configured", SimulationOptions(settings=SET, costs=costs, profile=profile, log=log)
    )
    return was, replay(read_log(log.read_text().splitlines()), settings=SET)


def assert_as_it_was(found: Replay) -> None:
    """Every job starts and ends when it did."""
    names = list(found.measured.trace.job_ids)
    for what in ("start_s", "end_s"):
        then_s, now_s = getattr(found.measured, what), getattr(found.replayed, what)
        off = np.flatnonzero(np.isfinite(then_s) & ~(np.abs(now_s - then_s) <= TOLERANCE_S))
        assert not off.size, [(names[row], what, then_s[row], now_s[row]) for row in off.tolist()]


@pytest.mark.parametrize("only", OF_EACH_KIND)
def test_the_replay_of_a_simulation_is_that_simulation_for_each_kind_of_job(only: str, tmp_path: Path) -> None:
    was, found = again(Load(1, 10, only), tmp_path)
    assert was.finished.any()
    assert_as_it_was(found)


def test_a_reservation_begins_and_ends_in_a_replay_as_long_after_the_first_fact_as_it_did(tmp_path: Path) -> None:
    again(Load(3, 14, "reservation"), tmp_path)
    log = tmp_path / "log"

    def later(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: later(one, name) for name, one in value.items()}
        return value + 5_000.0 if key in {"stored_s", "at_s", "from_s", "until_s"} else value

    lines = [json.dumps(later(json.loads(line))) for line in log.read_text().splitlines()]
    assert_as_it_was(replay(read_log(lines), settings=SET))


def test_a_replay_may_be_tried_with_other_classes_whatever_the_order(tmp_path: Path) -> None:
    again(Load(2, 14, "class"), tmp_path)
    history = read_log((tmp_path / "log").read_text().splitlines())
    urgent = {job_id for job_id, spec in history.specs.items() if spec.priority_class == "urgent"}

    def waited_s(policy: str = "configured", **more: Any) -> float:
        found = replay(history, policy, settings={**SET, **more}).replayed
        rows = [row for row, job_id in enumerate(found.trace.job_ids) if job_id in urgent]
        return float(np.mean(found.start_s[rows] - found.trace.submit_s[rows]))

    last = {"class.urgent.weight": -1000, "class.urgent.preempts": "false"}
    assert waited_s() < waited_s(**last)
    assert waited_s("fifo-backfill") < waited_s("fifo-backfill", **last)


@example(34)  # a job that is not sampled, of a workload that is, waits for a device
@example(74)  # a job waits for its speeds until a drain leaves one kind
@given(st.integers(0, 10_000))
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_replay_of_a_simulation_is_that_simulation_for_mixed_jobs(tmp_path: Path, seed: int) -> None:
    assert_as_it_was(again(Load(seed, 16), tmp_path)[1])


def test_the_replay_of_a_simulation_is_that_simulation_where_a_node_is_lost(tmp_path: Path) -> None:
    was, found = again(Load(4, 16), tmp_path, outages=True)
    assert was.finished.any()
    assert_as_it_was(found)
