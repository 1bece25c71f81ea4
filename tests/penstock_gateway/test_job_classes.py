"""Priority classes as the gateway takes, refuses, keeps and shows them."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_cases import NOW_S, Gateway, gateway, joined, placed, refusal, spec, started, submitted, sweep_spec

from penstock_bus.memory import MemoryBus
from penstock_gateway import acceptance
from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.machine import GatewayState, apply
from penstock_log import AnyEvent, PolicySet, Setting, request_bodies
from penstock_log.validation import BadInput
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.round_types import MOST_CLASSES, PriorityClass

URGENT: dict[str, Setting] = {
    "class.urgent.weight": 10,
    "class.urgent.preempts": True,
    "class.urgent.most_gpus": 1,
    "class.urgent.teams": ["vision", "nlp"],
    "class.night.weight": -5,
}


def policy(**more: Setting) -> PolicySet:
    return PolicySet(at_s=NOW_S, pool="default", settings={**URGENT, **more})


async def submit(served: Gateway, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = await served.command("submit", spec(**fields))
    return found


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"priority_class": "urgnet"}, "pool default has no class 'urgnet'; expected one of night, urgent"),
        ({"priority_class": "<script>"}, "$.priority_class: expected 1 to 63 letters, digits, - and _"),
        (
            {"priority_class": "urgent", "team": "speech"},
            "class urgent is for teams nlp, vision, and not for team speech; night is open to it",
        ),
        ({"priority_class": "urgent"}, "and not for jobs without a team"),
        (
            {"priority_class": "urgent", "team": "nlp", "gpus": 2},
            "$.gpus: class `urgent` lets a user hold 1 device at once, and it needs 2",
        ),
        (
            {"priority_class": "urgent", "team": "nlp", "gpus": 2, "min_gpus": 2, "max_gpus": 4, "batch_size": 8},
            "and it needs 2 at least",
        ),
        ({"priority_class": "urgent", "pool": "lab"}, "pool lab has no class 'urgent'; there is none; leave it out"),
    ],
    ids=str,
)
async def test_a_job_that_may_not_be_of_its_class_is_refused_and_so_is_its_dry_run(
    memory_bus: MemoryBus, fields: dict[str, Any], said: str
) -> None:
    async with gateway(memory_bus, joined(), joined("n2", pool="lab"), policy()) as served:
        body = {"name": "job", "command": ["true"], "profile": "off", **fields}
        for request in (served.command("submit", body), served.query("dryrun", body)):
            code, message = await refusal(request)
            assert (code, said in message) == (400, True), message


async def test_a_job_and_its_answers_say_the_class(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined(), policy()) as served:
        await submit(served, id="u", priority_class="urgent", team="nlp")
        await submit(served, id="n", priority_class="night")
        await submit(served, id="p")
        shown = await served.query("job", {"id": "u"})
        assert (shown["spec"]["priority_class"], shown["job"]["priority_class"]) == ("urgent", "urgent")
        queue = (await served.query("queue", {}))["jobs"]
        assert [(one["id"], one.get("priority_class", "")) for one in queue] == [
            ("u", "urgent"),
            ("p", ""),
            ("n", "night"),
        ]
        told = await served.query("story", {"id": "u"})
        assert told["lines"][0]["text"] == "submitted: 1 device, in class urgent"
        classes = (await served.query("policies"))["pools"][0]["classes"]
        assert classes["urgent"] == {"weight": 10, "preempts": True, "most_gpus": 1, "teams": ["vision", "nlp"]}
        assert classes["night"]["weight"] == -5


async def test_a_class_that_a_job_or_a_sweep_names_which_is_not_over_stays(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined(), policy()) as served:
        gone = {"unset": ["class.night.weight"]}
        await submit(served, id="nightly", priority_class="night")
        code, message = await refusal(served.command("policy", gone))
        assert (code, "class night of pool default stays: nightly of it are not over" in message) == (409, True), (
            message
        )
        assert (await refusal(served.command("policy", {"reset": True})))[0] == 409
        await served.command("cancel", {"id": "nightly"})
        sweep = sweep_spec(id="s1", job=spec(priority_class="night"))
        await served.command("tune", sweep)
        code, message = await refusal(served.command("policy", gone))
        assert (code, "s1" in message) == (409, True), message
        assert (await served.command("policy", {"set": {"class.night.weight": -9}}))["state"] == "set"
        await served.command("cancel_sweep", {"id": "s1"})
        kept = {name: value for name, value in URGENT.items() if "urgent" in name}
        assert (await served.query("policies"))["pools"][0]["settings"] == {**kept, "class.night.weight": -9}


async def test_why_names_the_limit_as_it_is_now(memory_bus: MemoryBus) -> None:
    held = submitted("j0", priority_class="urgent", team="nlp", user="ada")
    other = submitted("j1", priority_class="urgent", team="nlp", user="ada")
    facts = [joined(), policy(), held, placed("j0"), started("j0"), other]
    async with gateway(memory_bus, *facts) as served:
        answer = await served.query("why", {"id": "j1"})
        assert answer["cause"] == "class_quota"
        assert "lets a user hold 1 device at once; jobs of ada in it hold 1; this one needs 1" in answer["evidence"]
        await served.command("policy", {"set": {"class.urgent.most_gpus": 2}})
        assert (await served.query("why", {"id": "j1"}))["cause"] != "class_quota"


# --- the rules themselves
FILE = MatcherSettings(classes={"filed": PriorityClass(weight=3)})


def known(*facts: AnyEvent) -> GatewayState:
    state = GatewayState()
    for seq, fact in enumerate(facts, start=1):
        apply(state, fact, seq)
    return state


def test_a_class_of_the_settings_file_counts_and_goes_on_when_what_is_set_live_for_it_is_removed() -> None:
    state = known(joined(), submitted("j1", priority_class="filed"))
    named = spec(id="j2", priority_class="filed")
    assert acceptance.job(state, named, strict=False, now_s=NOW_S, settings=FILE).fact is not None
    with pytest.raises(BadInput, match="has no class 'filed'"):
        acceptance.job(state, named, strict=False, now_s=NOW_S)
    live = PolicySet(at_s=NOW_S, pool="default", settings={"class.filed.weight": 9})
    state = known(joined(), submitted("j1", priority_class="filed"), live)
    ask = request_bodies.PolicyRequest(unset=("class.filed.weight",))
    assert acceptance.set_policy(state, ask, NOW_S, settings=FILE).state == "set"
    with pytest.raises(RequestRefused, match="class filed of pool default stays: j1 of it are not over"):
        acceptance.set_policy(state, ask, NOW_S)


def test_a_pool_has_so_many_classes_at_most() -> None:
    state = known(joined())
    ask = request_bodies.PolicyRequest(set={f"class.c{number}.weight": number for number in range(MOST_CLASSES + 1)})
    with pytest.raises(RequestRefused, match="a pool has at most 64 classes, got 65; remove others"):
        acceptance.set_policy(state, ask, NOW_S)


def test_a_trial_is_not_looked_at_as_its_sweep_was() -> None:
    state = known(joined())
    trial = spec(id="s1-1", parent="s1", priority_class="gone")
    assert acceptance.job(state, trial, strict=False, now_s=NOW_S).fact is not None


def test_a_job_that_was_submitted_before_is_answered_as_then_though_its_class_is_for_others_by_now() -> None:
    state = known(joined(), policy(), submitted("j1", priority_class="urgent", team="speech"))
    again = spec(id="j1", priority_class="urgent", team="speech")
    assert acceptance.job(state, again, strict=False, now_s=NOW_S).seq == 3
