"""Runs that are preempted and parked: stopped with their memory kept, continued in place, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest
from executor_cases import Node, World
from structlog.testing import capture_logs

from penstock_executor.launchers import process_launcher, sandbox
from penstock_log import NodeDrained, RunCheckpointed, RunEnded, RunStarted, RunUnparked
from penstock_testing import eventually

pytestmark = pytest.mark.slow

NO_SANDBOX = sandbox.problem(None)
SCRIPT = """
import os, sys, threading, time
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
        time.sleep(0.005)
"""
BESIDE = """
    import subprocess
    helper = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("helper", helper.pid, flush=True)
    beats = []
    threading.Thread(target=lambda: [beats.append(time.sleep(0.01)) for _ in range(10**6)], daemon=True).start()
"""


def script(steps: int = 100_000, *, setup: str = "", each: str = "pass") -> tuple[str, ...]:
    """Return the command of a script with a session that saves."""
    return (sys.executable, "-c", SCRIPT.format(steps=steps, setup=setup.strip() or "pass", each=each))


async def node_of(world: World, node_id: str = "n1", **settings: object) -> Node:
    """Return a node whose jobs import what the tests do."""
    return await world.node(node_id, pass_env=("PYTHONPATH",), **settings)


async def preempted(world: World, job: str, epoch: int = 1) -> RunEnded:
    """Preempt a job's run, and return its end."""
    await world.preempt(job, epoch)
    return await world.ended(job, epoch)


async def parked(world: World, job: str = "j1", *command: str, device: int = 0) -> tuple[RunEnded, int]:
    """Run a job until it is parked; return the end of its run, and its pid."""
    await world.submit(job, *(command or script()))
    await world.place(job, device)
    await world.says(job, "step 3")
    end = await preempted(world, job)
    assert (end.outcome, end.exit_code, end.parked) == ("preempted", 75, True)
    return end, number_of(await world.output(job), b"loaded")


async def begun(world: World, job: str = "j1", epoch: int = 2) -> RunStarted:
    """Return how a later run of a job has begun."""
    return await world.fact(RunStarted, job, lambda fact: fact.epoch == epoch)


def number_of(output: bytes, word: bytes) -> int:
    """Return the number that a script has printed behind a word."""
    return next(int(line.split()[1]) for line in output.splitlines() if line.startswith(word))


async def gone(pid: int) -> None:
    """Wait until a process has ended; its parent has it as a zombie."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(fd, ended.set)
    try:
        async with asyncio.timeout(60):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)


def state_of(pid: int) -> str:
    """Return the letter of a process's state."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


async def test_a_preempted_run_is_parked_and_goes_on_without_a_load(world: World) -> None:
    await node_of(world)
    end, pid = await parked(world)
    assert state_of(pid) == "T"
    assert end.parked_bytes > 0
    assert (await world.fact(RunCheckpointed, "j1")).step == end.steps
    await world.place("j1", 1, epoch=2)
    again = await begun(world)
    assert (again.start, again.resumed_step, again.devices) == ("parked", end.steps, (1,))
    await world.says("j1", f"step {end.steps + 3} 2")
    lines = [line.split() for line in (await world.output("j1")).decode().splitlines()]
    done = [(int(line[1]), int(line[2])) for line in lines if line[0] == "step"]
    assert [step for step, _ in done] == list(range(len(done)))
    assert [epoch for _, epoch in done] == [1 if step < end.steps else 2 for step, _ in done]
    assert sum(line[0] in ("loaded", "loads") for line in lines) == 1


