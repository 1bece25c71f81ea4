"""
How long services take to start on an old log, and how much memory they hold: from nothing, and from snapshots.

``python tests/bench/bench_age.py --facts 10000000`` grows a log of so many facts over ``--days`` (see ``aged_log.py``),
while a gateway follows it and archives what is older than ``--keep-days``, as one does that has run for years; then it
starts each service in a process of its own. ``--keep-all`` archives nothing. The machine decides how long that takes:
50 to 100 µs of processor time a fact; ``--most-s`` stops after a while with as many as there are then.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import aged_log
import msgspec

from penstock_autoscaler.machine import decider as autoscaler
from penstock_bus.follower import FoldFollower, background
from penstock_bus.identity.access import ADMIN
from penstock_bus.identity.logins import Login
from penstock_bus.nats import NatsBus, connect
from penstock_bus.servers.server import Server, ServerSettings
from penstock_bus.shell import Shell
from penstock_executor.machine import decider as executor
from penstock_gateway.archiver import Archiver
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.machine import decider as gateway
from penstock_matcher.machine import decider as matcher
from penstock_profiler.machine import decider as profiler
from penstock_ranker.machine import decider as ranker
from penstock_testing import eventually
from penstock_tuner.machine import decider as tuner

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


async def start(url: str, login: Login, service: str, *, save: bool) -> dict[str, float]:
    """Fold the log as the service does when it starts; return what that took."""
    began, cpu_began_s = time.perf_counter(), time.process_time()
    async with connect(url, login=login, as_client=False) as bus:
        follower = FoldFollower(bus, decider(service), name=service if service != "executor" else "executor.n0")
        async with follower:
            await follower.caught_up()
            took_s, used_s = time.perf_counter() - began, time.process_time() - cpu_began_s
            size = len(follower.fold.snapshot().state)
            if save:
                await follower.save_snapshot()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "start_s": round(took_s, 2),
        "cpu_s": round(used_s, 2),
        "peak_mib": round(peak_mib),
        "snapshot_mib": round(size / 2**20, 2),
    }


def measure(server: Server, services: Sequence[str], title: str, *, save: bool) -> None:
    """Start each service in a process of its own, and print what it took."""
    login = server.logins[ADMIN]
    print(f"{title}\n{'service':<12}{'start s':>9}{'CPU s':>8}{'peak MiB':>10}{'snapshot MiB':>14}", flush=True)
    for service in services:
        words = [sys.executable, __file__, "--start", service, "--url", server.url, *(["--save"] if save else [])]
        done = subprocess.run(words, check=False, input=encoded(login), capture_output=True, text=True)
        if done.returncode:
            print(f"{service:<12} {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{service:<12}{found['start_s']:>9}{found['cpu_s']:>8}{found['peak_mib']:>10}{found['snapshot_mib']:>14}",
            flush=True,
        )


def encoded(login: Login) -> str:
    """Return a login as JSON, for another process."""
    return msgspec.json.encode(login).decode()


class Aging:
    """A gateway's archiver over a log that grows by stretches of time: each is stored, then what is old is archived."""

    def __init__(self, server: Server, bus: NatsBus, folder: Path, keep_days: float, most_s: float) -> None:
        self.most_s = most_s
        self.settings = GatewaySettings(archive_dir=str(folder / "archive"), keep_days=keep_days)
        self.live = FoldFollower(bus, gateway(self.settings), name="gateway")
        self.archiver = Archiver(Shell(bus, "gateway", replica_id="bench"), bus, self.live, self.settings)
        self._bus = bus
        self.stored = 0
        self.took_s = {"store and fold": 0.0, "archive": 0.0}
        self._server = server
        self.server_s = dict(self.took_s)
        self.archived: dict[str, float] = {}

    async def grow(self, facts: int, days: float, parts: int) -> None:
        """Grow the log; the time of its facts is yet to come, so that all that is stored is old enough to copy."""
        begin_s = time.time() + (self.settings.keep_days + 2) * 86_400.0  # noqa: TID251 - of which day it is
        async with self.live, background(self.archiver.election.keep()):
            await eventually(lambda: self.archiver.election.held)
            end_s = time.perf_counter() + self.most_s
            for number, (until_s, chunks) in enumerate(aged_log.stretches(facts, days, begin_s, parts)):
                if time.perf_counter() > end_s:
                    print(f"stopped after {number} of {parts} parts, for want of time", flush=True)
                    break
                await self._step("store and fold", self._grow(chunks))
                await self._step("archive", self.archiver.archive(until_s))
                if number % max(1, parts // 10) == 0:
                    print(f"  {self.stored:>9} facts stored, {self._told()}", flush=True)
            await self.live.save_snapshot()

    async def _grow(self, chunks: Any) -> None:
        gc.freeze()  # as a gateway does that has started on a long log
        self.stored += await aged_log.store(self._bus, chunks)
        await self.live.caught_up()

    async def _step(self, what: str, step: Awaitable[None]) -> None:
        began, server_began = time.process_time(), cpu_s(self._server)
        await step
        self.took_s[what] += time.process_time() - began
        self.server_s[what] += cpu_s(self._server) - server_began

    def _told(self) -> str:
        record, jobs = self.live.state.archive, len(self.live.state.jobs)
        spent = ", ".join(f"{what} {own_s:.0f} + {self.server_s[what]:.0f}" for what, own_s in self.took_s.items())
        return f"{record.jobs} jobs archived, {jobs} kept, {record.files} files; CPU s, here + server: {spent}"


def cpu_s(server: Server) -> float:
    """Return the processor time that the server has used, in seconds."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def tell_store(bus: NatsBus, folder: Path) -> None:
    """Say how much of the log is left, and how much is in files."""
    state = (await bus.link.api("STREAM.INFO.EVT"))["state"]
    files = list((folder / "archive").glob("*.gz"))
    in_files = sum(path.stat().st_size for path in files) / 2**20
    on_disk = sum(path.stat().st_size for path in (folder / "nats").rglob("*") if path.is_file()) / 2**20
    print(
        f"log: {state['messages']} commits of {state['bytes'] / 2**20:.0f} MiB, on disk {on_disk:.0f} MiB; "
        f"archive: {len(files)} files of {in_files:.0f} MiB",
        flush=True,
    )


async def main(asked: argparse.Namespace, folder: Path) -> None:
    """Fill a store, and measure."""
    server = Server(ServerSettings(data_dir=folder, sync_interval="2m"))
    await server.start()
    try:
        async with connect(server.url, login=server.logins[ADMIN], timeout_s=120.0) as bus:
            if asked.again:
                print(f"the log of {folder}, of {await bus.last_seq()} commits once", flush=True)
            elif asked.keep_all:
                began = time.perf_counter()
                ((_, chunks),) = aged_log.stretches(asked.facts, asked.days, time.time(), 1)  # noqa: TID251 - as above
                stored = await aged_log.store(bus, chunks)
                print(f"{stored} facts stored in {time.perf_counter() - began:.0f} s", flush=True)
            else:
                aging = Aging(server, bus, folder, asked.keep_days, asked.most_s)
                await aging.grow(asked.facts, asked.days, asked.parts)
            await tell_store(bus, folder)
            await bus.delete_snapshots()
        title = "nothing archived" if asked.keep_all else f"{asked.keep_days:g} of {asked.days:g} days kept"
        measure(server, asked.services, f"{title}, from nothing", save=True)
        measure(server, asked.services, f"{title}, from snapshots", save=False)
    finally:
        await server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--facts", type=int, default=300_000)
    parser.add_argument("--days", type=float, default=1_000.0, help="over which the facts are spread")
    parser.add_argument("--keep-days", type=float, default=90.0)
    parser.add_argument("--parts", type=int, default=100, help="how often the archive is brought up to date")
    parser.add_argument("--most-s", type=float, default=math.inf, help="how long the log may take to grow")
    parser.add_argument("--again", action="store_true", help="measure on the log that --folder has already")
    parser.add_argument("--keep-all", action="store_true", help="archive nothing")
    parser.add_argument("--services", nargs="*", default=SERVICES)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the log is made and left; a temporary one else"
    )
    parser.add_argument("--start", default="", help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.start:
        login = msgspec.json.decode(sys.stdin.read(), type=Login)
        print(json.dumps(asyncio.run(start(given.url, login, given.start, save=given.save))))
    elif given.folder is not None:
        asyncio.run(main(given, given.folder))
    else:
        with tempfile.TemporaryDirectory() as made:
            asyncio.run(main(given, Path(made)))
