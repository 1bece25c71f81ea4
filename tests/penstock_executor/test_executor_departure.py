"""A node of a pilot leaves by itself: when its time is over, or when no run was there for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from executor_cases import PATIENCE_S, Node, World, python, world_on

from penstock_bus import Append, BusError, Unavailable
from penstock_bus.memory import MemoryBus
from penstock_bus.shell import Shell
from penstock_executor import runner
from penstock_log import NodeLeaving, NodeLeft, RunEnded, subjects
from penstock_testing import eventually

WAITS = """
import pathlib, sys, time
print("begun", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""
LOOK_S = 0.0123


class Departure:
    """The clocks by which a node decides that it leaves, and the looks that it has taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.later_s, self.looks = 0.0, 0
        self._patch, self._pause = monkeypatch, runner.pause
        monkeypatch.setattr(runner, "LEAVE_LOOK_S", LOOK_S)
        monkeypatch.setattr(runner, "pause", self._counted)

    def of(self, node: Node) -> None:
        """Let this node's clocks go by this."""
        now_s, monotonic = node.shell.now_s, node.shell.monotonic
        self._patch.setattr(node.shell, "now_s", lambda: now_s() + self.later_s)
        self._patch.setattr(node.shell, "monotonic", lambda: monotonic() + self.later_s)

    async def looked(self) -> None:
        """Wait until it has looked after this."""
        before = self.looks
        await eventually(lambda: self.looks >= before + 2)

    async def _counted(self, seconds: float, event: asyncio.Event) -> None:
        self.looks += seconds == LOOK_S
        await self._pause(seconds, event)


@pytest.fixture
def departure(monkeypatch: pytest.MonkeyPatch) -> Departure:
    return Departure(monkeypatch)


async def of_node(world: World, node_id: str = "n1") -> list[str]:
    deliveries = await world.bus.read(subjects.node(node_id))
    return [type(fact).__name__ for one in deliveries for fact in one.commit.facts]


async def until_left(world: World, node_id: str = "n1") -> list[str]:
    async for delivery in world.bus.follow(subjects=[subjects.node(node_id)]):
        if isinstance(delivery.commit.facts[0], NodeLeft):
            break
    return await of_node(world, node_id)


async def test_a_node_whose_time_is_over_has_its_runs_leave_and_then_leaves_itself(
    tmp_path: Path, departure: Departure
) -> None:
    async with world_on(MemoryBus(), tmp_path) as world:
        end_s = Shell(world.bus, "test").now_s() + 10_000.0
        departure.of(await world.node(leave_at_s=end_s))
        assert (await world.joined())[0].until_s == end_s
        await world.run("j1", *python(WAITS, str(tmp_path / "never")))
        await world.says("j1", "begun")
        departure.later_s = 9_000.0
        await departure.looked()
        assert await of_node(world) == ["NodeJoined"]
        departure.later_s = 11_000.0
        assert (await world.ended("j1")).outcome == "preempted"
        assert await until_left(world) == ["NodeJoined", "NodeLeaving", "NodeLeft"]


async def test_a_node_leaves_once_no_run_was_there_for_so_long_and_not_while_one_is(
    tmp_path: Path, departure: Departure
) -> None:
    async with world_on(MemoryBus(), tmp_path) as world:
        departure.of(await world.node(leave_idle_s=1_000.0))
        await world.run("j1", *python(WAITS, str(tmp_path / "over")))
        await world.says("j1", "begun")
        departure.later_s = 5_000.0
        await departure.looked()
        (tmp_path / "over").touch()
        assert (await world.ended("j1")).outcome == "completed"
        departure.later_s += 900.0
        await departure.looked()
        assert await of_node(world) == ["NodeJoined"]
        departure.later_s += 1_001.0
        assert await until_left(world) == ["NodeJoined", "NodeLeaving", "NodeLeft"]


async def test_a_node_that_has_had_no_run_leaves_too_and_one_without_limits_stays(
    tmp_path: Path, departure: Departure
) -> None:
    async with world_on(MemoryBus(), tmp_path) as world:
        departure.of(await world.node("n2"))
        departure.of(await world.node(leave_idle_s=1_000.0))
        await departure.looked()
        assert await of_node(world) == ["NodeJoined"]
        departure.later_s = 1_001.0
        assert await until_left(world) == ["NodeJoined", "NodeLeaving", "NodeLeft"]
        assert not world.nodes[0].shell.stopping.is_set()


@pytest.mark.parametrize("error", [Unavailable("no server answers"), BusError("no room is left")])
async def test_a_node_leaves_though_the_log_does_not_take_the_fact_that_says_so(
    error: BusError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LEAVING_S", 0.05)
    bus = MemoryBus()
    append = bus.append

    async def away(one: Append) -> int:
        if any(isinstance(fact, NodeLeaving) for fact in one.commit.facts):
            raise error
        return await append(one)

    async with world_on(bus, tmp_path) as world:
        node = await world.node()
        await world.run("j1", *python(WAITS, str(tmp_path / "never")))
        await world.says("j1", "begun")
        monkeypatch.setattr(bus, "append", away)
        await node.stop()
        assert (await world.ended("j1")).outcome == "preempted"
        assert await of_node(world) == ["NodeJoined", "NodeLeft"]


async def test_a_node_for_one_run_says_that_it_leaves_before_the_end_of_that_run_is_told(
    tmp_path: Path, departure: Departure
) -> None:
    async with world_on(MemoryBus(), tmp_path) as world:
        departure.of(await world.node(leave_after_runs=1))
        await departure.looked()
        await world.run("j1", *python("raise SystemExit(3)"))
        ended = await world.ended("j1")
        assert (ended.outcome, ended.exit_code) == ("failed", 3), "its failure is its own"
        assert await until_left(world) == ["NodeJoined", "NodeLeaving", "NodeLeft"]
        seqs = {
            type(fact): delivery.seq
            for subject in (subjects.node("n1"), subjects.run("j1"))
            for delivery in await world.bus.read(subject)
            for fact in delivery.commit.facts
        }
        assert seqs[NodeLeaving] < seqs[RunEnded]


async def test_a_node_for_one_run_waits_for_a_run_beside_it(tmp_path: Path, departure: Departure) -> None:
    async with world_on(MemoryBus(), tmp_path) as world:
        departure.of(await world.node(leave_after_runs=1))
        await world.run("j1", *python(WAITS, str(tmp_path / "first")))
        await world.submit("j2", *python(WAITS, str(tmp_path / "second")))
        await world.place("j2", 1)
        await world.says("j1", "begun")
        await world.says("j2", "begun")
        (tmp_path / "first").touch()
        assert (await world.ended("j1")).outcome == "completed"
        await departure.looked()
        assert await of_node(world) == ["NodeJoined", "NodeLeaving"]
        (tmp_path / "second").touch()
        assert (await world.ended("j2")).outcome == "completed"
        assert await until_left(world) == ["NodeJoined", "NodeLeaving", "NodeLeft"]


async def test_the_crash_in_a_gang_is_its_own_though_another_node_for_one_run_leaves_by_then(
    tmp_path: Path, departure: Departure
) -> None:
    of_two = """
import os, pathlib, sys, time
rank = os.environ["PENSTOCK_RANK"]
print("begun", flush=True)
while not pathlib.Path(sys.argv[1], rank).exists():
    time.sleep(0.01)
raise SystemExit(0 if rank == "1" else 3)
"""
    async with world_on(MemoryBus(), tmp_path) as world:
        for name in ("n1", "n2"):
            departure.of(await world.node(name, leave_after_runs=1))
        await world.submit("j1", *python(of_two, str(tmp_path)), gpus=2)
        await world.place_on("j1", {"n1": [0], "n2": [0]})
        await world.says("j1", "begun", times=2)
        (tmp_path / "1").touch()
        assert (await world.ended("j1", node_id="n2")).outcome == "completed"
        assert (await until_left(world, "n2"))[1:] == ["NodeLeaving", "NodeLeft"]
        (tmp_path / "0").touch()
        ended = await world.ended("j1")
        assert (ended.outcome, ended.exit_code) == ("failed", 3)


async def test_a_run_that_the_log_no_longer_wants_was_a_run_of_its_node_too(
    tmp_path: Path, departure: Departure
) -> None:
    async with world_on(MemoryBus(), tmp_path) as world:
        departure.of(node := await world.node(leave_after_runs=1))
        await world.run("j1", *python(WAITS, str(tmp_path / "never")))
        await world.says("j1", "begun")
        await world.lose("n1")
        async with asyncio.timeout(PATIENCE_S):
            await node.task
        assert "RunEnded" not in await world.facts("j1")


async def test_a_node_whose_departure_the_log_did_not_take_says_it_at_the_next_end(
    tmp_path: Path, departure: Departure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LEAVING_S", 0.05)
    bus, refused = MemoryBus(), list[str]()
    append = bus.append

    async def away_once(one: Append) -> int:
        for fact in one.commit.facts:
            if isinstance(fact, NodeLeaving) and not refused:
                refused.append(fact.reason)
                raise Unavailable("no server answers")
        return await append(one)

    monkeypatch.setattr(bus, "append", away_once)
    async with world_on(bus, tmp_path) as world:
        departure.of(await world.node(leave_after_runs=1))
        await world.run("j1", *python(WAITS, str(tmp_path / "first")))
        await world.submit("j2", *python(WAITS, str(tmp_path / "second")))
        await world.place("j2", 1)
        await world.says("j1", "begun")
        await world.says("j2", "begun")
        (tmp_path / "first").touch()
        await world.ended("j1")
        await eventually(lambda: bool(refused))
        (tmp_path / "second").touch()
        await world.ended("j2")
        assert await until_left(world) == ["NodeJoined", "NodeLeaving", "NodeLeft"]
    assert refused == ["it has had its runs"]
