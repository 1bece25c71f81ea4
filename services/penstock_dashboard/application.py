"""
The web application: which address is answered by what.

:func:`application` puts the pages, their live updates, signing in and what people command under their addresses.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, parse_qsl, quote, unquote

import msgspec
import structlog
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock_dashboard import output_stream
from penstock_dashboard.device_metrics import HeardNodes
from penstock_dashboard.gateway_port import GatewayPort, PageRefused, Visitor
from penstock_dashboard.live_page import ChannelName, LiveChannels, Regions, Render
from penstock_dashboard.log_moment import MomentBar, settled
from penstock_dashboard.page import TEMPLATES, JobSources, Page, PageContent, PageRequest, at_path
from penstock_dashboard.pages import (
    allocations_page,
    device_page,
    job_page,
    jobs_page,
    log_page,
    queue_page,
    sweep_page,
    timeline_page,
    users_page,
)
from penstock_dashboard.pages.what_if_page import WhatIf
from penstock_dashboard.settings import DashboardSettings
from penstock_dashboard.sign_in import TokenSigner
from penstock_log import request_bodies
from penstock_log.job_state import JobState
from penstock_log.text import count
from penstock_log.views import BulkView, MomentView

PAGES: Final[dict[str, tuple[str, Page]]] = {
    "/": ("Devices", device_page.device_page),
    "/queue": ("Queue", queue_page.queue_page),
    "/jobs": ("Jobs", jobs_page.jobs_page),
    "/jobs/{id}": ("", job_page.job_page),
    "/jobs/{id}/log": ("", log_page.log_page),
    "/jobs/{id}/events": ("", job_page.job_events_page),
    "/sweeps": ("Sweeps", sweep_page.sweeps_page),
    "/sweeps/{id}": ("", sweep_page.sweep_page),
    "/timeline": ("Timeline", timeline_page.timeline_page),
    "/allocations": ("Allocations", allocations_page.allocations_page),
    "/users": ("Users and teams", users_page.users_page),
}
"""Address → its name in the list of pages, empty where it is not in it, and the page."""
COOKIE: Final = "penstock_session"
BROWSER: Final = "penstock_browser"
"""A cookie that says to which browser the form of a key was shown."""
_STATIC: Final = Path(__file__).with_name("static")
_MOST_FORM_BYTES: Final = 256 * 1024
_NOT_SIGNED_IN: Final = 401
_DIGITS: Final = 20
_log = structlog.get_logger("penstock.dashboard")
_PING_S: Final = 15
CANCEL_SWEEP: Final = "cancel_sweep"
OF_ALLOCATIONS: Final = ("pause_allocation", "resume_allocation")
"""Commands whose button has the allocation's name."""
SAID: Final = "penstock_said"
"""A cookie with what became of the last form, for the page that comes next."""
_SAID_S: Final = 30
_NOT_STORED: Final = {"Cache-Control": "no-store"}
_FOREIGN: Final = "this form was not sent by a page of yours here; load the page again and repeat it"
_OLD_KEY: Final = "this key is too old or was used; type `penstock dashboard` in a shell for a new one"
_SHOWN_S: Final = 3600
"""For how long a browser is known that was shown a key: longer than the key counts, to be told what is wrong."""
_TITLES: Final = {401: "Sign in", 403: "Not yours", 404: "Not found", 503: "No answer"}
_HEADERS: Final = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class Site:
    """
    What all addresses share.

    Parameters
    ----------
    gateway : GatewayPort
    signer : TokenSigner
    settings : DashboardSettings
    now_s : callable
        Seconds since the epoch.
    what_if : WhatIf
        The page that starts replays.
    nodes : HeardNodes
        What nodes tell of their devices.
    jobs : JobSources
        What pages of jobs read beside the gateway's answers.
    """

    def __init__(
        self,
        gateway: GatewayPort,
        signer: TokenSigner,
        settings: DashboardSettings,
        now_s: Callable[[], float],
        *,
        what_if: WhatIf,
        nodes: HeardNodes,
        jobs: JobSources,
    ) -> None:
        self.gateway, self.jobs, self.nodes, self.what_if = gateway, jobs, nodes, what_if
        self.signer, self.settings, self.now_s = signer, settings, now_s
        self.pages: dict[str, tuple[str, Page]] = {**PAGES, "/what-if": ("What if", what_if.page)}
        self.channels = LiveChannels(settings.refresh_s, settings.most_pages)

    async def visitor(self, request: Request) -> Visitor:
        """Return who visits; a session that its person has had revoked since is none."""
        text = request.cookies.get(COOKIE, "")
        visitor = self.signer.visitor(text) if text else None
        return visitor if visitor is not None and await self.gateway.counts(visitor) else Visitor()

    def visit(self, request: Request, visitor: Visitor, path: str) -> PageRequest:
        """Return a visit to the page at a path."""
        query = {name: value for name, value in request.query_params.items() if name != "version"}
        return PageRequest(
            visitor=visitor,
            path=path,
            query=query,
            params=dict(request.path_params),
            gateway=self.gateway,
            jobs=self.jobs,
            nodes=self.nodes,
        )

    async def moment(self, visit: PageRequest) -> MomentView:
        """
        Return where in the log a visit is.

        Raises
        ------
        PageRefused
            400 where the address names no moment, or one that has not come.
        """
        return await self.gateway.query(visit.visitor, "moment", request_bodies.AllRequest(at=visit.moment), MomentView)

    async def bar_of_refused(self, visit: PageRequest) -> MomentBar:
        """Return the bar of a page that is refused: where its moment is none, with the bounds of the log."""
        for at in dict.fromkeys((visit.at, "")):
            try:
                view = await self.moment(msgspec.structs.replace(visit, query={"at": at}))
            except PageRefused:
                continue
            return _bar(visit, view, wrong=at != visit.at)
        return _bar(visit, None)

    def show(
        self,
        visit: PageRequest,
        content: PageContent,
        *,
        status: int = 200,
        version: int = 0,
        message: str = "",
        bar: MomentBar | None = None,
    ) -> HTMLResponse:
        """Return a page as HTML; ``bar`` says at which moment it is, where that can be moved."""
        address = at_path(visit.path, visit.query)
        kept = {"at": visit.at} if visit.at else {}
        html = TEMPLATES.render(
            content.template,
            **{
                "title": content.title,
                "visitor": visit.visitor,
                "form_token": self.signer.form_token(visit.visitor) if visit.visitor.signed_in else "",
                "pages": [(path, name) for path, (name, _) in self.pages.items() if name],
                "here": f"/{visit.path.split('/')[1]}",
                "address": address,
                "now_address": at_path(visit.path, {**visit.query, "at": ""}),
                "at": visit.at,
                "bar": bar,
                "moved": lambda at: at_path(visit.path, {**visit.query, "at": at}),
                "kept": lambda path: at_path(path, kept),
                "live": at_path(f"/live{visit.path}", visit.query) if content.live and version and not visit.at else "",
                "version": version,
                "now_s": content.now_s or self.now_s(),
                "messages": [{"kind": "", "text": message}] if message else [],
                "regions": content.regions,
                **content.values,
            },
        )
        return HTMLResponse(html, status_code=status, headers={"Cache-Control": "no-store"})

    async def refused(self, visit: PageRequest, refusal: PageRefused, *, movable: bool = True) -> HTMLResponse:
        """Return the page that says why something was refused."""
        content = PageContent(
            title=_TITLES.get(refusal.status, "Not shown"),
            template="error.html",
            values={"sentence": str(refusal)},
            live=False,
        )
        bar = await self.bar_of_refused(visit) if movable else None
        if bar is not None and bar.wrong:  # or each link would lead to another refusal
            visit = msgspec.structs.replace(visit, query={**visit.query, "at": ""})
        return self.show(visit, content, status=refusal.status, bar=bar)


