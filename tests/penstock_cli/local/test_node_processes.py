"""The processes of a machine that has joined, run as programs that only stand in for the services."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock_bus.shell import EX_CONFIG, REFUSED
from penstock_testing import eventually

NODE = (
    "import asyncio, sys; from penstock_cli.local.node_processes import run_node; "
    "sys.exit(asyncio.run(run_node({'PENSTOCK_AS': 'node'}, {'memory': {'PENSTOCK_AS': 'agent'}})))"
)
WAITS = """
import os, pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
here = pathlib.Path(__file__).parent
with (here / "started").open("a") as file:
    print(os.getpid(), os.environ["PENSTOCK_AS"], file=file)
if signal.sigwait([signal.SIGTERM, signal.SIGUSR1]) == signal.SIGUSR1:
    sys.exit(int((here / "status").read_text()))
(here.parent / "ended").open("a").write(os.environ["PENSTOCK_AS"] + "\\n")
"""


class Service:
    """What stands in for a service: it waits for SIGTERM, or for SIGUSR1 to end with a status."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / f"penstock_{name}"
        self.folder.mkdir()
        (self.folder / "__init__.py").touch()  # or the real one, further on the path, would go before it
        (self.folder / "__main__.py").write_text(WAITS)

    @property
    def pids(self) -> list[int]:
        """Its processes so far."""
        file = self.folder / "started"
        return [int(line.split()[0]) for line in file.read_text().splitlines()] if file.exists() else []

    def end(self, status: int) -> None:
        """Have the newest process end with a status."""
        (self.folder / "status").write_text(str(status))
        os.kill(self.pids[-1], signal.SIGUSR1)


@pytest.fixture
def executor(tmp_path: Path) -> Service:
    return Service(tmp_path, "executor")


@pytest.fixture
def agent(tmp_path: Path) -> Service:
    return Service(tmp_path, "memory")


@contextmanager
def node(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    process = subprocess.Popen([sys.executable, "-c", NODE], env={**os.environ, "PYTHONPATH": path})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_node_ends_as_its_executor_does(tmp_path: Path, executor: Service, agent: Service) -> None:
    with node(tmp_path) as process:
        await eventually(lambda: bool(executor.pids and agent.pids))
        executor.end(REFUSED)
        assert process.wait(60) == REFUSED
        assert not runs(agent.pids[0])
    assert (executor.folder / "started").read_text().split()[1] == "node"
    assert (agent.folder / "started").read_text().split()[1] == "agent"


async def test_a_node_whose_executor_was_killed_says_by_what(tmp_path: Path, executor: Service, agent: Service) -> None:
    with node(tmp_path) as process:
        await eventually(lambda: bool(executor.pids and agent.pids))
        os.kill(executor.pids[0], signal.SIGKILL)
        assert process.wait(60) == 128 + signal.SIGKILL


async def test_a_node_ends_its_executor_first(tmp_path: Path, executor: Service, agent: Service) -> None:
    with node(tmp_path) as process:
        await eventually(lambda: bool(executor.pids and agent.pids))
        process.terminate()
        assert process.wait(60) == 0
    assert (tmp_path / "ended").read_text().split() == ["node", "agent"]


async def test_a_memory_agent_that_died_is_started_again(tmp_path: Path, executor: Service, agent: Service) -> None:
    with node(tmp_path) as process:
        await eventually(lambda: bool(executor.pids and agent.pids))
        os.kill(agent.pids[0], signal.SIGKILL)
        await eventually(lambda: len(agent.pids) == 2)
        assert process.poll() is None
        assert len(executor.pids) == 1


async def test_a_node_goes_on_without_a_memory_agent_that_cannot_run(
    tmp_path: Path, executor: Service, agent: Service
) -> None:
    with node(tmp_path) as process:
        await eventually(lambda: bool(executor.pids and agent.pids))
        agent.end(EX_CONFIG)
        await eventually(lambda: not runs(agent.pids[0]))
        process.terminate()
        assert process.wait(60) == 0
    assert (tmp_path / "ended").read_text().split() == ["node"]
    assert len(agent.pids) == 1


async def test_nothing_is_left_of_a_node_that_was_killed(tmp_path: Path, executor: Service, agent: Service) -> None:
    with node(tmp_path) as process:
        await eventually(lambda: bool(executor.pids and agent.pids))
        process.kill()
        await eventually(lambda: not runs(executor.pids[0]) and not runs(agent.pids[0]))
