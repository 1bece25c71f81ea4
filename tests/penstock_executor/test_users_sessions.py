"""Jobs of other users than the executor's that use the library: checkpoints, moves between nodes, lanes, memory."""

from __future__ import annotations

import asyncio
import os
import pwd
import site
import subprocess
from pathlib import Path

import pytest
from executor_cases import World
from other_users import SYSTEM_PYTHON, as_root, let_through

import penstock
from penstock_aggregator.machine import AggregatorSettings
from penstock_aggregator.runner import run as run_aggregation_agent
from penstock_bus.shell import Shell
from penstock_log import RunStarted, SlabsLent, subjects
from penstock_memory.machine import MemorySettings
from penstock_memory.runner import run
from penstock_testing import eventually

USERS = {"run_as": "user", "users": {"alice": "nobody", "bob": "daemon"}}
NOBODY = pwd.getpwnam("nobody")
LIBRARIES = os.pathsep.join([str(Path(penstock.__file__).parents[1]), *site.getsitepackages()])
"""Where a user's interpreter finds the library under test."""


def _is_reachable() -> bool:
    """Return whether other users can import the library, which may lie in a home folder that is closed to them."""
    try:
        done = subprocess.run(
            [SYSTEM_PYTHON, "-c", "import penstock"],
            env={"PYTHONPATH": LIBRARIES},
            user="nobody",
            group=NOBODY.pw_gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0


pytestmark = [
    pytest.mark.slow,
    as_root,
    pytest.mark.skipif(
        os.geteuid() == 0 and not _is_reachable(),
        reason=f"NOT TESTED: other users cannot import penstock by {SYSTEM_PYTHON} from {LIBRARIES}",
    ),
]
TRAINING = """
import os, sys, penstock
seen = []
with penstock.session() as session:
    session.on_checkpoint(
        lambda folder: (folder / "seen").write_text(repr(seen)),
        lambda folder: seen.extend(eval((folder / "seen").read_text())),
    )
    print("begins at", session.step, "with", len(seen), "as", os.getuid(), flush=True)
    for item in session.iterations(range(int(sys.argv[1]))):
        seen.append(item)
        if len(seen) == 20:
            print("far enough", flush=True)
"""

BORROWING = """
import os, time
from penstock.memory import RemoteFile
BLOCK = 1 << 20
with RemoteFile(BLOCK, local_bytes=0) as file:
    file.pwrite(b"mine" * (BLOCK // 4), 0)
    while file.stats().slab_bytes < 4 * BLOCK:
        assert file.pread(BLOCK, 0) == b"mine" * (BLOCK // 4)
    stats = file.stats()
    print("bound", stats.bound, "shared", stats.shared, "lost", stats.lost, "as", os.getuid(), flush=True)
    time.sleep(1000)
"""


def training(steps: int) -> tuple[str, ...]:
    return (SYSTEM_PYTHON, "-c", TRAINING, str(steps))


ENV = {"PYTHONPATH": LIBRARIES}


async def test_a_users_job_is_preempted_and_goes_on_on_another_node_with_its_own_checkpoint(world: World) -> None:
    let_through(world.folder)
    first = await world.node("n1", **USERS, checkpoint_dir="")
    second = await world.node("n2", **USERS, checkpoint_dir="")
    await world.submit("j1", *training(10**9), user="alice", cwd="/", env=ENV)
    await world.place("j1")
    await world.says("j1", "far enough")
    await world.preempt("j1")
    steps = (await world.ended("j1")).steps
    assert steps >= 20
    await world.place("j1", node_id="n2", epoch=2)
    await world.says("j1", f"begins at {steps} with {steps} as {NOBODY.pw_uid}")
    await world.cancel("j1")
    assert (await world.ended("j1", epoch=2, node_id="n2")).outcome == "cancelled"
    for node in (first, second):
        job = Path(node.settings.data_dir) / "checkpoints" / "j1"
        found = [job, *job.rglob("*")]
        assert len(found) > 3
        assert {path.lstat().st_uid for path in found} == {NOBODY.pw_uid}
        assert job.stat().st_mode & 0o777 == 0o700


async def test_a_users_run_is_parked_and_goes_on_and_ends_with_its_job(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **USERS)
    steps = 10**9 + os.getpid()  # by which its process is known among all others
    await world.submit("j1", *training(steps), user="alice", cwd="/", env=ENV)
    await world.place("j1")
    await world.says("j1", "far enough")
    await world.preempt("j1")
    end = await world.ended("j1")
    assert end.parked
    await world.place("j1", epoch=2)
    again = await world.fact(RunStarted, "j1", lambda fact: fact.epoch == 2)
    assert (again.start, again.resumed_step) == ("parked", end.steps)
    await world.progress("j1", lambda told: told["step"] > end.steps)
    await world.preempt("j1", 2)
    assert (await world.ended("j1", 2)).parked
    await world.cancel("j1")
    mine = str(steps).encode()
    await eventually(lambda: not any(mine in command_line(process) for process in Path("/proc").iterdir()))
    assert (await world.output("j1")).count(b"begins at") == 1


def command_line(process: Path) -> bytes:
    """Return the command line of a process; empty where it has ended."""
    try:
        return (process / "cmdline").read_bytes() if process.name.isdigit() else b""
    except OSError:
        return b""


async def test_jobs_of_two_users_take_turns_on_one_device(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **USERS)
    lane = {"sharing": "lane", "share_with": "anyone", "cwd": "/", "env": ENV}
    for job_id, user in (("j1", "alice"), ("j2", "bob")):
        await world.submit(job_id, *training(200), user=user, **lane)
        await world.place(job_id)
    for job_id in ("j1", "j2"):
        ended = await world.ended(job_id)
        assert (ended.outcome, ended.reason, ended.loop_steps) == ("completed", "", 200)
    assert str(NOBODY.pw_uid).encode() in await world.output("j1")
    assert f"as {pwd.getpwnam('daemon').pw_uid}".encode() in await world.output("j2")


async def test_a_users_job_borrows_as_its_account_from_an_agent_of_root(world: World) -> None:
    let_through(world.folder)
    memory_dir = world.folder / "memory"
    mib = 1 << 20
    shell = Shell(world.bus, "memory")
    settings = MemorySettings(
        node_id="n1",
        data_dir=str(memory_dir),
        address="127.0.0.1",
        slab_bytes=mib,
        headroom_bytes=64 * mib,
        most_lent_bytes=8 * mib,
    )
    agent = asyncio.create_task(run(shell, settings))
    await eventually(lambda: shell.vitals.ready or agent.done())
    await world.node("n1", **USERS, memory_dir=str(memory_dir))
    await world.submit("j1", SYSTEM_PYTHON, "-c", BORROWING, user="alice", cwd="/", env=ENV)
    await world.place("j1")
    await world.says("j1", f"bound 1 shared 1 lost 0 as {NOBODY.pw_uid}")

    async def lent() -> list[SlabsLent]:
        facts = [fact for one in await world.bus.read(subjects.memory("n1")) for fact in one.commit.known]
        return [fact for fact in facts if isinstance(fact, SlabsLent)]

    await eventually(lent)
    assert [(one.user, one.job_id, one.slabs) for one in await lent()] == [("nobody", "j1", 1)]
    await world.cancel("j1")
    await world.ended("j1")
    shell.stopping.set()
    await agent


ASKING = """
import json, os, socket
agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["PENSTOCK_AGGREGATION_SOCKET"])
lines = agent.makefile("rw")
asked = {"type": "ask", "version": 1, "pid": os.getpid(), "job_id": os.environ["PENSTOCK_JOB_ID"], "rank": 0}
asked |= {"epoch": int(os.environ["PENSTOCK_EPOCH"]), "token": os.environ["PENSTOCK_AGGREGATION_TOKEN"]}
asked |= {"world_size": 1, "layout": {"dtype": "f4", "parts": [4]}}
print(json.dumps(asked), file=lines, flush=True)
print("told", json.loads(lines.readline())["reason"], "as", os.getuid())
try:
    open(os.path.join(os.path.dirname(os.environ["PENSTOCK_AGGREGATION_SOCKET"]), "secret"))
except PermissionError:
    print("the secret is closed")
"""


async def test_a_users_job_asks_an_aggregation_agent_of_root_by_the_token_of_its_run(world: World) -> None:
    let_through(world.folder)
    aggregator_dir = world.folder / "aggregator"
    await world.node("n1", **USERS, aggregator_dir=str(aggregator_dir))  # before its agent: it makes the secret
    shell = Shell(world.bus, "aggregator")
    settings = AggregatorSettings(node_id="n1", data_dir=str(aggregator_dir), address="127.0.0.1", host="127.0.0.1")
    agent = asyncio.create_task(run_aggregation_agent(shell, settings))
    await eventually(lambda: shell.vitals.ready or agent.done())
    await world.submit("j1", SYSTEM_PYTHON, "-c", ASKING, user="alice", cwd="/", env=ENV)
    await world.place("j1")
    await world.says("j1", f"told the run waits for aggregators as {NOBODY.pw_uid}")
    await world.says("j1", "the secret is closed")
    await world.ended("j1")
    shell.stopping.set()
    await agent
