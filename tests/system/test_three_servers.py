"""`penstock up --servers 3` while the server that leads the log is killed: what was accepted runs once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster, running

import penstock
from penstock_log import JobSpec, subjects
from penstock_testing import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

NAMES = {"penstock-1": "nats", "penstock-2": "nats-2", "penstock-3": "nats-3"}
SUBMITTERS, EACH = 3, 12


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path / "data", "--servers", "3", "--emulate", "fast:4@1.0:4GiB") as one:
        yield one


async def leader(client: penstock.Client) -> str:
    return next(one.leader for one in (await client.streams()).streams if one.name == subjects.EVT)


async def kill_leader(cluster: Cluster, client: penstock.Client) -> int:
    """Kill the process of the server that leads the log; return its id."""
    pid = cluster.running["processes"][NAMES[await leader(client)]]["pid"]
    os.kill(pid, signal.SIGKILL)
    return pid


async def all_current(client: penstock.Client) -> bool:
    found = (await client.streams()).streams
    return all(len(one.copies) == 2 and all(peer.current for peer in one.copies) for one in found)


async def test_jobs_that_were_accepted_while_leaders_are_killed_run_once(cluster: Cluster) -> None:
    accepted: list[str] = []

    async def submit(number: int) -> None:
        async with cluster.client() as client:
            for count in range(EACH):
                spec = JobSpec(id=f"s{number}x{count}", name="job", command=("true",), profile="off")
                accepted.append((await client.submit(spec)).id)

    async with cluster.client() as client:
        async with asyncio.TaskGroup() as submitters:
            for number in range(SUBMITTERS):
                submitters.create_task(submit(number))
            killed = []
            for behind in (1, 2):
                await eventually(lambda behind=behind: len(accepted) >= behind * EACH)  # type: ignore[misc]
                killed.append(await kill_leader(cluster, client))
        assert len(set(accepted)) == SUBMITTERS * EACH
        for job_id in accepted:
            job = await client.wait(job_id)
            assert (job.state, job.attempts) == ("CD", 1)
        stories = Counter([(one.subject, one.type) for job_id in accepted for one in await facts(client, job_id)])
        for job_id in accepted:
            for tag in ("job.submitted.v1", "job.finished.v1"):
                assert stories[subjects.job(job_id), tag] == 1
        await eventually(lambda: all_current(client))
    again = {entry["pid"] for entry in cluster.running["processes"].values()}
    assert not again & set(killed), "the supervisor has started them again"
    said = cluster.run("doctor").stdout
    assert "10 streams on 3 servers each (R3), all current" in said


async def facts(client: penstock.Client, job_id: str) -> list[penstock.views.EventView]:
    return list((await client.events(job_id, after=0, limit=1000)).events)
