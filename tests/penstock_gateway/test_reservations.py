"""Reservations as the gateway takes, refuses, keeps and shows them."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_cases import NOW_S, Gateway, gateway, joined, refusal, spec, submitted, waits

from penstock_bus.memory import MemoryBus
from penstock_log import ReservationMade, UserSet, Wait

SOON_S = NOW_S + 1000.0
LATER_S = NOW_S + 2000.0


def wanted(**fields: Any) -> dict[str, Any]:
    return {"team": "vision", "gpus": 1, "from_s": SOON_S, "until_s": LATER_S, **fields}


async def reservations(served: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await served.query("policies"))["pools"][0]["reservations"]
    return found


async def test_a_reservation_is_listed_until_it_is_cancelled(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as served:
        made = await served.command("reserve", wanted(by="ops", reason="<script>a\ncourse</script>"))
        assert (made["id"], made["state"]) == ("vision-1", "reserved")
        assert "1 device of pool default for team vision in 14 min 59 s" in made["message"]
        (found,) = await reservations(served)
        assert (found["team"], found["gpus"], found["state"], found["by"]) == ("vision", 1, "to come", "ops")
        assert found["reason"] == "<script>a\ncourse</script>"
        assert (await served.command("unreserve", {"id": "vision-1"}))["state"] == "cancelled"
        assert await reservations(served) == []
        assert (await served.command("reserve", wanted()))["id"] == "vision-2"


async def test_a_begin_in_the_past_is_now_and_the_quota_is_in_force(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as served:
        assert "from now on" in (await served.command("reserve", wanted(from_s=0.0)))["message"]
        (found,) = await reservations(served)
        assert (found["state"], found["from_s"] > NOW_S) == ("in force", True)
        assert (await served.query("policies"))["pools"][0]["quotas"] == {"vision": 1}


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"gpus": 4}, 409, "pool default has 3 devices; expected at most 3"),
        ({"gpus": 0}, 400, "$.gpus"),
        ({"until_s": SOON_S}, 400, "it ends before it begins"),
        ({"from_s": 1.0, "until_s": 2.0}, 400, "it is over already"),
        ({"until_s": 1e400}, 400, "$.until_s"),
        ({"kind": "slow", "gpus": 2}, 409, "$.gpus: pool default has 1 slow device; expected at most 1"),
        ({"kind": "tpu"}, 400, "$.kind: pool default has no device of kind 'tpu'; expected one of fast, slow"),
        ({"kind": "<script>"}, 400, "$.kind"),
        ({"pool": "lab"}, 404, "no pool is called 'lab'"),
        ({"team": "<script>"}, 400, "$.team"),
        ({"team": "visoin"}, 400, "nobody is in a team called visoin; expected one of speech, vision"),
    ],
    ids=str,
)
async def test_what_cannot_be_reserved_is_refused(
    memory_bus: MemoryBus, fields: dict[str, Any], code: int, said: str
) -> None:
    person = UserSet(at_s=NOW_S, user="ann", teams=("vision", "speech"))
    async with gateway(memory_bus, joined(slow=1), person) as served:
        found, message = await refusal(served.command("reserve", wanted(**fields)))
        assert (found, said in message) == (code, True), message
        assert await reservations(served) == []


async def test_those_that_overlap_are_no_more_than_the_pool_has(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as served:
        await served.command("reserve", wanted(team="speech"))
        await served.command("reserve", wanted(from_s=SOON_S + 500.0, until_s=LATER_S + 500.0))
        code, message = await refusal(served.command("reserve", wanted(from_s=LATER_S - 1.0, until_s=LATER_S + 1.0)))
        assert (code, "and 2 of them are reserved" in message) == (409, True), message
        assert (await served.command("reserve", wanted(gpus=2, from_s=0.0, until_s=SOON_S)))["state"] == "reserved"
        assert (await served.command("reserve", wanted(from_s=LATER_S, until_s=LATER_S + 1.0)))["id"] == "vision-4"


async def test_one_of_a_kind_is_listed_and_told_with_it_and_leaves_what_is_left_of_it(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined(slow=1)) as served:
        made = await served.command("reserve", wanted(kind="fast"))
        assert "1 fast device of pool default for team vision in" in made["message"]
        (found,) = await reservations(served)
        assert found["kind"] == "fast"
        code, message = await refusal(served.command("reserve", wanted(kind="fast", gpus=2)))
        assert (code, "2 fast devices, and 1 of them are reserved" in message) == (409, True), message
        assert (await served.command("reserve", wanted(kind="slow")))["state"] == "reserved"
        assert (await served.query("policies"))["pools"][0]["quotas"] == {}


async def test_an_id_that_is_not_there_and_one_of_two_pools_are_refused(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined(), joined("n2", pool="lab")) as served:
        code, message = await refusal(served.command("unreserve", {"id": "vision-1"}))
        assert (code, "no reservation is called 'vision-1'" in message) == (404, True)
        await served.command("reserve", wanted())
        await served.command("reserve", wanted(pool="lab"))
        code, message = await refusal(served.command("unreserve", {"id": "vision-1"}))
        assert (code, "$.pool: pools default, lab have a reservation vision-1" in message) == (409, True), message
        assert (await served.command("unreserve", {"id": "vision-1", "pool": "lab"}))["state"] == "cancelled"


async def test_why_and_a_dry_run_name_the_reservation_that_a_job_would_run_into(memory_bus: MemoryBus) -> None:
    made = ReservationMade(
        at_s=NOW_S,
        pool="default",
        reservation_id="a-1",
        team="a",
        gpus=2,
        from_s=SOON_S,
        until_s=LATER_S,
    )
    said = waits(Wait(job_id="j1", cause="reservation", evidence="as it was then"))
    async with gateway(memory_bus, joined(), made, submitted(opaque=True, team="b"), said) as served:
        answer = await served.query("why", {"id": "j1"})
        assert answer["cause"] == "reservation"
        assert "2 devices of the pool are reserved in 14 min 59 s" in answer["evidence"]
        assert "set a time limit that ends before it" in answer["remedy"]
        tried = await served.query("dryrun", {"spec": spec(opaque=True, team="b", name="x", command=("false",))})
        assert (tried["starts"], tried["cause"]) == (False, "reservation")
        tried = await served.query("dryrun", {"spec": spec(opaque=True, team="b", time_limit_s=600.0)})
        assert tried["starts"] is True
        told = await served.query("story", {"id": "j1"})
        assert told["lines"][-1]["text"] == "waits (reservation): as it was then"
