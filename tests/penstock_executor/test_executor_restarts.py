"""What becomes of runs when their executor dies, comes back, is declared lost, or is stopped."""

import asyncio
import contextlib
import os
import shutil
import signal
from pathlib import Path

import msgspec
import pytest
from executor_cases import World, python, speaking

from penstock_bus.memory import MemoryBus
from penstock_bus.shell import Shell
from penstock_executor.launchers import process_launcher
from penstock_executor.run_folders import ExecutorError
from penstock_executor.runner import run
from penstock_executor.settings import ExecutorSettings
from penstock_log import ARCHIVE, JobsArchived, NodeLeft, RunCheckpointed, RunStarted, subjects
from penstock_testing import eventually

pytestmark = pytest.mark.slow

COUNT = (
    "import sys, time\nprint('up', flush=True)\nwhile not __import__('os').path.exists(sys.argv[1]): time.sleep(0.01)"
)
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\n"
    "while True: time.sleep(1)"
)
WAIT = "import time; print('up', flush=True); time.sleep(60)"


async def test_an_executor_that_still_reads_the_log_says_how_long_facts_have_waited(tmp_path: Path) -> None:
    bus, now_s = MemoryBus(), [1.0]
    shell = Shell(bus, "executor", monotonic=lambda: now_s[0])
    bus.server.stop()
    task = asyncio.create_task(
        run(shell, ExecutorSettings(node_id="n1", devices="cpu", run_as="executor", data_dir=str(tmp_path)))
    )
    await asyncio.sleep(0)
    shell.progress.read(1, matters=True)
    now_s[0] = 8.0
    assert shell.report().undecided_s == 7.0
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_restarted_executor_neither_loses_nor_doubles_a_run(world: World, tmp_path: Path) -> None:
    node = await world.node()
    await world.run("j1", *python(COUNT, str(tmp_path / "go")))
    mark = world.folder / "n1/runs/j1/1/0/stdout.read"
    await eventually(lambda: mark.exists() and mark.read_text() == str(len("up\n")))
    await node.kill()
    await node.start()
    (tmp_path / "go").touch()
    assert (await world.ended("j1")).outcome == "completed"
    assert await world.facts("j1") == ["RunStarted", "RunEnded"]
    assert await world.output("j1") == b"up\n"
    assert len(await world.joined()) == 2


async def test_an_executor_forgets_the_runs_of_jobs_that_are_archived(world: World) -> None:
    for job_id in ("old", "young"):
        await world.write(RunStarted(at_s=1.0, job_id=job_id, epoch=1, node_id="n2", devices=(0,)))
    await world.write(JobsArchived(at_s=2.0, archive=ARCHIVE, job_ids=("old",)))
    node = await world.node()
    await node.stop()
    snapshot = await world.bus.load_snapshot("executor.n1")
    assert snapshot is not None
    heads, _ = msgspec.msgpack.decode(snapshot.state)
    assert [name for name in heads if name.startswith(subjects.prefix("run"))] == [subjects.run("young")]


async def test_a_run_that_ended_while_nobody_watched_is_reported_afterwards(world: World, tmp_path: Path) -> None:
    node = await world.node()
    await world.run("j1", *python(COUNT + "\nprint('last words'); sys.exit(3)", str(tmp_path / "go")))
    mark = world.folder / "n1/runs/j1/1/0/stdout.read"
    await eventually(lambda: mark.exists() and mark.read_text() == str(len("up\n")))
    process = process_launcher.adopt(world.folder / "n1/runs/j1/1/0")
    assert process is not None
    await node.kill()
    (tmp_path / "go").touch()
    await eventually(lambda: not process_launcher.is_alive(process))
    await node.start()
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("failed", 3)
    assert await world.output("j1") == b"up\nlast words\n"


async def test_a_shim_that_was_killed_alone_takes_its_program_with_it(world: World) -> None:
    node = await world.node()
    await world.run("j1", *python("import os, time; print(os.getpid(), flush=True); time.sleep(60)"))
    await world.says("j1", "\n")
    pid = int(await world.output("j1"))
    process = process_launcher.adopt(world.folder / "n1/runs/j1/1/0")
    assert process is not None
    await node.kill()
    os.kill(process.pid, signal.SIGKILL)
    await eventually(lambda: not process_launcher.is_alive(process))
    await node.start()
    assert (await world.ended("j1")).outcome == "lost"
    await eventually(lambda: process_launcher.gone(pid))


