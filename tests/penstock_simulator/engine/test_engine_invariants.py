"""The invariants of a virtual cluster: they hold for what is right, and each is broken by what it forbids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from virtual_invariants import Broken, Invariants

from penstock_log import (
    AnyEvent,
    Device,
    JobSpec,
    JobSubmitted,
    NodeJoined,
    Placement,
    Preemption,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
)
from penstock_simulator.engine.cluster_script import RunCosts
from penstock_simulator.engine.engine import EventEngine, VirtualLog
from penstock_simulator.engine.executors import VirtualExecutors
from penstock_simulator.engine.simulation import simulate
from penstock_simulator.engine.tasks import VirtualTask
from penstock_simulator.trace import Trace
from penstock_simulator.virtual_cluster import parse
from penstock_testing import delivery


def joined() -> NodeJoined:
    devices = tuple(Device(index=index, kind="gpu", memory_bytes=8, backend="emulated") for index in range(2))
    return NodeJoined(node_id="n1", devices=devices, at_s=0.0)


def submitted(job_id: str) -> JobSubmitted:
    return JobSubmitted(job_id=job_id, spec=JobSpec(name=job_id, command=("x",), profile="off"), at_s=1.0)


def placed(job_id: str, *devices: int, epoch: int = 1, kind: str = "gpu") -> RoundDecided:
    lease = Placement(job_id=job_id, epoch=epoch, kind=kind, slots=(Slot(node_id="n1", devices=devices),))
    return RoundDecided(pool="default", at_s=2.0, placements=(lease,))


def started(job_id: str, epoch: int = 1) -> RunStarted:
    return RunStarted(job_id=job_id, epoch=epoch, node_id="n1", devices=(0,), at_s=3.0)


def ended(job_id: str) -> RunEnded:
    return RunEnded(job_id=job_id, epoch=1, node_id="n1", outcome="completed", at_s=4.0)


def never_asked(*_: Any) -> VirtualTask:
    raise AssertionError("nobody asks for samples here")


def check(facts: Sequence[AnyEvent]) -> Invariants:
    engine = EventEngine([], VirtualLog())
    executors = VirtualExecutors(engine, speed=lambda _model, _kind: 1.0, costs=RunCosts(), sampled=never_asked)
    found = Invariants(engine, executors)
    for seq, fact in enumerate(facts, start=1):
        found.check(delivery(seq, fact))
    return found


BEGINNING: list[AnyEvent] = [joined(), submitted("j1"), submitted("j2"), placed("j1", 0), started("j1")]


def test_a_life_as_it_should_be_breaks_nothing() -> None:
    life = [*BEGINNING[:4], placed("j2", 1), started("j1"), started("j2"), ended("j2"), ended("j1")]
    assert check(life).checked == len(life)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ([placed("j1", 0), placed("j2", 0)], "is given to j2 and to j1"),
        ([placed("j1", 0, 1)], "j1 holds more than it asked for"),
        ([placed("j1", 0, kind="fast")], r"\('n1', 0\) is not as"),
        ([placed("j1", 7)], r"\('n1', 7\) is not as"),
        ([placed("j1", 0, epoch=2)], "was refused"),
        ([placed("j1", 0), started("j1"), placed("j2", 1)], "time goes back from 3.0 to 2.0"),
        ([placed("j1", 0), started("j1", epoch=2)], "is of no lease in force"),
        ([placed("j1", 0), started("j1"), ended("j1"), ended("j1")], "is of no lease in force"),
        ([placed("j1", 0), ended("j2")], "is of no lease in force"),
    ],
)
def test_what_must_not_be_is_seen_at_once(facts: list[AnyEvent], said: str) -> None:
    check([*BEGINNING[:3], *facts[:-1]])
    with pytest.raises(Broken, match=said):
        check([*BEGINNING[:3], *facts])


def test_a_refused_placement_is_seen_although_its_round_preempts_somebody() -> None:
    found = check(BEGINNING)
    later = RoundDecided(
        pool="default",
        at_s=5.0,
        preemptions=(Preemption(job_id="j1", epoch=1, for_job="j2"),),
        placements=placed("j2", 1, epoch=2).placements,
    )
    with pytest.raises(Broken, match="was refused"):
        found.check(delivery(9, later))


def _longer(task: VirtualTask) -> None:
    task.work_s += 1.0


def _held_longer(task: VirtualTask) -> None:
    task.executed_s += 1.0


def _quicker(task: VirtualTask) -> None:
    task.starting_s -= 1.0


def _alive(task: VirtualTask) -> None:
    task.end_s = float("nan")


@pytest.mark.parametrize("wrong", [_longer, _held_longer, _quicker, _alive])
def test_service_that_appears_or_vanishes_is_seen_at_the_end(wrong: Callable[[VirtualTask], None]) -> None:
    jobs = Trace(
        name="two",
        job_ids=["a", "b"],
        submit_s=np.array([0.0, 20.0]),
        num_gpus=np.array([1, 1]),
        duration_s=np.array([60.0, 5.0]),
    )
    found: list[tuple[VirtualExecutors, Invariants]] = []
    simulate(
        jobs,
        parse("1x1"),
        "2d-las",
        settings={"thresholds_gpu_s": [10.0], "min_run_s": 0.0, "overhead_share": 1.0},
        costs=RunCosts(start_s=2.0, stop_s=1.0),
        watch=lambda engine, executors: found.append((executors, Invariants(engine, executors))),
    )
    executors, invariants = found[0]
    assert executors.tasks["a"].preemptions == 1
    invariants.check_service()
    wrong(executors.tasks["a"])
    with pytest.raises(Broken):
        invariants.check_service()