async def test_a_run_is_parked_again_and_again_and_ends_as_all_do(world: World) -> None:
    await node_of(world)
    end, pid = await parked(world, "j1", *script(60, each="session.report(loss=1.0)"))
    for epoch in (2, 3, 4):
        await world.place("j1", epoch % 2, epoch=epoch)
        assert (await begun(world, epoch=epoch)).start == "parked"
        await world.says("j1", f"step {end.steps + 3} {epoch}")
        end = await preempted(world, "j1", epoch)
        assert (end.parked, end.loop_steps >= 3) == (True, True)
        assert end.loop_steps < end.steps
    await world.place("j1", epoch=5)
    over = await world.ended("j1", 5)
    assert (over.outcome, over.exit_code, over.steps, over.metrics) == ("completed", 0, 60, {"loss": 1.0})
    await gone(pid)
    output = (await world.output("j1")).decode().splitlines()
    assert [int(line.split()[1]) for line in output if line.startswith("step")] == list(range(60))
    assert (await world.facts("j1")).count("RunUnparked") == 0


async def test_a_run_that_began_warm_is_parked_as_others_are(world: World) -> None:
    await node_of(world)
    code = SCRIPT.format(steps="int(sys.argv[1])", setup="pass", each="pass")
    command = (sys.executable, "-c", code)
    for number in range(40):
        await world.run(f"w{number}", *command, "1")
        assert (await world.ended(f"w{number}")).outcome == "completed"
        if (await world.fact(RunStarted, f"w{number}")).start == "warm":
            break
    end, pid = await parked(world, "j1", *command, "100000")
    assert (await world.fact(RunStarted, "j1")).start == "warm"
    await world.place("j1", epoch=2)
    assert (await begun(world)).start == "parked"
    await world.says("j1", f"step {end.steps + 3} 2")
    await world.cancel("j1")
    assert (await world.ended("j1", 2)).outcome == "cancelled"
    await gone(pid)


async def test_all_that_a_script_has_started_is_stopped_and_goes_on_with_it(world: World) -> None:
    await node_of(world)
    end, pid = await parked(world, "j1", *script(setup=BESIDE, each='print("beats", len(beats), flush=True)'))
    helper = number_of(await world.output("j1"), b"helper")
    assert (state_of(pid), state_of(helper)) == ("T", "T")
    await world.place("j1", epoch=2)
    assert (await begun(world)).start == "parked"
    await world.says("j1", f"step {end.steps + 1} 2")
    assert state_of(helper) != "T"
    await world.cancel("j1")
    assert (await world.ended("j1", 2)).outcome == "cancelled"
    await gone(pid)
    await gone(helper)


async def test_a_script_moves_what_it_has_off_its_device_and_back(world: World) -> None:
    await node_of(world)
    moves = 'session.on_park(lambda: print("away"), lambda: print("back", flush=True))'
    await parked(world, "j1", *script(setup=moves))
    await world.place("j1", epoch=2)
    await world.says("j1", "back")
    lines = (await world.output("j1")).splitlines()
    assert lines.index(b"away") < lines.index(b"back")


@pytest.mark.parametrize(
    "command",
    [
        script(setup="session.on_park(None)"),
        script(setup="session.on_park(lambda: 1 / 0)"),
        ("sh", "-c", '"$0" "$@"; code=$?; exit $code', *script()),
    ],
    ids=["that does not want it", "that cannot free its device", "of a shell"],
)
async def test_a_script_leaves(world: World, command: tuple[str, ...]) -> None:
    await node_of(world)
    await world.run("j1", *command)
    await world.says("j1", "step 3")
    end = await preempted(world, "j1")
    assert (end.outcome, end.exit_code, end.parked) == ("preempted", 75, False)
    await world.place("j1", epoch=2)
    assert (await begun(world)).resumed_step == end.steps
    await world.says("j1", "loads")


@pytest.mark.skipif(bool(NO_SANDBOX), reason=f"NOT TESTED: {NO_SANDBOX}")
async def test_a_script_in_a_sandbox_leaves_and_the_executor_says_why(world: World) -> None:
    await node_of(world, run_as="executor", sandbox="bubblewrap")
    await world.run("j1", *script())
    await world.says("j1", "step 3")
    with capture_logs() as said:
        end = await preempted(world, "j1")
    assert (end.outcome, end.exit_code, end.parked) == ("preempted", 75, False)
    reasons = [line["reason"] for line in said if line["event"] == "run_not_parked"]
    assert reasons == ["a process of its program asks, and not itself"]
    await world.place("j1", epoch=2)
    assert (await begun(world)).resumed_step == end.steps
    await world.says("j1", "loads")


