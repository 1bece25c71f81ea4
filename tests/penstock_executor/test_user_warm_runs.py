"""Runs of other users than the executor's that start warm, on an executor that is root."""

from __future__ import annotations

import itertools
import os
import pwd

import pytest
from executor_cases import World
from other_users import SYSTEM_PYTHON, as_root, let_through

from penstock_executor.launchers import process_launcher
from penstock_log import RunStarted
from penstock_testing import eventually

pytestmark = [
    pytest.mark.slow,
    as_root,
    pytest.mark.skipif(
        not os.path.exists(SYSTEM_PYTHON), reason=f"NOT TESTED: there is no {SYSTEM_PYTHON}, which any user may run"
    ),
]
USERS = {"run_as": "user", "users": {"alice": "nobody", "bob": "daemon"}}
NOBODY = pwd.getpwnam("nobody").pw_uid
MOST_RUNS = 60
WHO = "import os, sys; print(os.getuid(), 'left' in os.listdir('/tmp'), sys.argv[1:]); open('/tmp/left', 'w').close()"
WAITING = (
    "import os, subprocess, sys, time; print(os.getpid(), subprocess.Popen(['sleep', '600'], env={}).pid, flush=True)\n"
    "if sys.argv[1:]: time.sleep(600)"
)
_numbers = itertools.count()


async def warmed(world: World, code: str, user: str = "alice") -> int:
    """Run a text until it starts warm; return how many runs that took."""
    for number in range(1, MOST_RUNS):
        job = f"w{next(_numbers)}"
        await world.run(job, SYSTEM_PYTHON, "-c", code, user=user, cwd="/")
        assert (await world.ended(job)).outcome == "completed"
        if (await world.fact(RunStarted, job)).start == "warm":
            return number
    raise AssertionError(f"none of {MOST_RUNS} runs started warm")


async def test_a_users_command_that_comes_again_starts_warm_as_this_user_and_no_other(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **USERS, warm_user_servers=1)
    assert await warmed(world, WHO) >= 3
    await world.run("j1", SYSTEM_PYTHON, "-c", WHO, "more", user="alice", cwd="/")
    assert (await world.fact(RunStarted, "j1")).start == "warm"
    assert (await world.ended("j1")).outcome == "completed"
    assert (await world.output("j1")).decode() == f"{NOBODY} False ['more']\n"
    await world.run("j2", SYSTEM_PYTHON, "-c", WHO, user="bob", cwd="/", preload=("json",))
    assert (await world.ended("j2")).outcome == "completed"
    assert (await world.fact(RunStarted, "j2")).start == "cold: its server is still importing"


async def test_a_node_whose_users_have_no_servers_starts_all_of_their_runs_cold(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **USERS, warm_user_servers=0)
    await world.run("j1", SYSTEM_PYTHON, "-c", WHO, user="alice", cwd="/", preload=("json",))
    assert (await world.ended("j1")).outcome == "completed"
    why = "cold: it runs as another user than the executor, whose programs start cold on this node"
    assert (await world.fact(RunStarted, "j1")).start == why


async def test_a_users_warm_run_is_ended_with_all_that_it_has_started(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **USERS, warm_user_servers=1)
    await warmed(world, WAITING)
    await world.run("j1", SYSTEM_PYTHON, "-c", WAITING, "wait", user="alice", cwd="/", grace_s=0.1)
    assert (await world.fact(RunStarted, "j1")).start == "warm"
    await world.says("j1", "\n")
    left = [int(pid) for pid in (await world.output("j1")).split()]
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"
    await eventually(lambda: all(map(process_launcher.gone, left)))