def _bar(visit: PageRequest, view: MomentView | None, *, wrong: bool = False) -> MomentBar:
    kept = {name: value for name, value in visit.query.items() if name not in {"at", "said"} and value != ""}
    return MomentBar(path=visit.path, kept=kept, at=visit.at, view=view, wrong=wrong)


def application(site: Site, more: Sequence[BaseRoute] = ()) -> Starlette:
    """
    Return the application.

    Parameters
    ----------
    site : Site
    more : sequence of BaseRoute
        Addresses beside the pages.
    """
    routes: list[BaseRoute] = [
        Route("/healthz", _health),
        Route("/sign-in", partial(_sign_in, site)),
        Route("/sign-in", partial(_open_session, site), methods=["POST"]),
        Route("/sign-out", partial(_sign_out, site), methods=["POST"]),
        Route("/act", partial(_act, site), methods=["POST"]),
        Route("/act/preview", partial(_preview, site), methods=["POST"]),
        Route("/jobs/{id}/log/live", partial(_follow_output, site)),
        Route("/jobs/{id}/log/download", partial(_download_output, site)),
        *more,
        Route("/users.csv", partial(_usage_file, site)),
        Route("/what-if", partial(_start_replay, site), methods=["POST"]),
        Route("/what-if/cancel", partial(_cancel_replay, site), methods=["POST"]),
        *(Route(path, partial(_page, site, page)) for path, (_, page) in site.pages.items()),
        *(Route(f"/live{path}", partial(_live, site, page)) for path, (_, page) in site.pages.items()),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(_SecurityHeaders), Middleware(GZipMiddleware, minimum_size=1000)],
        exception_handlers={HTTPException: partial(_no_page, site), PageRefused: partial(_refusal, site)},
    )


