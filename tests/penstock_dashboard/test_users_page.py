"""The page of users and teams, over real HTTP: the figures of ``penstock usage``, quotas, and what holds what now."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from dashboards import RunningDashboard, dashboard
from gateway_cases import NOW_S, Gateway, ended, gateway, joined, placed, started, submitted

from penstock_bus.memory import MemoryBus
from penstock_dashboard.pages.users_page import hours
from penstock_log import UserSet
from penstock_log.usage_csv import usage_csv
from penstock_log.views import UsageView

PEOPLE = (
    UserSet(at_s=0.0, user="alice", role="user", teams=("vision",)),
    UserSet(at_s=0.0, user="bob", role="user", teams=("speech",)),
    UserSet(at_s=0.0, user="olga", role="operator"),
)
HOUR_S = 3600.0
BEGIN_S = NOW_S - 9 * HOUR_S


@pytest_asyncio.fixture
async def served(memory_bus: MemoryBus) -> AsyncIterator[Gateway]:
    facts = (
        joined("n1", fast=4),
        *PEOPLE,
        submitted("j1", user="alice", team="vision", model="cnn", at_s=BEGIN_S),
        placed("j1", 0, 1, at_s=BEGIN_S + HOUR_S),
        started("j1", at_s=BEGIN_S + HOUR_S),
        ended("j1", at_s=BEGIN_S + 3 * HOUR_S),
        submitted("j2", user="bob", team="speech", model="lm", gpus=2, at_s=BEGIN_S),
    )
    async with gateway(memory_bus, *facts) as running:
        yield running


@pytest_asyncio.fixture
async def site(served: Gateway) -> AsyncIterator[RunningDashboard]:
    async with dashboard(served.bus) as running:
        yield running


async def test_device_time_is_shown_by_user_in_gpu_hours(site: RunningDashboard) -> None:
    page = await (await site.visitor("olga")).get("/users?since=all")
    assert page.status == 200
    row = next(text for key, text in page.rows.items() if key.endswith(" alice"))
    assert row.startswith("alice")
    assert " 4 " in row  # two devices for two hours, held
    assert page.rows["total"].startswith("Total")


@pytest.mark.parametrize("by", ["user", "team", "pool", "model", "kind", "job"])
async def test_rows_can_be_of_anything_that_is_accounted(by: str, site: RunningDashboard) -> None:
    page = await (await site.visitor("olga")).get(f"/users?since=all&by={by}&order=name")
    assert page.status == 200
    assert f"in GPU-hours by {by}" in page.text
    assert '<th scope="col" aria-sort="ascending">' in page.text


async def test_the_file_has_what_the_command_line_prints(served: Gateway, site: RunningDashboard) -> None:
    visitor = await site.visitor("olga")
    for by in ("user", "team", "job"):
        answer = await visitor.get(f"/users.csv?by={by}&since=all&until={BEGIN_S + 5 * HOUR_S}&order=waited")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/csv")
        assert answer.headers["content-disposition"] == f'attachment; filename="usage-by-{by}.csv"'
        asked = {"by": by, "until": BEGIN_S + 5 * HOUR_S, "order": "waited"}
        body = await served.query("usage", asked)

        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert rows == list(csv.DictReader(io.StringIO(usage_csv(msgspec.convert(body, UsageView)))))
        assert rows


async def test_people_see_no_rows_of_others(site: RunningDashboard) -> None:
    for user, sees, hidden in (("alice", "alice", "bob"), ("bob", "bob", "alice")):
        visitor = await site.visitor(user)
        for path in ("/users?since=all", "/users.csv?since=all"):
            text = (await visitor.get(path)).text.partition("Now, by pool")[0]
            assert sees in text
            assert hidden not in text
    anybody = await site.visitor()
    text = (await anybody.get("/users.csv?since=all&by=model")).text
    assert "cnn" not in text


async def test_an_odd_name_is_shown_and_does_nothing(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j3", user="<script>alert(1)</script>", team="=cmd()\n"))
    visitor = await site.visitor("olga")
    assert "<script>alert" not in (await visitor.get("/users?since=all")).text
    teams = (await visitor.get("/users.csv?since=all&by=team")).text
    assert "'=cmd()" in teams


async def test_what_cannot_be_asked_is_told(site: RunningDashboard) -> None:
    visitor = await site.visitor("olga")
    for query, said in (
        ("since=yesterday", "is no time"),
        ("by=colour", "by"),
        ("since=1h&until=2h", "after the window"),
    ):
        for path in ("/users", "/users.csv"):
            answer = await visitor.get(f"{path}?{query}")
            assert answer.status == 400, (path, query)
            assert said in answer.text


async def test_an_empty_cluster_says_so(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus) as served, dashboard(served.bus) as site:
        page = await (await site.visitor()).get("/users")
    assert page.status == 200
    assert page.rows["none"] == "Nobody asked for a device then."


async def test_what_users_and_teams_hold_now_stands_beside_an_even_share(
    served: Gateway, site: RunningDashboard
) -> None:
    await served.told(placed("j2", 0, 1), started("j2"), submitted("j4", user="alice", team="vision"))
    pool = (await (await site.visitor()).get("/users")).rows["default"]
    assert "default 4 devices" in pool
    assert "speech 2 0" in pool
    assert "vision 0 1" in pool
    assert "an even share is 2" in pool


async def test_the_page_is_of_the_past_too(served: Gateway, site: RunningDashboard) -> None:
    seq = (await served.query("moment"))["seq"]
    await served.told(placed("j2", 0, 1), started("j2"))
    page = await (await site.visitor("olga")).get(f"/users?since=all&at={seq}")
    assert "Then, by pool" in page.text
    assert "speech 0 1" in page.rows["default"]
    assert f"at={seq}" in page.text.partition("/users.csv?")[2].partition('"')[0]


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (0.01234, "0.0123"), (99.96, "100"), (12345.6, "12,346")])
def test_hours_have_three_figures(value: float, text: str) -> None:
    assert hours(value) == text
