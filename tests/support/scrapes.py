"""Scraping a dashboard as Prometheus does, over HTTP."""

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.error import HTTPError

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from penstock_bus import Bus
from penstock_bus.follower import background
from penstock_dashboard.metrics_page import MetricsPage
from penstock_dashboard.runner import bound, serving
from penstock_dashboard.settings import DashboardSettings

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@dataclass
class Scrape:
    """One answer."""

    status: int
    content_type: str
    text: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def families(self) -> dict[str, Metric]:
        """The families, by name; in OpenMetrics read by its own, strict parser."""
        parse = open_metrics if "openmetrics" in self.content_type else text_string_to_metric_families
        return {family.name: family for family in parse(self.text)}

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the one sample that has these labels, among others."""
        (found,) = self.values(name, **labels)
        return found

    def values(self, name: str, **labels: str) -> list[float]:
        """Return the values of all samples that have these labels, among others."""
        samples = [sample for family in self.families.values() for sample in family.samples if sample.name == name]
        return [sample.value for sample in samples if labels.items() <= sample.labels.items()]


async def get(url: str, **headers: str) -> Scrape:
    """Return what an address answers."""

    def ask() -> Scrape:
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        request = urllib.request.Request(url, headers=named)  # noqa: S310 - an address of the test's own
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return Scrape(answer.status, answer.headers["content-type"], answer.read().decode())
        except HTTPError as error:
            return Scrape(error.code, "", error.read().decode(), dict(error.headers))

    return await asyncio.to_thread(ask)


@contextlib.asynccontextmanager
async def dashboard(
    bus: Bus, settings: DashboardSettings | None = None, deadline_s: float = 30.0
) -> AsyncIterator[str]:
    """Serve the metrics of a bus, and yield their address."""
    settings = settings or DashboardSettings(port=0)
    page = MetricsPage(bus, settings, asyncio.get_running_loop().time, deadline_s)
    listener = bound(settings)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
    async with serving(Starlette(routes=[page.route()]), listener), background(*page.listening()):
        yield url
