"""
The cluster of one schedule: a server, services and executors as ``penstock up`` runs them, and how each of them is hit.

The processes are forked from a template and kept running by the supervisor's own ``Child``; between each of them and
the server is a proxy, and their data are on a disk of their own. Jobs are found by what they note and by the folder
that stands in their environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Final

from chaos.disk import Disk
from chaos.proxy import RouteProxies, TcpProxy
from chaos.schedule import Schedule
from chaos.server_clock import ProcessClock
from chaos.server_clock import problem as problem_with_server_clocks
from penstock_bus import Bus, BusError
from penstock_bus.identity.access import ADMIN, CLIENT
from penstock_bus.nats import NatsBus, connect
from penstock_bus.servers.server import Process, Server, ServerError, ServerSettings, wait_for_disk_space
from penstock_bus.servers.server_group import ServerGroup
from penstock_cli.local.child_process import Child, Readiness, keep_running
from penstock_cli.local.data_folder import UpOptions, environment
from penstock_cli.local.service_template import ServiceProcess, ServiceTemplate
from penstock_log import subjects

DEVICES: Final = "fast:2@1.0:1GiB"
READY_S: Final = 120.0
STOP_S: Final = 60.0
_LOOK_S: Final = 0.02
_GONE_LOOKS: Final = 500


class Cluster:
    """
    One cluster, from :meth:`start` to :meth:`stop`.

    Parameters
    ----------
    home : Path
        Of everything that this schedule leaves: logs, the jobs' notes, clocks, and the disk.
    template : ServiceTemplate
        What services are forked from; it may serve several clusters.
    """

    def __init__(self, schedule: Schedule, home: Path, disk: Disk, template: ServiceTemplate) -> None:
        self.schedule, self.home, self.disk = schedule, home, disk
        self.notes = home / "notes"
        self.ended: list[tuple[str, int]] = []
        """Each process that has ended by itself or by a fault, and its status."""
        self.children: dict[str, Child] = {}
        self.proxies: dict[str, list[TcpProxy]] = {}
        """Process → its network, one proxy before each server."""
        self.routes = RouteProxies(schedule.servers)
        """The network between the servers."""
        self._template = template
        settings = ServerSettings(data_dir=disk.folder)
        self._servers = ServerGroup(settings, schedule.servers, members=self.routes.members)
        self.server_clock_problem = problem_with_server_clocks() if schedule.server_clocks else ""
        """Why no server's clock can be set, where one should be."""
        self._server_clocks: dict[int, ProcessClock] = {}
        self._ahead_s: dict[int, float] = {}
        self._running: dict[str, ServiceProcess] = {}
        self._forking = 0
        self._power, self._over = asyncio.Event(), asyncio.Event()
        self._power.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._issuing = asyncio.ensure_future(asyncio.sleep(0))
        replicas = {**schedule.replicas, "executor": schedule.executors}
        self._options = UpOptions(data_dir=str(disk.folder), devices=DEVICES, replicas=replicas)

    # --- its life
    async def start(self) -> None:
        """Start everything, and wait until each process has said that it is ready."""
        for folder in (self.notes, self.home / "logs", self.home / "clocks"):
            folder.mkdir()
        await self.routes.start()
        await self._servers.start()
        for server in self._servers.servers:
            self._make_clock(server)
        processes = self._options.processes()
        for name in ("client", *(f"{service}-{number}" for service, number in processes)):
            self.proxies[name] = [await self._proxy(server) for server in self._servers.servers]
        async with self.admin() as bus:  # which makes the streams, within the limits of their store
            self._issuing = asyncio.ensure_future(self._issue())
            for service, number in processes:
                self._add(service, number)
            for server in self._servers.servers:
                kept = keep_running(server.name, partial(self._serve, server), self._over.is_set)
                self._tasks.append(asyncio.ensure_future(kept))
            self._tasks.append(asyncio.ensure_future(self._renew_after_full_disk()))
            self._tasks += [asyncio.ensure_future(child.keep()) for child in self.children.values()]
            await self.ready(bus, READY_S)

    async def ready(self, bus: NatsBus, most_s: float) -> None:
        """
        Wait until each process says that it is ready.

        Raises
        ------
        UpError
            If one has not after ``most_s`` seconds.
        """
        services = [service for service, _ in self._options.processes()]
        await Readiness().all_of(bus, services, self._missing, most_s)

    async def stop(self) -> dict[str, int]:
        """Stop services and executors in good order, the server last; return the exit statuses."""
        executors = [name for name in self.children if name.startswith("executor-")]
        statuses: dict[str, int] = {}
        for group in ([name for name in self.children if name not in executors], executors):
            await asyncio.gather(*(self.children[name].end(STOP_S) for name in group))
            statuses |= {name: self._running[name].returncode or 0 for name in group if name in self._running}
        return statuses

    async def stop_server(self) -> None:
        """Stop the server, after what had to be read from it."""
        self._over.set()
        await _cancelled(self._issuing)
        await self._servers.stop()

    async def abandon(self) -> None:
        """Kill whatever is left, whatever state it is in."""
        self._over.set()
        await _cancelled(*self._tasks, self._issuing)
        for proxy in chain.from_iterable(self.proxies.values()):
            await proxy.stop()
        await self.routes.stop()
        await self._kill_all()
        for clock in self._server_clocks.values():
            clock.close()

    @property
    def gave_up(self) -> list[str]:
        """Return what those said that are not started any more."""
        done = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [str(error) for task in done if (error := task.exception()) is not None]

    # --- who talks to it
    def admin(self) -> AbstractAsyncContextManager[NatsBus]:
        """Connect past all proxies, as who may do everything."""
        servers = self._servers
        return connect(
            servers.url, login=servers.logins[ADMIN], name="chaos", limits=servers.limits, connect_timeout_s=10.0
        )

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Bus]:
        """Connect through the client's proxy, as people do."""
        login, url = self._servers.logins[CLIENT], self._url("client")
        async with connect(url, login=login, as_client=True, connect_timeout_s=10.0) as bus:
            yield bus

    async def leader(self) -> int:
        """Return the number of the server that leads the log; 0 where none does, or one is alone."""
        async with self.admin() as bus:
            names = [one.leader for one in await bus.replication() if one.name == subjects.EVT]
        members = {server.name: number for number, server in enumerate(self._servers.servers, 1)}
        return members.get(names[0], 0) if self._servers.replicas > 1 else 0

    # --- its processes
    def pids(self, target: str, amount: float) -> list[int]:
        """Return the processes that a fault befalls; none where nobody of that kind runs now."""
        if target == "server":
            return _running([self._servers.servers[self.server_at(amount) - 1].process])
        if target == "penstock":
            servers = [server.process for server in self._servers.servers]
            return _running([*servers, *self._running.values()])
        if target in {"job", "shim"}:
            jobs = sorted(self.jobs().items())
            if not jobs:
                return []
            pid, shim = jobs[int(amount * len(jobs))]
            return [pid] if target == "job" else [shim]
        if target.startswith("node-"):
            number = int(target.removeprefix("node-"))
            return [*self.pids(f"executor-{number}", amount), *self.processes_of_node(number)]
        return _running([self._running.get(target)])

    def server_at(self, amount: float) -> int:
        """Return the number of the server at a fraction of them all."""
        return int(amount * self._servers.replicas) + 1

    def job_of(self, pid: int) -> str:
        """Return the job that a process, or a shim, belongs to; empty where it is none of a job's."""
        return next((line["job"] for line in self._begun() if pid in (line["pid"], line["ppid"])), "")

    def jobs(self) -> dict[int, int]:
        """Return the jobs' processes that run, each with its shim."""
        return {line["pid"]: line["ppid"] for line in self._begun() if parent(line["pid"]) == line["ppid"]}

    def _begun(self) -> Iterator[dict]:
        for path in self.notes.glob("*.jsonl"):
            for line in path.read_bytes().splitlines():
                if b'"begin"' in line:
                    yield {**json.loads(line), "job": path.stem}

    def processes_of_node(self, number: int) -> list[int]:
        """Return what an executor has started: shims, and what descends from them."""
        name = "executor" if number == 1 else f"executor-{number}"
        mark = os.fsencode(f"{self.disk.folder / name / 'runs'}/")
        return list(marked(mark))

    def leftovers(self) -> list[int]:
        """Return all processes that have this schedule's folder in command line or environment."""
        return list(marked(os.fsencode(f"{self.home}/")))

    def service_of(self, target: str) -> tuple[str, int]:
        """Return service and number of a process's name."""
        service, _, number = target.rpartition("-")
        return service, int(number)

    # --- power
    async def cut_power(self, off_s: float) -> None:
        """Kill everything at once, lose what was not flushed, and start again after a while."""
        self._power.clear()
        await _cancelled(self._issuing)  # it is in this process, which keeps its power
        everybody = self._everybody()
        signal_all(everybody, signal.SIGSTOP)
        signal_all(self._everybody() - everybody, signal.SIGSTOP)
        await asyncio.to_thread(self.disk.cut_power)
        await self._kill_all()
        await asyncio.to_thread(self.disk.restore_power)
        await asyncio.sleep(off_s)
        self._power.set()
        self._issuing = asyncio.ensure_future(self._issue())

    def _everybody(self) -> set[int]:
        return {*_running(self._running.values()), *self.leftovers()}

    async def _kill_all(self) -> None:
        for _ in range(_GONE_LOOKS):
            everybody = self._everybody()
            if not everybody and not self._forking:
                return
            signal_all(everybody, signal.SIGKILL)
            await asyncio.sleep(_LOOK_S)
        raise AssertionError(f"kill -9 does not end {self._everybody()}")

    # --- how its parts are kept running
    def _add(self, service: str, number: int) -> None:
        name = f"{service}-{number}"
        variables = environment(self._options, service, number, url=self._url(name))
        clock = self.home / "clocks" / name
        clock.write_text("+0")
        variables |= {"PENSTOCK_REPLICA_ID": name, "PENSTOCK_LOG_FORMAT": "json", "FAKETIME_TIMESTAMP_FILE": str(clock)}

        if service == "executor":
            variables["PENSTOCK_EXECUTOR_NODE_ID"] = f"node-{number}"

        async def start(log: IO[bytes] | None) -> Process:
            await self._power.wait()
            self._forking += 1
            try:
                process = self._running[name] = await self._template.fork(service, variables, log)
            finally:
                self._forking -= 1
            return Noted(process, lambda status: self.ended.append((name, status)))

        log_file = self.home / "logs" / f"{name}.log"
        self.children[name] = Child(name, start, log_file, lambda _: None)

    async def _serve(self, server: Server) -> int:
        await self._power.wait()
        if server.process is None or server.process.returncode is not None:
            await asyncio.to_thread(self.disk.wait_until_thawed)  # or all of the suite would hang in the start
            try:
                await server.start()
            except ServerError as error:
                with (self.home / "logs" / "server-starts.log").open("a") as log:
                    log.write(f"{server.name}: {error}\n")
                return 1
            self._make_clock(server)
        return await server.wait()

    async def _issue(self) -> None:
        """Tell the servers of people's accounts, as ``penstock up`` does, from when it reaches them on."""
        while True:
            try:
                async with self._servers.issuing():
                    await asyncio.Event().wait()
            except* BusError as errors:
                with (self.home / "logs" / "issuer.log").open("a") as log:
                    log.write(f"{errors.exceptions}\n")
            await asyncio.sleep(_LOOK_S)

    async def _proxy(self, server: Server) -> TcpProxy:
        host, _, port = server.url.removeprefix("nats://").partition(":")
        proxy = TcpProxy(host, int(port))
        await proxy.start()
        return proxy

    def _url(self, name: str) -> str:
        return ",".join(proxy.url for proxy in self.proxies[name])

    async def _renew_after_full_disk(self) -> None:
        while True:
            await wait_for_disk_space(self.disk.folder)
            await self._servers.stop()

    def _missing(self, ready: set[int]) -> list[str]:
        return [name for name, child in self.children.items() if child.pid not in ready]

    def _make_clock(self, server: Server) -> None:
        """Give a server that has just started a clock that can be set, if any needs one, with the time that it had."""
        if not self.schedule.server_clocks or self.server_clock_problem or not self._power.is_set():
            return
        number = self._servers.servers.index(server) + 1
        if (before := self._server_clocks.pop(number, None)) is not None:
            before.close()
        for pid in _running([server.process]):
            with suppress(ProcessLookupError, FileNotFoundError):  # killed meanwhile
                self._server_clocks[number] = ProcessClock(pid)
                self.set_server_clock(number, self._ahead_s.get(number, 0.0))

    def set_server_clock(self, number: int, by_s: float) -> None:
        """Set the clock of a server, also for its next process."""
        self._ahead_s[number] = by_s
        if (clock := self._server_clocks.get(number)) is not None:
            clock.set(by_s)

    def set_clock(self, target: str, by_s: float) -> None:
        """Set the clock of a process that was started with one that can be set."""
        (self.home / "clocks" / target).write_text(f"{by_s:+.0f}")


class Noted:
    """A process whose end is noted."""

    def __init__(self, process: ServiceProcess, note: object) -> None:
        self._process, self._note = process, note
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        status = await self._process.wait()
        self._note(status)  # type: ignore[operator]
        return status

    def send_signal(self, signum: int) -> None:
        self._process.send_signal(signum)


async def _cancelled(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _running(processes: Iterable[Process | None]) -> list[int]:
    return [process.pid for process in processes if process is not None and process.returncode is None]


def settable_clocks(library: str) -> Mapping[str, str]:
    """Return the environment in which each process has a clock of its own; what ticks is left alone."""
    return {"LD_PRELOAD": library, "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def marked(mark: bytes) -> Iterator[int]:
    """Yield processes that have these bytes in their command line or environment, dead ones left out."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in text:
                yield int(entry.name)


def parent(pid: int) -> int:
    """Return the parent of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def signal_all(pids: Iterable[int], signum: signal.Signals) -> None:
    """Signal those that are still there."""
    for pid in filter(None, pids):  # 0 would be ourselves
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
