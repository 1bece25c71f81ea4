"""Cancelling all jobs that match a filter in a real browser: the question names their number and the filter."""

from __future__ import annotations

import pytest
from dashboards import browser, dashboard
from gateway_cases import gateway, joined, submitted

from penstock_bus.memory import MemoryBus
from penstock_log import UserSet

PEOPLE = tuple(UserSet(at_s=0.0, user=name, role="user") for name in ("ann", "bob"))


@pytest.mark.parametrize("agrees", [True, False])
async def test_all_jobs_that_match_are_cancelled_only_after_a_question_that_counts_them(
    memory_bus: MemoryBus, *, agrees: bool
) -> None:
    jobs = [submitted(f"j{number}", user="ann", name=["train", "test"][number % 2]) for number in range(7)]
    async with (
        gateway(memory_bus, joined(fast=1), *PEOPLE, *jobs) as served,
        dashboard(served.bus) as site,
        browser(site.url) as session,
        session.tab(await site.key("ann"), agrees=agrees) as tab,
    ):
        await tab.open("/queue?text=train&limit=2")
        await tab.page.check("input[name=all]")
        await tab.page.click("button[value=cancel]")
        if agrees:
            await tab.page.wait_for_selector("text=cancel: 4 of 4 jobs changed (with “train”)")
        else:
            await tab.page.wait_for_selector("button[value=cancel]:not([disabled])")
        assert tab.asked == ["Cancel 4 waiting jobs (with “train”)?"]
        states = [job["state"] for job in (await served.query("jobs"))["jobs"]]
        assert states.count("CA") == (4 if agrees else 0)


async def test_where_none_matches_the_page_says_so_and_asks_nothing(memory_bus: MemoryBus) -> None:
    async with (
        gateway(memory_bus, joined(fast=1), *PEOPLE) as served,
        dashboard(served.bus) as site,
        browser(site.url) as session,
        session.tab(await site.key("ann")) as tab,
    ):
        await tab.open("/queue?user=bob")
        await tab.page.check("input[name=all]")
        await tab.page.click("button[value=cancel]")
        await tab.page.wait_for_selector("#trouble:has-text('There is no waiting job to cancel (user bob).')")
        assert tab.asked == []
