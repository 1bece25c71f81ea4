"""What of a node's memory is promised to jobs that are placed on it."""

from __future__ import annotations

import msgspec
import pytest

from penstock_log import JobSpec, JobSubmitted, Placement, RoundDecided, RunEnded, RunStarted, Slot
from penstock_log.spec import BESIDE_LOCAL_BYTES
from penstock_memory.machine import GRACE_S, MemorySettings, MemoryState, decider
from penstock_testing import Scenario

GIB = 1 << 30


@pytest.fixture
def memory() -> Scenario[MemoryState]:
    return Scenario(decider("n1"))


def submitted(job_id: str, **more: object) -> JobSubmitted:
    spec = msgspec.convert({"name": job_id, "command": ["true"], "cwd": "/", **more}, JobSpec)
    return JobSubmitted(at_s=0.0, job_id=job_id, spec=spec)


def placed(job_id: str, *nodes: tuple[str, tuple[int, ...]]) -> RoundDecided:
    slots = tuple(Slot(node_id=node_id, devices=devices) for node_id, devices in nodes)
    return RoundDecided(
        at_s=1.0, pool="default", placements=(Placement(job_id=job_id, epoch=1, kind="fast", slots=slots),)
    )


def started(job_id: str, node_id: str, at_s: float) -> RunStarted:
    return RunStarted(at_s=at_s, job_id=job_id, epoch=1, node_id=node_id, devices=(0,))


def test_a_job_is_promised_its_memory_from_its_placement_until_a_while_after_its_start(memory) -> None:
    memory.given(submitted("j1", gpus=2, host_memory_bytes=3 * GIB), placed("j1", ("n1", (0, 1))))
    assert memory.state.promised_bytes(1000.0) == 6 * GIB, "it has not begun"
    memory.given(started("j1", "n1", 1000.0)).then()
    assert memory.state.promised_bytes(1000.0 + GRACE_S - 1) == 6 * GIB
    assert memory.state.promised_bytes(1000.0 + GRACE_S) == 0


def test_a_job_that_says_only_what_its_files_keep_is_promised_that_and_what_it_gets_beside(memory) -> None:
    memory.given(submitted("j1", local_memory_bytes=2 * GIB), placed("j1", ("n1", (0,))))
    assert memory.state.promised_bytes(5.0) == 2 * GIB + BESIDE_LOCAL_BYTES


def test_each_node_of_a_gang_promises_its_own_part(memory) -> None:
    memory.given(submitted("j1", gpus=3, host_memory_bytes=GIB), placed("j1", ("n1", (0,)), ("n2", (0, 1))))
    assert memory.state.promised_bytes(5.0) == GIB
    memory.given(started("j1", "n2", 2.0)).then()
    assert memory.state.promised_bytes(1000.0) == GIB, "the other node's start is not this one's"


def test_a_job_elsewhere_or_without_a_demand_is_promised_nothing(memory) -> None:
    memory.given(submitted("j1", host_memory_bytes=GIB), placed("j1", ("n2", (0,))))
    memory.given(submitted("j2"), placed("j2", ("n1", (0,)))).then()
    assert memory.state.promised_bytes(5.0) == 0


def test_a_run_that_is_over_is_promised_nothing_any_more(memory) -> None:
    memory.given(submitted("j1", host_memory_bytes=GIB), placed("j1", ("n1", (0,))))
    memory.given(RunEnded(at_s=2.0, job_id="j1", epoch=1, node_id="n1", outcome="completed")).then()
    assert memory.state.promised_bytes(2.0) == 0
    assert memory.state.promises == {}


def test_a_slab_that_is_not_made_of_pages_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a multiple of 4096"):
        MemorySettings(slab_bytes=(1 << 20) + 1)
