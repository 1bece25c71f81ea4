"""The profile `ha` on a real engine: the container of the server that leads the log is killed in a storm of jobs."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from compose_stack import docker, running
from testcontainers.compose import DockerCompose

import penstock
from penstock_bus.identity.logins import read_login
from penstock_bus.nats import NatsBus, connect
from penstock_log import JobFinished, JobSubmitted, subjects, tag_of
from penstock_log.views import StreamView
from penstock_testing import eventually

SUBMITTERS = 3
JOBS = 40
"""Accepted before the kill, and again after it."""
LONG_S = 120.0
CONTAINERS = {"penstock-1": "nats", "penstock-2": "nats-2", "penstock-3": "nats-3"}
pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCompose]:
    """Bring up the servers, and what takes, places and runs a job."""
    services = ["nats", "nats-2", "nats-3", "gateway", "ranker", "matcher", "executor"]
    with running(tmp_path_factory.mktemp("outside") / "client.json", profiles=["ha"], services=services) as stack:
        yield stack


@pytest.fixture
async def bus(compose: DockerCompose, tmp_path: Path) -> AsyncIterator[NatsBus]:
    """Look at the log from outside, as the server's admin."""
    file = tmp_path / "admin.json"
    file.write_text(docker(compose, "exec", "-T", "nats", "cat", "/data/nats/logins/admin.json"))
    outside = read_login(Path(os.environ["PENSTOCK_CREDENTIALS"])).url
    async with connect(outside, login=msgspec.structs.replace(read_login(file), url=outside), timeout_s=60.0) as made:
        yield made


class Storm:
    """Clients that submit one job after the other, and when each was accepted; their jobs never fit, and only wait."""

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.at_s: list[float] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Storm:
        self._tasks = [asyncio.create_task(self._submit(number)) for number in range(SUBMITTERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def accepts_more(self, jobs: int) -> None:
        """Wait until so many more were accepted, or a client has failed."""
        enough = len(self.accepted) + jobs
        await eventually(
            lambda: len(self.accepted) >= enough or any(task.done() for task in self._tasks), within_s=LONG_S
        )

    def gap_s(self) -> float:
        """Return the longest time in which nothing was accepted."""
        return max(late - early for early, late in zip(self.at_s, self.at_s[1:], strict=False))

    async def _submit(self, number: int) -> None:
        async with penstock.Client() as client:
            for count in range(1_000_000):
                answer = await client.submit(
                    id=f"s{number}x{count}",
                    name="waits",
                    command=("true",),
                    cwd="/",
                    gpus=64,
                    profile="off",
                )
                self.accepted.append(answer.id)
                self.at_s.append(asyncio.get_running_loop().time())


async def log_of(bus: NatsBus) -> StreamView:
    return next(stream for stream in await bus.replication() if stream.name == subjects.EVT)


async def test_nothing_that_was_accepted_is_lost_when_the_leaders_container_is_killed(
    compose: DockerCompose, bus: NatsBus, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Storm() as storm:
        await storm.accepts_more(JOBS)
        service = CONTAINERS[(await log_of(bus)).leader]
        container = compose.get_container(service)
        killed = ["docker", "kill", "--signal", "KILL", container.ID or ""]
        await asyncio.to_thread(subprocess.run, killed, check=True, capture_output=True)
        await storm.accepts_more(JOBS)
    stored = Counter(
        fact.job_id
        for delivery in await bus.read(subjects.STREAM_SUBJECTS[subjects.EVT])
        for fact in delivery.commit.facts
        if isinstance(fact, JobSubmitted)
    )
    lost = [job_id for job_id in storm.accepted if job_id not in stored]
    doubled = [job_id for job_id, count in stored.items() if count > 1]
    with capsys.disabled():
        print(  # noqa: T201 the figure that this test is for
            f"\n{service} killed: nothing accepted for {storm.gap_s():.2f} s; "
            f"{len(storm.accepted)} accepted, {len(lost)} lost, {len(doubled)} doubled"
        )
    assert (lost, doubled) == ([], [])

    # `docker kill` says that somebody wanted it stopped: Docker's own restart policy leaves it so.
    await asyncio.to_thread(docker, compose, "up", "--detach", "--no-build", "--no-deps", service)

    async def current() -> bool:
        log = await log_of(bus)
        return bool(log.leader) and [copy.current for copy in log.copies] == [True, True]

    await eventually(current, within_s=LONG_S, why="the killed server catches up")
    async with penstock.Client() as outside:
        answer = await outside.submit(name="after", command=("true",), cwd="/", profile="off")
        async for event in outside.follow_events(answer.id):
            if event.type == tag_of(JobFinished):
                assert event.fact["state"] == "completed"
                break
