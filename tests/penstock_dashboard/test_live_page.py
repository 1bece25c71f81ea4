"""Pages that are kept up to date, without a web server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from penstock_dashboard.gateway_port import PageRefused, Visitor
from penstock_dashboard.live_page import ChannelName, LiveChannels, Regions, Render

ALICE = ChannelName(Visitor(name="alice", session="s1"), "/queue")


class PageOfRows:
    """A page whose rows a test changes; it counts how often it was rendered."""

    def __init__(self, **rows: str) -> None:
        self.rows, self.rendered, self.refusal = rows, 0, ""

    async def render(self) -> Regions:
        self.rendered += 1
        if self.refusal:
            raise PageRefused(503, self.refusal)
        return {"rows": dict(self.rows)}


@pytest_asyncio.fixture
async def channels() -> AsyncIterator[LiveChannels]:
    made = LiveChannels(refresh_s=0.01)
    yield made
    await made.close()


def shown(event: dict[str, Any]) -> dict[str, Any]:
    return msgspec.json.decode(event["data"])


async def followed(
    channels: LiveChannels, name: ChannelName, render: Render, version: int
) -> AsyncIterator[dict[str, Any]]:
    async for event in (await channels.watch(name, render)).events(version):
        yield event


async def next_update(events: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    async with asyncio.timeout(30):
        return shown(await anext(events))


async def test_rows_that_come_change_and_go_are_sent_and_no_others(channels: LiveChannels) -> None:
    page = PageOfRows(a="1", b="2")
    version = channels.open(ALICE, page.render, {"rows": {"a": "1", "b": "2"}})
    async with aclosing(followed(channels, ALICE, page.render, version)) as events:
        page.rows = {"c": "3", "b": "two"}
        update = await next_update(events)
        assert update["regions"] == {"rows": {"put": {"c": "3", "b": "two"}, "order": ["c", "b"]}}
        page.rows = {"c": "3", "b": "2"}
        update = await next_update(events)
        assert update["regions"] == {"rows": {"put": {"b": "2"}}}


async def test_a_page_is_rendered_once_however_many_look(channels: LiveChannels) -> None:
    page = PageOfRows(a="1")
    version = channels.open(ALICE, page.render, {"rows": {"a": "1"}})
    shown_by = [followed(channels, ALICE, page.render, version) for _ in range(50)]
    waiting = [asyncio.create_task(next_update(events)) for events in shown_by]
    await asyncio.sleep(0)
    page.rows = {"a": "2"}
    updates = await asyncio.gather(*waiting)
    assert {update["version"] for update in updates} == {updates[0]["version"]}
    rendered = page.rendered
    page.rows = {"a": "3"}
    await asyncio.gather(*(next_update(events) for events in shown_by))
    assert page.rendered - rendered < 50
    for events in shown_by:
        await events.aclose()  # type: ignore[attr-defined] # it is a generator


async def test_a_browser_that_missed_something_gets_everything(channels: LiveChannels) -> None:
    page = PageOfRows(a="1")
    version = channels.open(ALICE, page.render, {"rows": {"a": "1"}})
    async with aclosing(followed(channels, ALICE, page.render, version)) as events:
        for text in ("2", "3"):
            page.rows = {"a": text}
            await next_update(events)
        async with aclosing(followed(channels, ALICE, page.render, version)) as late:
            update = await next_update(late)
    assert update["whole"] is True
    assert update["regions"]["rows"] == {"put": {"a": "3"}, "order": ["a"]}


async def test_versions_of_a_page_that_was_forgotten_are_not_taken_for_those_of_a_new_one() -> None:
    page, versions = PageOfRows(a="1"), set[int]()
    for _ in range(3):
        made = LiveChannels(refresh_s=0.01)
        versions.add(made.open(ALICE, page.render, {"rows": {"a": "1"}}))
        await made.close()
    assert len(versions) == 3


async def test_a_refusal_is_told_and_so_is_its_end(channels: LiveChannels) -> None:
    page = PageOfRows(a="1")
    version = channels.open(ALICE, page.render, {"rows": {"a": "1"}})
    async with aclosing(followed(channels, ALICE, page.render, version)) as events:
        page.refusal = "no gateway runs"
        assert (await next_update(events))["error"] == "no gateway runs"
        page.refusal = ""
        assert "error" not in await next_update(events)


async def test_nobody_renders_a_page_that_nobody_looks_at(channels: LiveChannels) -> None:
    page, seen = PageOfRows(a="1"), PageOfRows(b="1")
    version = channels.open(ALICE, page.render, {"rows": {"a": "1"}})
    async with aclosing(followed(channels, ALICE, page.render, version)) as events:
        page.rows = {"a": "2"}
        await next_update(events)
    rendered = page.rendered
    other = ChannelName(Visitor(), "/")
    version = channels.open(other, seen.render, {"rows": {"b": "1"}})
    async with aclosing(followed(channels, other, seen.render, version)) as events:
        for text in "23456":
            seen.rows = {"b": text}
            await next_update(events)
    assert page.rendered <= rendered + 1  # one may have been under way


async def test_so_many_pages_are_kept_and_those_that_nobody_looks_at_make_way() -> None:
    channels, page = LiveChannels(refresh_s=0.01, most=6), PageOfRows(a="1")
    names = [ChannelName(Visitor(), f"/queue?offset={number}") for number in range(5)]
    for name in names[:4]:
        assert channels.open(name, page.render, {"rows": {}})
    watched = [await channels.watch(name, page.render) for name in names[1:4]]
    assert channels.open(names[4], page.render, {"rows": {}}) == 0
    with pytest.raises(PageRefused, match="too many pages are kept up to date already"):
        await channels.watch(names[4], page.render)
    await channels.watch(names[1], page.render)
    watched[1].leave()
    await channels.watch(names[4], page.render)
    await channels.close()


async def test_one_person_takes_no_more_than_a_share_of_the_pages() -> None:
    channels, page = LiveChannels(refresh_s=0.01, most=16), PageOfRows(a="1")
    own = [ChannelName(Visitor(name="alice", session="s1"), f"/queue?offset={number}") for number in range(3)]
    for name in own[:2]:
        await channels.watch(name, page.render)
    with pytest.raises(PageRefused):
        await channels.watch(own[2], page.render)
    await channels.watch(ChannelName(Visitor(name="bob", session="s2"), "/queue"), page.render)
    await channels.close()


async def test_many_sessions_of_one_person_take_no_more_than_one() -> None:
    channels, page = LiveChannels(refresh_s=0.01, most=16), PageOfRows(a="1")
    own = [ChannelName(Visitor(name="alice", session=f"s{number}"), "/queue") for number in range(10)]
    watched = 0
    for name in own:
        try:
            await channels.watch(name, page.render)
            watched += 1
        except PageRefused:
            continue
    assert watched == 2, "an eighth of all"
    assert channels.open(ChannelName(Visitor(name="bob", session="s"), "/queue"), page.render, {"rows": {}}) > 0
    await channels.close()


async def test_a_page_that_is_rendered_for_the_first_time_makes_no_way_and_a_refused_one_is_not_kept() -> None:
    channels, begun, go_on = LiveChannels(refresh_s=0.01, most=2), asyncio.Event(), asyncio.Event()

    async def slow() -> Regions:
        begun.set()
        await go_on.wait()
        raise PageRefused(403, "not yours")

    first = asyncio.create_task(channels.watch(ChannelName(Visitor(), "/slow"), slow))
    await begun.wait()
    with pytest.raises(PageRefused, match="too many"):
        await channels.watch(ChannelName(Visitor(), "/other"), PageOfRows(a="1").render)
    go_on.set()
    with pytest.raises(PageRefused, match="not yours"):
        await first
    await channels.watch(ChannelName(Visitor(), "/other"), PageOfRows(a="1").render)
    await channels.close()
