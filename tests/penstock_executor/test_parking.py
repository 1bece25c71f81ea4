"""Runs that are preempted and parked: stopped with their memory kept, continued in place, and never left behind."""

from __future__ import annotations

import sys

import pytest
from executor_cases import World

from penstock_log import RunCheckpointed, RunEnded, RunStarted

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys, time
import penstock
print("loaded", os.getpid(), flush=True)
with penstock.session() as session:
    def load(folder):
        print("loads", flush=True)
    session.on_checkpoint(lambda folder: (folder / "w").write_text("w"), load)
    {setup}
    for step in session.iterations(range({steps})):
        print("step", session.step, os.environ["PENSTOCK_EPOCH"], flush=True)
        {each}
        time.sleep(0.01)
"""


def script(steps: int = 100_000, *, setup: str = "pass", each: str = "pass") -> tuple[str, ...]:
    """Return the command of a script with a session that saves."""
    return (sys.executable, "-c", SCRIPT.format(steps=steps, setup=setup, each=each))


async def parked(world: World, job: str, epoch: int = 1) -> RunEnded:
    """Preempt a job's run, and return its end."""
    await world.preempt(job, epoch)
    return await world.ended(job, epoch)


async def steps(world: World, job: str) -> list[tuple[int, int]]:
    """Return the steps that a job has printed, with the epoch in which it did."""
    lines = [line.split() for line in (await world.output(job)).decode().splitlines()]
    return [(int(line[1]), int(line[2])) for line in lines if line[:1] == ["step"]]


def pid_of(output: bytes) -> int:
    """Return the pid that a script has printed."""
    return next(int(line.split()[1]) for line in output.splitlines() if line.startswith(b"loaded"))


async def test_a_preempted_run_is_parked_and_goes_on_without_a_load(world: World) -> None:
    await world.node(pass_env=("PYTHONPATH",))
    await world.run("j1", *script())
    await world.says("j1", "step 3")
    end = await parked(world, "j1")
    assert (end.outcome, end.exit_code, end.parked) == ("preempted", 75, True)
    assert end.parked_bytes > 0
    assert (await world.fact(RunCheckpointed, "j1")).step == end.steps
    await world.place("j1", 1, epoch=2)
    again = await world.fact(RunStarted, "j1", lambda fact: fact.epoch == 2)
    assert (again.start, again.resumed_step, again.devices) == ("parked", end.steps, (1,))
    await world.says("j1", f"step {end.steps + 3} 2")
    done = await steps(world, "j1")
    assert [step for step, _ in done] == list(range(len(done)))
    assert {epoch for step, epoch in done if step < end.steps} == {1}
    output = await world.output("j1")
    assert (output.count(b"loaded"), output.count(b"loads")) == (1, 0)
