"""The query ``moment``: from when to when the log goes, and where in it a moment is."""

from __future__ import annotations

import pytest
from gateway_cases import NOW_S, gateway, joined, refusal, submitted

from penstock_bus import Bus


@pytest.fixture(params=["memory", "nats"])
def bus(request: pytest.FixtureRequest) -> Bus:
    return request.getfixturevalue(f"{request.param}_bus")


async def test_an_empty_log_has_no_bounds(bus: Bus) -> None:
    async with gateway(bus) as running:
        found = await running.query("moment")
    assert (found["seq"], found["first_seq"], found["last_seq"]) == (0, 0, 0)


async def test_now_is_the_end_of_the_log(bus: Bus) -> None:
    async with gateway(bus, joined(), submitted("j1"), submitted("j2")) as running:
        found = await running.query("moment")
    assert (found["seq"], found["first_seq"], found["last_seq"]) == (3, 1, 3)
    assert found["at_s"] == found["now_s"] >= found["last_s"] >= found["first_s"] > NOW_S


async def test_a_sequence_is_at_the_time_at_which_it_was_stored(bus: Bus) -> None:
    async with gateway(bus, joined(), submitted("j1")) as running:
        first, by_seq = await running.query("moment"), await running.query("moment", {"at": 1})
    assert (by_seq["seq"], by_seq["at_s"]) == (1, first["first_s"])


async def test_a_time_is_at_the_last_commit_by_then(bus: Bus) -> None:
    async with gateway(bus, joined(), submitted("j1")) as running:
        bounds = await running.query("moment")
        found = await running.query("moment", {"at": bounds["first_s"]})
        later = await running.query("moment", {"at": bounds["now_s"]})
    assert found["at_s"] == bounds["first_s"]
    assert found["seq"] in {1, 2}  # both may have been stored at one time
    assert later["seq"] == 2


async def test_before_the_log_is_sequence_0(bus: Bus) -> None:
    async with gateway(bus, joined()) as running:
        found = await running.query("moment", {"at": "2001-09-09T01:46:41Z"})
        at_0 = await running.query("moment", {"at": 0})
    assert (found["seq"], found["at_s"]) == (0, 1_000_000_001.0)
    assert (at_0["seq"], at_0["at_s"]) == (0, found["first_s"])


@pytest.mark.parametrize(
    ("at", "said"),
    [("2199-01-01T00:00:00Z", "is yet to come"), (99, "is behind the end of the log"), ("noon", "is no moment")],
)
async def test_what_is_no_moment_of_the_log_is_refused(bus: Bus, at: int | str, said: str) -> None:
    async with gateway(bus, joined()) as running:
        code, message = await refusal(running.query("moment", {"at": at}))
    assert code == 400
    assert said in message
