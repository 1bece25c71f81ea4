"""`penstock top` with ten thousand jobs and two thousand devices: it asks for what is seen, and no more."""

from __future__ import annotations

import pytest
from gateway_cases import NOW_S, joined, placed, started
from top_screens import TopScreen, job, top_screen

from penstock_log import AnyEvent, Device, NodeJoined

pytestmark = pytest.mark.slow
JOBS = 10_000


def node(number: int) -> NodeJoined:
    devices = tuple(Device(index=i, kind="h100", memory_bytes=80 << 30, backend="emulated") for i in range(8))
    return NodeJoined(at_s=NOW_S, node_id=f"n{number:03}", devices=devices, pool="default")


def facts() -> list[AnyEvent]:
    jobs = [job(f"j{i:05}", at_s=NOW_S + i / 1000, name=f"train-{i}", user=f"user{i % 7}") for i in range(JOBS)]
    return [joined(fast=2), *map(node, range(250)), *jobs, placed("j00000", 0), started("j00000")]


def largest_request(screen: TopScreen) -> int:
    """Return the most jobs that one question since the last one asked for."""
    return max(ask["limit"] for name, ask in screen.bus.asked if name == "jobs")


@pytest.mark.thorough
async def test_only_the_rows_that_are_seen_are_asked_for_wherever_one_is() -> None:
    async with top_screen(*facts()) as screen:
        await screen.sees("1 to 18 of 10,000 jobs", "j00000")
        screen.bus.asked.clear()
        await screen.refreshed(3)
        assert {name for name, _ in screen.bus.asked} == {"status", "jobs"}
        assert largest_request(screen) <= 2 * 18
        assert ids_of(screen) == ["j00000", *(f"j{i:05}" for i in range(JOBS - 1, JOBS - 18, -1))]
        await screen.press("pagedown")
        await screen.sees("j09971")
        await screen.press("G")
        await screen.sees("9,983 to 10,000 of 10,000 jobs", "j00001")
        screen.bus.asked.clear()
        await screen.refreshed(2)
        assert largest_request(screen) <= 2 * 18
        assert ids_of(screen) == [f"j{i:05}" for i in range(18, 0, -1)]


def ids_of(screen: TopScreen) -> list[str]:
    words = [line.split()[0] for line in screen.lines if line.strip()]
    return [word for word in words if word[0] == "j" and word[1:].isdigit()]


@pytest.mark.thorough
async def test_all_are_searched_and_sorted_and_loaded_seldom() -> None:
    async with top_screen(*facts()) as screen:
        await screen.press("slash")
        await screen.type("train-4321")
        await screen.sees("j04321", "1 to 1 of 1 job")
        screen.bus.asked.clear()
        await screen.refreshed(5)
        loads = [ask for name, ask in screen.bus.asked if name == "jobs" and ask.get("rows")]
        assert len(loads) <= 6, "five refreshes load everything once at most"
        await screen.press("enter", "escape")
        await screen.sees("1 to 18 of 10,000 jobs")
        await screen.press("s")
        await screen.sees("ID▲", "j00000", "j00017")
        await screen.press("S")
        await screen.sees("ID▼", "j09999", "j09982")


async def test_two_thousand_devices_scroll_by_node() -> None:
    async with top_screen(*facts()) as screen:
        await screen.press("1")
        await screen.sees("n000", "h100", "by user: user0 1")
        await screen.press("G")
        await screen.sees("n249", "n249/h1000")
