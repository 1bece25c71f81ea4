"""What people are told of a job whose process is parked."""

from __future__ import annotations

import msgspec
from gateway_cases import NOW_S, ended, joined, placed, preempted, started, submitted

from penstock_gateway import machine, story
from penstock_gateway.why import WaitExplainer
from penstock_log import AnyEvent, Event, RunUnparked
from penstock_testing import Scenario, delivery

PARKED = (preempted(), ended(outcome="preempted", exit_code=75, steps=9, parked=True, parked_bytes=3 * 2**29))
GONE = RunUnparked(at_s=NOW_S + 9, job_id="j1", epoch=1, node_id="n1", reason="its processes have ended")


def log_of(*events: Event) -> Scenario[machine.GatewayState]:
    scenario = Scenario(machine.decider(machine.GatewaySettings())).at(NOW_S + 10)
    return scenario.given(joined("n1"), submitted(), placed(), started(), *events)


def why(*events: Event) -> str:
    log = log_of(*events)
    return WaitExplainer(log.state, log.now_s).explain(log.state.jobs["j1"]).evidence


def test_why_says_where_it_is_parked_while_it_waits() -> None:
    assert why(*PARKED).endswith("its process is parked on n1 (1.5 GiB), to go on without a load")
    assert "parked" not in why(*PARKED, GONE)
    assert "parked" not in why(*PARKED, placed(epoch=2))


def told(*events: AnyEvent) -> list[str]:
    timeline = story.Timeline(log_of(*events).state.jobs["j1"])
    lines = [line.text for seq, event in enumerate(events, 1) for line in timeline.lines(delivery(seq, event))]
    return [line for line in lines if "park" in line]


def test_the_story_says_where_it_was_parked_and_what_became_of_it() -> None:
    again = msgspec.structs.replace(started(epoch=2), resumed_step=9, start="parked")
    assert told(*PARKED, placed(epoch=2), again) == [
        "run preempted on n1 after step 9, parked with 1.5 GiB",
        "continued where it was parked, on n1, resuming after step 9",
    ]
    assert told(*PARKED, GONE)[1:] == ["no longer parked on n1: its processes have ended"]
