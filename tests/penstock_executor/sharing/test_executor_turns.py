"""Real processes that take turns under a real executor, on the bus in memory."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from executor_cases import World, python
from turn_cases import MIB, Notes, share

from penstock_log import LaneChanged, MemoryNeed, RunCheckpointed, RunMeasured, RunWarned, subjects
from penstock_log.views import LanesView
from penstock_testing import eventually

pytestmark = pytest.mark.slow

ONE_LANE = {"lane_most": 1, "devices": "fast:2@1.0:4GiB", "lane_reserve": 0.0}

SMALL = {"lane_most": 1, "devices": "fast:1@1.0:128MiB", "lane_reserve": 0.0}
SMALL_NEED = MemoryNeed(30 * MIB, 0, 4 * MIB)
"""Two such jobs have room on a small device, and none of them has for 98 MiB more while the other one is there."""


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


def test_a_note_that_is_there_by_half_is_not_read_yet(notes: Notes) -> None:
    notes.path.write_text("j1 0 77 100 200 0\nj1 0 77 300")
    assert notes.steps("j1") == [0]


async def test_three_jobs_take_turns_on_one_device(world: World, notes: Notes) -> None:
    await world.node(**ONE_LANE)
    go = notes.path.with_name("go")
    for job in ("j1", "j2", "j3"):
        await share(world, job, notes.command(100, "busy_ms=2", f"go={go}"))
    go.touch()
    for job in ("j1", "j2", "j3"):
        ended = await world.ended(job)
        assert (ended.outcome, ended.steps) == ("completed", 100)
    assert notes.overlaps() == []
    assert notes.switches() >= 6
    entered = await world.fact(LaneChanged, "j2")
    assert (entered.change, entered.lane, entered.device) == ("entered", 0, 0)
    left = await world.fact(LaneChanged, "j3", lambda fact: fact.change == "left")
    assert left.reason == "its run has ended"
    assert (await world.fact(RunMeasured, "j1")).need.persistent_bytes > MIB


async def test_when_one_crashes_in_its_turn_the_others_go_on(world: World, notes: Notes) -> None:
    await world.node(**ONE_LANE)
    await share(world, "j1", notes.command(100_000))
    await eventually(lambda: notes.done("j1") > 5)
    await share(world, "j2", notes.command(40, "crash_at=20"))
    assert (await world.ended("j2")).exit_code == 7
    crash = notes.intervals(ended=False)
    done = notes.done("j1")
    await eventually(lambda: notes.done("j1") > done)
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"
    left = await world.fact(LaneChanged, "j2", lambda fact: fact.change == "left")
    assert left.reason == "its run has ended with exit code 7"
    assert [each.job_id for each in crash].count("j2") == 21
    assert notes.overlaps() == []


async def test_a_stopped_process_loses_its_turn_and_goes_on_later(world: World, notes: Notes) -> None:
    await world.node(**ONE_LANE)
    await share(world, "j1", notes.command(60, "hang_at=10"))
    await eventually(lambda: len([i for i in notes.intervals(ended=False) if i.job_id == "j1"]) == 11)
    pid = notes.intervals(ended=False)[-1].pid
    os.kill(pid, signal.SIGSTOP)
    await share(world, "j2", notes.command(30))
    assert (await world.ended("j2")).steps == 30
    warned = await world.fact(RunWarned, "j1")
    assert "did not give its turn back" in warned.warning
    os.kill(pid, signal.SIGKILL)
    assert (await world.ended("j1")).outcome == "failed"


async def test_a_job_that_hangs_is_warned_of_and_then_ended(world: World, notes: Notes) -> None:
    await world.node(**ONE_LANE, lane_warn_s=0.2, lane_hang_s=0.6, lane_hang="kill")
    await share(world, "j1", notes.command(60, "hang_at=10"))
    await eventually(lambda: notes.done("j1") == 10)
    await share(world, "j2", notes.command(30))
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("failed", 137)
    assert ended.reason == "rank 0 was in one iteration for 0.6 s while 1 waited for its turn, and was ended"
    assert "has been in one iteration for 0.2 s" in (await world.fact(RunWarned, "j1")).warning
    assert (await world.ended("j2")).steps == 30


async def test_a_job_that_hangs_may_be_left_behind(world: World, notes: Notes) -> None:
    await world.node(**ONE_LANE, lane_warn_s=0.2, lane_hang_s=0.6)
    await share(world, "j1", notes.command(60, "hang_at=10"))
    await eventually(lambda: notes.done("j1") == 10)
    await share(world, "j2", notes.command(30))
    assert (await world.ended("j2")).steps == 30
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"


@pytest.mark.thorough
async def test_a_job_that_takes_more_than_it_may_hold_ends_alone(world: World, notes: Notes) -> None:
    await world.node(**{**ONE_LANE, "devices": "fast:1@1.0:384MiB"})
    await share(world, "j1", notes.command(300))
    await share(world, "j2", notes.command(300, "leak_at=20"))
    ended = await world.ended("j2")
    assert ended.outcome == "failed"
    assert "may hold" in ended.reason
    assert (await world.ended("j1")).steps == 300


async def test_a_restarted_executor_takes_turns_over_again(world: World, notes: Notes) -> None:
    node = await world.node(**ONE_LANE)
    for job in ("j1", "j2"):
        await share(world, job, notes.command(600))
    await eventually(lambda: notes.done("j1") > 10 and notes.done("j2") > 10)
    await node.kill()
    await node.start()
    for job in ("j1", "j2"):
        assert (await world.ended(job)).steps == 600
    assert notes.overlaps() == []
    again = await world.fact(LaneChanged, "j1", lambda fact: "restarted" in fact.reason)
    assert (again.change, again.lane) == ("entered", 0)
    assert (await world.facts("j1")).count("RunStarted") == 1


async def test_a_gang_goes_on_under_a_restarted_executor(world: World, notes: Notes) -> None:
    node = await world.node(lane_most=1, devices="fast:2@1.0:4GiB")
    await share(world, "gang", notes.command(100_000, "busy_ms=3", f"meet={world.folder}"), 0, 1)
    await share(world, "j1", notes.command(100_000), 1)
    await eventually(lambda: notes.done("gang") > 10 and notes.done("j1") > 10)
    await node.kill()
    await node.start()
    done = notes.done("gang")
    await eventually(lambda: notes.done("gang") > done + 50)


async def test_a_job_that_waits_for_its_turn_is_preempted_at_a_boundary(world: World, notes: Notes) -> None:
    await world.node(**ONE_LANE, lane_policy="priority", lane_patience_s=1000.0)
    await share(world, "j1", notes.command(100_000), priority=5)
    await eventually(lambda: notes.done("j1") > 5)
    await share(world, "j2", notes.command(100_000), grace_s=20.0)
    await eventually((world.folder / "n1/runs/j2/1/0/hello").exists)
    await world.preempt("j2")
    ended = await world.ended("j2")
    assert (ended.outcome, ended.exit_code) == ("preempted", 75)
    assert (await world.fact(RunCheckpointed, "j2")).step == notes.done("j2") == ended.steps
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"


async def test_a_job_leaves_without_a_turn_where_the_one_before_it_never_ends_its_own(
    world: World, notes: Notes
) -> None:
    await world.node(**ONE_LANE)
    await share(world, "j2", notes.command(100_000), grace_s=600.0)
    await eventually(lambda: notes.done("j2") > 5)
    await share(world, "j1", notes.command(60, "hang_at=10"))
    await eventually(lambda: notes.done("j1") == 10)
    await world.preempt("j2")
    ended = await world.ended("j2")
    assert (ended.outcome, ended.exit_code) == ("preempted", 75)
    assert (await world.fact(RunCheckpointed, "j2")).step == ended.steps
    assert notes.steps("j2") == list(range(ended.steps))


async def test_a_gang_that_waits_leaves_after_the_same_step_without_a_turn(world: World, notes: Notes) -> None:
    await world.node(lane_most=1, devices="fast:2@1.0:4GiB")
    await share(world, "gang", notes.command(100_000, f"meet={world.folder}"), 0, 1, grace_s=600.0)
    await eventually(lambda: notes.done("gang") > 5)
    await share(world, "j1", notes.command(60, "hang_at=10"), 1)
    await eventually(lambda: notes.done("j1") == 10)
    await world.preempt("gang")
    ended = await world.ended("gang")
    assert (ended.outcome, ended.exit_code) == ("preempted", 75)
    assert (await world.fact(RunCheckpointed, "gang")).step == ended.steps
    assert notes.steps("gang", rank=0) == notes.steps("gang", rank=1) == list(range(ended.steps))


async def test_an_evicted_job_does_every_step_once(world: World, notes: Notes) -> None:
    await world.node(**SMALL)
    await share(world, "j1", notes.command(100_000), memory=SMALL_NEED)
    await eventually(lambda: notes.done("j1") > 5)
    await share(world, "j2", notes.command(1_000, "keep_at=20", "mib=98"), memory=SMALL_NEED, grace_s=600.0)
    ended = await world.ended("j2")
    assert (ended.outcome, ended.exit_code) == ("preempted", 75)
    assert "more between turns" in ended.reason
    told = [delivery.commit.facts for delivery in await world.bus.read(subjects.run("j2"))]
    assert [fact.change for facts in told for fact in facts if isinstance(fact, LaneChanged)] == ["entered", "left"]
    assert 20 < (await world.fact(RunCheckpointed, "j2")).step == ended.steps < 1_000
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"
    await world.place("j2", epoch=2)
    assert (await world.ended("j2", epoch=2)).steps == 1_000
    assert notes.steps("j2") == list(range(1_000))


@pytest.mark.thorough
async def test_a_parked_job_that_is_preempted_does_every_step_once(world: World, notes: Notes) -> None:
    await world.node(**SMALL)
    await share(world, "j1", notes.command(100_000), memory=SMALL_NEED)
    await eventually(lambda: notes.done("j1") > 5)
    await share(world, "j2", notes.command(1_000, "peak_at=20", "mib=98"), memory=SMALL_NEED, grace_s=600.0)
    await world.fact(LaneChanged, "j2", lambda fact: fact.change == "parked")
    await world.preempt("j2")
    ended = await world.ended("j2")
    assert (ended.outcome, ended.exit_code) == ("preempted", 75)
    assert 20 < (await world.fact(RunCheckpointed, "j2")).step == ended.steps < 1_000
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"
    await world.place("j2", epoch=2)
    assert (await world.ended("j2", epoch=2)).steps == 1_000
    assert notes.steps("j2") == list(range(1_000))


@pytest.mark.thorough
async def test_a_gang_takes_its_turns_on_two_devices_together(world: World, notes: Notes) -> None:
    await world.node(lane_most=1, devices="fast:2@1.0:4GiB")
    await share(world, "gang", notes.command(60, f"meet={world.folder}"), 0, 1)
    await share(world, "j1", notes.command(60), 1)
    assert (await world.ended("gang")).steps == 60
    assert (await world.ended("j1")).steps == 60
    on_device_1 = [i for i in notes.intervals() if (i.job_id, i.rank) in {("gang", 1), ("j1", 0)}]
    assert all(first.end <= second.begin for first, second in pairwise(on_device_1))


@pytest.mark.thorough
async def test_one_process_on_two_devices_takes_both_lanes_for_a_turn(world: World, notes: Notes) -> None:
    await world.node(lane_most=1, devices="fast:2@1.0:4GiB")
    await share(world, "both", notes.command(60), 0, 1, processes="node")
    await share(world, "j1", notes.command(60), 0)
    await share(world, "j2", notes.command(60), 1)
    for job in ("both", "j1", "j2"):
        assert (await world.ended(job)).steps == 60
    for alone in ("j1", "j2"):
        beside = [i for i in notes.intervals() if i.job_id in {"both", alone}]
        assert all(first.end <= second.begin for first, second in pairwise(beside))


async def test_a_job_whose_need_nobody_knows_is_measured_before_others_have_turns(world: World, notes: Notes) -> None:
    await world.node(**ONE_LANE)
    await share(world, "j1", notes.command(500), memory=None)
    measured = await world.fact(RunMeasured, "j1")
    assert measured.iterations >= 2
    await share(world, "j2", notes.command(50))
    assert (await world.ended("j2")).steps == 50
    assert (await world.ended("j1")).steps == 500


async def test_a_part_of_a_device_is_told_and_kept_to(world: World) -> None:
    await world.node(devices="fast:1@1.0:1GiB")
    code = "import os; print(os.environ['PENSTOCK_MEMORY_BYTES'], os.environ.get('PENSTOCK_LANES'), flush=True)\n"
    for job, more in (("j1", ""), ("j2", "kept = [bytearray(os.urandom(1 << 20)) * 8 for _ in range(1000)]")):
        await world.submit(job, *python(code + more), sharing="fraction", fraction=0.25)
        await world.place(job, 0)
    assert (await world.ended("j1")).outcome == "completed"
    assert await world.output("j1") == b"268435456 None\n"
    ended = await world.ended("j2")
    assert ended.outcome == "failed"
    assert "may hold" in ended.reason or "MemoryError" in ended.reason


async def test_what_is_shared_is_told_once_a_second(world: World, notes: Notes) -> None:
    node = await world.node(**ONE_LANE)
    for job in ("j1", "j2"):
        await share(world, job, notes.command(100_000))
    async with asyncio.timeout(60.0):
        async for _, body in node.bus.subscribe(subjects.lanes("n1")):
            told = msgspec.json.decode(body, type=LanesView)
            members = {member.job_id: member for member in told.devices[0].lanes[0].members}
            shares = [member.share for member in members.values() if member.share > 0]
            if members.keys() == {"j1", "j2"} and len(shares) == 2 and told.devices[0].lanes[0].switches_per_s > 10:
                break
    assert told.devices[0].lanes[0].holder in members
    assert 0 < sum(shares) <= 1.05
    assert all(member.cap_bytes > MIB and member.need is not None for member in members.values())
