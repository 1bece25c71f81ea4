"""What the pools are run by, on the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_gateway import FakeGateway

from penstock_log import request_bodies, views

Run = Callable[..., tuple[int, str, str]]


def test_settings_are_given_as_names_and_values(penstock: Run, gateway: FakeGateway) -> None:
    told = penstock("policy", "set", "order=2d-gittins", "thresholds_gpu_s=60,600", "promote_knob=off", "--pool", "lab")
    assert told[:2] == (0, "set\n")
    (ask,) = gateway.asked
    assert isinstance(ask, request_bodies.PolicyRequest)
    assert (ask.pool, ask.reset) == ("lab", False)
    assert ask.set == {"order": "2d-gittins", "thresholds_gpu_s": [60, 600], "promote_knob": None}
    assert ask.by


def test_one_number_is_one_threshold(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("policy", "set", "thresholds_gpu_s=15")[0] == 0
    (ask,) = gateway.asked
    assert isinstance(ask, request_bodies.PolicyRequest)
    assert ask.set == {"thresholds_gpu_s": [15]}


@pytest.mark.parametrize("text", ["order", "=fifo"])
def test_what_is_no_setting_is_refused_with_an_example(penstock: Run, gateway: FakeGateway, text: str) -> None:
    code, _, said = penstock("policy", "set", text)
    assert (code, "expected NAME=VALUE" in said, gateway.asked) == (2, True, [])


def test_a_reset_without_names_is_of_all(penstock: Run, gateway: FakeGateway) -> None:
    penstock("policy", "reset")
    penstock("policy", "reset", "order", "patience_s")
    whole, part = gateway.asked
    assert isinstance(whole, request_bodies.PolicyRequest)
    assert isinstance(part, request_bodies.PolicyRequest)
    assert (whole.reset, whole.unset, part.reset, part.unset) == (True, (), False, ("order", "patience_s"))


def test_what_is_set_live_is_listed_beside_the_default(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("policy", "show")[1].startswith("nothing is set live")
    live = {"order": "fifo", "thresholds_gpu_s": [60.0, 600.0]}
    pools = (views.PolicyView(pool="lab", settings=live, learnt_gpu_s=(3.1, 12.0)),)
    defaults = {"order": "2d-las", "thresholds_gpu_s": "learnt", "patience_s": 30.0}
    gateway.policies = views.PoliciesView(pools=pools, defaults=defaults, seq=7)
    assert penstock("policy", "show")[1] == (
        "POOL  SETTING           LIVE    BUILT-IN\n"
        "lab   order             fifo    2d-las\n"
        "lab   thresholds_gpu_s  60,600  learnt: 3.1,12\n"
    )
    assert "patience_s" in penstock("policy", "show", "-o", "wide")[1]
