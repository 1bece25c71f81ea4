"""
The report of a week: one HTML page that loads nothing else and needs no script.

:func:`collect` asks for the figures, and :func:`page` fills the template with them. What people call their jobs, models
and teams is escaped by Jinja2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final, Protocol

from penstock_cli import usage_text
from penstock_cli.value_formats import span
from penstock_log import usage_csv
from penstock_log.request_bodies import UsageBy, UsageOrder
from penstock_log.text import escaped
from penstock_log.usage import Usage
from penstock_log.views import UsageRowView, UsageView

TOP: Final = 10
"""Jobs in a list of those that were idle or lost most."""
_MOST_ROWS: Final = 40
_PARTS: Final = ("used", "idle", "unmeasured", "lost")


class AskUsage(Protocol):
    """Answers about device time, as :meth:`penstock.client.Client.usage` gives them."""

    def __call__(
        self, by: UsageBy = "user", *, since: Any, until: Any, order: UsageOrder = "held", limit: int = 1000
    ) -> Awaitable[UsageView]:
        """Return device time by group within a window."""


@dataclass(frozen=True)
class UsageReport:
    """
    The figures of a report.

    Attributes
    ----------
    cluster : str
        What it is of: an address, or a file.
    before : UsageView
        The window of the same length before.
    by : dict of str to UsageView
        Device time by team, user, pool and kind.
    idle, lost : tuple of UsageRowView
        The jobs that were idle most while they held devices, and those that lost most.
    devices : mapping of str to int
        Kind → devices that there are now; empty where that is not known.
    """

    cluster: str
    before: UsageView
    by: dict[str, UsageView]
    idle: tuple[UsageRowView, ...]
    lost: tuple[UsageRowView, ...]
    devices: Mapping[str, int] = field(default_factory=dict)


async def collect(
    ask: AskUsage, cluster: str, *, since: Any = "7d", until: Any = None, devices: Mapping[str, int] | None = None
) -> UsageReport:
    """Ask for all figures of a report, of one window."""
    teams = await ask("team", since=since, until=until, limit=_MOST_ROWS)
    window: dict[str, Any] = {"since": teams.since_s, "until": teams.until_s}
    length_s = teams.until_s - teams.since_s
    groups: tuple[UsageBy, ...] = ("user", "pool", "kind")
    by: dict[str, UsageView] = {one: await ask(one, **window, limit=_MOST_ROWS) for one in groups}
    idle = await ask("job", **window, order="idle", limit=TOP)
    lost = await ask("job", **window, order="lost", limit=TOP)
    return UsageReport(
        cluster=cluster,
        before=await ask("pool", since=teams.since_s - length_s, until=teams.since_s),
        by={"team": teams, **by},
        idle=tuple(row for row in idle.rows if row.usage.idle_gpu_s > 0 and not row.others),
        lost=tuple(row for row in lost.rows if row.usage.lost_gpu_s > 0 and not row.others),
        devices=devices or {},
    )


def page(report: UsageReport) -> str:
    """Return the page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        {
            "hours": grouped_hours,
            "seen": escaped,
            "span": span,
            "utc": usage_text.utc,
        }
    )
    environment.globals.update(
        {
            "change": change,
            "gpu_h": usage_csv.gpu_h,
            "name": usage_text.name,
            "part": usage_text.part,
            "parts": _PARTS,
            "segments": segments,
            "mean_devices": mean_devices,
        }
    )
    text = files("penstock_cli").joinpath("templates", "usage_report.html.j2").read_text(encoding="utf-8")
    total = report.by["team"].total
    return environment.from_string(text).render(report=report, total=total.usage, waits=total.waits)


def grouped_hours(value: float) -> str:
    """
    Return GPU-hours with their thousands apart.

    Examples
    --------
    >>> grouped_hours(0.5), grouped_hours(104_334.2)
    ('0.5', '104,334')
    """
    return f"{value:,.0f}" if value >= 1000 else usage_text.hours(value)


def segments(usage: Usage, most_gpu_s: float) -> list[tuple[str, float, float]]:
    """
    Return the parts of a bar: what each is, where it begins, and how long it is; the longest bar is 100 long.

    Examples
    --------
    >>> segments(Usage(held_gpu_s=4.0, used_gpu_s=3.0, lost_gpu_s=1.0), 8.0)
    [('used', 0.0, 37.5), ('lost', 37.5, 12.5)]
    """
    found, at = [], 0.0
    for one in _PARTS:
        length = 100.0 * getattr(usage, f"{one}_gpu_s") / most_gpu_s if most_gpu_s > 0 else 0.0
        if length > 0:
            found.append((one, round(at, 3), round(length, 3)))
        at += length
    return found


def mean_devices(usage: Usage, view: UsageView) -> float:
    """Return how many devices were held on average within a window."""
    length_s = view.until_s - view.since_s
    return usage.held_gpu_s / length_s if length_s > 0 else 0.0


def change(now: float, before: float) -> str:
    """
    Return how a figure has changed since the window before.

    Examples
    --------
    >>> change(3.0, 2.0), change(1.0, 2.0), change(1.0, 0.0), change(1.0, 1.001)
    ('50% more', '50% less', 'none before', 'as before')
    """
    if before <= 0:
        return "none before" if now > 0 else "as before"
    ratio = now / before - 1.0
    if abs(ratio) < 0.005:
        return "as before"
    return f"{abs(ratio):.0%} {'more' if ratio > 0 else 'less'}"
