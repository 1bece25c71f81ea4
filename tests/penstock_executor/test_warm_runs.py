"""Runs of an executor that start warm: they are asked, saved, ended and adopted as all others are."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path

import pytest
from executor_cases import World, python, speaking

from penstock_executor.launchers import process_launcher
from penstock_log import RunCheckpointed, RunStarted, RunWarned
from penstock_testing import eventually

pytestmark = pytest.mark.slow

MOST_RUNS = 40
_numbers = itertools.count()
STARTING_OTHERS = """
import os, subprocess, sys, time
wait = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
started = [subprocess.Popen(wait), subprocess.Popen(wait, start_new_session=True, env={})]
print(os.getpid(), *(each.pid for each in started), flush=True)
if sys.argv[1:] == ["wait"]:
    time.sleep(600)
"""


async def warmed(world: World, *command: str) -> int:
    """Run a command until it starts warm; return how many runs that took."""
    for number in range(1, MOST_RUNS):
        job = f"w{next(_numbers)}"
        await world.run(job, *command)
        assert (await world.ended(job)).outcome == "completed"
        if (await world.fact(RunStarted, job)).start == "warm":
            return number
    raise AssertionError(f"none of {MOST_RUNS} runs started warm")


async def test_a_command_that_comes_again_starts_warm_and_its_run_says_so(world: World) -> None:
    await world.node()
    command = python("import sys, json; print(json.dumps(sys.argv))")
    assert await warmed(world, *command) >= 3
    await world.run("j1", *command, "other", "arguments")
    assert (await world.fact(RunStarted, "j1")).start == "warm"
    assert (await world.ended("j1")).outcome == "completed"
    assert await world.output("j1") == b'["-c", "other", "arguments"]\n'


async def test_a_node_that_starts_none_warm_starts_all_cold(world: World) -> None:
    await world.node(warm_starts="off")
    for job in ("j1", "j2", "j3", "j4"):
        await world.run(job, *python(""))
        assert (await world.ended(job)).outcome == "completed"
        assert (await world.fact(RunStarted, job)).start == ""


async def test_a_node_may_start_warm_what_asks_for_it_alone(world: World) -> None:
    await world.node(warm_starts="preload")
    starts = []
    for number in range(6):
        await world.run(f"j{number}", *python("import json"))
        await world.ended(f"j{number}")
        starts.append((await world.fact(RunStarted, f"j{number}")).start)
    assert set(starts) == {""}
    await world.run("asks", *python("import sys; print('json' in sys.modules)"), preload=("json",))
    await world.ended("asks")
    assert (await world.fact(RunStarted, "asks")).start == "cold: its server is still importing"


async def test_a_job_that_asks_for_it_in_vain_is_told_why(world: World) -> None:
    await world.node()
    for job, command, why in (
        ("j1", (sys.executable, "-X", "dev", "-c", ""), "its interpreter has the option -X"),
        ("j2", ("sh", "-c", "true"), "its program is not called python"),
    ):
        await world.run(job, *command, preload=("json",))
        assert (await world.ended(job)).outcome == "completed"
        assert (await world.fact(RunStarted, job)).start == f"cold: {why}"


async def test_a_job_whose_modules_are_not_there_runs_cold_and_is_told(world: World) -> None:
    await world.node()
    for number in range(MOST_RUNS):
        await world.run(f"j{number}", *python("print('ran')"), preload=("nothing_like_it",))
        assert (await world.ended(f"j{number}")).outcome == "completed"
        start = (await world.fact(RunStarted, f"j{number}")).start
        if "importing" not in start:
            break
    assert start.startswith("cold: nothing_like_it cannot be imported: ModuleNotFoundError")
    assert await world.output(f"j{number}") == b"ran\n"


def importing(module: str) -> list[str]:
    """Return the processes that have a module's name in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path.parent.name] if module.encode() in path.read_bytes() else []
    return found


async def test_a_job_that_runs_once_is_told_too_that_its_modules_are_not_there(world: World, tmp_path: Path) -> None:
    await world.node()
    module = f"nothing_like_{os.getpid()}"
    waiting = f"import os, time\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)"
    await world.run("j1", *python(waiting), preload=(module,))
    assert (await world.fact(RunStarted, "j1")).start == "cold: its server is still importing"
    await eventually(lambda: not importing(module))
    (tmp_path / "go").touch()
    assert (await world.ended("j1")).outcome == "completed"
    warning = (await world.fact(RunWarned, "j1")).warning
    assert warning.startswith(f"it did not start warm: {module} cannot be imported: ModuleNotFoundError")


async def test_a_warm_run_is_asked_saves_and_goes_on_warm(world: World) -> None:
    await world.node()
    await warmed(world, *speaking("3"))
    await world.run("j1", *speaking("100000"))
    await world.progress("j1")
    await world.preempt("j1")
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("preempted", 75)
    assert (await world.fact(RunCheckpointed, "j1")).step == ended.steps > 0
    await world.place("j1", epoch=2)
    again = await world.fact(RunStarted, "j1", lambda fact: fact.epoch == 2)
    assert (again.start, again.resumed_step) == ("warm", ended.steps)


async def test_what_a_warm_program_leaves_behind_ends_with_it(world: World) -> None:
    await world.node()
    await warmed(world, *python(STARTING_OTHERS))
    await world.run("j1", *python(STARTING_OTHERS))
    assert (await world.ended("j1")).outcome == "completed"
    left = [int(pid) for pid in (await world.output("j1")).split()]
    assert [pid for pid in left if not process_launcher.gone(pid)] == []


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_warm_run_is_ended_with_all_that_it_has_started(world: World, restarted: bool) -> None:
    node = await world.node()
    await warmed(world, *python(STARTING_OTHERS))
    await world.run("j1", *python(STARTING_OTHERS), "wait", grace_s=0.1)
    assert (await world.fact(RunStarted, "j1")).start == "warm"
    await world.says("j1", "\n")
    left = [int(pid) for pid in (await world.output("j1")).split()]
    if restarted:
        await node.kill()
        await node.start()
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"
    await eventually(lambda: all(map(process_launcher.gone, left)))


async def test_where_the_shim_of_a_warm_program_is_killed_the_program_is_found_and_ended(world: World) -> None:
    await world.node()
    await warmed(world, *python(STARTING_OTHERS))
    await world.run("j1", *python(STARTING_OTHERS), "wait")
    await world.says("j1", "\n")
    program, child, _ = (int(pid) for pid in (await world.output("j1")).split())
    process = process_launcher.adopt(world.folder / "n1/runs/j1/1/0")
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert (await world.ended("j1")).outcome != "completed"
    await eventually(lambda: process_launcher.gone(program) and process_launcher.gone(child))


async def test_warm_runs_go_on_where_their_server_has_ended(world: World, tmp_path: Path) -> None:
    await world.node()
    command = python(
        f"import os, time; print('up', flush=True)\nwhile not os.path.exists('{tmp_path}/go'): time.sleep(0.01)"
    )
    (tmp_path / "go").touch()
    await warmed(world, *command)
    (tmp_path / "go").unlink()
    await world.run("j1", *command)
    assert (await world.fact(RunStarted, "j1")).start == "warm"
    await world.says("j1", "up")
    process = process_launcher.adopt(world.folder / "n1/runs/j1/1/0")
    assert process is not None
    os.kill(int(Path(f"/proc/{process.pid}/stat").read_text().split()[3]), signal.SIGKILL)
    (tmp_path / "go").touch()
    assert (await world.ended("j1")).outcome == "completed"
    await warmed(world, *command)
