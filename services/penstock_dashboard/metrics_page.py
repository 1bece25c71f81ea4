"""
``GET /metrics``: everything about the cluster, for Prometheus.

:class:`MetricsPage` asks all replicas for their metrics, and a gateway for the cluster's figures. It answers in the
form that the scraper takes, OpenMetrics or Prometheus' text form. A scraper has no session:
:class:`~penstock_dashboard.settings.DashboardSettings` says who may scrape. Nothing here tells more than a viewer is
told of others' jobs: ids, users, teams and states, and no names.
"""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock_bus import BusError, RequestPort, TelemetryPort
from penstock_dashboard.cluster_metrics import of_stats, of_streams
from penstock_dashboard.device_metrics import HeardNodes, of_devices, of_lanes
from penstock_dashboard.exposition import exposed
from penstock_dashboard.metric_catalogue import gauge
from penstock_dashboard.replica_metrics import HeardReplicas, ReplicaScraper, merged, of_heartbeats
from penstock_dashboard.settings import DashboardSettings
from penstock_log import subjects
from penstock_log.views import StatsView, StreamsView, View

ADDRESS: Final = "/metrics"
V = TypeVar("V", bound=View)
_TIMEOUT: Final = "x-prometheus-scrape-timeout-seconds"
_DEADLINE_S: Final = 4.0
_LEAST_S: Final = 0.1
_REPEATED_S: Final = 60.0
_MARGIN: Final = 0.8
"""The part of the scraper's own timeout that replicas have; the rest is for merging and for the way back."""


class MetricsBus(RequestPort, TelemetryPort, Protocol):
    """Asking replicas, and hearing of them."""


class MetricsPage:
    """
    The answer to scrapers.

    Parameters
    ----------
    bus : MetricsBus
    settings : DashboardSettings
        Say who may scrape.
    clock : callable
        Seconds that never jump.
    deadline_s : float
        How long replicas may take to answer, where the scraper does not say how long it waits itself.
    nodes : HeardNodes, optional
        What nodes tell; others may look at it too.
    """

    def __init__(
        self,
        bus: MetricsBus,
        settings: DashboardSettings,
        clock: Callable[[], float],
        deadline_s: float = _DEADLINE_S,
        nodes: HeardNodes | None = None,
    ) -> None:
        self._bus, self._settings, self._deadline_s = bus, settings, deadline_s
        self._replicas, self._scraper = HeardReplicas(clock), ReplicaScraper(bus)
        self._nodes = nodes or HeardNodes(clock)
        self._clock, self._last, self._last_s = clock, StatsView(pools=(), seq=0, last_seq=0), -math.inf

    def listening(self) -> list[Coroutine[object, object, None]]:
        """Return the coroutines that hear what a scrape tells; they run for ever."""
        bus, nodes = self._bus, self._nodes
        return [self._replicas.listen(bus), nodes.listen_to_devices(bus), nodes.listen_to_lanes(bus)]

    def route(self) -> Route:
        """Return the route of the page."""
        return Route(ADDRESS, self.answer, methods=["GET"])

    async def answer(self, request: Request) -> Response:
        """Answer one scrape."""
        refused = await asyncio.to_thread(refusal, self._settings, request)
        if refused is not None:
            return refused
        deadline_s = _deadline_s(request, self._deadline_s)
        heard = self._replicas.alive()
        asked = [(one.service, one.replica) for one in heard]
        answers, stats, streams = await asyncio.gather(
            self._scraper.ask(asked, deadline_s),
            self._stats(deadline_s),
            self._ask("streams", StreamsView, deadline_s),
        )
        devices, lanes = self._nodes.devices(), self._nodes.lanes()

        def written() -> Response:
            last_seq = stats.last_seq if stats is not None else None
            missing = gauge("penstock_scrape_missing_stats")
            missing.add_metric([], stats is None)
            figures = of_stats(stats) if stats is not None else []
            figures += of_streams(streams) if streams is not None else []
            families = [*figures, missing, *of_devices(devices), *of_lanes(lanes)]
            families += [*of_heartbeats(heard, last_seq), *merged(answers)]
            text, content_type = exposed(families, request.headers.get("accept", ""))
            return Response(text, media_type=content_type)

        return await asyncio.to_thread(written)  # thousands of nodes make a text of megabytes

    async def _stats(self, deadline_s: float) -> StatsView | None:
        """
        Return the cluster's figures as a gateway has them; None where none answers in time.

        A gateway that has not folded as much as one that answered a moment ago would have counters fall, which
        Prometheus takes for a restart: what the other one said is repeated.
        """
        found = await self._ask("stats", StatsView, deadline_s)
        if found is None:
            return None
        if found.seq >= self._last.seq or self._clock() - self._last_s > _REPEATED_S:
            self._last, self._last_s = found, self._clock()
        return self._last

    async def _ask(self, query: str, view: type[V], deadline_s: float) -> V | None:
        """Return a gateway's answer; None where none comes in time."""
        try:
            async with asyncio.timeout(deadline_s):
                body = await self._bus.request(subjects.query(query), b"{}", deadline_s)
            return msgspec.json.decode(body, type=view)
        except (BusError, TimeoutError, ValueError) as error:
            _log.warning("gateway_not_scraped", query=query, reason=str(error) or type(error).__name__)
            return None


def _deadline_s(request: Request, most_s: float) -> float:
    """Return how long replicas may take: less than the scraper waits, which says so in a header."""
    try:
        theirs_s = float(request.headers.get(_TIMEOUT, ""))
    except ValueError:
        return most_s
    return min(most_s, max(_LEAST_S, _MARGIN * theirs_s)) if math.isfinite(theirs_s) else most_s


def refusal(settings: DashboardSettings, request: Request) -> Response | None:
    """Return why somebody may not scrape, with what to do; None where they may."""
    if settings.metrics == "off":
        return _refused(HTTPStatus.NOT_FOUND, 'metrics are off; set [dashboard] metrics = "local", "token" or "open"')
    if settings.metrics == "open":
        return None
    if settings.metrics == "local":
        if request.client is not None and _is_loopback(request.client.host):
            return None
        return _refused(
            HTTPStatus.FORBIDDEN,
            "metrics are for scrapers on this machine; scrape 127.0.0.1, or set [dashboard] metrics_token_file and "
            'metrics = "token", or metrics = "open"',
        )
    return _without_token(settings, request)


def _without_token(settings: DashboardSettings, request: Request) -> Response | None:
    try:
        token = Path(settings.metrics_token_file).read_bytes().strip()
    except OSError as error:
        _log.error("metrics_token_unreadable", file=settings.metrics_token_file, error=str(error))
        return _refused(HTTPStatus.SERVICE_UNAVAILABLE, "the token of the metrics cannot be read; see the log")
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if token and scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token):
        return None
    refused = _refused(
        HTTPStatus.UNAUTHORIZED, "expected the token of [dashboard] metrics_token_file: Authorization: Bearer TOKEN"
    )
    refused.headers["www-authenticate"] = "Bearer"
    return refused


def _refused(status: HTTPStatus, why: str) -> Response:
    return PlainTextResponse(why + "\n", status)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


_log = structlog.get_logger("penstock.dashboard")
