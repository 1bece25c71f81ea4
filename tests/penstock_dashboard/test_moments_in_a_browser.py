"""The slider, the timeline and the pages about the past in a real browser, on a bus in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import gateway_cases
import pytest
import pytest_asyncio
from dashboards import RunningDashboard, browser, dashboard
from gateway_cases import Gateway, ended, gateway, joined, placed, started, submitted
from msgspec.structs import replace

from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.shell import Shell
from penstock_log import NodeDrained, UserSet

PATHS = ("/timeline", "/users", "/what-if", "/queue?at=3", "/timeline?at=8", "/users?at=8", "/?at=noon")


@pytest_asyncio.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    """A gateway whose log has each fact stored at the fact's own time, within the last seven minutes."""
    server = MemoryServer()
    clock = server.now
    now_s = clock()
    monkeypatch.setattr(gateway_cases, "NOW_S", now_s - 100.0)
    facts = (
        replace(joined("n1", fast=4), at_s=now_s - 420),
        replace(joined("n2", slow=2, fast=0), at_s=now_s - 420),
        UserSet(at_s=now_s - 410, user="ann", role="user", teams=("vision",)),
        submitted("j1", user="ann", team="vision", name="first", at_s=now_s - 400),
        placed("j1", 0, 1, at_s=now_s - 390),
        started("j1", at_s=now_s - 380),
        ended("j1", at_s=now_s - 200),
        NodeDrained(at_s=now_s - 150, node_id="n2", reason="memory"),
        submitted("j2", user="bob", team="speech", name="second", at_s=now_s - 120),
        placed("j2", 0, at_s=now_s - 110),
        started("j2", at_s=now_s - 100),
    )
    async with MemoryBus(server) as bus:
        log = Gateway(bus, Shell(bus, "test"))
        for fact in facts:
            server.now = partial(float, fact.at_s)
            await log.told(fact)
        server.now = clock
        async with gateway(bus) as running:
            yield running


@pytest_asyncio.fixture
async def site(served: Gateway) -> AsyncIterator[RunningDashboard]:
    async with dashboard(served.bus) as running:
        yield running


async def test_the_slider_shows_the_past_and_leads_back_to_now(site: RunningDashboard) -> None:
    async with browser(site.url) as session, session.tab(await site.key("ann")) as tab:
        row = "[data-region=rows] [data-key=j2]"
        await tab.open("/jobs")
        await tab.page.wait_for_selector(row)
        await tab.page.evaluate("window.same = true")
        await tab.page.focus("#slider")
        await tab.page.keyboard.press("Home")
        await tab.page.wait_for_selector("form.moment.past")
        await tab.page.wait_for_selector(row, state="detached")
        assert "at=" in tab.page.url
        assert await tab.page.evaluate("document.activeElement.id") == "slider"
        assert await tab.page.locator("#liveness").inner_text() == "a past moment"
        links = await tab.page.locator("header nav a").evaluate_all("links => links.map(link => link.search)")
        assert all("at=" in link for link in links)
        await tab.page.keyboard.press("End")
        await tab.page.wait_for_selector("form.moment:not(.past)")
        await tab.page.wait_for_selector(row)
        await tab.page.wait_for_selector("body[data-connected]")
        assert "at=" not in tab.page.url
        await tab.page.go_back()
        await tab.page.wait_for_selector("form.moment.past")
        assert await tab.page.evaluate("window.same"), "the page was loaded anew"


async def test_the_timeline_is_live_and_tells_of_what_has_the_focus(served: Gateway, site: RunningDashboard) -> None:
    async with browser(site.url) as session, session.tab(await site.key("ann")) as tab:
        await tab.open("/timeline?since=10m")
        assert await tab.page.locator(".drawing a[href='/jobs/j1']").count() == 2
        assert await tab.page.locator(".drawing .down").count() == 1
        at_s = gateway_cases.NOW_S + 50  # before what the gateway takes for now
        await served.told(submitted("j3", user="ann", at_s=at_s), placed("j3", 2, at_s=at_s))
        await tab.page.wait_for_selector(".drawing a[href='/jobs/j3']", state="attached")
        await tab.page.locator(".drawing a[href='/jobs/j1']").first.focus()
        assert "j1 first, ann of vision, completed on n1/fast0" in await tab.page.locator("#detail").inner_text()
        await tab.page.keyboard.press("-")
        await tab.page.wait_for_url("**/timeline?since=20m")
        await tab.page.locator(".drawing a[href='/jobs/j1']").first.press("Enter")
        await tab.page.wait_for_url("**/jobs/j1")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
async def test_the_pages_about_the_past_are_accessible(site: RunningDashboard, width: int, scheme: str) -> None:
    async with browser(site.url) as session, session.tab(await site.key("ann"), width=width, scheme=scheme) as tab:
        for path in PATHS:
            await tab.open(path, live=False)
            assert await tab.violations() == [], path
            wide = await tab.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, f"{path} is wider than the window by {wide} px"
        tab.errors = [error for error in tab.errors if "400" not in error]  # of the moment that is none
