"""The page of all devices: one cell a device, by pool, rack and node, colored by who has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from penstock_dashboard.page import STATES, TEMPLATES, PageContent, PageRequest, color_of, person_label, size
from penstock_log import request_bodies
from penstock_log.device_samples import DeviceReading
from penstock_log.job_state import JobState
from penstock_log.views import DeviceOccupation, DevicesView, HolderView, NodeDevicesView

Coloring = Callable[[HolderView], str]
_USE: Final = "use"
_STEPS: Final = 10
"""So many shades of utilisation, and steps of its bar: finer ones would change each second."""
_OUT: Final = frozenset({"leaving", "lost", "left", "drained"})
_MOST_LEGEND: Final = 24
_MANY: Final = 256
"""With more devices than this, cells are small and bear no text."""


def _state(job: HolderView) -> str:
    if job.state == JobState.RUNNING and not job.started_s:
        return "starting"
    return STATES.get(JobState(job.state), job.state)


COLORINGS: Final[dict[str, Coloring]] = {
    "user": lambda job: person_label(job.user),
    "team": lambda job: job.team or "no team",
    "state": _state,
    "model": lambda job: job.model or "unknown model",
}


async def device_page(visit: PageRequest) -> PageContent:
    """Show all devices."""
    asked = request_bodies.AllRequest(at=visit.moment)
    view = await visit.gateway.query(visit.visitor, "devices", asked, DevicesView)
    coloring = visit.query.get("color", "user")
    if coloring not in COLORINGS and coloring != _USE:
        coloring = "user"
    pool, node = visit.query.get("pool", ""), visit.query.get("node", "")
    nodes = [
        one for one in view.nodes if pool in ("", one.pool) and one.id.startswith(node) and (node or _is_missed(one))
    ]
    jobs = {job.id: job for job in view.jobs}
    devices = sum(len(one.devices) for one in nodes)
    return PageContent(
        title="Devices",
        template="devices.html",
        regions={
            "counts": _counts(nodes),
            "legend": _legend(nodes, jobs, COLORINGS[coloring]) if coloring != _USE else {},
            "nodes": dict(_nodes(visit, nodes, jobs, coloring)),
        },
        values={"color": coloring, "pool": pool, "node": node, "compact": devices > _MANY},
        now_s=view.now_s,
    )


def _is_missed(node: NodeDevicesView) -> bool:
    """Say whether a node is shown to who names none: not one that left in good order, unless a job is still on it."""
    return node.state != "left" or any(device.job_ids for device in node.devices)


def _counts(nodes: list[NodeDevicesView]) -> dict[str, str]:
    states = Counter(_device_state(node, device) for node in nodes for device in node.devices)
    shown = [("nodes", len(nodes)), ("devices", sum(states.values()))]
    shown += [
        (state, states[state])
        for state in ("busy", "idle", "draining", "drained", "failed", "leaving", "lost", "left")
        if states[state]
    ]
    return {name: TEMPLATES.render("pieces/count.html", key=name, number=number) for name, number in shown}


def _device_state(node: NodeDevicesView, device: DeviceOccupation) -> str:
    if node.state in _OUT:
        return node.state
    if device.state:
        return device.state if device.state == "failed" or not device.job_ids else "draining"
    return "busy" if device.job_ids else "idle" if node.state == "up" else node.state


def _legend(nodes: list[NodeDevicesView], jobs: dict[str, HolderView], coloring: Coloring) -> dict[str, str]:
    shares: Counter[str] = Counter()
    for node in nodes:
        for device in node.devices:
            for job_id in device.job_ids:
                shares[coloring(jobs[job_id])] += 1
    shown = shares.most_common(_MOST_LEGEND)
    items = [(name, number, color_of(name)) for name, number in shown]
    if rest := shares.total() - sum(number for _, number in shown):
        items.append(("others", rest, ""))
    return {
        name: TEMPLATES.render("pieces/legend.html", key=name, name=name, number=number, color=color)
        for name, number, color in items
    }


class _Gauge(NamedTuple):
    """How busy a device is, from 0 to 10, and how much of its memory is used, in words; -1 and empty: not known."""

    use: int = -1
    memory: str = ""


def _gauges(visit: PageRequest) -> dict[str, dict[int, _Gauge]]:
    """Return what nodes tell now of their devices, by node and number; nothing of the past."""
    if visit.at:
        return {}
    return {
        node: {device.index: _gauge(device.reading) for device in told.devices}
        for node, (_, told) in visit.nodes.devices().items()
    }


def _gauge(reading: DeviceReading) -> _Gauge:
    use = -1 if reading.utilisation is None else round(_STEPS * min(1.0, reading.utilisation))
    used, total = reading.memory_used_bytes, reading.memory_total_bytes
    memory = f"{size(used)} of {size(total)}" if used is not None and total else ""
    return _Gauge(use, memory)


def _nodes(
    visit: PageRequest, nodes: list[NodeDevicesView], jobs: dict[str, HolderView], coloring: str
) -> Iterator[tuple[str, str]]:
    if not nodes:
        yield "none", TEMPLATES.render("pieces/no_nodes.html", key="none")
    before, gauges = ("", ""), _gauges(visit)
    for node in sorted(nodes, key=lambda node: (node.pool, node.rack, node.id)):
        if (node.pool, node.rack) != before:
            before = (node.pool, node.rack)
            key = f"rack {node.pool} {node.rack}"
            yield key, TEMPLATES.render("pieces/rack.html", key=key, pool=node.pool, rack=node.rack)
        having = tuple(jobs[job_id] for device in node.devices for job_id in device.job_ids)
        of = gauges.get(node.id, {})
        shown = tuple(of.get(device.index, _Gauge()) for device in node.devices)
        yield f"node {node.pool} {node.id}", _node(_without_heartbeat(node), having, shown, coloring, visit.at)


def _without_heartbeat(node: NodeDevicesView) -> NodeDevicesView:
    return msgspec.structs.replace(node, heard_s=None)


@lru_cache(maxsize=8192)
def _node(
    node: NodeDevicesView, having: tuple[HolderView, ...], gauges: tuple[_Gauge, ...], coloring: str, at: str
) -> str:
    """Return a node's piece; of the thousands on a page, few change at a time."""
    jobs, of = {job.id: job for job in having}, COLORINGS.get(coloring)
    cells = [
        _cell(node, device, [jobs[job_id] for job_id in device.job_ids], of=of, gauge=gauge)
        for device, gauge in zip(node.devices, gauges, strict=True)
    ]
    return TEMPLATES.render("pieces/node.html", key=f"node {node.pool} {node.id}", node=node, cells=cells, at=at)


