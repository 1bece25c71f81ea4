"""
The timeline of devices, a Gantt chart: one row for each device, by node, with the runs that held it.

Each node is one piece with its own drawing, so that only nodes change on which something happens. The drawings are
scalable vector graphics with places in percent: they fit any width, and need no script. All runs are in a table, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup, escape

from penstock_dashboard.page import TEMPLATES, PageContent, PageRequest, color_of, person_label, pieces
from penstock_dashboard.time_window import PRESETS, TimeWindow
from penstock_log import request_bodies
from penstock_log.text import duration, escaped
from penstock_log.views import (
    MomentView,
    TimelineDevice,
    TimelineJobView,
    TimelineNodeView,
    TimelineSpan,
    TimelineView,
)

_ROW: Final = 16
"""Height of a device's row, in pixels."""
_BAR: Final = 13
_STRIP: Final = 100
_OPEN_NODES: Final = 8
"""With more nodes than these, each is folded to one strip at first."""
_TABLE_ROWS: Final = 200
_MOST_LEGEND: Final = 24
_ROUNDED_S: Final = 0.01
_THIN: Final = 0.08
"""Least width of a bar, in percent."""
_TICK: Final = '<line class="grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="100%"/>'
_RUN: Final = (
    '<a href="{address}" aria-label="{label}"><rect class="run {kind}" '
    'x="{x:.2f}%" y="{y:.1f}" width="{width:.2f}%" height="{height:.1f}"/></a>'
)
_DOWN: Final = (
    '<rect class="down" x="{x:.2f}%" y="0" width="{width:.2f}%" height="100%" fill="url(#hatch)">'
    "<title>{state}</title></rect>"
)
COLORINGS: Final[dict[str, Callable[[TimelineJobView, str], str]]] = {
    "user": lambda job, _: person_label(job.user),
    "team": lambda job, _: job.team or "no team",
    "state": lambda _, state: state,
}
_STATE_COLORS: Final = {
    "starting": "c4",
    "running": "c2",
    "completed": "c0",
    "preempted": "c1",
    "cancelled": "c8",
    "failed": "c6",
    "timed_out": "c10",
    "lost": "c11",
}
"""Each state has a colour of its own; names of people and teams have those that chance gives them."""


async def timeline_page(visit: PageRequest) -> PageContent:
    """Show who held which device when."""
    at = request_bodies.AllRequest(at=visit.moment)
    moment = await visit.gateway.query(visit.visitor, "moment", at, MomentView)
    since, until = visit.query.get("since", "").strip(), visit.query.get("until", "").strip()
    now_s = moment.at_s if visit.at else moment.now_s
    window = TimeWindow.of(since, until, now_s, moment.first_s)
    coloring = visit.query.get("color", "user")
    if coloring not in COLORINGS:
        coloring = "user"
    fields = visit.asked(request_bodies.TimelineRequest, since=window.from_s, until=window.to_s, at=visit.moment)
    view = await visit.gateway.query(visit.visitor, "timeline", fields, TimelineView)
    chart = _Chart(window, view, coloring, visit.at)
    last = fields.offset + len(view.nodes)
    pager = {
        "from": fields.offset + 1 if view.nodes else 0,
        "to": last,
        "total": view.total,
        "before": visit.address(offset=max(0, fields.offset - fields.limit) or "") if fields.offset else "",
        "after": visit.address(offset=last) if last < view.total else "",
    }
    nodes = [(f"{node.pool} {node.id}", chart.node(node)) for node in view.nodes]
    nothing = {"none": TEMPLATES.render("pieces/no_nodes.html", key="none")}
    text = "No run is in this window."
    no_run = {"none": TEMPLATES.render("pieces/no_rows.html", key="none", columns=7, text=text)}
    return PageContent(
        title="Timeline",
        template="timeline.html",
        regions={
            "legend": chart.legend(),
            "axis": {"axis": TEMPLATES.render("pieces/timeline_axis.html", key="axis", ticks=window.ticks())},
            "nodes": pieces("pieces/timeline_node.html", nodes) or nothing,
            "rows": pieces("pieces/timeline_row.html", chart.rows()) or no_run,
            "pager": {"pager": TEMPLATES.render("pieces/pager.html", key="pager", **pager)} if view.total else {},
        },
        values={
            "window": window,
            "color": coloring,
            "colors": [(name, name) for name in COLORINGS],
            "pool": fields.pool,
            "node": fields.node,
            "since": since,
            "until": until,
            "moves": _moves(visit, window),
            "presets": [(text, visit.address(since=span, until=""), span == since) for span, text in PRESETS],
            "most_rows": _TABLE_ROWS,
        },
        now_s=now_s,
        live=window.follows,
    )


