"""compose.yaml on a real engine: jobs from outside and inside, a gang and memory over containers, scaling, restarts."""

from __future__ import annotations

import json

import pytest
from compose_stack import docker, running
from testcontainers.compose import DockerCompose

import penstock
from penstock_log.services import CORE

SERVICES = {"nats", *CORE} - {"memory", "aggregator"}
"""Containers; a memory agent and an aggregation agent are in each executor's."""
BORROWER = """
import json, time
from penstock.memory import RemoteFile
SLAB = 64 << 20
with RemoteFile(3 * SLAB, local_bytes=0) as file:
    written = {slab: bytes([1 + slab]) * (1 << 20) for slab in range(3)}
    for slab, block in written.items():
        file.pwrite(block, slab * SLAB)
    ends_s = time.monotonic() + 60
    def read_all():
        for slab, block in written.items():
            assert file.pread(len(block), slab * SLAB) == block
    while file.stats().bound < 3 and time.monotonic() < ends_s:
        read_all()
    read_all()  # a slab that was bound behind the last pass's back is filled by a read of its own
    before = file.stats()
    read_all()
    after = file.stats()
    print(json.dumps({"bound": after.bound, "shared": after.shared, "read": after.slab_bytes - before.slab_bytes}))
"""
pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def compose(tmp_path_factory):
    with running(tmp_path_factory.mktemp("outside") / "client.json") as stack:
        yield stack


def client() -> penstock.Client:
    return penstock.Client()


def inside(stack: DockerCompose, *words: str) -> str:
    """Type a command of penstock in the gateway's container."""
    return docker(stack, "exec", "-T", "gateway", "penstock", *words)


def nodes(stack: DockerCompose) -> dict[str, str]:
    return {node["id"]: node["state"] for node in json.loads(inside(stack, "nodes", "-a", "-o", "json"))["nodes"]}


def wait_for_donors(stack: DockerCompose, count: int) -> None:
    """Wait until so many memory agents are heard; a healthy container says it of its executor."""
    for _ in range(30):
        if len(json.loads(inside(stack, "memory", "ls", "-o", "json"))) == count:
            return
    raise AssertionError(f"{count} memory agents are not there")


def healthy(stack: DockerCompose) -> dict[str, int]:
    counts: dict[str, int] = {}
    for container in stack.get_containers():
        if container.Health == "healthy":
            counts[str(container.Service)] = counts.get(str(container.Service), 0) + 1
    return counts


def test_every_service_is_healthy(compose):
    assert set(healthy(compose)) == SERVICES


def test_a_container_sees_its_own_login_and_nobody_elses(compose):
    for service in SERVICES - {"nats"}:
        seen = docker(compose, "exec", "-T", service, "sh", "-c", "find /auth -type f").split()
        own = ["aggregator", "executor", "memory"] if service == "executor" else [service]
        assert sorted(seen) == [f"/auth/{name}/{name}.json" for name in own]


def test_no_container_has_rights_or_can_change_its_image(compose):
    for service in SERVICES:
        status = docker(compose, "exec", "-T", service, "cat", "/proc/1/status")
        said = dict(line.split(":\t", 1) for line in status.splitlines())
        assert said["Uid"].split() == ["10001"] * 4, service
        assert {said[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}, service
        assert said["NoNewPrivs"] == "1", service
        tried = docker(
            compose, "exec", "-T", service, "sh", "-c", "touch /opt/penstock/x /usr/x /etc/x /x; echo $?", check=False
        )
        assert tried.strip() == "1"
        mounts = docker(compose, "exec", "-T", service, "cat", "/proc/1/mounts").splitlines()
        (root,) = [words[3] for line in mounts if (words := line.split())[1] == "/"]
        assert "ro" in root.split(","), service


def test_a_job_may_write_to_its_home_and_start_what_it_wrote(compose):
    script = """
        for folder in "$HOME" /tmp; do
            printf '#!/bin/sh\\necho started by $1\\n' > "$folder/mine" && chmod +x "$folder/mine"
            "$folder/mine" "$folder" || exit 1
        done
        ! touch /opt/penstock/x
    """
    printed = inside(compose, "run", "--profile", "off", "--cwd", "/tmp", "--", "sh", "-ec", script)
    assert "started by /home/penstock" in printed
    assert "started by /tmp" in printed


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


def test_a_job_borrows_memory_of_its_own_container_and_of_others(compose):
    docker(compose, "up", "--detach", "--no-build", "--wait", "--scale", "executor=3", "--no-deps", "executor")
    wait_for_donors(compose, 3)
    printed = inside(compose, "run", "--profile", "off", "--cwd", "/tmp", "--", "python", "-c", BORROWER)
    (borrowed,) = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert (borrowed["bound"], borrowed["read"]) == (3, 3 << 20)
    assert borrowed["shared"] < 3  # the second one comes from another donor than the first, thus one of them by TCP
    known = json.loads(inside(compose, "memory", "ls", "-o", "json"))
    assert {one["id"] for one in known} == {node_id for node_id, state in nodes(compose).items() if state == "up"}
    assert [one.get("errors", {}) for one in known] == [{}] * 3


def test_a_gang_over_three_containers_meets_and_its_nodes_are_forgotten_once_they_are_recreated(compose):
    scaled = ("up", "--detach", "--no-build", "--wait", "--scale", "executor=3", "--no-deps")
    docker(compose, *scaled, "executor")
    gang = ("run", "--gpus", "5", "--kind", "fast", "--param", "epochs=2")  # each container has two of the kind
    printed = inside(compose, *gang, "--", "python", "digits_mlp.py")
    last = [line for line in printed.splitlines() if "accuracy" in line]
    assert {line.partition(" ")[0] for line in last} == {f"[{rank}]" for rank in range(5)}, printed
    assert {line.partition(" ")[2] for line in last} == {last[0].partition(" ")[2]}, "all have learnt the same"
    before = {node_id for node_id, state in nodes(compose).items() if state == "up"}
    (job,) = json.loads(inside(compose, "ps", "-a", "-o", "json", "--name", "digits_mlp"))["jobs"]
    assert {device.partition("/")[0] for device in job["devices"]} == before
    docker(compose, *scaled, "--force-recreate", "executor")
    left = [node_id for node_id, state in nodes(compose).items() if state == "left"]
    assert before <= set(left)  # and those of earlier containers
    inside(compose, "node", "remove", *left)
    assert list(nodes(compose).values()) == ["up"] * 3
    assert "3 up with 12 devices" in inside(compose, "doctor")
