"""The web application: which address is answered by what."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock_dashboard.metrics_page import MetricsPage


def application(metrics: MetricsPage) -> Starlette:
    """Return the application."""
    return Starlette(routes=[Route("/healthz", _health), metrics.route()])


async def _health(request: Request) -> PlainTextResponse:  # noqa: ARG001 - as Starlette calls it
    return PlainTextResponse("ok\n")
