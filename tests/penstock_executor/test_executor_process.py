"""The executor as a process of its own, on a real server: ``kill -9`` and orderly ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from executor_cases import World, python, speaking, world_on

from penstock_bus import Bus
from penstock_executor.launchers.process_launcher import gone
from penstock_log import NodeLeft, RunStarted, subjects
from penstock_testing import eventually
from penstock_testing.fixtures import NatsAccount

COUNT = """
import os, sys, time
print('up', flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""

SAVING = """
import os, time, penstock
print(os.getpid(), flush=True)
with penstock.session() as session:
    session.on_checkpoint(lambda folder: (folder / 'w').touch(), lambda folder: print('loads', flush=True))
    for step in session.iterations(range(10**6)):
        print('step', step, flush=True)
        time.sleep(0.005)
"""


class Program:
    """``python -m penstock_executor`` on a folder."""

    def __init__(self, account: NatsAccount, folder: Path) -> None:
        self.environment = {
            **os.environ,
            **account.environment,
            "PENSTOCK_EXECUTOR_NODE_ID": "n1",
            "PENSTOCK_EXECUTOR_RUN_AS": "executor",
            "PENSTOCK_EXECUTOR_DEVICES": "fast:2@1.0:1GiB",
            "PENSTOCK_EXECUTOR_DATA_DIR": str(folder / "n1"),
            "PENSTOCK_EXECUTOR_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "PENSTOCK_EXECUTOR_PASS_ENV": "PYTHONPATH",
        }

    async def start(self, world: World) -> None:
        """Start it, and wait until it has joined."""
        count = len(await world.joined())
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock_executor", env=self.environment
        )

        async def joined() -> bool:
            return len(await world.joined()) > count

        await eventually(joined)

    async def end(self, signum: signal.Signals) -> int:
        """Send it a signal and return its exit code."""
        self.process.send_signal(signum)
        return await self.process.wait()


@pytest_asyncio.fixture
async def real(nats_bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with world_on(nats_bus, tmp_path) as world:
        yield world


@pytest_asyncio.fixture
async def program(nats_account: NatsAccount, tmp_path: Path) -> AsyncIterator[Program]:
    program = Program(nats_account, tmp_path)
    yield program
    if program.process.returncode is None:
        await program.end(signal.SIGKILL)


async def test_an_executor_killed_with_kill_9_finds_its_runs_again(
    real: World, program: Program, tmp_path: Path
) -> None:
    await program.start(real)
    await real.run("j1", *python(COUNT, str(tmp_path / "go")))
    await real.submit("j2", *python(COUNT + "\nsys.exit(3)", str(tmp_path / "go2")))
    await real.place("j2", 1)
    await real.says("j1", "up")
    await real.says("j2", "up")
    for job_id in ("j1", "j2"):  # else their output could be published twice, which is allowed
        mark = tmp_path / f"n1/runs/{job_id}/1/0/stdout.read"
        await eventually(lambda mark=mark: mark.exists() and mark.read_text() == str(len("up\n")))
    assert await program.end(signal.SIGKILL) == -signal.SIGKILL
    (tmp_path / "go2").touch()
    await eventually((tmp_path / "n1/runs/j2/1/0/exit").exists)
    await program.start(real)
    assert (await real.ended("j2")).exit_code == 3
    (tmp_path / "go").touch()
    assert (await real.ended("j1")).outcome == "completed"
    for job_id in ("j1", "j2"):
        assert await real.facts(job_id) == ["RunStarted", "RunEnded"]
        assert await real.output(job_id) == b"up\n"


async def test_what_is_parked_ends_with_an_executor_that_is_killed_with_kill_9(real: World, program: Program) -> None:
    await program.start(real)
    await real.run("j1", *python(SAVING))
    await real.says("j1", "step 3")
    await real.preempt("j1")
    end = await real.ended("j1")
    assert (end.outcome, end.parked) == ("preempted", True)
    pid = int((await real.output("j1")).split()[0])
    assert await program.end(signal.SIGKILL) == -signal.SIGKILL
    await eventually(lambda: gone(pid))
    await program.start(real)
    await real.place("j1", epoch=2)
    assert (await real.fact(RunStarted, "j1", lambda fact: fact.epoch == 2)).resumed_step == end.steps
    await real.says("j1", "loads")


async def test_an_executor_stopped_with_term_hands_its_runs_back(real: World, program: Program) -> None:
    await program.start(real)
    await real.run("j1", *speaking("100000"))
    await real.says("j1", "resumed at 0")
    assert await program.end(signal.SIGTERM) == 0
    ended = await real.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("preempted", 75)
    last = await real.bus.last(subjects.node("n1"))
    assert last is not None
    assert isinstance(last.commit.facts[0], NodeLeft)
