"""What people see of a workload: speeds, memory, and what sweeps have shown."""

from __future__ import annotations

import pytest
from gateway_cases import NOW_S, spec, submitted, sweep_spec

from penstock_cli.commands import policies
from penstock_gateway import acceptance, answers
from penstock_gateway.answers import ReadModel
from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.machine import GatewayState, apply
from penstock_log import (
    KindSpeed,
    Scalability,
    SweepSubmitted,
    Timing,
    TrialsMeasured,
    WorkloadProfiled,
    WorkloadScaled,
    workload,
)

KEY = workload.key(spec())
SHOWN = TrialsMeasured(
    at_s=NOW_S, sweep_id="s1", key=KEY, alpha=1.2, beta=1.4, packing=3, widest=2, overhead_s=2.5, saves=True
)


def model(*facts: object) -> ReadModel:
    state = GatewayState()
    for seq, fact in enumerate((submitted(), SweepSubmitted(at_s=NOW_S, sweep_id="s1", spec=sweep_spec()), *facts), 1):
        apply(state, fact, seq)
    return ReadModel(state, NOW_S, 9)


def lines(*facts: object, of: str = "s1") -> list[str]:
    now = model(*facts)
    return policies.profile_lines(answers.profile(now, acceptance.workload_named(now.state, of)))


def test_a_workload_is_named_by_its_key_or_by_what_is_of_it():
    now = model(SHOWN)
    assert {acceptance.workload_named(now.state, name) for name in ("s1", "j1", KEY, KEY[:6])} == {KEY}
    with pytest.raises(RequestRefused, match="nothing"):
        acceptance.workload_named(now.state, "nothing")


def test_a_name_of_one_workload_is_as_good_as_its_key():
    assert acceptance.workload_named(model().state, "job") == KEY


def test_a_name_of_several_workloads_is_answered_with_their_keys():
    now = model(submitted("j2", model="other"))
    other = workload.key(spec(model="other"))
    with pytest.raises(RequestRefused, match=f"no workload 'job'; that is a name, its ids are {KEY}, {other}"):
        acceptance.workload_named(now.state, "job")


def test_a_name_that_nothing_has_is_answered_with_those_that_are_near():
    with pytest.raises(RequestRefused, match="no workload 'jop'; did you mean job"):
        acceptance.workload_named(model().state, "jop")


def test_an_elastic_workload_shows_its_curve_in_the_view():
    timing = Timing(local_batch=64, iteration_s=0.1, error_s=0.001)
    found = (Scalability(kind="fast", timings=(timing,), per_gpu_cap=64),)
    now = model(WorkloadScaled(at_s=NOW_S, key=KEY, kinds=found))
    assert answers.profile(now, KEY).scaling == found


def test_what_sweeps_have_shown_stands_beside_the_speeds():
    speeds = WorkloadProfiled(at_s=NOW_S, key=KEY, speeds=(KindSpeed(kind="fast", iteration_s=0.01, speed=1.0),))
    assert lines(speeds, SHOWN) == [
        f"workload:      {KEY}",
        "jobs:          1: job",
        "speeds:        fast 1x (10 ms/step)",
        "memory:        not measured",
        "side by side:  alpha 1.2, at most 3 trials on a device",
        "scaling out:   beta 1.4, at most 2 devices for a trial",
        "moving:        2.5 s (nobody has been moved yet: starting, and a guess for stopping)",
    ]


def test_what_was_not_measured_is_said_to_be_so():
    nothing = TrialsMeasured(at_s=NOW_S, sweep_id="s1", key=KEY)
    assert [line.split(":", 1)[1].strip() for line in lines(nothing)[2:]] == ["not measured"] * 5
