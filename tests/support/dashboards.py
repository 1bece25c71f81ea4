"""
The dashboard for tests: on a bus in memory over real HTTP, and in a real browser.

:func:`dashboard` runs one beside a gateway. :class:`WebVisitor` is a browser without scripts. :func:`browser` starts
Debian's Chromium where there is one, and :class:`Tab` is a page in it that collects what went wrong.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec
import pytest

from penstock_bus import Bus
from penstock_bus.shell import Shell
from penstock_dashboard.runner import run
from penstock_dashboard.settings import DashboardSettings
from penstock_log import subjects
from penstock_log.views import SignInView
from penstock_testing.fixtures import eventually

CHROMIUM: Final = Path("/usr/bin/chromium")
AXE: Final = Path(__file__).parent.parent / "data" / "axe" / "axe.min.js"
PATIENCE_MS: Final = 60_000
"""How long a page may take to show something: the machine may be busy."""


@dataclass(frozen=True)
class HttpAnswer:
    """What the dashboard answered."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def rows(self) -> dict[str, str]:
        """The page's pieces by key, as text without tags."""
        reader = _Pieces()
        reader.feed(self.text)
        return {key: " ".join("".join(words).split()) for key, words in reader.pieces.items()}


class _Pieces(HTMLParser):
    """Collects the text of each element with a key."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: dict[str, list[str]] = {}
        self._open: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"input", "meta", "link", "br", "hr", "img"}:
            return
        key = dict(attrs).get("data-key") or ""
        self._open.append((tag, key))
        if key:
            self.pieces[key] = []

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for _, key in self._open:
            if key:
                self.pieces[key].append(data + " ")


@dataclass
class WebVisitor:
    """Somebody with a browser that runs no scripts, and keeps cookies."""

    url: str
    cookies: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> HttpAnswer:
        """Return the answer to a GET."""
        return await asyncio.to_thread(self._ask, "GET", path, None, headers)

    async def post(self, path: str, fields: Mapping[str, Any], **headers: str) -> HttpAnswer:
        """Send a form; a list is a field that stands several times."""
        return await asyncio.to_thread(self._ask, "POST", path, urlencode(fields, doseq=True), headers)

    async def sign_in(self, path: str) -> HttpAnswer:
        """Open the address of a key, and send the form that it shows."""
        shown = await self.get(path)
        token = shown.text.partition('name="browser" value="')[2].partition('"')[0]
        return await self.post("/sign-in", {"key": path.partition("?key=")[2], "browser": token})

    async def updates(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of a stream of server-sent events."""
        address = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            cookies = f"Cookie: {self._sent()}\r\n" if self.cookies else ""
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n{cookies}\r\n".encode())
            async for line in reader:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))
        finally:
            writer.close()

    @property
    def form_token(self) -> str:
        """The token of this session's forms, as the last page that was asked for has it."""
        return self._token

    def _sent(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def _ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> HttpAnswer:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            if self.cookies:
                sent["Cookie"] = self._sent()
            if body is not None:
                sent["Content-Type"] = "application/x-www-form-urlencoded"
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            text = answer.read().decode()
            for header in answer.headers.get_all("set-cookie") or []:
                name, _, value = header.partition(";")[0].partition("=")
                self.cookies[name] = value
            before, found, after = text.partition('name="token" value="')
            if found and before:
                self._token = after.partition('"')[0]
            return HttpAnswer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
        finally:
            connection.close()

    _token: str = ""


@dataclass
class RunningDashboard:
    """A dashboard on a bus."""

    url: str
    bus: Bus

    async def key(self, user: str = "") -> str:
        """Return the path that signs a browser in as a person; by default as who reaches the server."""
        subject = subjects.command("sign_in", "dashboard")
        body = await self.bus.request(subjects.by_person(user, subject) if user else subject, b"{}")
        return msgspec.json.decode(body, type=SignInView).url.removeprefix(self.url)

    async def visitor(self, user: str | None = None) -> WebVisitor:
        """Return a visitor who has signed in as a person; None for one who has not."""
        visitor = WebVisitor(self.url)
        if user is not None:
            answer = await visitor.sign_in(await self.key(user))
            assert answer.status == 303, answer.text
        return visitor


@asynccontextmanager
async def dashboard(bus: Bus, **settings: Any) -> AsyncIterator[RunningDashboard]:
    """Run a dashboard on a bus while the context is open; pages are brought up to date ten times a second."""
    shell = Shell(bus, "dashboard", "d1")
    given = DashboardSettings(**{"port": 0, "refresh_s": 0.1, **settings})
    task = asyncio.create_task(run(shell, given))
    try:
        await eventually(lambda: shell.vitals.ready or task.done())
        if task.done():
            task.result()
        yield RunningDashboard(shell.vitals.note.removeprefix("is at "), bus)
    finally:
        shell.stopping.set()
        await task


class Tab:
    """A page in a real browser; ``asked`` are its questions, each of which was answered as ``agrees`` says."""

    def __init__(self, page: Any, base: str, *, agrees: bool = True) -> None:
        self.page, self.base, self.agrees = page, base, agrees
        self.errors: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._answer)

    async def _answer(self, dialog: Any) -> None:
        self.asked.append(dialog.message)
        await (dialog.accept() if self.agrees else dialog.dismiss())

    async def open(self, path: str, *, live: bool = True) -> None:
        """Load a page, and wait until it is live."""
        await self.page.goto(self.base + path)
        if live:
            await self.page.wait_for_selector("body[data-connected]")

    async def sign_in(self, key: str) -> None:
        """Sign in with a key's path."""
        await self.page.goto(self.base + key)
        await self.page.click("form[action='/sign-in'] button")
        await self.page.wait_for_url(f"{self.base}/")

    async def violations(self) -> list[str]:
        """Return what axe-core finds against the accessibility of the page."""
        await self.page.evaluate(AXE.read_text())
        found = await self.page.evaluate("axe.run()")
        return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}" for one in found["violations"]]


@asynccontextmanager
async def browser(base: str) -> AsyncIterator[BrowserSession]:
    """Start Chromium while the context is open; skips the test where there is none."""
    if not CHROMIUM.exists():
        pytest.skip(f"needs {CHROMIUM}: apt-get install chromium")
    from playwright.async_api import async_playwright  # noqa: PLC0415 - half a second, for tests with a browser alone

    async with async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        try:
            yield BrowserSession(chromium, base)
        finally:
            await chromium.close()


class BrowserSession:
    """A running browser, which opens tabs."""

    def __init__(self, chromium: Any, base: str) -> None:
        self._chromium, self._base = chromium, base

    @asynccontextmanager
    async def tab(
        self, key: str = "", *, width: int = 1280, scheme: str = "light", agrees: bool = True, **more: Any
    ) -> AsyncIterator[Tab]:
        """Open a tab of its own session, signed in with a key; at its end, no error may have been shown."""
        context = await self._chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True, **more
        )
        tab = Tab(await context.new_page(), self._base, agrees=agrees)
        if key:
            await tab.sign_in(key)
        yield tab
        await context.close()
        assert tab.errors == []


async def first(updates: AsyncIterator[dict[str, Any]], what: Any) -> dict[str, Any]:
    """Return the first update of which something is true."""
    async with aclosing(updates) as found:  # type: ignore[type-var]
        async for update in found:
            if what(update):
                return update
    raise AssertionError("the stream has ended")