def _cell(
    node: NodeDevicesView, device: DeviceOccupation, jobs: list[HolderView], *, of: Coloring | None, gauge: _Gauge
) -> dict[str, Any]:
    """Return what a cell shows; colored by use where ``of`` is None."""
    name = f"{device.kind}{device.index}"
    shade = f"u{gauge.use}" if gauge.use >= 0 else "idle"
    lanes = [{"job": job, "color": color_of(of(job)) if of else shade, "short": job.id[:4]} for job in jobs]
    marks = [f"grows to {job.grows_to}" for job in jobs if job.grows_to > job.gpus]
    marks += [f"shrinks to {job.grows_to}" for job in jobs if 0 < job.grows_to < job.gpus]
    marks += [f"is given up for {', '.join(job.gives_to)}" for job in jobs if job.gives_to]
    held = "; ".join(f"{job.id} of {person_label(job.user)}, {_state(job)}" for job in jobs)
    label = f"{node.id}/{name}: {held or _device_state(node, device)}"
    label += f"; {_device_state(node, device)}" if held and device.state else ""
    label += f": {device.reason}" if device.reason else ""
    label += f"; {device.taken}" if device.taken else ""
    label += f"; about {gauge.use / _STEPS:.0%} busy" if gauge.use >= 0 else ""
    label += f"; {gauge.memory} used" if gauge.memory else ""
    label += f"; {'; '.join(marks)}" if marks else ""
    classes = ["off"] if (node.state != "up" or device.state) and not jobs else []
    classes += ["unfit"] if device.state else []
    classes += ["stopping"] if jobs and all(job.state in _STOPPING for job in jobs) else []
    classes += ["starting"] if jobs and not any(job.started_s for job in jobs) else []
    return {
        "name": name,
        "label": label,
        "lanes": lanes,
        "classes": " ".join(classes),
        "mark": "↗" if any(job.grows_to > job.gpus for job in jobs) else "↘" if marks else "",
        "use": gauge.use,
    }


_STOPPING: Final = frozenset({str(JobState.PREEMPTING), str(JobState.COMPLETING)})