class _SecurityHeaders:
    """Adds to each answer what keeps other sites out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await self._app(scope, receive, sending)


async def _health(request: Request) -> PlainTextResponse:  # noqa: ARG001 - as Starlette calls it
    return PlainTextResponse("ok\n")


async def _page(site: Site, page: Page, request: Request) -> Response:
    visit = site.visit(request, await site.visitor(request), request.url.path)
    _require_sight(site, visit.visitor)
    if (at := settled(visit.at, site.now_s())) != visit.at:
        return RedirectResponse(visit.address(at=at), status_code=303)
    bar = _bar(visit, await site.moment(visit))
    content = await page(visit)
    version = 0
    if content.live and not visit.at:
        version = site.channels.open(_channel(visit), _rendering(page, visit), content.regions)
    said = unquote(request.cookies.get(SAID, ""))
    response = site.show(visit, content, version=version, message=said, bar=bar)
    if said:
        response.delete_cookie(SAID)
    return response


def _channel(visit: PageRequest) -> ChannelName:
    return ChannelName(visit.visitor, at_path(visit.path, visit.query))


def _rendering(page: Page, visit: PageRequest) -> Render:
    async def render() -> Regions:
        content = await page(visit)
        if not content.live:
            raise PageRefused(404, "this page is not kept up to date; load it again")
        return content.regions

    return render


def _require_sight(site: Site, visitor: Visitor) -> None:
    if not visitor.signed_in and not site.settings.anonymous:
        raise PageRefused(
            _NOT_SIGNED_IN,
            "this dashboard shows nothing to who has not signed in: type `penstock dashboard` in a shell",
        )


async def _live(site: Site, page: Page, request: Request) -> Response:
    visit = site.visit(request, await site.visitor(request), request.url.path.removeprefix("/live"))
    _require_sight(site, visit.visitor)
    if visit.at:
        raise PageRefused(400, "a moment in the past does not change; load its page")
    text = request.query_params.get("version", "")
    version = int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else 0
    watched = await site.channels.watch(_channel(visit), _rendering(page, visit))
    return EventSourceResponse(watched.events(version), ping=_PING_S, headers={"X-Accel-Buffering": "no"})


async def _follow_output(site: Site, request: Request) -> Response:
    visit = site.visit(request, await site.visitor(request), request.url.path)
    _require_sight(site, visit.visitor)
    events = await output_stream.follow(visit, site.now_s)
    return EventSourceResponse(events, ping=_PING_S, headers={"X-Accel-Buffering": "no"})


async def _download_output(site: Site, request: Request) -> Response:
    visit = site.visit(request, await site.visitor(request), request.url.path)
    _require_sight(site, visit.visitor)
    name, parts = await output_stream.download(visit)
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return StreamingResponse(parts, media_type="text/plain; charset=utf-8", headers=headers)


async def _sign_in(site: Site, request: Request) -> Response:
    visit = site.visit(request, await site.visitor(request), "/sign-in")
    key = visit.query.get("key", "")
    person = site.signer.person_of_key(key) if key else None
    if key and person is None:
        raise PageRefused(403, _OLD_KEY)
    browser = request.cookies.get(BROWSER, "") or secrets.token_urlsafe(12)
    values = {
        "key": key,
        "person": Visitor(name=person or "").shown,
        "browser_token": site.signer.sign_in_token(browser),
        "address": "/",
    }
    response = site.show(visit, PageContent(title="Sign in", template="sign_in.html", values=values, live=False))
    if key:
        _set_cookie(site, response, BROWSER, browser, _SHOWN_S)
    return response


def _set_cookie(site: Site, response: Response, name: str, value: str, lasts_s: int) -> None:
    secure = site.settings.url.startswith("https:")
    response.set_cookie(name, value, max_age=lasts_s, httponly=True, samesite="strict", secure=secure)


async def _open_session(site: Site, request: Request) -> Response:
    form = await _form(request)
    if not site.signer.is_shown_form(request.cookies.get(BROWSER, ""), _field(form, "browser")):
        raise PageRefused(
            403, "this form was not shown to this browser; open the address of `penstock dashboard` in it"
        )
    session = site.signer.open_session(_field(form, "key"))
    if session is None:
        raise PageRefused(403, _OLD_KEY)
    response = RedirectResponse("/", status_code=303)
    _set_cookie(site, response, COOKIE, session, int(site.settings.session_s))
    response.delete_cookie(BROWSER)
    return response


async def _sign_out(site: Site, request: Request) -> Response:
    form = await _form(request)
    visitor = await site.visitor(request)
    if visitor.signed_in and not site.signer.is_own_form(visitor, _field(form, "token")):
        raise PageRefused(403, _FOREIGN)
    said = "You are signed out."
    try:
        await asyncio.to_thread(site.signer.end_session, request.cookies.get(COOKIE, ""))
    except OSError as error:
        _log.exception("ended_session_not_written")
        said = f"You are signed out here; other dashboards could not be told: {error.strerror}."
    response = RedirectResponse("/", status_code=303)
    response.set_cookie(SAID, quote(said), max_age=_SAID_S, httponly=True, samesite="strict")
    response.delete_cookie(COOKIE)
    return response


async def _usage_file(site: Site, request: Request) -> Response:
    visit = site.visit(request, await site.visitor(request), request.url.path)
    _require_sight(site, visit.visitor)
    query = {**visit.query, "at": settled(visit.at, site.now_s())}
    name, text = await users_page.usage_file(msgspec.structs.replace(visit, query=query))
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(text, media_type="text/csv", headers=headers)


async def _start_replay(site: Site, request: Request) -> Response:
    form = await _form(request)
    visitor = await _own_visitor(site, request, form)
    fields = {name: values[0] for name, values in form.items()}
    address = await site.what_if.start(site.gateway, visitor, fields)
    return RedirectResponse(address, status_code=303)


async def _cancel_replay(site: Site, request: Request) -> Response:
    form = await _form(request)
    visitor = await _own_visitor(site, request, form)
    wanted = _field(form, "run")
    site.what_if.computations.cancel(visitor, wanted)
    return RedirectResponse(at_path("/what-if", {"run": wanted}), status_code=303)


async def _own_visitor(site: Site, request: Request, form: dict[str, list[str]]) -> Visitor:
    """Return who sent a form of this site's."""
    visitor = await site.visitor(request)
    if not site.signer.is_own_form(visitor, _field(form, "token")):
        raise PageRefused(403, _FOREIGN if visitor.signed_in else "sign in to do that")
    return visitor


