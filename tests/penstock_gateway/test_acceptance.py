"""A job that would begin from another one's checkpoint."""

from __future__ import annotations

import pytest
from gateway_cases import spec, submitted

from penstock_gateway import acceptance
from penstock_gateway.machine import GatewayState, apply
from penstock_log.validation import BadInput


@pytest.fixture
def state() -> GatewayState:
    state = GatewayState()
    apply(state, submitted("a", user="ada", keep_checkpoint=True), 1)
    return state


def test_a_job_may_begin_where_another_one_of_its_user_ended(state):
    made = acceptance.job(state, spec(id="b", user="ada", begins_from="a"), strict=False, now_s=1.0)
    assert isinstance(made, acceptance.Acceptable)


@pytest.mark.parametrize(("user", "begins_from", "why"), [("ada", "x", "job x is not there"), ("eve", "a", "is ada's")])
def test_a_job_may_not_begin_from_what_is_not_there_or_not_its_users(state, user, begins_from, why):
    with pytest.raises(BadInput, match=rf"\$\.begins_from: .*{why}; expected a job of the same user"):
        acceptance.job(state, spec(id="b", user=user, begins_from=begins_from), strict=False, now_s=1.0)
