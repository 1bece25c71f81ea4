"""Elastic jobs on real processes: they start with the size that they were given last, and lose processes unharmed."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from executor_cases import World, python, speaking

from penstock_bus.follower import FoldFollower
from penstock_executor import machine
from penstock_log import Batch, Demand, Job, RunStarted
from penstock_log.decision_facts import ScaleDecided

pytestmark = pytest.mark.slow

ELASTIC: dict[str, Any] = {"max_gpus": 4, "min_gpus": 1, "batch_size": 64, "batch": Batch(min=32, max=256, base=64)}
SHOW = "import json, os; print(json.dumps({**os.environ}))"
MEETING = """
import os, sys
pipe, rank = sys.argv[1], os.environ["PENSTOCK_RANK"]
if rank == "1":
    holding = open(pipe, "w")
    print("pid", os.getpid(), flush=True)
    import time; time.sleep(600)
open(pipe).read()  # until rank 1 is gone
sys.exit("rank 1 hung up")
"""


def sized(world: World, job_id: str, epoch: int, gpus: int, batch_size: int = 0) -> ScaleDecided:
    demand = Demand(job_id=job_id, epoch=epoch, gpus=gpus, batch_size=batch_size)
    return ScaleDecided(pool="default", demands=(demand,), at_s=world.now_s())


async def job_of(world: World, job_id: str) -> Job:
    """Return a job as everybody has it by now."""
    async with FoldFollower(world.bus, machine.decider(), name="test") as live:
        await live.caught_up()
        return live.state.jobs[job_id]


def pid_of(output: bytes) -> int:
    (line,) = [line for line in output.decode().splitlines() if line.startswith("pid ")]
    return int(line.split()[1])


async def test_a_job_starts_with_the_width_and_the_batch_that_it_was_given_while_it_waited(world: World) -> None:
    await world.node()
    await world.submit("j1", *python(SHOW), **ELASTIC)
    await world.write(sized(world, "j1", 0, 2, batch_size=128))
    await world.place("j1", 0, 1, epoch=2)
    await world.ended("j1", epoch=2)
    first = json.loads((await world.output("j1")).splitlines()[0])
    found = [first[f"PENSTOCK_{name}"] for name in ("WORLD_SIZE", "BATCH_SIZE", "BASE_BATCH_SIZE", "LR_RULE")]
    assert found == ["2", "128", "64", "keep"]


async def test_a_running_job_saves_and_goes_on_with_another_width(world: World) -> None:
    await world.node()
    await world.submit("j1", *speaking("100000"), **ELASTIC)
    await world.place("j1", 0)
    await world.progress("j1")
    await world.write(sized(world, "j1", 1, 2))
    await world.preempt("j1")
    ended = await world.ended("j1")
    assert (ended.outcome, (await job_of(world, "j1")).spec.gpus) == ("preempted", 2)
    await world.place("j1", 0, 1, epoch=2)
    await world.says("j1", f"resumed at {ended.steps}")
    assert (await world.fact(RunStarted, "j1", lambda fact: fact.epoch == 2)).devices == (0, 1)
    await world.cancel("j1")
    assert (await world.ended("j1", epoch=2)).outcome == "cancelled"


async def test_a_job_that_is_to_be_resized_while_it_starts_goes_on_with_the_new_size(world: World) -> None:
    await world.node()
    await world.submit("j1", *speaking("100000"), **{**ELASTIC, "grace_s": 2.0})  # TERM may come between fork and exec
    await world.place("j1", 0)
    await world.write(sized(world, "j1", 1, 2))
    await world.preempt("j1")
    assert (await world.ended("j1")).outcome == "preempted"
    assert ((job := await job_of(world, "j1")).spec.gpus, job.unfit) == (2, ())
    await world.place("j1", 0, 1, epoch=2)
    await world.progress("j1")


async def test_a_gang_of_which_a_process_is_killed_waits_for_devices_again(world: World) -> None:
    await world.node()
    os.mkfifo(world.folder / "pipe")
    await world.submit("j1", *python(MEETING, str(world.folder / "pipe")), **{**ELASTIC, "gpus": 2})
    await world.place("j1", 0, 1)
    await world.says("j1", "pid")
    os.kill(pid_of(await world.output("j1")), signal.SIGKILL)
    ended = await world.ended("j1")
    assert (ended.outcome, ended.killed) == ("failed", True)
    assert ended.reason.startswith("rank 1 of 2: signal SIGKILL (exit code 137)")
    assert ((job := await job_of(world, "j1")).state, job.failures) == ("PD", 0)
    assert job.reason == f"one of its processes was killed ({ended.reason})"


async def test_a_gang_over_two_nodes_of_which_a_process_is_killed_waits_for_devices_again(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    os.mkfifo(world.folder / "pipe")
    await world.submit("j1", *python(MEETING, str(world.folder / "pipe")), **{**ELASTIC, "gpus": 2})
    await world.place_on("j1", {"n1": [0], "n2": [1]})
    await world.says("j1", "pid")
    os.kill(pid_of(await world.output("j1")), signal.SIGKILL)
    other, killed = await world.ended("j1", node_id="n1"), await world.ended("j1", node_id="n2")
    assert (killed.outcome, killed.killed, other.killed) == ("failed", True, False)
    assert ((job := await job_of(world, "j1")).state, job.failures) == ("PD", 0)
    assert job.reason == f"one of its processes was killed ({killed.reason})"


async def test_a_job_that_is_cancelled_while_it_is_resized_is_cancelled(world: World) -> None:
    await world.node()
    await world.submit("j1", *speaking("100000", "stubborn"), **{**ELASTIC, "grace_s": 60.0})
    await world.place("j1", 0)
    await world.progress("j1")
    await world.write(sized(world, "j1", 1, 2))
    await world.preempt("j1")
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"


async def test_a_job_that_comes_to_its_end_when_it_is_to_be_resized_is_completed(world: World) -> None:
    await world.node()
    await world.submit("j1", *speaking("60", "stubborn"), **{**ELASTIC, "grace_s": 60.0})
    await world.place("j1", 0)
    await world.progress("j1")
    await world.write(sized(world, "j1", 1, 2))
    await world.preempt("j1")
    ended = await world.ended("j1")
    assert (ended.outcome, ended.steps) == ("completed", 60)
