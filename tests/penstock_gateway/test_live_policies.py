"""Policies that are set while the cluster runs, as the gateway takes, keeps and shows them."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_cases import NOW_S, Gateway, gateway, joined, refusal

from penstock_bus.memory import MemoryBus
from penstock_log import PolicySet, UserSet, subjects


async def test_what_is_set_for_a_pool_stands_in_the_log_and_in_the_answer(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as served:
        answer = await served.command("policy", {"set": {"order": "2d-gittins", "promote_knob": None}, "by": "ops"})
        assert (answer["changed"], answer["id"]) == (True, "default")
        assert answer["message"] == "pool default: order = 2d-gittins, promote_knob = off set live"
        found = await served.query("policies")
        settings = {"order": "2d-gittins", "promote_knob": None}
        assert found["pools"] == [
            {
                "pool": "default",
                "settings": settings,
                "quotas": {},
                "classes": {},
                "alpha": 0.5,
                "learnt_gpu_s": [3600.0, 36000.0],
                "reservations": [],
            }
        ]
        assert found["defaults"]["order"] == "2d-las"
        (fact,) = await facts(served)
        assert (fact.by, fact.settings) == ("ops", {"order": "2d-gittins", "promote_knob": None})


async def test_what_is_not_named_stays_and_what_is_unset_goes(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as served:
        await served.command("policy", {"set": {"order": "fifo", "patience_s": 5}})
        await served.command("policy", {"set": {"patience_s": 6}, "unset": ["order"]})
        assert await live(served) == {"patience_s": 6}
        assert (await served.command("policy", {"set": {"patience_s": 6}}))["changed"] is False
        await served.command("policy", {"reset": True})
        assert await live(served) == {}
        assert len(await facts(served)) == 3


async def test_the_answer_says_what_was_changed_and_nothing_else(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as served:
        await served.command("policy", {"set": {"order": "fifo"}})
        made = await served.command("policy", {"set": {"quota.vision": 1}})
        assert made["message"] == "pool default: quota.vision = 1 set live"
        gone = await served.command("policy", {"unset": ["quota.vision"]})
        assert gone["message"] == "pool default: quota.vision no longer set live"


async def test_a_team_that_nobody_is_in_is_given_no_quota(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as served:
        await served.command("policy", {"set": {"quota.old": 1}})  # while nobody was in a team
        await served.told(UserSet(at_s=NOW_S, user="ann", teams=("vision", "speech")))
        code, message = await refusal(served.command("policy", {"set": {"quota.visoin": 1}}))
        assert (code, message) == (400, "$.set: nobody is in a team called visoin; expected one of speech, vision")
        await served.command("policy", {"set": {"quota.vision": 1, "quota.old": 0}})
        assert await live(served) == {"quota.vision": 1, "quota.old": 0}


async def test_the_past_is_shown_as_it_was(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as served:
        first = await served.command("policy", {"set": {"order": "fifo"}})
        await served.command("policy", {"set": {"order": "las"}})
        then = await served.query("policies", {"at": first["seq"]})
        assert then["pools"][0]["settings"] == {"order": "fifo"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"set": {"order": "by-mood"}}, "$.set: order is 'by-mood': expected one of fifo"),
        ({"set": {"thresholds_gpu_s": [4, 3]}}, "$.set: thresholds_gpu_s is"),
        (
            {"set": {"thresholds_gpu_s": 15}},
            "expected rising GPU-seconds with commas between, such as 3600,36000, or l",
        ),
        ({"set": {"ordre": "fifo"}}, "did you mean 'order'"),
        ({"unset": ["ordre"]}, "$.unset: no setting of a pool is called ordre"),
        ({"pool": "no such", "set": {}}, "$.pool"),
        ({"set": {"order": {"a": 1}}}, "$.set"),
        ({"settings": {}}, "settings"),
    ],
)
async def test_what_cannot_be_set_is_refused_and_nothing_is_stored(
    memory_bus: MemoryBus, body: dict[str, Any], said: str
) -> None:
    async with gateway(memory_bus, joined()) as served:
        code, message = await refusal(served.command("policy", body))
        assert (code, said in message) == (400, True), message
        assert await facts(served) == []


async def test_a_pool_that_is_not_there_is_refused_with_those_that_are(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined(), joined("n2", pool="lab")) as served:
        code, message = await refusal(served.command("policy", {"pool": "lba", "set": {"order": "fifo"}}))
        assert (code, message) == (
            404,
            "no pool is called 'lba': expected default, lab; one is there once a node or a job is in it",
        )
        assert (await served.command("policy", {"pool": "lab", "set": {"order": "fifo"}}))["changed"] is True


async def live(served: Gateway) -> Any:
    return (await served.query("policies"))["pools"][0]["settings"]


async def facts(served: Gateway) -> list[PolicySet]:
    deliveries = await served.bus.read(subjects.policy("default"), 0, await served.bus.last_seq())
    return [fact for one in deliveries for fact in one.commit.facts if isinstance(fact, PolicySet)]
