"""
Timelines: who held which device when, and when nodes were down, from the accounts of runs.

What is shorter than a pixel of who asks is merged with its neighbours, so that a day of a busy cluster is a message of
bounded size. Of a job, the last runs are kept one by one (:mod:`penstock_gateway.run_accounts`), and of archived jobs
none: a timeline shows what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from penstock_gateway import answers
from penstock_gateway.answers import ReadModel
from penstock_gateway.authority import SERVICE, Caller
from penstock_gateway.usage_answers import window
from penstock_log import Job, request_bodies
from penstock_log.usage import RunAccount
from penstock_log.views import TimelineDevice, TimelineJobView, TimelineNodeView, TimelineSpan, TimelineView

_SHOWN_S: Final = 6 * 3600.0
Devices = dict[int, list["_Run"]]


class _Run(NamedTuple):
    """One run on one device, within the window."""

    from_s: float
    to_s: float
    job: Job
    state: str


def timeline(model: ReadModel, asked: request_bodies.TimelineRequest, caller: Caller = SERVICE) -> TimelineView:
    """
    Return who held the devices of some nodes within a window.

    Raises
    ------
    RequestRefused
        400 where the window is none.

    Notes
    -----
    O(runs of all jobs), and at most ``2 * pixels`` spans for each device.
    """
    since_s, until_s = window(asked, model.now_s)
    since_s = max(since_s, until_s - _SHOWN_S) if asked.since is None or asked.since == "" else since_s
    runs = _runs(model, asked, since_s, until_s)
    nodes = sorted(_nodes(model, asked, runs), key=lambda node: (node.pool, node.id))
    part = nodes[asked.offset : asked.offset + asked.limit]
    jobs: dict[str, int] = {}
    seen: list[Job] = []

    def number(job: Job) -> int:
        if job.id not in jobs:
            jobs[job.id] = len(seen)
            seen.append(job)
        return jobs[job.id]

    pixel_s = (until_s - since_s) / asked.pixels
    views = []
    for node in part:
        found = runs.get(node.id, {})
        known = {device.index: device.kind for device in node.devices}
        devices = []
        for index in sorted({*known, *found}):
            merged = _merged(sorted(found.get(index, ()), key=lambda run: run.from_s), since_s, pixel_s)
            spans = tuple(_span(run, count, number) for run, count in merged)
            devices.append(TimelineDevice(index, known.get(index, ""), spans))
        past = model.state.node_histories.get(node.id)
        down = tuple(past.down(since_s, until_s)) if past is not None else ()
        views.append(msgspec.structs.replace(node, devices=tuple(devices), down=down))
    return TimelineView(
        since_s=since_s,
        until_s=until_s,
        now_s=model.now_s,
        nodes=tuple(views),
        jobs=tuple(_job(job, caller) for job in seen),
        total=len(nodes),
        seq=model.seq,
    )


def _nodes(
    model: ReadModel, asked: request_bodies.TimelineRequest, runs: dict[str, Devices]
) -> Iterator[TimelineNodeView]:
    """Yield the nodes that match: those that are known, and those that are not any more and held runs."""
    known = model.state.cluster.nodes
    for node in known.values():
        if asked.pool in ("", node.pool) and node.id.startswith(asked.node):
            devices = tuple(TimelineDevice(one.index, one.kind) for one in node.devices)
            yield TimelineNodeView.of(node, state=answers.node_state(model.state, node), devices=devices)
    for node_id, devices_of in runs.items():
        if node_id not in known:
            first = next(iter(devices_of.values()))[0]
            yield TimelineNodeView(id=node_id, pool=first.job.spec.pool, state="left", devices=())


def _runs(
    model: ReadModel, asked: request_bodies.TimelineRequest, since_s: float, until_s: float
) -> dict[str, Devices]:
    """Return the runs within the window by node and device."""
    found: dict[str, Devices] = {}
    for job in model.state.jobs_since(since_s):
        if asked.pool not in ("", job.spec.pool):
            continue
        for run in model.state.histories[job.id].account.runs:
            if not run.is_granted or run.granted_s >= until_s or (end_s := run.end_by(model.now_s)) < since_s:
                continue
            one = _Run(max(run.granted_s, since_s), min(end_s, until_s), job, _state(run))
            for slot in run.slots:
                if slot.node_id.startswith(asked.node):
                    of_node = found.setdefault(slot.node_id, {})
                    for index in slot.devices:
                        of_node.setdefault(index, []).append(one)
    return found


def _state(run: RunAccount) -> str:
    return run.outcome or ("running" if run.started_s else "starting")


def _merged(runs: list[_Run], since_s: float, pixel_s: float) -> Iterator[tuple[_Run, int]]:
    """Yield the runs of a device, each with how many it stands for: short ones are taken together, pixel by pixel."""
    short: list[_Run] = []
    place = -1

    def taken() -> Iterator[tuple[_Run, int]]:
        if short:
            yield short[0]._replace(to_s=max(one.to_s for one in short)), len(short)
            short.clear()

    for run in runs:
        here = int((run.from_s - since_s) / pixel_s) if pixel_s > 0 else 0
        if run.to_s - run.from_s >= pixel_s:
            yield from taken()
            yield run, 1
            continue
        if here != place:
            yield from taken()
            place = here
        short.append(run)
    yield from taken()


def _span(run: _Run, count: int, number: Callable[[Job], int]) -> TimelineSpan:
    return TimelineSpan(round(run.from_s, 3), round(run.to_s, 3), number(run.job), run.state, count)


def _job(job: Job, caller: Caller) -> TimelineJobView:
    seen = caller.sees(job.spec)
    return TimelineJobView.of(job, job.spec, name=job.spec.name if seen else "", model=job.spec.model if seen else "")
