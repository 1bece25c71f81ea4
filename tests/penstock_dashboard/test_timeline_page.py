"""The timeline of devices over real HTTP, and the windows that it shows."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import gateway_cases
import pytest
import pytest_asyncio
from dashboards import RunningDashboard, dashboard, first
from gateway_cases import Gateway, ended, gateway, joined, placed, started, submitted

from penstock_bus.memory import MemoryBus
from penstock_dashboard.gateway_port import PageRefused
from penstock_dashboard.pages.timeline_page import _lanes
from penstock_dashboard.time_window import TimeWindow
from penstock_log import NodeDrained, UserSet
from penstock_log.views import TimelineSpan


@pytest_asyncio.fixture
async def begin_s(memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> float:
    """An hour ago, by the clock of the bus, by which the gateway goes too."""
    now_s = await memory_bus.now_s()
    monkeypatch.setattr(gateway_cases, "NOW_S", now_s - 100.0)
    return now_s // 1 - 3600.0


@pytest.fixture
def window(begin_s: float) -> str:
    return f"since={begin_s:.0f}&until={begin_s + 3000:.0f}"


@pytest_asyncio.fixture
async def served(memory_bus: MemoryBus, begin_s: float) -> AsyncIterator[Gateway]:
    facts = (
        joined("n1", fast=2),
        UserSet(at_s=0.0, user="ann", role="user", teams=("vision",)),
        submitted("j1", user="ann", team="vision", name="hers", at_s=begin_s),
        placed("j1", 0, 1, at_s=begin_s + 300),
        started("j1", at_s=begin_s + 310),
        ended("j1", "failed", at_s=begin_s + 600),
        submitted("j2", user="bob", at_s=begin_s),
        placed("j2", 0, at_s=begin_s + 1500),
        started("j2", at_s=begin_s + 1500),
    )
    async with gateway(memory_bus, *facts) as running:
        yield running


@pytest_asyncio.fixture
async def site(served: Gateway) -> AsyncIterator[RunningDashboard]:
    async with dashboard(served.bus) as running:
        yield running


def bars(text: str) -> list[tuple[str, str, str]]:
    """Return the bars of a page: the address, the beginning and the width in percent."""
    return re.findall(
        r'<a href="(/jobs/[^"]+)" aria-label="[^"]+"><rect [^>]*x="([\d.]+)%"[^>]*width="([\d.]+)%"', text
    )


async def test_each_run_is_a_bar_on_each_of_its_devices(site: RunningDashboard, window: str) -> None:
    page = await (await site.visitor("ann")).get(f"/timeline?{window}")
    assert bars(page.text) == [
        ("/jobs/j1", "10.00", "10.00"),
        ("/jobs/j2", "50.00", "50.00"),
        ("/jobs/j1", "10.00", "10.00"),
    ]
    assert "j1 hers, ann of vision, failed on n1/fast0, from" in page.text
    assert "UTC for 5 min 0 s" in page.text
    assert "35 % held" in page.rows["default n1"]


async def test_who_may_not_see_a_job_sees_no_name_of_it(site: RunningDashboard, window: str) -> None:
    page = await (await site.visitor()).get(f"/timeline?{window}")
    assert len(bars(page.text)) == 3
    assert "hers" not in page.text


@pytest.mark.parametrize(
    ("color", "names"), [("user", {"ann", "bob"}), ("team", {"no team", "vision"}), ("state", {"failed", "running"})]
)
async def test_bars_are_coloured_by_what_is_chosen(
    color: str, names: set[str], site: RunningDashboard, window: str
) -> None:
    page = await (await site.visitor()).get(f"/timeline?{window}&color={color}")
    assert names <= page.rows.keys()
    colors = re.findall(r'class="swatch (c\d+)"', page.text)
    assert len(set(colors)) == len(colors) == 2


async def test_the_table_has_each_run_once_with_all_its_devices(site: RunningDashboard, window: str) -> None:
    rows = (await (await site.visitor("ann")).get(f"/timeline?{window}")).rows
    found = {key.split()[0]: text for key, text in rows.items() if key.startswith("j")}
    assert found["j1"].endswith("n1/fast0, n1/fast1")
    assert " failed " in found["j1"]
    assert set(found) == {"j1", "j2"}


async def test_nodes_that_were_down_are_hatched(served: Gateway, site: RunningDashboard, begin_s: float) -> None:
    await served.told(NodeDrained(at_s=begin_s + 3600, node_id="n1"))
    page = await (await site.visitor()).get("/timeline?since=1h")
    assert 'class="down"' in page.text
    assert "<title>drained</title>" in page.text


async def test_links_move_and_zoom_the_window(site: RunningDashboard, window: str, begin_s: float) -> None:
    page = await (await site.visitor()).get(f"/timeline?{window}&color=team")
    links = dict(re.findall(r'<a href="([^"]+)" data-move="([^"]+)"', page.text)[i][::-1] for i in range(4))
    assert links["ArrowLeft"] == (f"/timeline?since={begin_s - 1500:.0f}&amp;until={begin_s + 1500:.0f}&amp;color=team")
    assert links["+"] == f"/timeline?since={begin_s + 750:.0f}&amp;until={begin_s + 2250:.0f}&amp;color=team"
    assert "data-live" not in page.text


async def test_a_window_that_ends_now_is_live(served: Gateway, site: RunningDashboard, begin_s: float) -> None:
    visitor = await site.visitor()
    page = await visitor.get("/timeline?since=10m")
    version = page.text.partition('data-version="')[2].partition('"')[0]
    assert version
    await served.told(ended("j2", at_s=begin_s + 3600))
    update = await first(
        visitor.updates(f"/live/timeline?since=10m&version={version}"), lambda one: "nodes" in one.get("regions", {})
    )
    assert "default n1" in update["regions"]["nodes"]["put"]


async def test_many_nodes_are_folded_and_come_in_parts(served: Gateway, site: RunningDashboard) -> None:
    await served.told(*(joined(f"m{number:02}", fast=1) for number in range(50)))
    visitor = await site.visitor()
    page = await visitor.get("/timeline")
    assert "1 to 40 of 51" in page.rows["pager"]
    assert "<details open>" not in page.text
    second = await visitor.get("/timeline?offset=40")
    assert "41 to 51 of 51" in second.rows["pager"]
    assert "default n1" in second.rows
    assert [key for key in (await visitor.get("/timeline?node=m0")).rows if key.startswith("default")] == [
        f"default m0{number}" for number in range(10)
    ]


async def test_an_empty_cluster_says_so(memory_bus: MemoryBus, begin_s: float) -> None:
    assert begin_s  # the gateway goes by the clock of the bus
    async with gateway(memory_bus) as served, dashboard(served.bus) as site:
        page = await (await site.visitor()).get("/timeline")
    assert page.status == 200
    assert "No node is here" in page.rows["none"] or "No run" in page.rows["none"]


async def test_the_timeline_of_the_past_ends_there_and_its_links_stay_there(
    served: Gateway, site: RunningDashboard, begin_s: float
) -> None:
    seq = (await served.query("moment"))["seq"]
    await served.told(ended("j2", at_s=begin_s + 3600))
    page = await (await site.visitor()).get(f"/timeline?since=2h&at={seq}")
    assert f'href="/jobs/j2?at={seq}"' in page.text
    assert "goes on" in page.text


async def test_an_odd_name_does_nothing(served: Gateway, site: RunningDashboard, window: str, begin_s: float) -> None:
    await served.told(
        submitted("j3", user='"><script>alert(1)</script>', team="<b>\n", at_s=begin_s),
        placed("j3", 1, at_s=begin_s + 700),
    )
    page = await (await site.visitor()).get(f"/timeline?{window}")
    assert "<script>alert" not in page.text
    assert "<b>" not in page.text


@pytest.mark.parametrize("query", ["since=noon", "since=9999999999", "offset=-1", "limit=0"])
async def test_what_is_no_window_is_told(query: str, site: RunningDashboard) -> None:
    assert (await (await site.visitor()).get(f"/timeline?{query}")).status == 400


# --- windows
@pytest.mark.parametrize(
    ("first_s", "width_s"), [(99_900.0, 600.0), (98_000.0, 3600.0), (5.0, 21_600.0), (0.0, 21_600.0)]
)
def test_of_a_young_log_all_is_shown_and_of_an_old_one_six_hours(first_s: float, width_s: float) -> None:
    assert TimeWindow.of("", "", 100_000.0, first_s).width_s == pytest.approx(width_s)


def test_a_window_that_ends_now_moves_on_in_steps() -> None:
    windows = [TimeWindow.of("1h", "", 10_000.0 + at / 10, 0.0) for at in range(72)]
    assert len({window.to_s for window in windows}) <= 3
    assert all(window.to_s >= window.now_s for window in windows)


def test_moving_right_ends_at_now() -> None:
    window = TimeWindow.of("1000", "2000", 10_000.0, 0.0)
    assert window.moved(0.5) == {"since": "1500", "until": "2500"}
    assert window.moved(99.0) == {"since": "1000s", "until": ""}
    assert window.zoomed(2.0) == {"since": "500", "until": "2500"}


@pytest.mark.parametrize("width_s", [10.0, 600.0, 3600.0, 86_400.0, 30 * 86_400.0, 1e9])
def test_there_are_few_ticks_at_any_zoom(width_s: float) -> None:
    ticks = TimeWindow(from_s=1.7e9, to_s=1.7e9 + width_s, now_s=2e9, follows=False).ticks()
    assert 1 <= len(ticks) <= 9
    assert all(0.0 <= x <= 100.0 for _, x, _ in ticks)


def test_a_window_needs_a_beginning_before_its_end() -> None:
    with pytest.raises(PageRefused, match="is not before the window's end"):
        TimeWindow.of("3000", "2000", 10_000.0, 0.0)


def test_runs_that_share_a_device_are_below_each_other_and_others_are_not() -> None:
    spans = [TimelineSpan(begin, end, 0, "running") for begin, end in ((0, 10), (2, 4), (4, 9), (9.99, 20), (30, 40))]
    assert _lanes(spans, 0.1) == [(0, 2), (1, 2), (1, 2), (0, 1), (0, 1)]