async def _act(site: Site, request: Request) -> Response:
    form = await _form(request)
    visitor = await site.visitor(request)
    if not site.signer.is_own_form(visitor, _field(form, "token")):
        raise PageRefused(403, _FOREIGN if visitor.signed_in else "sign in to do that")
    back = _back(_field(form, "back"))
    if _field(form, "verb") == CANCEL_SWEEP:
        sweep = request_bodies.ActRequest(id=_field(form, "id"))
        return _done(back, (await site.gateway.act(visitor, CANCEL_SWEEP, sweep)).message)
    for command in OF_ALLOCATIONS:
        if name := _field(form, command):
            return _done(back, (await site.gateway.act(visitor, command, request_bodies.ActRequest(id=name))).message)
    asked = _bulk(form, back)
    return _done(back, _outcome(asked, await _command_all(site, visitor, asked)))


async def _preview(site: Site, request: Request) -> Response:
    """Answer what a form would do to all jobs that match, as a question; or in a sentence why that is not asked."""
    form = await _form(request)
    visitor = await _own_visitor(site, request, form)
    try:
        asked = msgspec.structs.replace(_bulk(form, _back(_field(form, "back"))), dry_run=True)
        views = await _command_all(site, visitor, asked)
    except PageRefused as refused:
        return JSONResponse({"said": str(refused)}, headers=_NOT_STORED)
    return JSONResponse(_question(asked, views), headers=_NOT_STORED)


