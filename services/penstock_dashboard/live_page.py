"""
Pages that stay up to date.

A page has *regions*: lists of keyed pieces of HTML, such as the rows of a table. :class:`LiveChannels` renders the
regions of each page that somebody looks at once for each refresh, however many browsers show it in one visitor's name,
and sends what has changed as server-sent events. The script of the page puts it in place.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from penstock_dashboard.gateway_port import PageRefused, Visitor

_KEPT_S: Final = 30.0
"""A page that nobody listens to any more is remembered for so long: a browser connects again."""
_SHARE: Final = 8
Regions = Mapping[str, Mapping[str, str]]
"""Region → key → HTML, in the order in which it is shown."""
Render = Callable[[], Awaitable[Regions]]


class ChannelName(NamedTuple):
    """What is looked at: by whom, and at which address, with its query."""

    visitor: Visitor
    address: str


class Patch(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What has changed in one region.

    Attributes
    ----------
    put : dict of str to str
        Key → HTML that is new or has changed.
    order : list of str or None
        All keys in their order; None where it is as before.
    """

    put: dict[str, str] = {}
    order: list[str] | None = None


class PageUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    One message to the browser.

    Attributes
    ----------
    version : int
        Of the page; a browser that comes back says which one it has.
    whole : bool
        Whether ``regions`` has everything, whatever the browser has.
    error : str
        Why the page could not be brought up to date; empty once it is again.
    """

    version: int
    regions: dict[str, Patch] = {}
    whole: bool = False
    error: str = ""


def changes(before: Regions, after: Regions) -> dict[str, Patch]:
    """
    Return what has to be done to each region.

    Examples
    --------
    >>> changes({"rows": {"a": "1", "b": "2"}}, {"rows": {"b": "2", "c": "3"}})
    {'rows': Patch(put={'c': '3'}, order=['b', 'c'])}
    """
    found: dict[str, Patch] = {}
    for name, pieces in after.items():
        old = before.get(name, {})
        put = {key: html for key, html in pieces.items() if old.get(key) != html}
        order = list(pieces)
        same = order == list(old)
        if put or not same:
            found[name] = Patch(put=put, order=None if same else order)
    return found


class _Channel:
    """One page in one visitor's name, with the browsers that show it."""

    def __init__(self, render: Render, refresh_s: float, versions: Iterator[int]) -> None:
        self._render, self._refresh_s, self._versions = render, refresh_s, versions
        self.watching = 0
        self._version, self._regions, self._error = next(versions), dict[str, Mapping[str, str]](), ""
        self._before, self._patches = 0, dict[str, Patch]()
        self._news = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Refresh no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def is_rendered(self) -> bool:
        """Whether there is something to show."""
        return bool(self._regions)

    def take(self, regions: Regions) -> int:
        """Take what a page was just rendered with as the present state; return its version."""
        if patches := changes(self._regions, regions):
            self._before, self._version = self._version, next(self._versions)
            self._patches, self._regions = patches, {**regions}
        return self._version

    async def updates(self, version: int) -> AsyncIterator[PageUpdate]:
        """Yield what a browser with a version has to change, for ever."""
        if self._task is None:
            self._task = asyncio.create_task(self._refresh())
        error = ""

        def is_behind() -> bool:
            return (version, error) != (self._version, self._error)

        while True:
            async with self._news:
                await self._news.wait_for(is_behind)
            update = self._since(version)
            version, error = self._version, self._error
            yield update

    def _since(self, version: int) -> PageUpdate:
        if version == self._version:
            return PageUpdate(version=version, error=self._error)
        if version == self._before:
            return PageUpdate(version=self._version, regions=self._patches, error=self._error)
        regions = {name: Patch(put=dict(pieces), order=list(pieces)) for name, pieces in self._regions.items()}
        return PageUpdate(version=self._version, regions=regions, whole=True, error=self._error)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            if not self.watching:
                continue
            try:
                regions, self._error = await self._render(), ""
                self.take(regions)
            except PageRefused as refusal:
                self._error = str(refusal)
            except Exception:
                _log.exception("page_not_refreshed")
                self._error = "this page could not be brought up to date; the dashboard's log says why"
            async with self._news:
                self._news.notify_all()