async def test_an_adopted_job_is_still_asked_before_it_is_ended(world: World) -> None:
    node = await world.node()
    await world.run("j1", *speaking("100000"), grace_s=30.0)
    await world.progress("j1")
    await node.kill()
    await node.start()
    await world.preempt("j1")
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("preempted", 75)
    assert (await world.fact(RunCheckpointed, "j1")).step == ended.steps > 0


async def test_a_stop_that_was_under_way_goes_on_after_a_restart(world: World) -> None:
    node = await world.node()
    await world.run("j1", *speaking("100000", "stubborn", "deaf", "save_at=2"), grace_s=0.3)
    await world.fact(RunCheckpointed, "j1")
    await world.preempt("j1")
    stop = world.folder / "n1/runs/j1/1/stop.json"
    await eventually(stop.exists)
    await node.kill()
    await node.start()
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code, ended.steps) == ("preempted", 137, 2)


async def test_a_lease_whose_run_folder_is_gone_is_lost(world: World) -> None:
    node = await world.node()
    await world.run("j1", *python(WAIT))
    await world.says("j1", "up")
    await node.kill()
    process = process_launcher.adopt(world.folder / "n1/runs/j1/1/0")
    assert process is not None
    process_launcher.signal_group(process, signal.SIGKILL)
    await eventually(lambda: not process_launcher.is_alive(process))
    await asyncio.to_thread(shutil.rmtree, world.folder / "n1/runs")
    await node.start()
    assert (await world.ended("j1")).outcome == "lost"
    assert await world.facts("j1") == ["RunStarted", "RunEnded"]


async def test_a_node_that_was_declared_lost_ends_its_runs_before_it_joins_again(world: World) -> None:
    await world.node()
    await world.run("j1", *python(DEAF))
    await world.says("j1", "up")
    process = process_launcher.adopt(world.folder / "n1/runs/j1/1/0")
    assert process is not None
    await world.lose("n1")
    await joins(world, 2)
    assert not process_launcher.is_alive(process)
    first, second = await world.joined()
    assert first.incarnation != second.incarnation
    assert await world.facts("j1") == ["RunStarted"]


async def test_runs_of_an_older_epoch_are_ended_before_a_restarted_node_joins(world: World) -> None:
    node = await world.node("n1")
    await world.node("n2")
    await world.run("j1", *python(DEAF))
    await world.says("j1", "up")
    process = process_launcher.adopt(world.folder / "n1/runs/j1/1/0")
    assert process is not None
    await node.kill()
    await world.lose("n1")
    await world.place("j1", 0, epoch=2, node_id="n2")
    await world.fact(RunStarted, "j1", lambda fact: fact.epoch == 2)
    await node.start()
    assert not process_launcher.is_alive(process)
    assert process_launcher.adopt(world.folder / "n2/runs/j1/2/0") is not None


async def test_a_placement_of_an_older_epoch_is_refused(world: World) -> None:
    await world.node()
    await world.run("j1", "true", retries=1, backoff_s=0.0)
    await world.ended("j1")
    await world.submit("j2", "true")
    await world.place("j1", 0, epoch=1)
    await world.place("j2", 0)
    await world.ended("j2")
    assert await world.facts("j1") == ["RunStarted", "RunEnded"]


async def test_a_stopped_executor_preempts_its_runs_and_leaves(world: World) -> None:
    node = await world.node()
    await world.run("j1", *speaking("100000"))
    await world.progress("j1")
    await node.stop()
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("preempted", 75)
    last = await world.bus.last(subjects.node("n1"))
    assert last is not None
    assert isinstance(last.commit.facts[0], NodeLeft)


async def test_a_stopped_executor_may_leave_its_runs_to_the_next(world: World, tmp_path: Path) -> None:
    node = await world.node(on_shutdown="leave")
    await world.run("j1", *python(COUNT, str(tmp_path / "go")))
    await world.says("j1", "up")
    await node.stop()
    assert await world.facts("j1") == ["RunStarted"]
    await node.start()
    (tmp_path / "go").touch()
    assert (await world.ended("j1")).outcome == "completed"


async def test_two_executors_in_one_folder_are_refused(world: World) -> None:
    await world.node("n1")
    settings = ExecutorSettings(node_id="n2", devices="cpu", run_as="executor", data_dir=str(world.folder / "n1"))
    with pytest.raises(ExecutorError, match="another executor works in"):
        await run(Shell(world.bus, "executor"), settings)


async def joins(world: World, count: int) -> None:
    async with asyncio.timeout(60):
        async for _ in world.bus.follow(subjects=[subjects.node("n1")]):
            count -= 1
            if not count:
                return
