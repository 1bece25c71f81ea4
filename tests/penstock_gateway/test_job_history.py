"""What the gateway remembers of a job beside its state."""

from __future__ import annotations

import msgspec
import pytest
from gateway_cases import NOW_S, ended, joined, placed, started, submitted

from penstock_gateway import answers, machine
from penstock_gateway.machine import GatewaySettings
from penstock_log.views import JobDetail
from penstock_testing import Scenario


@pytest.fixture
def log() -> Scenario[machine.GatewayState]:
    return Scenario(machine.decider(GatewaySettings())).at(NOW_S + 10)


def detail(log: Scenario[machine.GatewayState]) -> JobDetail:
    model = answers.ReadModel(state=log.state, now_s=log.now_s, seq=1)
    return answers.detail(model, log.state.jobs["j1"])


def test_the_last_end_of_a_run_is_shown_as_the_log_has_it(log: Scenario[machine.GatewayState]) -> None:
    end = ended(outcome="failed", reason="exit code 3", exit_code=3, peak_memory_bytes=5, at_s=NOW_S + 4)
    log.given(joined(), submitted(), placed(), started())
    assert detail(log).run_end is None
    log.given(end)
    shown = msgspec.json.decode(msgspec.json.encode(detail(log)), type=JobDetail)
    assert shown.run_end == end
