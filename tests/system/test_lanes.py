"""Jobs that take turns on one device, on the real thing: NATS, every service a process, real processes as jobs."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from clusters import Cluster, facts, until

from penstock_log import JobSpec, MemoryNeed
from penstock_testing import eventually

JOB = Path(__file__).parents[1] / "support" / "turning_job.py"
MIB = 2**20
NEED = MemoryNeed(40 * MIB, 0, 60 * MIB)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One device, and one lane on it, so that everybody has to take turns with everybody."""
    it = Cluster(tmp_path_factory.mktemp("lanes") / "data", "--emulate", "fast:1@1.0:4GiB")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_EXECUTOR_LANE_MOST", "1")
        patch.setenv("PENSTOCK_EXECUTOR_LANE_WARN_S", "0.5")
        it.up()
    yield it
    it.kill_all()


def turning(notes: Path, iterations: int, *options: str, **more: object) -> JobSpec:
    """A job that takes turns, and notes when each of its iterations began and ended."""
    command = (sys.executable, str(JOB), str(notes), str(iterations), *options)
    spec = {"name": "turns", "command": command, "profile": "off", "sharing": "lane", "memory": NEED, **more}
    return JobSpec(**spec)  # type: ignore[arg-type]


def iterations(notes: Path) -> list[tuple[int, int, str]]:
    """Return begin, end and job of all iterations that ended, in order."""
    text = notes.read_text() if notes.exists() else ""
    lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]  # the last may be there by half
    return sorted((int(begin), int(end), job) for job, _, _, begin, end, _ in lines if end != "0")


def assert_in_turns(notes: Path) -> None:
    """No iteration began before the one before it had ended, whosever they were."""
    each = iterations(notes)
    assert [pair for pair in pairwise(each) if pair[1][0] < pair[0][1]] == []


def done(notes: Path, job_id: str) -> int:
    return sum(job == job_id for _, _, job in iterations(notes))


async def test_three_jobs_share_a_device_in_turns_and_do_every_step_once(cluster, tmp_path):
    notes, go = tmp_path / "notes", tmp_path / "go"
    async with cluster.client() as client:
        jobs = [(await client.submit(turning(notes, 120, "busy_ms=2", f"go={go}"))).id for _ in range(3)]
        for job_id in jobs:
            await until(client, job_id, "run.started.v1")
        go.touch()
        for job_id in jobs:
            job = await client.wait(job_id)
            assert (job.state, job.attempts, done(notes, job_id)) == ("CD", 1, 120), job.reason
        story = [line.text for line in (await client.story(jobs[1])).lines]
    assert_in_turns(notes)
    assert sum(first[2] != second[2] for first, second in pairwise(iterations(notes))) >= 6
    assert any("takes its turns in lane 0 of device" in text for text in story)
    assert any("measured on" in text and "persistent" in text for text in story)
    assert any("has left the lanes of device" in text and "its run has ended" in text for text in story)


async def test_a_crash_in_a_turn_leaves_the_others_alone(cluster, tmp_path):
    notes = tmp_path / "notes"
    async with cluster.client() as client:
        first = (await client.submit(turning(notes, 300, "busy_ms=2"))).id
        await eventually(lambda: done(notes, first) > 10)
        second = (await client.submit(turning(notes, 100, "crash_at=50", "busy_ms=2"))).id
        failed, other = await client.wait(second), await client.wait(first)
        left = (await facts(client, second, "run.lane_changed.v1"))[-1]
    assert (failed.state, failed.exit_code, other.state, done(notes, first)) == ("F", 7, "CD", 300)
    assert left.fact["change"] == "left"
    assert left.fact["reason"] == "its run has ended with exit code 7"
    assert_in_turns(notes)


async def test_a_job_of_its_own_device_waits_until_those_who_share_it_are_done(cluster, tmp_path):
    notes = tmp_path / "notes"
    async with cluster.client() as client:
        sharing = (await client.submit(turning(notes, 100, "busy_ms=2"))).id
        await until(client, sharing, "run.started.v1")
        alone = (await client.submit(JobSpec(name="alone", command=("true",), profile="off"))).id
        assert (await client.wait(alone)).state == "CD"
        started = (await facts(client, alone, "run.started.v1"))[0]
        ended = (await facts(client, sharing, "run.ended.v1"))[0]
    assert ended.seq < started.seq
    assert done(notes, sharing) == 100


async def test_an_executor_that_is_killed_takes_its_lanes_over_again(cluster, tmp_path):
    notes = tmp_path / "notes"
    async with cluster.client() as client:
        jobs = [(await client.submit(turning(notes, 400, "busy_ms=2"))).id for _ in range(2)]
        await eventually(lambda: all(done(notes, job_id) > 10 for job_id in jobs))
        for pid in cluster.pids("executor"):
            os.kill(pid, signal.SIGKILL)
        for job_id in jobs:
            job = await client.wait(job_id)
            assert (job.state, job.attempts, done(notes, job_id)) == ("CD", 1, 400)
        entered = [each.fact for each in await facts(client, jobs[0], "run.lane_changed.v1")]
    assert_in_turns(notes)
    assert [change.get("reason", "") for change in entered if change["change"] == "entered"][1:] == [
        "the executor was restarted"
    ]


async def test_a_preempted_job_that_shares_saves_and_goes_on_where_it_was(cluster, tmp_path):
    notes = tmp_path / "notes"
    async with cluster.client() as client:
        node = (await client.nodes()).nodes[0].id
        jobs = [(await client.submit(turning(notes, 250, "busy_ms=8"))).id for _ in range(2)]
        await eventually(lambda: all(done(notes, job_id) > 10 for job_id in jobs))
        await client.drain(node, preempt=True)
        for job_id in jobs:
            await until(client, job_id, "run.ended.v1")
        await client.resume(node)
        for job_id in jobs:
            job = await client.wait(job_id)
            assert (job.state, job.attempts, done(notes, job_id)) == ("CD", 2, 250)
            (ended, _) = await facts(client, job_id, "run.ended.v1")
            assert ended.fact["outcome"] == "preempted"
    assert_in_turns(notes)
