"""
How long services take to start on an old log, and how much memory they hold: from nothing, from snapshots, archived.

``python tests/bench/bench_age.py --facts 1000000``. The log is generated: jobs of six facts each (submitted, ranked,
placed, started, ended, announced), of many users and workloads, spread over a number of days, of which some are open at
the end. Each service is a process of its own that folds the log as it does in a cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from penstock_autoscaler.machine import decider as autoscaler
from penstock_bus import Append
from penstock_bus.access import ADMIN
from penstock_bus.follower import FoldFollower
from penstock_bus.logins import Login
from penstock_bus.nats import NatsBus, connect
from penstock_bus.server import Server, ServerSettings
from penstock_bus.shell import Shell
from penstock_executor.machine import decider as executor
from penstock_gateway.archiver import Archiver
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.machine import decider as gateway
from penstock_log import (
    AnyEvent,
    Commit,
    Device,
    JobFinished,
    JobRank,
    JobSpec,
    JobsRanked,
    JobSubmitted,
    NodeJoined,
    Placement,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
    subject_of,
)
from penstock_matcher.machine import decider as matcher
from penstock_profiler.machine import decider as profiler
from penstock_ranker.machine import decider as ranker
from penstock_testing import eventually
from penstock_tuner.machine import decider as tuner

PER_JOB = 6
NODES, DEVICES = 64, 8
WINDOW = 20_000
SERVICES = ("gateway", "profiler", "ranker", "autoscaler", "matcher", "tuner", "executor")


def decider(service: str) -> Any:
    """Return a service's decider."""
    if service == "gateway":
        return gateway(GatewaySettings())
    if service == "executor":
        return executor()
    return {"profiler": profiler, "ranker": ranker, "autoscaler": autoscaler, "matcher": matcher, "tuner": tuner}[
        service
    ]()


def facts(jobs: int, days: float, begin_s: float) -> Iterator[AnyEvent]:
    """Yield a log: nodes, and jobs one after the other, the last hundredth of which never end."""
    step_s = days * 86_400.0 / jobs
    devices = tuple(Device(index=i, kind="fast", memory_bytes=16 << 30, backend="emulated") for i in range(DEVICES))
    for number in range(NODES):
        yield NodeJoined(at_s=begin_s, node_id=f"n{number}", devices=devices)
    places = NODES * DEVICES
    for number in range(jobs):
        at_s, job_id = begin_s + number * step_s, f"job{number:08}"
        node_id, device = f"n{number % NODES}", number // NODES % DEVICES
        spec = JobSpec(
            id=job_id,
            name=f"train-{number % 100}",
            user=f"user{number % 50}",
            command=("python", "train.py", "--lr", "0.1"),
            cwd="/home/user",
            model=f"model{number % 500}",
        )
        slots = (Slot(node_id=node_id, devices=(device,)),)
        yield JobSubmitted(at_s=at_s, job_id=job_id, spec=spec)
        yield JobsRanked(at_s=at_s, pool="default", ranks=(JobRank(job_id=job_id, queue=0, position=at_s),))
        if number >= jobs - min(jobs // 100, places):
            continue
        placement = Placement(job_id=job_id, epoch=1, kind="fast", slots=slots)
        yield RoundDecided(at_s=at_s, pool="default", placements=(placement,))
        yield RunStarted(at_s=at_s, job_id=job_id, epoch=1, node_id=node_id, devices=(device,))
        end: dict[str, Any] = {"job_id": job_id, "at_s": at_s + step_s / 2}
        yield RunEnded(epoch=1, node_id=node_id, outcome="completed", steps=100, loop_steps=100, loop_s=1.0, **end)
        yield JobFinished(
            name=spec.name, state="completed", submitted_s=at_s, run_s=step_s / 2, gpu_s=step_s / 2, **end
        )


async def fill(bus: NatsBus, jobs: int, days: float, begin_s: float) -> int:
    """Store the log; return how many facts it has."""
    window: list[Append] = []
    count = 0
    for fact in facts(jobs, days, begin_s):
        count += 1
        commit = Commit(id=f"b{count}", actor="bench", facts=(fact,))
        window.append(Append(subject=subject_of(fact), commit=commit, expected=None))
        if len(window) == WINDOW:
            await bus.append_many(window)
            window = []
    await bus.append_many(window)
    return count


async def start(url: str, login: Login, service: str, *, save: bool) -> dict[str, float]:
    """Fold the log as the service does when it starts; return what that took."""
    began = time.perf_counter()
    async with connect(url, login=login, as_client=False) as bus:
        follower = FoldFollower(bus, decider(service), name=service if service != "executor" else "executor.n0")
        async with follower:
            await follower.caught_up()
            took_s = time.perf_counter() - began
            size = len(follower.fold.snapshot().state)
            if save:
                await follower.save_snapshot()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"start_s": round(took_s, 2), "peak_mib": round(peak_mib), "snapshot_mib": round(size / 2**20, 2)}


