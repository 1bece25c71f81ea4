"""compose.yaml on a real engine: a job from outside, scaling, and a restart in the middle of a run."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from testcontainers.compose import DockerCompose

import penstock

ROOT = Path(__file__).parents[2]
SERVICES = {"nats", "gateway", "profiler", "ranker", "autoscaler", "matcher", "tuner", "executor"}
pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]


def free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


@pytest.fixture(scope="module")
def compose():
    port = free_port()
    os.environ |= {"PENSTOCK_PORT": str(port), "COMPOSE_PROJECT_NAME": f"penstock-test-{port}"}
    stack = DockerCompose(str(ROOT), build=True, wait=True)
    try:
        stack.start()
        yield stack
    finally:
        docker(stack, "logs", "--no-color", "--tail", "60", check=False)
        docker(stack, "down", "--volumes", "--timeout", "5", check=False)


def docker(stack: DockerCompose, *words: str, check: bool = True) -> str:
    done = subprocess.run(
        [*stack.compose_command_property, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)  # noqa: T201 what pytest shows when something fails
    assert not check or done.returncode == 0
    return done.stdout


def client() -> penstock.Client:
    return penstock.Client(f"nats://127.0.0.1:{os.environ['PENSTOCK_PORT']}")


def healthy(stack: DockerCompose) -> dict[str, int]:
    counts: dict[str, int] = {}
    for container in stack.get_containers():
        if container.Health == "healthy":
            counts[str(container.Service)] = counts.get(str(container.Service), 0) + 1
    return counts


def test_every_service_is_healthy(compose):
    assert set(healthy(compose)) == SERVICES


async def test_a_job_from_outside_runs_in_a_container(compose):
    async with client() as outside:
        answer = await outside.submit(
            name="digits",
            command=("python", "digits_softmax.py"),
            cwd="/opt/penstock/examples",
            params={"steps": 100},
            env={"PATH": "/opt/penstock/bin:/usr/bin:/bin"},
        )
        job = await outside.wait(answer.id)
        assert (job.state, job.steps) == ("CD", 100), job
        assert job.metrics["accuracy"] > 0.8


async def test_profilers_scale_and_the_matcher_may_restart_in_the_middle_of_a_run(compose):
    docker(compose, "up", "--detach", "--no-build", "--wait", "--scale", "profiler=2", "--scale", "executor=3")
    assert healthy(compose)["profiler"] == 2
    assert healthy(compose)["executor"] == 3
    async with client() as outside:
        answer = await outside.submit(
            name="sleeper", command=("sleep", "8"), cwd="/", env={"PATH": "/usr/bin:/bin"}, profile="off"
        )
        async for event in outside.follow_events(answer.id):
            if event.type == "run.started.v1":
                break
        docker(compose, "restart", "matcher")
        second = await outside.submit(
            name="after", command=("true",), cwd="/", env={"PATH": "/usr/bin:/bin"}, profile="off"
        )
        ends = [await outside.wait(one.id) for one in (answer, second)]
        assert [(job.state, job.attempts) for job in ends] == [("CD", 1), ("CD", 1)]
        assert len((await outside.nodes()).nodes) == 3