async def _command_all(site: Site, visitor: Visitor, asked: request_bodies.BulkRequest) -> list[BulkView]:
    views: list[BulkView] = []
    while not views or views[-1].next:  # one request does as much as one message holds
        part = msgspec.structs.replace(asked, after=views[-1].next if views else 0)
        views.append(await site.gateway.command(visitor, "bulk", part, BulkView))
    return views


def _done(back: str, said: str) -> Response:
    response = RedirectResponse(back, status_code=303)
    response.set_cookie(SAID, quote(said), max_age=_SAID_S, httponly=True, samesite="strict")
    return response


def _bulk(form: dict[str, list[str]], back: str) -> request_bodies.BulkRequest:
    """Return the command about the jobs that were ticked, or about all that the list's filter matches."""
    verb, ids, filtered = _field(form, "verb"), tuple(form.get("id", [])), "all" in form
    if filtered:
        query = dict(parse_qsl(back.partition("?")[2]))
        if query.get("cause"):
            raise PageRefused(400, "jobs cannot be chosen by their cause, which changes; tick those that are meant")
        fields = request_bodies.JobFilter.__struct_fields__
        where = {name: value for name, value in query.items() if name in fields and name != "state" and value}
        asked: dict[str, Any] = {"where": {**where, "state": (str(JobState.PENDING),)}}
    elif ids:
        asked = {"ids": ids}
    else:
        raise PageRefused(400, "no job was chosen; tick those that are meant")
    try:
        return msgspec.convert({"verb": verb, **asked}, type=request_bodies.BulkRequest)
    except msgspec.ValidationError as error:
        raise PageRefused(400, f"the form asks for what is not there: {error}") from error


