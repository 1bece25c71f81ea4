"""What the gateway does about runs that hold devices and do nothing."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_cases import NOW_S, ended, joined, placed, preempted, started, submitted

from penstock_gateway import machine
from penstock_gateway.why import WaitExplainer
from penstock_log import (
    Event,
    JobCancelled,
    JobState,
    Placement,
    PolicySet,
    RoundDecided,
    RunBusyAgain,
    RunIdle,
    Slot,
)
from penstock_testing import Scenario

STOP: dict[str, Any] = {"idle_after_s": 100, "idle_grace_s": 50, "idle_action": "stop"}


@pytest.fixture
def log() -> Scenario[machine.GatewayState]:
    scenario = Scenario(machine.decider(machine.GatewaySettings())).at(NOW_S + 10)
    scenario.given(joined("n1"), joined("n2"), submitted(), placed(), started())
    return scenario


def policy(**settings: Any) -> PolicySet:
    return PolicySet(at_s=NOW_S, pool="default", settings=settings)


def idle(node: str = "n1", *, since_s: float = NOW_S + 2, epoch: int = 1, job_id: str = "j1") -> RunIdle:
    return RunIdle(at_s=since_s + 100, job_id=job_id, epoch=epoch, node_id=node, since_s=since_s)


def decided(log: Scenario[machine.GatewayState]) -> list[Event]:
    return [fact for proposal in log.decision().proposals for fact in proposal.facts]


def why(log: Scenario[machine.GatewayState]) -> str:
    return WaitExplainer(log.state, log.now_s).explain(log.state.jobs["j1"]).evidence


def test_an_idle_run_is_stopped_after_its_grace_with_the_reason(log: Scenario[machine.GatewayState]) -> None:
    log.given(policy(**STOP), idle()).at(NOW_S + 151)
    assert decided(log) == []
    assert log.decision().wake_at_s == NOW_S + 152
    log.at(NOW_S + 152)
    (fact,) = decided(log)
    assert isinstance(fact, JobCancelled)
    assert fact.reason == "idle for 2 min 30 s: no iteration was done; pool default stops such runs"
    log.given(fact)
    assert log.state.jobs["j1"].state is JobState.COMPLETING
    assert decided(log) == []


@pytest.mark.parametrize("settings", [{}, {"idle_after_s": 100}, {"idle_after_s": 100, "idle_action": "warn"}])
def test_where_the_pool_only_warns_nothing_is_stopped(
    log: Scenario[machine.GatewayState], settings: dict[str, Any]
) -> None:
    log.given(policy(**settings), idle()).at(NOW_S + 9_999)
    assert decided(log) == []
    assert log.decision().wake_at_s is None
    assert log.state.histories["j1"].warnings == ["idle on n1 for 1 min 40 s: no iteration was done"]


def test_a_run_that_works_again_is_left_alone(log: Scenario[machine.GatewayState]) -> None:
    log.given(policy(**STOP), idle(), RunBusyAgain(at_s=NOW_S + 120, job_id="j1", epoch=1, node_id="n1"))
    assert decided(log.at(NOW_S + 9_999)) == []
    assert not log.state.idle


def test_the_next_run_of_a_job_begins_anew(log: Scenario[machine.GatewayState]) -> None:
    log.given(policy(**STOP), idle(), preempted(), ended(outcome="preempted"), placed(epoch=2), started(epoch=2))
    assert not log.state.idle
    log.given(idle(epoch=1))
    assert decided(log.at(NOW_S + 9_999)) == []


def test_a_gang_is_idle_once_it_is_so_on_all_of_its_nodes(log: Scenario[machine.GatewayState]) -> None:
    slots = (Slot(node_id="n1", devices=(1,)), Slot(node_id="n2", devices=(0,)))
    placement = Placement(job_id="g", epoch=1, kind="fast", slots=slots)
    log.given(submitted("g", gpus=2), RoundDecided(at_s=NOW_S, pool="default", placements=(placement,)))
    log.given(started("g", node="n1"), started("g", node="n2"), policy(**STOP), idle(job_id="g"))
    assert decided(log.at(NOW_S + 9_999)) == []
    log.given(idle("n2", job_id="g", since_s=NOW_S + 50)).at(NOW_S + 199)
    assert log.decision().wake_at_s == NOW_S + 200
    assert [type(fact) for fact in decided(log.at(NOW_S + 200))] == [JobCancelled]


def test_why_says_since_when_and_what_will_become_of_it(log: Scenario[machine.GatewayState]) -> None:
    assert "idle" not in why(log)
    log.given(policy(**STOP), idle()).at(NOW_S + 142)
    assert why(log).endswith("; it has been idle for 2 min 20 s (no iteration was done) and will be stopped in 10.0 s")
    log.given(policy(idle_after_s=100))
    assert why(log).endswith("; it has been idle for 2 min 20 s (no iteration was done)")


SHRINK: dict[str, Any] = {**STOP, "idle_action": "shrink"}


def test_a_pool_that_takes_devices_from_idle_runs_says_which_and_stops_none(
    log: Scenario[machine.GatewayState],
) -> None:
    log.given(submitted("e", gpus=2, min_gpus=1, max_gpus=2, batch_size=64), placed("e", 0, 1), started("e"))
    log.given(policy(**SHRINK), idle(job_id="e"), idle()).at(NOW_S + 142)

    def said(job_id: str) -> str:
        return WaitExplainer(log.state, log.now_s).explain(log.state.jobs[job_id]).evidence

    assert said("e").endswith("(no iteration was done) and will shrink from 2 to 1 device in 10.0 s")
    assert said("j1").endswith("; its pool takes devices from such runs, and leaves it alone: it is not elastic")
    assert decided(log.at(NOW_S + 9_999)) == []
    assert said("e").endswith(" and will shrink from 2 to 1 device as soon as it can be resized")
    assert log.state.histories["j1"].warnings, "for it, the rule does as `warn`"


def test_a_job_that_is_allowed_to_be_idle_is_not_warned_and_not_stopped(log: Scenario[machine.GatewayState]) -> None:
    log.given(submitted("notebook", idle="allow"), placed("notebook", 1), started("notebook"))
    log.given(policy(**STOP), idle(job_id="notebook")).at(NOW_S + 9_999)
    assert decided(log) == []
    assert not log.state.idle
    assert log.state.histories["notebook"].warnings == []


def test_a_rule_that_is_taken_back_holds_no_more(log: Scenario[machine.GatewayState]) -> None:
    log.given(policy(**STOP), idle(), policy())
    assert decided(log.at(NOW_S + 9_999)) == []


def test_a_job_of_another_pool_is_judged_by_the_rule_of_its_own(log: Scenario[machine.GatewayState]) -> None:
    log.given(PolicySet(at_s=NOW_S, pool="lab", settings=STOP), idle())
    assert decided(log.at(NOW_S + 9_999)) == []
