"""
Draw the pictures of `penstock top` in docs/: ``python tools/top_pictures.py [FOLDER]``.

A real gateway on a bus in memory knows a cluster of 26 devices, on which four people have jobs; the pictures are what
the terminal shows of it.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec
from textual.pilot import Pilot

from penstock.client import Client
from penstock_bus.memory import MemoryBus
from penstock_bus.port import Append, Bus, NoResponders
from penstock_bus.shell import Shell
from penstock_cli.top.screen_app import TopApp, TopOptions
from penstock_cli.top.terminal_style import UNICODE
from penstock_cli.value_formats import now_s
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.runner import run
from penstock_log import (
    AnyEvent,
    Commit,
    Device,
    JobSpec,
    JobSubmitted,
    NodeDrained,
    NodeJoined,
    Placement,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
    Wait,
    subject_of,
    subjects,
)
from penstock_log.request_bodies import RunProgress

DOCS = Path(__file__).parent.parent / "docs"
SIZE = (100, 28)
PEOPLE = ("ann", "bob", "carla", "deniz")
NODES = {"a1": ("h100", 8), "a2": ("h100", 8), "b1": ("a100", 4), "b2": ("a100", 4), "c1": ("t4", 2)}
SEEN_STEPS = 90
_FETCHED_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def facts(begin_s: float) -> Iterator[AnyEvent]:
    """Yield the past of the cluster, which began so many seconds after the epoch."""
    for node_id, (kind, count_) in NODES.items():
        own = tuple(Device(index=i, kind=kind, memory_bytes=80 << 30, backend="cuda") for i in range(count_))
        yield NodeJoined(at_s=begin_s, node_id=node_id, devices=own, pool="default")
    free = {node_id: list(range(number)) for node_id, (_, number) in NODES.items() if node_id != "b2"}
    gpus = (4, 2, 2, 4, 1, 1, 2, 2, 1)
    for number, wanted in enumerate(gpus):
        at_s = begin_s + 400 * number
        job_id = f"r{number}train"
        node_id = next(name for name, left in free.items() if len(left) >= wanted)
        devices, free[node_id] = free[node_id][:wanted], free[node_id][wanted:]
        yield from _started(job_id, PEOPLE[number % 4], node_id, tuple(devices), at_s)
    for number in range(6):
        at_s = begin_s + 3_000 + 100 * number
        yield _submitted(f"w{number}large", PEOPLE[number % 3], at_s, gpus=8, name=f"pretrain-{number}")
    for number in range(9):
        job_id, at_s = f"e{number}done", begin_s + 500 + 60 * number
        yield from _started(job_id, PEOPLE[number % 4], "c1", (1,), at_s)
        code = int(number == 7)
        outcome: Literal["failed", "completed"] = "failed" if code else "completed"
        yield RunEnded(at_s=at_s + 50, job_id=job_id, epoch=1, node_id="c1", outcome=outcome, exit_code=code)
    waiting = tuple(
        Wait(
            job_id=f"w{number}large",
            cause="capacity",
            evidence="8 h100 of one node are asked for; 12 of 16 run jobs that rank higher",
            remedy="ask for --gpus 4: it would start at once",
        )
        for number in range(6)
    )
    yield RoundDecided(at_s=begin_s + 3_601, pool="default", waits=waiting, lost_nodes=("b2",))
    yield NodeDrained(at_s=begin_s + 3_500, node_id="c1", by="ann", reason="new driver")


def _submitted(job_id: str, user: str, at_s: float, *, gpus: int, name: str) -> JobSubmitted:
    command = ("python", "train.py", "--model", name)
    spec = JobSpec(id=job_id, name=name, command=command, user=user, gpus=gpus, profile="off")
    return JobSubmitted(at_s=at_s, job_id=job_id, spec=spec)


def _started(job_id: str, user: str, node_id: str, devices: tuple[int, ...], at_s: float) -> Iterator[AnyEvent]:
    yield _submitted(job_id, user, at_s, gpus=len(devices), name=f"resnet-{job_id[1]}")
    slots = (Slot(node_id=node_id, devices=devices),)
    placement = Placement(job_id=job_id, epoch=1, kind=NODES[node_id][0], slots=slots)
    yield RoundDecided(at_s=at_s + 2, pool="default", placements=(placement,))
    yield RunStarted(at_s=at_s + 5, job_id=job_id, epoch=1, node_id=node_id, devices=devices)


@asynccontextmanager
async def gateway(bus: Bus) -> AsyncIterator[None]:
    """Run a gateway on a log that holds the past of the cluster."""
    begin_s, number = now_s() - 3_700, count()
    for fact in sorted(facts(begin_s), key=lambda fact: fact.at_s):
        commit = Commit(id=f"c{next(number)}", actor="picture", facts=(fact,))
        await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))
    shell = Shell(bus, "gateway", replica_id="a")
    serving = asyncio.create_task(run(shell, GatewaySettings(owner="ann")))
    try:
        yield
    finally:
        shell.stopping.set()
        await serving


async def _answers(client: Client) -> None:
    """Wait until the gateway answers."""
    while True:
        try:
            await client.status()
        except NoResponders:
            continue
        return


async def draw(folder: Path) -> None:
    """Write the pictures into a folder."""
    async with MemoryBus() as bus, gateway(bus), Client(bus=MemoryBus(bus.server, user="ann")) as client:
        await _answers(client)
        app = TopApp(client, TopOptions(glyphs=UNICODE, refresh_s=0.02))
        async with app.run_test(size=SIZE) as pilot:
            await _refreshed(pilot, app)
            _write(app, folder / "top-queue.svg")
            await pilot.press("1")
            await _refreshed(pilot, app)
            _write(app, folder / "top-devices.svg")
            await pilot.press("enter")
            for step in range(SEEN_STEPS):
                await _report(bus, "r0train", step)
                await _refreshed(pilot, app, times=1)
            _write(app, folder / "top-job.svg")


async def _report(bus: Bus, job_id: str, step: int) -> None:
    loss = 2.3 * math.exp(-step / 30) + 0.05 * math.sin(step)
    report = RunProgress(epoch=1, step=1_000 + step, metrics={"loss": loss, "accuracy": 1 - 0.9 * math.exp(-step / 40)})
    await bus.publish(subjects.progress(job_id), msgspec.json.encode(report))


async def _refreshed(pilot: Pilot[None], app: TopApp, times: int = 3) -> None:
    wanted = app.refreshes + times
    while app.refreshes < wanted:
        await pilot.pause(0.01)


def _write(app: TopApp, path: Path) -> None:
    """Write the screen; the picture names fonts and fetches none."""
    path.write_text(_FETCHED_FONTS.sub("", app.export_screenshot(title="penstock top")) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    asyncio.run(draw(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS))