def _question(asked: request_bodies.BulkRequest, views: Sequence[BulkView]) -> dict[str, str]:
    """
    Return what a person is asked before a command about all jobs that match; or what to say where it does nothing.

    Examples
    --------
    >>> ann = request_bodies.BulkRequest(verb="cancel", where=request_bodies.JobFilter(user="ann", text="train"))
    >>> _question(ann, [BulkView(answers=(), matched=87, changed=87, refused=0)])
    {'question': 'Cancel 87 waiting jobs (user ann, with “train”)?'}
    >>> _question(ann, [BulkView(answers=(), matched=0, changed=0, refused=0)])
    {'said': 'There is no waiting job to cancel (user ann, with “train”).'}
    """
    changed, refused = (sum(getattr(view, name) for view in views) for name in ("changed", "refused"))
    which = _filter_text(asked)
    if not changed and not refused:
        return {"said": f"There is no waiting job to {asked.verb} ({which})."}
    jobs = f"{count(changed, 'waiting job')} ({which})"
    if not refused:
        return {"question": f"{asked.verb.capitalize()} {jobs}?"}
    first = next(answer.error for view in views for answer in view.answers if answer.error)
    more = f"{count(refused, 'job')} that {'matches' if refused == 1 else 'match'} would be refused: {first}"
    return (
        {"question": f"{asked.verb.capitalize()} {jobs}? {more}"} if changed else {"said": f"Nothing changes: {more}"}
    )


def _filter_text(asked: request_bodies.BulkRequest) -> str:
    """Return in words which jobs a filter chooses; empty where jobs are named."""
    if asked.where is None:
        return ""
    given = {name: value for name, value in msgspec.structs.asdict(asked.where).items() if value and name != "state"}
    words = [f"with “{value}”" if name == "text" else f"{name} {value}" for name, value in given.items()]
    return ", ".join(words) or "all there are"


def _outcome(asked: request_bodies.BulkRequest, views: Sequence[BulkView]) -> str:
    """
    Return in a sentence what became of a command about some jobs.

    Examples
    --------
    >>> bob = request_bodies.BulkRequest(verb="hold", where=request_bodies.JobFilter(user="bob"))
    >>> _outcome(bob, [BulkView(answers=(), matched=3, changed=3, refused=0)])
    'hold: 3 of 3 jobs changed (user bob)'
    """
    answers = [answer for view in views for answer in view.answers]
    refused = [answer for answer in answers if answer.error]
    if len(answers) == 1:
        return answers[0].error or answers[0].message
    which = f" ({_filter_text(asked)})" if asked.where is not None else ""
    said = f"{asked.verb}: {sum(view.changed for view in views)} of {count(views[0].matched, 'job')} changed{which}"
    return f"{said}; {count(len(refused), 'job')} refused: {refused[0].error}" if refused else said


def _back(address: str) -> str:
    """Return an address of this site; its first page for any other."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\")) else "/"


async def _form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form that a page of this site has sent; its size is bounded."""
    if not _is_from_here(request):
        raise PageRefused(403, _FOREIGN)
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_FORM_BYTES:
            raise PageRefused(413, f"a form has {_MOST_FORM_BYTES} bytes at most; choose fewer jobs")
    return parse_qs(body.decode(errors="replace"), keep_blank_values=True)


def _is_from_here(request: Request) -> bool:
    """Say whether a browser tells that a form is of this site; one without either header is told by its token alone."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site in {"same-origin", "none"}
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def _field(form: dict[str, list[str]], name: str) -> str:
    return form.get(name, [""])[0]


async def _no_page(site: Site, request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = "there is no such page; the list above has all" if status == 404 else str(getattr(error, "detail", error))
    return await _refusal(site, request, PageRefused(status, detail))


async def _refusal(site: Site, request: Request, error: Exception) -> Response:
    refusal = error if isinstance(error, PageRefused) else PageRefused(500, str(error))
    visit = site.visit(request, await site.visitor(request), request.url.path)
    shown = visit.visitor.signed_in or site.settings.anonymous  # who sees nothing is not told of the log either
    movable = request.method == "GET" and refusal.status != _NOT_SIGNED_IN and not visit.path.startswith("/live/")
    movable = movable and shown
    return await site.refused(visit, refusal, movable=movable)
