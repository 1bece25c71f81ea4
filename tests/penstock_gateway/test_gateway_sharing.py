"""What people see of jobs that share devices."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_cases import NOW_S, joined, placed, spec, started, submitted

from penstock_gateway import acceptance, answers, job_fit, machine
from penstock_gateway.answers import ReadModel
from penstock_gateway.dry_run import dry_run
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.why import WaitExplainer
from penstock_log import MemoryNeed
from penstock_log.validation import BadInput
from penstock_testing import Scenario

MIB, GIB = 2**20, 2**30
LANE: dict[str, Any] = {"sharing": "lane", "memory": MemoryNeed(100 * MIB, 0, 300 * MIB), "team": "vision"}


@pytest.fixture
def log() -> Scenario[machine.GatewayState]:
    return Scenario(machine.decider(GatewaySettings())).at(NOW_S + 12).given(joined(fast=2))


def running(log: Scenario[machine.GatewayState], *job_ids: str, device: int = 0, **fields: Any) -> None:
    for job_id in job_ids:
        log.given(submitted(job_id, **fields), placed(job_id, device), started(job_id, at_s=NOW_S + 2))


def test_a_device_shows_all_who_share_it_and_what_they_hold(log: Scenario[machine.GatewayState]) -> None:
    running(log, "a", "b", **LANE)
    running(log, "x", device=1)
    shared, alone = answers.nodes(ReadModel(log.state, log.now_s, 9)).nodes[0].devices
    assert (shared.job_id, shared.shared_by, shared.taken) == ("a", ("a", "b"), "2 jobs hold 0.488 of 1 GiB")
    assert (alone.job_id, alone.shared_by, alone.taken) == ("x", (), "")


def test_a_job_shows_how_it_shares_and_its_share(log: Scenario[machine.GatewayState]) -> None:
    running(log, "a", "b", **LANE)
    model = ReadModel(log.state, log.now_s, 9)
    view = answers.job(model, log.state.jobs["a"])
    assert (view.sharing, view.share) == ("lane", 0.5)
    why = WaitExplainer(log.state, log.now_s).explain(log.state.jobs["a"])
    assert why.evidence == "it has been running on n1/fast0 for 10.0 s, beside b, with 50% of the time"


def test_a_dry_run_tells_beside_whom_a_job_would_start(log: Scenario[machine.GatewayState]) -> None:
    running(log, "a", **LANE)
    view = dry_run(log.state, spec(**LANE), log.now_s)
    assert (view.starts, view.devices, view.beside) == (True, ("n1/fast0",), ("a",))


def test_a_dry_run_tells_that_a_job_of_unknown_need_is_alone_at_first(log: Scenario[machine.GatewayState]) -> None:
    running(log, "a", **LANE)
    view = dry_run(log.state, spec(**{**LANE, "memory": None}), log.now_s)
    assert (view.starts, view.devices, view.beside) == (True, ("n1/fast1",), ())
    assert view.warnings[-1].startswith("nobody knows what it needs of a device's memory")


def test_a_dry_run_tells_what_there_is_no_room_for_and_gives_no_estimate(log: Scenario[machine.GatewayState]) -> None:
    running(log, "a", **LANE)
    running(log, "x", device=1)
    view = dry_run(log.state, spec(**{**LANE, "memory": MemoryNeed(800 * MIB, 0, 100 * MIB)}), log.now_s)
    assert (view.starts, view.cause, view.start_in_s) == (False, "capacity", None)
    assert "device n1/fast0: 1 job holds 0.391 of 1 GiB" in view.evidence
    assert view.basis.startswith("no estimate: it shares devices")


def test_a_shared_device_is_expected_to_fall_free_when_the_last_is_gone(log: Scenario[machine.GatewayState]) -> None:
    running(log, "a", duration_s=30.0, **LANE)
    running(log, "b", duration_s=90.0, **LANE)
    running(log, "x", device=1, duration_s=300.0)
    assert dry_run(log.state, spec(), log.now_s).start_in_s == 160.0  # 80 s at half the time


def test_a_need_larger_than_every_device_is_warned_of(log: Scenario[machine.GatewayState]) -> None:
    large = spec(**{**LANE, "memory": MemoryNeed(900 * MIB, 0, 200 * MIB)})
    (warning,) = job_fit.warnings(job_fit.NodeFit(log.state.cluster), large)
    assert warning.startswith("it can never fit now: needs 1.131 GiB of each device")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"sharing": "lane", "cpus": 2.0},
            "$.cpus: is for a job that has its devices to itself",
        ),
        ({"sharing": "fraction", "fraction": 0.5, "gpus": 2}, "$.gpus: a fraction is of one device, got 2"),
        ({"fraction": 0.5}, "$.fraction: is for `sharing"),
        (
            {"host_memory_bytes": 2 * GIB, "local_memory_bytes": 2 * GIB},
            "$.local_memory_bytes: 2 GiB do not fit beside a program in host_memory_bytes, 2 GiB",
        ),
        ({"memory": MemoryNeed(1, 0, 1)}, "$.memory: is for a job that shares its device"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        acceptance.check(spec(**fields))
    assert said in str(refused.value)


def test_a_job_with_devices_to_itself_may_say_what_it_borrows() -> None:
    acceptance.check(spec(local_memory_bytes=GIB, spill_bytes=4 * GIB))
