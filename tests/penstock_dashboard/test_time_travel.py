"""Each page at each moment of the log: over real HTTP, without scripts."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
import pytest_asyncio
from dashboards import HttpAnswer, RunningDashboard, dashboard
from gateway_cases import Gateway, gateway, joined, placed, started, submitted

from penstock_bus.memory import MemoryBus
from penstock_dashboard.gateway_port import PageRefused
from penstock_dashboard.log_moment import settled


@pytest_asyncio.fixture
async def served(memory_bus: MemoryBus) -> AsyncIterator[Gateway]:
    async with gateway(memory_bus, joined("n1", fast=2), submitted("j1", user="alice")) as running:
        yield running


@pytest_asyncio.fixture
async def site(served: Gateway) -> AsyncIterator[RunningDashboard]:
    async with dashboard(served.bus) as running:
        yield running


def bar(page: HttpAnswer) -> str:
    """Return the words of the bar above a page."""
    found = re.search(r'<p class="words"[^>]*>(.*?)</p>', page.text, re.DOTALL)
    assert found is not None, page.text
    return " ".join(re.sub(r"<[^>]+>", "", html.unescape(found[1])).split())


async def test_a_page_says_that_it_is_about_now(site: RunningDashboard) -> None:
    page = await (await site.visitor()).get("/queue")
    assert bar(page) == "Now"
    assert "Back to now" not in page.text


@pytest.mark.parametrize("path", ["/", "/queue", "/jobs"])
async def test_every_page_is_shown_as_it_was_and_its_links_stay_there(
    path: str, served: Gateway, site: RunningDashboard
) -> None:
    seq = await served.told(placed("j1"), started("j1"))
    await served.told(submitted("j2", user="bob"))
    page = await (await site.visitor()).get(f"{path}?at={seq}")
    assert bar(page).startswith("The past: ")
    assert f"sequence {seq}," in bar(page)
    assert "j2" not in page.rows
    links = re.findall(r'<li><a href="([^"]+)"', page.text)
    assert links
    assert all(f"at={seq}" in link for link in links)
    assert f'<a href="{path}" data-moment>Back to now</a>' in page.text
    assert 'data-live="' not in page.text


async def test_one_commit_earlier_and_later_are_links(site: RunningDashboard) -> None:
    visitor = await site.visitor()
    assert 'href="/queue?user=alice&amp;at=1" rel="prev"' in (await visitor.get("/queue?user=alice")).text
    first = await visitor.get("/queue?at=1")
    assert 'rel="prev"' not in first.text
    assert 'href="/queue?at=2" rel="next"' in first.text


async def test_the_form_keeps_the_filters_of_the_page(site: RunningDashboard) -> None:
    page = await (await site.visitor()).get("/queue?user=alice&at=1")
    assert '<input type="hidden" name="user" value="alice">' in page.text
    assert '<input name="at" value="1"' in page.text


async def test_a_span_ago_becomes_a_time_that_stays(site: RunningDashboard) -> None:
    answer = await (await site.visitor()).get("/queue?user=alice&at=2h")
    assert answer.status == 303
    assert re.fullmatch(r"/queue\?user=alice&at=\d{10}\.\d{3}", answer.headers["location"])


async def test_before_the_log_there_is_nothing(site: RunningDashboard) -> None:
    page = await (await site.visitor()).get("/queue?at=2001-09-09T01:46:41Z")
    assert page.status == 200
    assert bar(page).startswith("Before the log, which begins ")
    assert "j1" not in page.rows


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("noon", "is no moment"),
        ("99", "is behind the end of the log"),
        ("2199-01-01T00:00:00Z", "is yet to come"),
        ("-5", "is no moment"),
        ("900000000w", "so long ago nothing was counted yet"),
        ("<script>", "is no moment"),
    ],
)
async def test_what_is_no_moment_is_told_and_links_lead_back(site: RunningDashboard, at: str, said: str) -> None:
    page = await (await site.visitor()).get(f"/queue?user=alice&at={quote(at)}")
    assert page.status == 400
    assert said in page.text
    assert bar(page) == "No moment of the log"
    assert '<li><a href="/queue" aria-current="page">' in page.text
    assert '<a href="/queue?user=alice" data-moment>Back to now</a>' in page.text


@pytest.mark.parametrize("path", ["/queue", "/users.csv"])
async def test_the_refusal_of_a_moment_names_each_form_that_its_field_takes(path: str, site: RunningDashboard) -> None:
    page = await (await site.visitor()).get(f"{path}?at=nonsense")
    assert page.status == 400
    forms = "expected a span ago (2h), a sequence (120), seconds (1.7e9) or 2026-01-31T12:00:00Z"
    assert f"at=&#39;nonsense&#39; is no moment; {forms}" in page.text


async def test_a_page_that_is_not_there_can_be_looked_at_in_the_past_as_well(site: RunningDashboard) -> None:
    page = await (await site.visitor()).get("/nothing?at=1")
    assert page.status == 404
    assert bar(page).startswith("The past: ")


async def test_an_empty_log_has_no_slider(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus) as served, dashboard(served.bus) as site:
        page = await (await site.visitor()).get("/")
    assert bar(page) == "Now"
    assert 'id="slider"' not in page.text


async def test_the_slider_goes_from_the_first_commit_to_now(served: Gateway, site: RunningDashboard) -> None:
    found = await served.query("moment")
    page = await (await site.visitor()).get("/queue?at=1")
    slider = re.search(r'<input type="range"[^>]*>', page.text)
    assert slider is not None
    assert f'min="{found["first_s"]:.3f}"' in slider[0]
    assert f'value="{found["first_s"]:.3f}"' in slider[0]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("", ""), ("now", ""), ("2h", "2800.000"), ("-90s", "9910.000"), ("1.5 min ago", "9910.000"), ("12", "12")],
)
def test_what_people_type_becomes_a_moment(typed: str, meant: str) -> None:
    assert settled(typed, 10_000.0) == meant


def test_a_span_that_is_longer_than_time_itself_is_refused() -> None:
    with pytest.raises(PageRefused, match="shorter span"):
        settled("9w", 10_000.0)
