"""Where and when a job would start, from what the log has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gateway_cases import NOW_S, ended, joined, placed, preempted, ranked, spec, started, submitted

from penstock_gateway import machine
from penstock_gateway.dry_run import dry_run
from penstock_gateway.machine import GatewaySettings
from penstock_log import JobsRanked, KindSpeed, PolicySet, RoundDecided, WorkloadProfiled, workload
from penstock_log.views import DryRunView
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_testing import Scenario


@pytest.fixture
def log() -> Scenario[machine.GatewayState]:
    return Scenario(machine.decider(GatewaySettings())).at(NOW_S + 12).given(joined(fast=1))


def running(log: Scenario[machine.GatewayState], job_id: str, device: int = 0, **fields: Any) -> None:
    log.given(submitted(job_id, **fields), placed(job_id, device), started(job_id, at_s=NOW_S + 2))


def asked(log: Scenario[machine.GatewayState], **fields: Any) -> DryRunView:
    return dry_run(log.state, spec(**fields), log.now_s)


def test_on_an_idle_device_it_starts_now(log: Scenario[machine.GatewayState]) -> None:
    view = asked(log)
    assert (view.starts, view.start_in_s, view.devices, view.basis) == (True, 0.0, ("n1/fast0",), "")


def test_a_declared_duration_tells_when_its_device_is_free(log: Scenario[machine.GatewayState]) -> None:
    running(log, "j1", duration_s=60.0)
    view = asked(log)
    assert (view.starts, view.start_in_s, view.basis) == (False, 50.0, "1 job by declared duration")


def test_so_do_the_jobs_that_have_finished(log: Scenario[machine.GatewayState]) -> None:
    running(log, "done")
    log.given(ended("done", at_s=NOW_S + 32))  # it took 30 s
    running(log, "j1")
    log.at(NOW_S + 12)  # and this one has had 10 s
    view = asked(log)
    assert (view.start_in_s, view.basis) == (20.0, "1 job by the run times of the last 1 job that finished")


def test_where_nothing_tells_no_number_is_made_up(log: Scenario[machine.GatewayState]) -> None:
    running(log, "j1")
    view = asked(log)
    assert view.start_in_s is None
    assert view.basis == "no estimate: 1 job before it declares no duration, and none of pool `default` has finished"


def test_jobs_that_wait_in_queue_0_come_first_and_those_behind_it_do_not(log: Scenario[machine.GatewayState]) -> None:
    running(log, "j1", duration_s=60.0)
    log.given(submitted("j2", duration_s=7.0), submitted("j3", duration_s=100.0), ranked("j3", queue=1))
    log.given(submitted("held", duration_s=100.0, hold=True))
    view = asked(log)
    assert view.start_in_s == 57.0
    assert view.evidence.endswith("1 waiting job before it")


def test_a_slow_device_takes_longer_by_the_measured_speed(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined("n2", fast=0, slow=1))
    slow = spec(duration_s=20.0)
    speeds = (KindSpeed(kind="fast", iteration_s=1.0, speed=1.0), KindSpeed(kind="slow", iteration_s=2.5, speed=0.4))
    log.given(WorkloadProfiled(at_s=NOW_S, key=workload.key(slow), speeds=speeds))
    log.given(submitted("j1", duration_s=20.0), placed("j1", 0, node="n2", kind="slow"))
    log.given(started("j1", node="n2", at_s=NOW_S + 12))
    assert asked(log, kinds=("slow",)).start_in_s == pytest.approx(50.0)


def test_what_it_may_preempt_is_said_and_not_counted_on(log: Scenario[machine.GatewayState]) -> None:
    running(log, "j1", duration_s=60.0)
    log.given(ranked("j1", queue=1))
    view = asked(log)
    assert view.start_in_s == 50.0
    assert view.basis.endswith("; sooner if it preempts one of 1 run of a later queue")


def test_a_run_that_is_stopping_leaves_its_device_at_once(log: Scenario[machine.GatewayState]) -> None:
    running(log, "j1", duration_s=60.0)
    log.given(ranked("j1", queue=1), preempted("j1"), submitted("j2", duration_s=7.0))
    assert asked(log).start_in_s == 7.0


def test_pools_of_their_own_in_the_file_are_no_trouble(log: Scenario[machine.GatewayState]) -> None:
    running(log, "j1", duration_s=60.0)
    settings = MatcherSettings(pools={"lab": {"alpha": 1.0}})
    assert dry_run(log.state, spec(), log.now_s, settings).cause == "capacity"
    assert dry_run(log.state, spec(pool="lab"), log.now_s, settings).cause == "no_nodes"


def test_where_nobody_overtakes_the_jobs_before_it_start_first(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined("n2", fast=1))
    running(log, "j1", duration_s=60.0)
    log.given(submitted("wide", gpus=2, duration_s=9.0))
    log.given(JobsRanked(at_s=NOW_S, pool="default", ranks=(), backfills=False, preempts="never"))
    view = asked(log)
    assert (view.cause, view.start_in_s, view.basis) == ("order", 59.0, "2 jobs by declared duration")


def test_what_is_kept_for_a_gang_is_not_counted_on(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined("n2", fast=1), joined("n3", fast=0, slow=2))
    running(log, "j1", duration_s=60.0)
    log.given(submitted("wide", gpus=2, kinds=("fast", "slow")))
    log.given(submitted("j2", kinds=("slow",)), placed("j2", 0, node="n3", kind="slow"))
    log.given(started("j2", node="n3"), RoundDecided(at_s=NOW_S, pool="default", keeps={"wide": "slow"}))
    view = asked(log, kinds=("slow",))
    assert (view.starts, view.start_in_s) == (False, None)
    assert view.basis.startswith("no estimate: 2 jobs before it declare no duration")


@pytest.mark.parametrize("fields", [{"gpus": 9}, {"kinds": ("tpu",)}, {"hold": True}])
def test_who_does_not_wait_for_devices_gets_no_time(
    log: Scenario[machine.GatewayState], fields: dict[str, Any]
) -> None:
    running(log, "j1", duration_s=60.0)
    view = asked(log, **fields)
    assert (view.starts, view.start_in_s, view.basis) == (False, None, "")


def test_it_says_what_the_matcher_would_do_also_where_a_device_is_idle(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined("n2", fast=0, slow=1))
    speeds = (KindSpeed(kind="fast", iteration_s=1.0, speed=1.0), KindSpeed(kind="slow", iteration_s=10.0, speed=0.1))
    log.given(WorkloadProfiled(at_s=NOW_S, key=workload.key(spec()), speeds=speeds))
    running(log, "j1", duration_s=12.0)
    view = asked(log, duration_s=10.0)
    assert (view.starts, view.cause) == (False, "later_place")
    assert view.alternative is not None
    assert view.alternative.change == {"kinds": ("slow",)}
    assert asked(log, duration_s=10.0, kinds=("slow",)).devices == ("n2/slow0",)


def test_an_unseen_workload_would_wait_for_its_speeds(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined("n2", fast=0, slow=1))
    view = asked(log, profile="on")
    assert (view.starts, view.cause) == (False, "profiling")
    assert asked(log, profile="off").starts


def test_by_the_rules_that_are_set_for_the_pool(log: Scenario[machine.GatewayState]) -> None:
    log.given(joined("n2", fast=0, slow=1))
    rules = MatcherSettings(pools={"default": {"await_profile_s": 0.0}})
    assert dry_run(log.state, spec(profile="on"), log.now_s, rules).starts
    log.given(PolicySet(at_s=NOW_S, pool="default", settings={"await_profile_s": 60.0}))
    assert not dry_run(log.state, spec(profile="on"), log.now_s, rules).starts


def test_asking_changes_nothing(log: Scenario[machine.GatewayState]) -> None:
    running(log, "j1", duration_s=60.0)
    before = msgspec.json.encode(log.state)
    answers = [asked(log, kinds=("fast",)), asked(log, kinds=("fast",)), asked(log, user="nobody-before")]
    assert answers[0] == answers[1]
    assert msgspec.json.encode(log.state) == before