async def test_a_run_that_nobody_has_asked_is_not_parked(world: World) -> None:
    await node_of(world)
    says = "from penstock_log.agent_protocol import ReadyToPark as R; say = session._boundary._agent.send"
    await world.run("j1", *script(setup=says, each="say(R(step=session.step))"))
    end = await world.ended("j1")
    assert (end.exit_code, end.parked) == (75, False)
    assert (await parked(world, "j2"))[0].parked


@pytest.mark.parametrize("settings", [{"park_bytes": 0}, {"leave_after_runs": 1}])
async def test_a_node_that_parks_nothing_has_its_runs_leave(world: World, settings: dict[str, int]) -> None:
    await node_of(world, **settings)
    await world.run("j1", *script())
    await world.says("j1", "step 3")
    assert not (await preempted(world, "j1")).parked


async def test_a_run_that_is_larger_than_what_may_be_parked_leaves(world: World) -> None:
    await node_of(world, park_bytes=4096)
    await world.run("j1", *script())
    await world.says("j1", "step 3")
    assert not (await preempted(world, "j1")).parked


async def test_the_longest_parked_run_makes_room_for_the_next(world: World) -> None:
    await node_of(world, park_bytes=100 * 2**20)
    big = "held = bytearray(b'x' * (50 * 2**20))"
    _, first = await parked(world, "j1", *script(setup=big))
    await parked(world, "j2", *script(setup=big))
    await gone(first)
    assert (await world.fact(RunUnparked, "j1")).reason == "another run was parked in its place"
    await world.place("j1", 1, epoch=2)
    assert (await begun(world)).start != "parked"
    await world.says("j1", "loads")


async def test_a_parked_run_ends_with_its_job(world: World) -> None:
    await node_of(world)
    _, pid = await parked(world)
    await world.cancel("j1")
    assert (await world.fact(RunUnparked, "j1")).reason == "its job is over"
    await gone(pid)


async def test_a_script_that_is_parked_no_more_does_what_it_does_at_its_end(world: World) -> None:
    await node_of(world)
    kept = world.folder / "kept"
    at_end = f"import atexit; file = open({str(kept)!r}, 'w'); file.write('kept'); atexit.register(file.write, ' too')"
    _, pid = await parked(world, "j1", *script(setup=at_end))
    assert kept.read_text() == ""
    await world.cancel("j1")
    await gone(pid)
    assert kept.read_text() == "kept too"


async def test_a_script_that_does_not_come_to_its_end_is_ended(world: World) -> None:
    await node_of(world)
    _, pid = await parked(world, "j1", *script(setup="import atexit; atexit.register(time.sleep, 600)"))
    await world.cancel("j1")
    await gone(pid)


async def test_a_drained_node_parks_nothing_and_ends_what_is_parked(world: World) -> None:
    await node_of(world)
    _, pid = await parked(world)
    await world.run("j2", *script())
    await world.says("j2", "step 3")
    await world.write(NodeDrained(node_id="n1", by="alice", at_s=world.now_s()))
    await gone(pid)
    assert not (await preempted(world, "j2")).parked


async def test_a_parked_run_ends_where_its_job_goes_on_elsewhere(world: World) -> None:
    await node_of(world)
    await node_of(world, "n2")
    end, pid = await parked(world)
    await world.place("j1", epoch=2, node_id="n2")
    assert (await world.fact(RunUnparked, "j1")).reason == "its job was given other nodes"
    await gone(pid)
    assert (await begun(world)).resumed_step == end.steps
    await world.says("j1", "loads")


