"""
The page of users and teams: device time by user, team, pool, model, kind or job, and who has how much of each pool.

The figures are those of ``penstock usage``: both ask the query ``usage``. Quotas and even shares stand beside what
teams and users hold now (docs/fairness.md).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from penstock_dashboard.page import TEMPLATES, PageContent, PageRequest, pieces
from penstock_log import request_bodies
from penstock_log.usage_csv import COLUMNS, gpu_h, usage_csv
from penstock_log.views import DevicesView, HolderView, PoliciesView, QueueView, UsageRowView, UsageView

BY: Final = ("user", "team", "pool", "model", "kind", "job")
SPANS: Final = (("1d", "a day"), ("7d", "a week"), ("30d", "30 days"), ("90d", "90 days"), ("all", "all of the log"))
_SINCE: Final = "7d"
_OF_HELD: Final = ("used", "idle", "unmeasured", "lost")
"""What held time is made of."""
_BAR: Final = 170
WORDS: Final = {
    "requested": "Devices asked for, times the time for which jobs waited for them or held them",
    "waited": "The part of it for which jobs waited",
    "held": "From grant to release: the sum of the four that follow",
    "used": "In iterations, or waiting for a turn on a shared device",
    "idle": "Held by jobs that iterate, and not in iterations",
    "unmeasured": "Held by commands that tell of no iterations",
    "lost": "Thrown away or done again: behind the last checkpoint of runs that were stopped, failed or were lost",
}
"""Column → what it means."""


async def usage_of(visit: PageRequest) -> UsageView:
    """Return the device time that an address asks for: of the last week, unless it says otherwise."""
    since = visit.query.get("since", "").strip() or _SINCE
    own: dict[str, Any] = {"at": visit.moment, "since": None if since == "all" else _bound(since)}
    if until := visit.query.get("until", "").strip():
        own["until"] = _bound(until)
    asked = visit.asked(request_bodies.UsageRequest, **own)
    return await visit.gateway.query(visit.visitor, "usage", asked, UsageView)


def _bound(text: str) -> float | str:
    """Return a bound of a window: seconds since the epoch as a number, all else as it was typed."""
    return float(text) if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text) else text


async def usage_file(visit: PageRequest) -> tuple[str, str]:
    """Return the name and the text of a CSV file with what the page shows."""
    view = await usage_of(visit)
    return f"usage-by-{view.by}.csv", usage_csv(view)


async def users_page(visit: PageRequest) -> PageContent:
    """Show device time by group, and who has how much of which pool now."""
    view = await usage_of(visit)
    order = visit.query.get("order", "held")
    most = max((_width(row) for row in view.rows), default=0.0)
    rows = [
        (_key(number, row), {"row": row, "by": view.by, "cells": _cells(row), "bar": _bar(row, most), "at": visit.at})
        for number, row in enumerate(view.rows)
    ]
    total = {"row": view.total, "by": view.by, "cells": _cells(view.total), "bar": None, "at": visit.at}
    none = {
        "none": TEMPLATES.render("pieces/no_rows.html", key="none", columns=13, text="Nobody asked for a device then.")
    }
    return PageContent(
        title="Users and teams",
        template="users.html",
        regions={
            "rows": pieces("pieces/usage_row.html", rows) or none,
            "total": pieces("pieces/usage_row.html", [("total", total)]),
            "pools": await _pools(visit),
        },
        values={
            "view": view,
            "by": view.by,
            "bys": [(by, by) for by in BY],
            "since": visit.query.get("since", "") or _SINCE,
            "spans": SPANS,
            "until": visit.query.get("until", ""),
            "order": order,
            "columns": [{"name": name, "says": WORDS[name], "address": visit.address(order=name)} for name in COLUMNS],
            "by_name": visit.address(order="name"),
            "csv": msgspec.structs.replace(visit, path="/users.csv").address(),
            "parts": _OF_HELD,
        },
        live=False,  # a sum over all runs each second would cost more than it tells
    )


def _key(number: int, row: UsageRowView) -> str:
    return f"{number} {row.name}"


def _cells(row: UsageRowView) -> list[tuple[str, str, str]]:
    """Return for each column its name, its hours, and what is to be said below them."""
    preempted = hours(gpu_h(row.usage, "lost_to_preemption"))
    below = {"lost": f"{preempted} preempted"} if preempted != "0" else {}
    return [(column, hours(gpu_h(row.usage, column)), below.get(column, "")) for column in COLUMNS]


def hours(value: float) -> str:
    """
    Return GPU-hours for people: three figures, or all before the point.

    Examples
    --------
    >>> hours(0.0), hours(0.01234), hours(12.345), hours(12345.6)
    ('0', '0.0123', '12.3', '12,346')
    """
    return f"{value:,.0f}" if value >= 100 or not value else f"{value:.3g}"


def _width(row: UsageRowView) -> float:
    return max(row.usage.held_gpu_s, row.usage.waited_gpu_s)


def _bar(row: UsageRowView, most: float) -> dict[str, Any]:
    """Return the parts of held time from the left, and the waited time below, in pixels."""
    scale = _BAR / most if most else 0.0
    parts, x = [], 0.0
    for name in _OF_HELD:
        width = getattr(row.usage, f"{name}_gpu_s") * scale
        if width > 0:
            parts.append((name, x, width))
        x += width
    words = ", ".join(f"{hours(gpu_h(row.usage, name))} {name}" for name in (*_OF_HELD, "waited"))
    return {"parts": parts, "waited": row.usage.waited_gpu_s * scale, "words": words, "width": _BAR}


async def _pools(visit: PageRequest) -> dict[str, str]:
    """Return for each pool what its teams and users hold now, beside quotas and even shares."""
    at = request_bodies.AllRequest(at=visit.moment)
    policies = await visit.gateway.query(visit.visitor, "policies", at, PoliciesView)
    devices = await visit.gateway.query(visit.visitor, "devices", at, DevicesView)
    found = []
    for policy in policies.pools:
        asked = request_bodies.QueueRequest(pool=policy.pool, limit=1, at=visit.moment)
        queue = await visit.gateway.query(visit.visitor, "queue", asked, QueueView)
        values = {"pool": policy.pool, "alpha": policy.alpha, **_shares(policy.pool, policy.quotas, devices, queue)}
        found.append((policy.pool, values))
    return pieces("pieces/pool_shares.html", found)


def _shares(pool: str, quotas: dict[str, int], devices: DevicesView, queue: QueueView) -> dict[str, Any]:
    jobs = {job.id: job for job in devices.jobs}
    by_user: dict[str, float] = defaultdict(float)
    by_team: dict[str, float] = defaultdict(float)
    total = 0
    for job, part in _held(pool, devices, jobs):
        by_user[job.user] += part
        by_team[job.team] += part
    for node in devices.nodes:
        if node.pool == pool and node.state in {"up", "draining"}:
            total += len(node.devices)
    users = {*by_user, *queue.by_user}
    return {
        "total": total,
        "even": total / len(users) if users else 0.0,
        "users": [_share(name, by_user, queue.by_user) for name in sorted(users)],
        "teams": [
            {**_share(name, by_team, queue.by_team), "quota": quotas.get(name, 0) if quotas else None}
            for name in sorted({*by_team, *queue.by_team, *quotas})
        ],
        "has_quotas": bool(quotas),
    }


def _held(pool: str, devices: DevicesView, jobs: dict[str, HolderView]) -> Iterator[tuple[HolderView, float]]:
    """Yield each holder of a device in a pool, with its part of the device."""
    for node in devices.nodes:
        if node.pool == pool:
            for device in node.devices:
                for job_id in device.job_ids:
                    yield jobs[job_id], 1.0 / len(device.job_ids)


def _share(name: str, held: Mapping[str, float], waiting: Mapping[str, int]) -> dict[str, Any]:
    return {"name": name, "held": held.get(name, 0.0), "waiting": waiting.get(name, 0)}
