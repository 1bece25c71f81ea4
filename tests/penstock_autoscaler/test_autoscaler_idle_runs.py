"""Elastic jobs that do nothing, in pools whose rule is that these shrink."""

from __future__ import annotations

import pytest
from scaling_facts import Autoscaler, decisions, demands, elastic, placed, preempted, seasoned, widths

from penstock_log import PolicySet, RunBusyAgain, RunCheckpointed, RunIdle, Setting
from penstock_scheduler.sizing.problem import SizingSettings

INTERVAL_S = SizingSettings().interval_s


def policy(action: str, at_s: float = 100.0) -> PolicySet:
    settings: dict[str, Setting] = {"idle_after_s": 100, "idle_grace_s": 30, "idle_action": action}
    return PolicySet(at_s=at_s, pool="default", settings=settings)


def idle(it: Autoscaler, since_s: float = 50.0, node_id: str = "n1") -> RunIdle:
    return RunIdle(
        at_s=it.now_s, job_id="a", epoch=it.state.jobs["a"].epoch, node_id=node_id, since_s=since_s, measure="processor"
    )


def busy(it: Autoscaler) -> RunBusyAgain:
    return RunBusyAgain(at_s=it.now_s, job_id="a", epoch=it.state.jobs["a"].epoch, node_id="n1")


def shrunk(action: str = "shrink") -> Autoscaler:
    """A job on four devices that has been idle since 50 s, as of 181 s."""
    it = seasoned()
    it.given(policy(action), idle(it))
    return it.at(181.0)


def test_an_idle_job_has_its_least_size_after_its_grace_with_the_reason() -> None:
    it = seasoned()
    it.given(policy("shrink"), idle(it)).at(150.0).then()
    assert it.decision().wake_at_s == 180.0
    (decided,) = decisions(it.at(181.0).settle())
    assert widths([decided]) == {"a": 1}
    assert demands([decided])["a"].reason == (
        "idle for 2 min 11 s: its devices were not used, and almost no processor time was; pool default takes devices "
        "from such runs: shrinks from 4 to 1 device (fast) with a batch of 64: 1 times its pace on 1 device"
    )


@pytest.mark.parametrize("action", ["warn", "stop"])
def test_under_any_other_rule_it_keeps_its_size(action: str) -> None:
    assert widths(shrunk(action).settle()) == {}


def test_it_keeps_the_least_size_until_it_works_again() -> None:
    it = shrunk()
    it.settle()
    it.given(*preempted(it, "a", 182.0), *placed(it, "a", 183.0, 0)).at(183.0 + 10 * INTERVAL_S)
    assert widths(it.settle()) == {}
    it.given(idle(it, 190.0), busy(it))
    assert widths(it.settle()) == {"a": 4}
    assert not it.state.shrunk


def test_a_step_beyond_those_that_it_had_done_says_so_too() -> None:
    it = shrunk()
    it.settle()
    it.given(*preempted(it, "a", 182.0), *placed(it, "a", 183.0, 0)).at(900.0)
    a = it.state.jobs["a"]
    it.given(RunCheckpointed(at_s=900.0, job_id="a", epoch=a.epoch, node_id="n1", step=a.steps))
    assert widths(it.settle()) == {}
    it.given(RunCheckpointed(at_s=900.0, job_id="a", epoch=a.epoch, node_id="n1", step=a.steps + 1))
    assert widths(it.settle()) == {"a": 4}


def test_a_job_that_works_again_within_its_grace_keeps_its_devices() -> None:
    it = seasoned()
    it.given(policy("shrink"), idle(it), busy(it)).at(900.0)
    assert widths(it.settle()) == {}


def test_a_job_that_is_allowed_to_be_idle_keeps_its_devices() -> None:
    it = seasoned(spec=elastic(idle="allow"))
    it.given(policy("shrink"), idle(it)).at(900.0)
    assert widths(it.settle()) == {}


def test_once_the_rule_is_taken_back_it_is_sized_as_any_other() -> None:
    it = shrunk()
    it.settle()
    it.given(*preempted(it, "a", 182.0), *placed(it, "a", 183.0, 0), policy("warn", 400.0)).at(400.0)
    assert widths(it.settle()) == {"a": 4}