async def test_a_parked_run_ends_where_its_job_is_given_more_devices(world: World) -> None:
    await node_of(world)
    _, pid = await parked(world)
    await world.place("j1", 0, 1, epoch=2)
    assert (await world.fact(RunUnparked, "j1")).reason == "it was given other devices"
    await gone(pid)
    assert (await begun(world)).start != "parked"


async def test_a_parked_run_ends_with_its_node(world: World) -> None:
    node = await node_of(world)
    _, pid = await parked(world)
    await node.stop()
    await gone(pid)


async def test_a_parked_run_ends_with_its_executor_and_its_job_goes_on_from_the_checkpoint(world: World) -> None:
    node = await node_of(world)
    end, pid = await parked(world)
    await node.kill()
    await gone(pid)
    await node.start()
    await world.place("j1", epoch=2)
    again = await begun(world)
    assert (again.start != "parked", again.resumed_step) == (True, end.steps)
    await world.says("j1", "loads")


async def test_an_executor_that_dies_while_it_parks_a_run_has_preempted_it(world: World) -> None:
    node = await node_of(world)
    await world.run("j1", *script())
    await world.says("j1", "step 3")
    pid = number_of(await world.output("j1"), b"loaded")
    await world.preempt("j1")
    await eventually(lambda: state_of(pid) == "T")
    await node.kill()
    await gone(pid)
    await node.start()
    end = await world.ended("j1")
    assert (end.outcome, end.steps) == ("preempted", (await world.fact(RunCheckpointed, "j1")).step)
    await world.place("j1", epoch=2)
    assert (await begun(world)).resumed_step == end.steps
    await world.says("j1", "loads")
    assert (await world.facts("j1")).count("RunEnded") == 1


async def test_a_run_that_went_on_is_found_by_the_next_executor(world: World) -> None:
    node = await node_of(world)
    end, pid = await parked(world)
    await world.place("j1", epoch=2)
    await world.says("j1", f"step {end.steps + 3} 2")
    await node.kill()
    await node.start()
    again = await preempted(world, "j1", 2)
    assert (again.outcome, again.steps > end.steps) == ("preempted", True)
    await world.place("j1", epoch=3)
    assert (await begun(world, epoch=3)).start == "parked"
    await world.cancel("j1")
    assert (await world.ended("j1", 3)).outcome == "cancelled"
    await gone(pid)


async def test_a_parked_process_that_is_killed_costs_what_a_preemption_costs(world: World) -> None:
    await node_of(world)
    end, pid = await parked(world)
    os.kill(pid, signal.SIGKILL)
    assert (await world.fact(RunUnparked, "j1")).reason == "its processes have ended"
    await world.place("j1", epoch=2)
    again = await begun(world)
    assert (again.start != "parked", again.resumed_step) == (True, end.steps)
    await world.says("j1", "loads")


async def test_a_parked_process_whose_shim_is_killed_leaves_nothing(world: World) -> None:
    await node_of(world)
    _, pid = await parked(world)
    shim = int(process_launcher.adopt(world.folder / "n1" / "runs" / "j1" / "1" / "0").pid)  # type: ignore[union-attr]
    os.kill(shim, signal.SIGKILL)
    assert (await world.fact(RunUnparked, "j1")).reason == "its processes have ended"
    await gone(pid)


async def test_a_run_that_went_on_and_is_over_leaves_no_folder(world: World) -> None:
    await node_of(world)
    end, _ = await parked(world, "j1", *script(40))
    await world.place("j1", epoch=2)
    assert (await world.ended("j1", 2)).steps == 40 > end.steps
    await world.run("j2", "true")  # whose end is in the log after what is left of the other was removed
    await world.ended("j2")
    await eventually(lambda: not (world.folder / "n1" / "runs" / "j1").exists())
    assert await world.facts("j1") == ["RunStarted", "RunCheckpointed", "RunEnded", "RunStarted", "RunEnded"]
