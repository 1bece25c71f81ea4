"""A node whose login is revoked ends its runs, in good order where they let it, and leaves no process behind."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import msgspec
import pytest
from executor_cases import World, python, world_on
from structlog.testing import capture_logs

from penstock_bus.identity.access import ADMIN
from penstock_bus.identity.claims import SigningKey
from penstock_bus.identity.logins import write_login
from penstock_bus.nats import connect
from penstock_bus.nats.accounts import NatsAccountClient
from penstock_bus.servers.server import Server, ServerSettings, running
from penstock_bus.service_folder import alone_in
from penstock_bus.shell import REFUSED
from penstock_executor.launchers.process_launcher import gone
from penstock_executor.refusal import end_runs
from penstock_executor.run_folders import ExecutorError
from penstock_executor.settings import ExecutorSettings
from penstock_testing import eventually

pytestmark = pytest.mark.slow
NOW_S = 1_700_000_000
ORDERLY = """
import os, pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[1]).touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print('up', os.getpid(), flush=True)
while True:
    time.sleep(60)
"""
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
print('up', os.getpid(), flush=True)
while True:
    time.sleep(60)
"""


class Node:
    """A node's executor as a process of its own, with a login that can be revoked."""

    def __init__(self, server: Server, folder: Path) -> None:
        assert server.keyring is not None
        self._server, self._keyring = server, server.keyring
        self._key = SigningKey.derived("user", bytes(32), "machine")
        login = self._keyring.node_login(server.url, self._key.public, NOW_S)
        self.data = folder / "n1"
        write_login(folder / "executor.json", msgspec.structs.replace(login, user_seed=self._key.seed))
        self._env = {
            **os.environ,
            "PENSTOCK_URL": server.url,
            "PENSTOCK_CREDENTIALS": str(folder / "executor.json"),
            "PENSTOCK_EXECUTOR_NODE_ID": "n1",
            "PENSTOCK_EXECUTOR_RUN_AS": "executor",
            "PENSTOCK_EXECUTOR_DEVICES": "fast:2@1.0:1GiB",
            "PENSTOCK_EXECUTOR_DATA_DIR": str(self.data),
        }

    async def start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(sys.executable, "-m", "penstock_executor", env=self._env)

    async def revoke(self) -> None:
        system = self._keyring.system_login(self._server.url, NOW_S)
        async with connect(self._server.url, login=system, as_client=True) as bus:
            await NatsAccountClient(bus.link).update(self._server.services_account({self._key.public: NOW_S}))


async def pids_of(world: World, job_id: str, count: int) -> list[int]:
    """Return the processes of a job, once that many have said that they are there."""
    while True:
        lines = [line for line in (await world.output(job_id)).decode().splitlines() if line.startswith("up ")]
        if len(lines) == count:
            return [int(line.split()[1]) for line in lines]
        await world.says(job_id, "up")


@pytest.mark.parametrize("executor_is_there", [True, False])
async def test_a_revoked_node_ends_its_runs_and_its_executor(tmp_path: Path, executor_is_there: bool) -> None:
    """Also those of an executor that was killed, where the next one is refused at once."""
    async with (
        running(ServerSettings(data_dir=tmp_path / "server")) as server,
        connect(server.url, login=server.logins[ADMIN]) as bus,
        world_on(bus, tmp_path) as world,
    ):
        node, ended = Node(server, tmp_path), tmp_path / "ended"
        executor = await node.start()
        try:
            await eventually(world.joined, within_s=60.0)
            await world.run("orderly", *python(ORDERLY, str(ended)))
            await world.submit("stubborn", *python(STUBBORN))
            await world.place("stubborn", 1)
            pids = [*await pids_of(world, "orderly", 1), *await pids_of(world, "stubborn", 2)]
            if not executor_is_there:
                executor.kill()
                await executor.wait()
                assert not any(gone(pid) for pid in pids)
            await node.revoke()
            if not executor_is_there:
                executor = await node.start()
            assert await executor.wait() == REFUSED
            await eventually(lambda: all(gone(pid) for pid in pids))
            assert ended.exists()
        finally:
            if executor.returncode is None:
                executor.kill()
                await executor.wait()
            end_runs(ExecutorSettings(data_dir=str(node.data)), grace_s=0.0)


def test_runs_of_a_folder_that_another_executor_holds_are_its_own(tmp_path: Path) -> None:
    with capture_logs() as told, alone_in(str(tmp_path), "executor", ExecutorError):
        end_runs(ExecutorSettings(data_dir=str(tmp_path)))
    assert [line["event"] for line in told] == ["runs_not_ended"]
    assert "another executor works in" in told[0]["reason"]
