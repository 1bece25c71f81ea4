"""What the services do when the bus is taken from them: no server, a server that hangs, a store without room."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from penstock_bus import Append, Bus, StorageFull
from penstock_bus.health import Vitals
from penstock_bus.identity.access import ADMIN
from penstock_bus.identity.logins import SERVICE_LOGINS
from penstock_bus.nats import connect
from penstock_bus.servers.server import Server, ServerSettings
from penstock_cli.local.service_template import ServiceProcess, ServiceTemplate
from penstock_log import Commit, JobSpec, JobSubmitted, RunStarted, subjects
from penstock_log.services import CORE

pytestmark = pytest.mark.faults

PROMPTLY_S = 30.0
PATIENCE_S = 60.0


@asynccontextmanager
async def services(server: Server, folder: Path, names: Sequence[str]) -> AsyncIterator[dict[str, ServiceProcess]]:
    """Run one process of each service on a server, until the block ends."""
    async with ServiceTemplate(names) as template:
        started = {name: await _start(template, server, folder, name) for name in names}
        try:
            yield started
        finally:
            for process in started.values():
                process.send_signal(signal.SIGKILL)
                await process.wait()


async def _start(template: ServiceTemplate, server: Server, folder: Path, service: str) -> ServiceProcess:
    env = {"PENSTOCK_URL": server.url, "PENSTOCK_LOG_FORMAT": "json"}
    env["PENSTOCK_CREDENTIALS"] = str(server.settings.data_dir / SERVICE_LOGINS / f"{service}.json")
    if service == "executor":
        env |= {"PENSTOCK_EXECUTOR_DATA_DIR": str(folder / "executor"), "PENSTOCK_EXECUTOR_DEVICES": "fast:1@1.0:1GiB"}
        env["PENSTOCK_EXECUTOR_RUN_AS"] = "executor"
    with (folder / f"{service}.log").open("wb") as log:
        return await template.fork(service, env, log)


@asynccontextmanager
async def ready(
    server: Server, folder: Path, names: Sequence[str] = CORE
) -> AsyncIterator[tuple[dict[str, ServiceProcess], Bus]]:
    """Run services, and wait until each has said that it is ready."""
    admin = server.logins[ADMIN]
    async with connect(server.url, login=admin) as bus, services(server, folder, names) as processes:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(_ready(bus, name) for name in names))
        yield processes, bus


async def _ready(bus: Bus, service: str) -> None:
    async for _, body in bus.subscribe(subjects.replicas(service)):
        if msgspec.json.decode(body, type=Vitals).ready:
            return


async def stopped(processes: dict[str, ServiceProcess]) -> dict[str, int]:
    """Send TERM to all, and return their exit codes."""
    for process in processes.values():
        process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PROMPTLY_S):
        return {name: await process.wait() for name, process in processes.items()}


@pytest.mark.parametrize(("signum", "names"), [(signal.SIGKILL, CORE), (signal.SIGSTOP, ("matcher",))])
async def test_services_that_are_told_to_stop_do_not_wait_for_a_server_that_is_gone_or_hangs(
    tmp_path: Path, signum: signal.Signals, names: tuple[str, ...]
) -> None:
    server = Server(ServerSettings(data_dir=tmp_path))
    await server.start()
    try:
        async with ready(server, tmp_path, names) as (processes, bus):
            await submit(bus, "j1")  # so that they have something to do
            assert server.process is not None
            server.process.send_signal(signum)
            assert await stopped(processes) == dict.fromkeys(names, 0)
            await server.kill()
    finally:
        await server.kill()


async def test_an_executor_that_is_told_to_stop_ends_its_jobs_although_the_server_is_gone(tmp_path: Path) -> None:
    server = Server(ServerSettings(data_dir=tmp_path))
    await server.start()
    try:
        async with ready(server, tmp_path, ("ranker", "matcher", "executor")) as (processes, bus):
            await submit(bus, "j1", command=("sleep", "600"))
            async with asyncio.timeout(PATIENCE_S):
                async for delivery in bus.follow(subjects=[subjects.run("j1")]):
                    if isinstance(delivery.commit.facts[0], RunStarted):
                        break
            (noted,) = tmp_path.glob("executor/runs/j1/1/0/pid")
            shim = int(noted.read_text().split()[0])
            await server.kill()
            assert await stopped({"executor": processes["executor"]}) == {"executor": 0}
            assert not lives(shim)
    finally:
        await server.kill()


async def test_services_that_are_told_to_stop_do_not_wait_for_room_on_the_disk(tmp_path: Path) -> None:
    server = Server(ServerSettings(data_dir=tmp_path, max_store_bytes=16 << 20))
    await server.start()
    try:
        async with ready(server, tmp_path) as (processes, bus):
            await fill(bus)
            async with asyncio.timeout(PATIENCE_S):
                while not stuck(tmp_path):  # noqa: ASYNC110 - nobody tells of a line in a file
                    await asyncio.sleep(0.05)
            assert await stopped(processes) == dict.fromkeys(CORE, 0)
    finally:
        await server.kill()


def lives(pid: int) -> bool:
    """Say whether a process lives; one that has ended may wait for init to take note."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def stuck(folder: Path) -> bool:
    """Say whether a service waits for room."""
    return any(b'"event": "bus_unavailable"' in (folder / f"{name}.log").read_bytes() for name in CORE)


async def submit(bus: Bus, job_id: str, command: tuple[str, ...] = ("true",), size: int = 0) -> None:
    """Append a job to the log as the gateway would, of at least so many bytes."""
    spec = JobSpec(name=job_id, command=command, profile="off", env={"PADDING": "x" * size})
    commit = Commit(
        id=f"submit-{job_id}", actor="gateway/test", facts=(JobSubmitted(job_id=job_id, spec=spec, at_s=1.0),)
    )
    await bus.append(Append(subject=subjects.job(job_id), commit=commit, expected=0))


async def fill(bus: Bus) -> None:
    """Submit large jobs until the server has no room; the services have to do something about each."""
    with contextlib.suppress(StorageFull):
        for number in range(1000):
            await submit(bus, f"j{number}", size=500_000)
