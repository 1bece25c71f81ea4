"""The page of the last answered heartbeat, and what an executor does with answers."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec
import pytest
from executor_cases import World, python

from penstock_bus.clock import ticks
from penstock_executor.fence import HeardPage
from penstock_executor.launchers import process_launcher
from penstock_log import Placement, RoundDecided, RunWarned, Slot, subjects
from penstock_log.request_bodies import NodeHeard, NodeHeartbeat
from penstock_testing import eventually

WAIT = "import time; print('up', flush=True); time.sleep(600)"


def on_page(path: Path) -> float:
    return struct.unpack("@q", path.read_bytes())[0] / 1e9 if path.stat().st_size else 0.0


def test_the_page_goes_on_only(tmp_path: Path) -> None:
    page, now_s = HeardPage(tmp_path / "heard"), ticks()
    page.note(now_s - 2.0)
    assert on_page(page.path) == pytest.approx(now_s - 2.0)
    page.note(now_s - 3.0)
    page.note(now_s + 1000.0)
    assert on_page(page.path) == pytest.approx(now_s - 2.0)
    assert 2.0 <= page.unheard_s < 60.0
    page.close()


def test_what_an_earlier_executor_has_written_holds(tmp_path: Path) -> None:
    before = HeardPage(tmp_path / "heard")
    before.note(ticks() - 1.0)
    before.close()
    page = HeardPage(tmp_path / "heard")
    assert page.unheard_s < 60.0
    page.close()


@pytest.mark.parametrize("body", [b"torn", struct.pack("@q", 1 << 62), struct.pack("@q", -1)])
def test_a_page_of_another_life_of_the_machine_or_a_damaged_one_says_nothing(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "heard").write_bytes(body)
    page = HeardPage(tmp_path / "heard")
    assert page.unheard_s == pytest.approx(ticks(), rel=0.01)
    page.close()


async def place(world: World, job_id: str, *command: str, patience_s: float) -> None:
    await world.submit(job_id, *command)
    slots = (Slot(node_id="n1", devices=(0,)),)
    placement = Placement(job_id=job_id, epoch=1, kind="fast", slots=slots, patience_s=patience_s)
    await world.write(RoundDecided(pool="default", placements=(placement,), at_s=world.now_s()))


async def answer(world: World, times: int = 1) -> None:
    """Answer so many heartbeats, as the matcher does."""
    async for _, body in world.bus.subscribe(subjects.heartbeat("n1")):
        beat = msgspec.json.decode(body, type=NodeHeartbeat)
        heard = NodeHeard(incarnation=beat.incarnation, ticks_s=beat.ticks_s)
        await world.bus.publish(subjects.heard("n1"), msgspec.json.encode(heard))
        times -= 1
        if not times:
            return


def states(world: World) -> set[str]:
    process = process_launcher.adopt(world.folder / "n1/runs/j1/1/0")
    pids = [] if process is None else process_launcher.shim.descendants(process.pid)
    return {process_launcher._state(process_launcher._stat(pid)) for pid in pids}


@pytest.mark.slow
async def test_a_run_begins_with_an_answer_stops_without_and_goes_on_with_the_next(world: World) -> None:
    await world.node(heartbeat_s=0.05)
    await place(world, "j1", *python(WAIT), patience_s=4.0)
    assert await world.facts("j1") == []
    await answer(world, 3)
    await world.says("j1", "up")
    await eventually(lambda: states(world) == {"T"})
    await answer(world)
    await eventually(lambda: states(world) == {"S"})
    warned = await world.fact(RunWarned, "j1")
    assert warned.warning.startswith("the matcher did not hear node n1 for 3.")
    assert warned.warning.endswith(" s: the run was stopped meanwhile, and goes on")


@pytest.mark.slow
async def test_a_run_that_began_after_the_last_answered_heartbeat_is_warned_of_too(world: World) -> None:
    await world.node(heartbeat_s=0.05)
    await answer(world, 3)
    await place(world, "j1", *python(WAIT), patience_s=4.0)
    await world.says("j1", "up")
    await eventually(lambda: states(world) == {"T"})
    await answer(world)
    warned = await world.fact(RunWarned, "j1")
    assert warned.warning.endswith(" s: the run was stopped meanwhile, and goes on")


@pytest.mark.slow
async def test_an_answer_to_another_incarnation_lets_nothing_go_on(world: World) -> None:
    await world.node(heartbeat_s=0.05)
    async for _, body in world.bus.subscribe(subjects.heartbeat("n1")):
        beat = msgspec.json.decode(body, type=NodeHeartbeat)
        break
    for answered in (NodeHeard(incarnation="before-1", ticks_s=ticks()), None, beat):
        said = msgspec.json.encode(answered) if answered is not None else b"no answer"
        await world.bus.publish(subjects.heard("n1"), said)
    page = world.folder / "n1/heard"
    await eventually(lambda: on_page(page) > 0)
    assert on_page(page) == pytest.approx(beat.ticks_s, abs=1e-6)


@pytest.mark.slow
async def test_a_run_that_was_given_up_never_goes_on_though_the_node_is_heard_again(world: World) -> None:
    await world.node(heartbeat_s=0.05)
    code = "import sys, time\nwhile True: print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True); time.sleep(0.01)"
    await place(world, "j1", *python(code), patience_s=4.0)
    await answer(world)
    await eventually(lambda: states(world) == {"T"})
    process = process_launcher.adopt(world.folder / "n1/runs/j1/1/0")
    assert process is not None
    given_up_s = ticks()
    await world.lose("n1")
    await answer(world, 3)
    await eventually(lambda: not process_launcher.is_alive(process))
    assert 0 < max(map(float, (await world.output("j1")).split())) < given_up_s


@pytest.mark.slow
async def test_a_restarted_executor_goes_on_with_the_page_of_the_one_before(world: World) -> None:
    node = await world.node(heartbeat_s=0.05)
    await place(world, "j1", *python(WAIT), patience_s=60.0)
    await answer(world)
    await world.says("j1", "up")
    before_s = on_page(world.folder / "n1/heard")
    await node.kill()
    await node.start()
    assert on_page(world.folder / "n1/heard") == before_s > 0
    await answer(world)
    await eventually(lambda: on_page(world.folder / "n1/heard") > before_s)
    assert states(world) == {"S"}
    assert os.path.exists(world.folder / "n1/runs/j1/1/0/pid")