def measure(server: Server, title: str, *, save: bool) -> None:
    """Start each service in a process of its own, and print what it took."""
    login = server.logins[ADMIN]
    print(f"{title}\n{'service':<12}{'start s':>9}{'peak MiB':>10}{'snapshot MiB':>14}", flush=True)
    for service in SERVICES:
        words = [sys.executable, __file__, "--start", service, "--url", server.url, *(["--save"] if save else [])]
        done = subprocess.run(words, check=False, input=encoded(login), capture_output=True, text=True)
        if done.returncode:
            print(f"{service:<12} {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{service:<12}{found['start_s']:>9}{found['peak_mib']:>10}{found['snapshot_mib']:>14}", flush=True)


def encoded(login: Login) -> str:
    """Return a login as JSON, for another process."""
    return msgspec.json.encode(login).decode()


async def archive(server: Server, folder: Path) -> None:
    """Archive all that ended by now, as a gateway does, and say how long that took."""
    settings = GatewaySettings(archive_dir=str(folder), keep_days=1e-9, archive_every_s=1.0)
    login = server.logins[ADMIN]
    async with (
        connect(server.url, login=login) as bus,
        FoldFollower(bus, gateway(settings), name="gateway") as live,
    ):
        await live.caught_up()
        archiver = Archiver(Shell(bus, "gateway", replica_id="bench"), bus, live, settings)
        keeping = asyncio.ensure_future(archiver.election.keep())
        await eventually(lambda: archiver.election.held)
        began = time.perf_counter()
        await archiver.archive(time.time() + 2.0)  # noqa: TID251 - of what was stored just now
        record = live.state.archive
        keeping.cancel()
        files = list(folder.glob("*.gz"))
        mib = sum(path.stat().st_size for path in files) / 2**20
        left = (await bus.link.api("STREAM.INFO.EVT"))["state"]
        print(
            f"archived {record.jobs} jobs in {time.perf_counter() - began:.1f} s: {len(files)} files of {mib:.1f} MiB; "
            f"{left['messages']} commits of {left['bytes'] / 2**20:.1f} MiB are left",
            flush=True,
        )
        await live.save_snapshot()


async def main(count: int, days: float, keep_days: float, folder: Path) -> None:
    """Fill a store, and measure."""
    server = Server(ServerSettings(data_dir=folder, sync_interval="2m"))
    await server.start()
    try:
        async with connect(server.url, login=server.logins[ADMIN]) as bus:
            began = time.perf_counter()
            begin_s = time.time() - (days - keep_days) * 86_400.0  # noqa: TID251 - the last days are yet to come
            stored = await fill(bus, count // PER_JOB, days, begin_s)
            size = (await bus.link.api("STREAM.INFO.EVT"))["state"]["bytes"] / 2**20
            took_s = time.perf_counter() - began
            print(f"{stored} facts stored in {took_s:.0f} s, {stored / took_s:.0f}/s, {size:.0f} MiB", flush=True)
        measure(server, "from nothing", save=True)
        measure(server, "from snapshots", save=False)
        await archive(server, folder / "archive")
        async with connect(server.url, login=server.logins[ADMIN]) as bus:
            await bus.delete_snapshots()
        measure(server, f"archived but for {keep_days:g} of {days:g} days, from nothing", save=True)
        measure(server, "archived, from snapshots", save=False)
    finally:
        await server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--facts", type=int, default=1_000_000)
    parser.add_argument("--days", type=float, default=100.0, help="over which the jobs are spread")
    parser.add_argument("--keep-days", type=float, default=10.0)
    parser.add_argument("--start", default="", help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.start:
        given = msgspec.json.decode(sys.stdin.read(), type=Login)
        print(json.dumps(asyncio.run(start(asked.url, given, asked.start, save=asked.save))))
    else:
        with tempfile.TemporaryDirectory() as made:
            asyncio.run(main(asked.facts, asked.days, asked.keep_days, Path(made)))