class WatchedPage:
    """A page that one browser shows."""

    def __init__(self, channel: _Channel, left: Callable[[], None]) -> None:
        self._channel, self._left = channel, left
        self._is_left = False

    async def events(self, version: int) -> AsyncIterator[dict[str, Any]]:
        """Yield events for a browser that has a version, for ever; 0 if it has none of ours."""
        try:
            async for update in self._channel.updates(version):
                yield {"data": msgspec.json.encode(update).decode()}
        finally:
            self.leave()

    def leave(self) -> None:
        """Note that the browser shows it no more."""
        if not self._is_left:
            self._is_left = True
            self._left()


class LiveChannels:
    """
    The pages that are looked at.

    Parameters
    ----------
    refresh_s : float
        Time between two refreshes of a page, in seconds.
    most : int
        So many pages are kept up to date at once; of one person an eighth of them, of all who have not signed in a
        half. Beyond that, pages that nobody looks at make way.
    """

    def __init__(self, refresh_s: float, most: int = 200) -> None:
        self._refresh_s, self._most = refresh_s, most
        self._versions = itertools.count(secrets.randbits(31) << 20)
        """Not those of another replica, or of this one before it was started again."""
        self._channels: dict[ChannelName, _Channel] = {}
        self._ends: dict[ChannelName, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def open(self, name: ChannelName, render: Render, regions: Regions) -> int:
        """Note that a page was sent with these regions; return the version that the browser then has, 0 for none."""
        channel = self._channels.get(name)
        if channel is None:
            if not self._has_room(name):
                return 0
            channel = self._channels[name] = _Channel(render, self._refresh_s, self._versions)
        if not channel.watching:
            self._forget_later(name)
        return channel.take(regions)

    async def watch(self, name: ChannelName, render: Render) -> WatchedPage:
        """
        Keep a page up to date for a browser that shows it.

        Raises
        ------
        PageRefused
            503 where too many others are kept up to date, or what the page itself is refused with.
        """
        channel = self._channels.get(name)
        if channel is None:  # this replica has not sent the page, or has forgotten it
            if not self._has_room(name):
                raise PageRefused(503, "too many pages are kept up to date already; this one is as it was when it came")
            channel = self._channels[name] = _Channel(render, self._refresh_s, self._versions)
        self._keep(name)
        channel.watching += 1  # from now on it makes way for no other
        page = WatchedPage(channel, lambda: self._left(name, channel))
        if not channel.is_rendered:
            try:
                channel.take(await render())
            except BaseException:
                page.leave()
                raise
        return page

    def _has_room(self, name: ChannelName) -> bool:
        """Say whether there is room for one more page, after the oldest that nobody looks at has made way."""
        most = self._most // (_SHARE if name.visitor.signed_in else 2) or 1
        of_one = [one for one in self._channels if one.visitor.name == name.visitor.name]
        if len(of_one) < most and len(self._channels) < self._most:
            return True
        among = of_one if len(of_one) >= most else list(self._channels)
        unseen = next((one for one in among if not self._channels[one].watching), None)
        if unseen is not None:
            self._keep(unseen)
            self._forget(unseen)
        return unseen is not None

    def _left(self, name: ChannelName, channel: _Channel) -> None:
        channel.watching -= 1
        if not channel.watching and self._channels.get(name) is channel:
            self._forget_later(name)

    async def close(self) -> None:
        """Stop refreshing."""
        for timer in self._ends.values():
            timer.cancel()
        await asyncio.gather(*(channel.stop() for channel in self._channels.values()), *self._ending)
        self._channels.clear()

    def _keep(self, name: ChannelName) -> None:
        if (timer := self._ends.pop(name, None)) is not None:
            timer.cancel()

    def _forget_later(self, name: ChannelName) -> None:
        self._keep(name)
        self._ends[name] = asyncio.get_running_loop().call_later(_KEPT_S, self._forget, name)

    def _forget(self, name: ChannelName) -> None:
        self._ends.pop(name, None)
        if (channel := self._channels.get(name)) is not None and not channel.watching:
            del self._channels[name]
            task = asyncio.ensure_future(channel.stop())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


_log = structlog.get_logger("penstock.dashboard")