def _moves(visit: PageRequest, window: TimeWindow) -> list[dict[str, str]]:
    """Return the links that move the window, with the key that does the same."""
    found = [
        {"name": "earlier", "sign": "←", "key": "ArrowLeft", "address": visit.address(**window.moved(-0.5))},
        {"name": "zoom in", "sign": "+", "key": "+", "address": visit.address(**window.zoomed(0.5))},
        {"name": "zoom out", "sign": "-", "key": "-", "address": visit.address(**window.zoomed(2.0))},
    ]
    if not window.follows:
        found.append({"name": "later", "sign": "→", "key": "ArrowRight", "address": visit.address(**window.moved(0.5))})
    return found


class _Chart:
    """The drawing of one view."""

    def __init__(self, window: TimeWindow, view: TimelineView, coloring: str, at: str) -> None:
        self._window, self._view, self._of = window, view, COLORINGS[coloring]
        self._color = (lambda name: _STATE_COLORS.get(name, "c3")) if coloring == "state" else color_of
        self._query = f"?at={quote(at)}" if at else ""
        self._ticks = "".join(_TICK.format(x=x) for _, x, _ in window.ticks())
        self._open = view.total <= _OPEN_NODES

    def legend(self) -> dict[str, str]:
        """Return what the colours mean, by device time."""
        held: Counter[str] = Counter()
        for _, _, span, job in self._spans():
            held[self._of(job, span.state)] += max(1, round(span.to_s - span.from_s))
        shown = held.most_common(_MOST_LEGEND)
        items = [(name, duration(seconds), self._color(name)) for name, seconds in shown]
        return {
            name: TEMPLATES.render("pieces/legend.html", key=name, name=name, number=number, color=color)
            for name, number, color in items
        }

    def node(self, node: TimelineNodeView) -> dict[str, Any]:
        """Return the values of a node's piece."""
        return {
            "node": node,
            "open": self._open,
            "labels": [f"{device.kind or 'device'}{device.index}" for device in node.devices],
            "drawing": self._drawing(node),
            "strip": self._strip(node),
            "height": max(1, len(node.devices)) * _ROW,
            "row": _ROW,
        }

    def rows(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the values of the table: each run once, with its devices, the latest first."""
        runs: dict[tuple[int, str, float, float], list[str]] = {}
        for node, device, span, _ in self._spans():
            key = (span.job, span.state, span.from_s, span.to_s)
            runs.setdefault(key, []).append(f"{node.id}/{device.kind}{device.index}")
        newest = sorted(runs.items(), key=lambda item: -item[0][2])[:_TABLE_ROWS]
        found = []
        for (number, state, from_s, to_s), devices in newest:
            job = self._view.jobs[number]
            values = {
                "job": job,
                "state": state,
                "from_s": from_s,
                "to_s": None if self._goes_on(state, to_s) else to_s,
                "devices": devices,
                "query": self._query,
            }
            found.append((f"{job.id} {from_s:.3f} {state}", values))
        return found

    def _spans(self) -> Iterator[tuple[TimelineNodeView, TimelineDevice, TimelineSpan, TimelineJobView]]:
        for node in self._view.nodes:
            for device in node.devices:
                for span in device.spans:
                    yield node, device, span, self._view.jobs[span.job]

    def _goes_on(self, state: str, to_s: float) -> bool:
        return state in {"running", "starting"} and to_s >= self._view.until_s - _ROUNDED_S

    def _drawing(self, node: TimelineNodeView) -> Markup:
        parts = [self._ticks, *self._down(node)]
        for row, device in enumerate(node.devices):
            top = row * _ROW
            lanes = _lanes(device.spans, self._window.width_s * _THIN / 100)
            for span, (lane, of) in zip(device.spans, lanes, strict=True):
                height = max(3.0, _BAR / of)
                parts.append(self._bar(node, device, span, top + 1 + lane * height, height))
        return Markup("".join(parts))  # noqa: S704 - all that comes from outside is escaped where it is put in

    def _bar(self, node: TimelineNodeView, device: TimelineDevice, span: TimelineSpan, y: float, height: float) -> str:
        job = self._view.jobs[span.job]
        goes_on = self._goes_on(span.state, span.to_s)
        x = self._window.x(span.from_s)
        width = max(_THIN, self._window.x(self._window.to_s if goes_on else span.to_s) - x)
        color = self._color(self._of(job, span.state))
        label = self._label(node, device, span, job, goes_on=goes_on)
        return _RUN.format(
            address=f"/jobs/{quote(job.id)}{self._query}",
            label=escape(escaped(label)),
            kind=f"{color} {span.state}" if span.runs == 1 else "several",
            x=x,
            y=y,
            width=width,
            height=height,
        )

    def _label(
        self, node: TimelineNodeView, device: TimelineDevice, span: TimelineSpan, job: TimelineJobView, *, goes_on: bool
    ) -> str:
        where = f"{node.id}/{device.kind}{device.index}"
        begin = datetime.fromtimestamp(span.from_s, UTC).strftime("%m-%d %H:%M:%S")
        if span.runs > 1:
            within = duration(span.to_s - span.from_s)
            return f"{span.runs} runs on {where}, from {begin} UTC within {within}, first {job.id}"
        name = f" {job.name}" if job.name else ""
        team = f" of {job.team}" if job.team else ""
        for_ = "" if goes_on else f" for {duration(span.to_s - span.from_s)}"
        return f"{job.id}{name}, {person_label(job.user)}{team}, {span.state} on {where}, from {begin} UTC{for_}"

    def _down(self, node: TimelineNodeView) -> Iterator[str]:
        for from_s, to_s, state in node.down:
            x = self._window.x(from_s)
            end = self._window.to_s if to_s >= self._view.until_s - _ROUNDED_S else to_s
            yield _DOWN.format(x=x, width=max(_THIN, self._window.x(end) - x), state=escape(state))

    def _strip(self, node: TimelineNodeView) -> dict[str, Any]:
        """Return which share of a node's devices was held, from left to right, as the path of an area 100 wide."""
        width_s = self._window.width_s / _STRIP
        held = [0.0] * _STRIP
        for device in node.devices:
            for at, part in enumerate(_share(device.spans, self._window.from_s, width_s)):
                held[at] += part
        count = max(1, len(node.devices))
        shares = [min(1.0, one / count) for one in held]
        mean = sum(shares) / _STRIP
        steps = "".join(f"V{20 - 20 * share:.0f}H{at + 1}" for at, share in enumerate(shares))
        return {"path": f"M0 20{steps}V20Z", "mean": mean, "down": Markup("".join(self._down(node)))}  # noqa: S704 - escaped


def _lanes(spans: Sequence[TimelineSpan], least_s: float) -> list[tuple[int, int]]:
    """
    Return for each span of a device its lane, and of how many: spans that overlap are below each other.

    Parameters
    ----------
    least_s : float
        Spans that overlap by less are drawn one after the other.
    """
    found: list[tuple[int, int]] = []
    group: list[int] = []
    free_s: list[float] = []

    def close() -> None:
        found.extend((lane, len(free_s)) for lane in group)
        group.clear()
        free_s.clear()

    for span in spans:
        if free_s and max(free_s) <= span.from_s + least_s:
            close()
        lane = next((number for number, until_s in enumerate(free_s) if until_s <= span.from_s), len(free_s))
        if lane == len(free_s):
            free_s.append(0.0)
        free_s[lane] = span.to_s
        group.append(lane)
    close()
    return found


def _share(spans: Sequence[TimelineSpan], from_s: float, width_s: float) -> list[float]:
    """Return which part of each slice of time a device was held."""
    found = [0.0] * _STRIP
    for span in spans:
        begin, end = (span.from_s - from_s) / width_s, (span.to_s - from_s) / width_s
        for at in range(max(0, int(begin)), min(_STRIP, int(end) + 1)):
            found[at] = min(1.0, found[at] + max(0.0, min(end, at + 1) - max(begin, at)))
    return found
