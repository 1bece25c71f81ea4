"""Jobs in containers on a real cluster of two nodes: sessions that go on elsewhere, gangs, and nodes that cannot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from clusters import Cluster, until
from job_images import add_sdk, has_our_python, load, small_root

from penstock_executor.launchers.containers import ContainerRuntimes
from penstock_log import JobSpec

COUNT: Final = """
import json, os, sys, time
import penstock
state = {"done": 0}
with penstock.session() as session:
    session.on_checkpoint(
        lambda folder: (folder / "state.json").write_text(json.dumps(state)),
        lambda folder: state.update(json.loads((folder / "state.json").read_text())),
    )
    with open("steps", "a") as notes:
        for step in session.iterations(range(400)):
            time.sleep(0.01)
            state["done"] += 1
            print(step, file=notes, flush=True)
            session.report(done=state["done"])
print(open("/etc/penstock-test").read().strip(), penstock.__file__, os.path.exists("/home"))
"""
GANG: Final = """
import os, socket
address, rank = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), int(os.environ["RANK"])
if rank == 0:
    with socket.create_server(address) as server:
        print("met", server.accept()[0].recv(10).decode())
else:
    while True:
        try:
            with socket.create_connection(address) as client:
                client.sendall(b"rank %d" % rank)
            break
        except ConnectionRefusedError:
            pass
"""
RUNTIMES: Final = (pytest.param("docker", marks=pytest.mark.compose), "bubblewrap")


class Contained(NamedTuple):
    """A cluster whose two nodes run images, and an image."""

    cluster: Cluster
    image: str


@pytest.fixture(scope="module", params=RUNTIMES)
def contained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contained]:
    name = request.param
    found = ContainerRuntimes.survey(name)
    if not found.names or not has_our_python():
        pytest.skip(f"NOT TESTED: {found.reasons.get(name, 'this Python is not that of /usr/bin/python3')}")
    folder = tmp_path_factory.mktemp("containers")
    root = add_sdk(small_root(folder / "root"))
    config = folder / "penstock.toml"
    config.write_text(f'[executor]\ncontainers = "{name}"\n')
    devices = ("--emulate", "fast:1@1.0:4GiB", "--replicas", "executor=2", "--config", str(config))
    cluster = Cluster(folder / "data", *devices)
    cluster.up()
    yield Contained(cluster, str(root) if name == "bubblewrap" else load(name, root, "penstock-test-sdk:1"))
    cluster.kill_all()


def job(contained: Contained, folder: Path, script: str, **more: object) -> JobSpec:
    """A job of the image's Python, in a folder that holds its script."""
    (folder / "script.py").write_text(script)
    spec = {"name": "job", "command": ("python3", "script.py"), "cwd": str(folder), "profile": "off", **more}
    return JobSpec(image=contained.image, **spec)  # type: ignore[arg-type]


@pytest.mark.thorough
async def test_a_session_in_a_container_goes_on_from_its_checkpoint_on_the_other_node(
    contained: Contained, tmp_path: Path
) -> None:
    async with contained.cluster.client() as client:
        job_id = (await client.submit(job(contained, tmp_path, COUNT, checkpoint_s=0.3))).id
        await until(client, job_id, "run.checkpointed.v1", count=2)
        (first,) = (await client.job(job_id)).job.placed_on
        node_id = first.split("/")[0]
        await client.drain(node_id, preempt=True)
        ended = await client.wait(job_id)
        await client.resume(node_id)
        assert (ended.state, ended.preemptions, ended.steps) == ("CD", 1, 400)
        assert len({device.split("/")[0] for device in ended.devices}) == 2
        assert [int(line) for line in (tmp_path / "steps").read_text().split()] == [*range(400)]
        said = b"".join([line.data async for line in client.logs(job_id)]).decode()
        assert said.startswith("a file of the image /usr/lib/python3")
        assert said.strip().endswith("False")


async def test_the_processes_of_a_gang_meet_across_their_containers(contained: Contained, tmp_path: Path) -> None:
    async with contained.cluster.client() as client:
        ended = await client.wait((await client.submit(job(contained, tmp_path, GANG, gpus=2))).id)
        said = b"".join([line.data async for line in client.logs(ended.id)])
        assert (ended.state, said) == ("CD", b"met rank 1\n")


def test_a_job_is_submitted_with_an_image_on_the_command_line(contained: Contained, tmp_path: Path) -> None:
    cluster = contained.cluster
    words = ("--image", contained.image, "--wait", "--", "sh", "-c", "cat /etc/penstock-test; echo $PATH; exit 4")
    done = cluster.tried("submit", "--profile", "off", *words, cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    said = cluster.run("logs", done.stdout.split()[0]).stdout
    assert said.startswith("a file of the image\n/usr/local/sbin:")
    assert os.environ["PATH"] not in said


def test_an_image_that_no_node_can_run_is_refused_or_waits_and_why_says_so(
    contained: Contained, tmp_path: Path
) -> None:
    cluster = contained.cluster
    done = cluster.tried("submit", "--strict", "--image", "/images/x.sif", "--", "true", cwd=tmp_path)
    assert done.returncode != 0
    assert "needs apptainer; no node of pool `default` with such devices has it" in done.stderr
    done = cluster.tried("submit", "--image", "-v/etc:/etc", "--", "true", cwd=tmp_path)
    assert done.returncode != 0
    done = cluster.tried("submit", "--image", "a:1", "--sharing", "lane", "--", "true", cwd=tmp_path)
    assert "image: is for a job that has its devices to itself" in done.stderr


def test_a_folder_that_was_uploaded_is_there_in_the_container(contained: Contained, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "below").mkdir(parents=True)
    (project / "script.py").write_text("print(open('below/data').read(), open('/etc/penstock-test').read())")
    (project / "below/data").write_text("uploaded")
    words = ("--workdir", str(project), "--image", contained.image, "--wait", "--", "python3", "script.py")
    done = contained.cluster.tried("submit", "--profile", "off", *words)
    assert done.returncode == 0, done.stderr
    said = contained.cluster.run("logs", done.stdout.split()[0]).stdout
    assert said == "uploaded a file of the image\n\n"
