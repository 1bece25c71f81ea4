"""The folder of a job on a real cluster: uploaded once, run on two nodes that share nothing, swept, and kept apart."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import PATIENCE_S, Cluster

import penstock
from penstock_bus import ServiceError
from penstock_bus.identity.logins import read_login
from penstock_testing import eventually

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, pathlib
import model
rank, node = os.environ["RANK"], os.environ["PENSTOCK_NODE"]
print("made", model.SIZE, pathlib.Path("data/words.txt").read_text().split(), node, flush=True)
pathlib.Path(f"out-{rank}").touch()
"""


class Shared:
    """A cluster with a second node, which has a data folder of its own, and a project that only the submitter has."""

    def __init__(self, cluster: Cluster, folder: Path, project: Path) -> None:
        self.cluster, self.folder, self.project = cluster, folder, project

    def submit(self, *words: str) -> tuple[str, str]:
        """Submit from within the project; return the id, and what was said."""
        done = self.cluster.tried("submit", "--profile", "off", "--workdir", ".", *words, cwd=self.project)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("code")
    project = folder / "project"
    for name in ("model", "data", ".git"):
        (project / name).mkdir(parents=True)
    (project / "model" / "__init__.py").write_text("SIZE = 7\n")
    (project / "data" / "words.txt").write_text("one two\n")
    (project / "train.py").write_text(SCRIPT)
    (project / ".git" / "HEAD").touch()
    cluster = Cluster(folder / "data", "--emulate", "fast:2")
    cluster.up()
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.down)
        stack.enter_context(second_node(cluster, folder))
        yield Shared(cluster, folder, project)


@contextlib.contextmanager
def second_node(cluster: Cluster, folder: Path) -> Iterator[None]:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    settings = {
        "PENSTOCK_URL": cluster.url,
        "PENSTOCK_CREDENTIALS": str(cluster.data / "nats" / "logins" / "executor.json"),
        "PENSTOCK_EXECUTOR_NODE_ID": "second",
        "PENSTOCK_EXECUTOR_DEVICES": "fast:2",
        "PENSTOCK_EXECUTOR_RUN_AS": "executor",
        "PENSTOCK_EXECUTOR_DATA_DIR": str(elsewhere / "data"),
    }
    with (elsewhere / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock_executor"],
            cwd=elsewhere,
            env=os.environ | settings,
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()


async def both_nodes(client: penstock.Client) -> bool:
    return len((await client.nodes()).nodes) == 2


async def test_a_gang_on_two_nodes_that_share_nothing_has_the_same_files(shared: Shared) -> None:
    async with shared.cluster.client() as client:
        await eventually(lambda: both_nodes(client), within_s=PATIENCE_S)
        job_id, said = shared.submit("--gpus", "4", "--", sys.executable, "train.py")
        assert "3 files of" in said
        assert "uploaded (left out: .git)" in said
        ended = await client.wait(job_id)
        assert (ended.state, ended.reason) == ("CD", "")
        text = "".join([line.data.decode() async for line in client.logs(job_id)])
    name = json.loads(shared.cluster.run("nodes", "-o", "json").stdout)["nodes"]
    assert sorted(text.splitlines()) == sorted(f"made 7 ['one', 'two'] {one['id']}" for one in name for _ in range(2))
    works = [path for data in ("data/executor", "elsewhere/data") for path in (shared.folder / data / "work").iterdir()]
    assert [path.name for path in works] == [f"{job_id}-1"] * 2
    written = sorted(one.name for path in works for one in (path / "code").glob("out-*"))
    assert written == ["out-0", "out-1", "out-2", "out-3"], "and what it writes is there, on its node alone"
    assert not list(shared.project.glob("out-*"))
    assert "code: " in shared.cluster.run("show", job_id).stdout


async def test_the_second_submission_sends_nothing_and_a_sweep_uploads_once(shared: Shared) -> None:
    _, said = shared.submit("--hold", "--", sys.executable, "train.py")
    assert "all of it there already, 0 B uploaded" in said
    sweep = shared.project / "sweep.toml"
    sweep.write_text(
        'name = "s"\nmetric = "loss"\ntrials = 4\n[space.lr]\nkind = "uniform"\nlow = 0.1\nhigh = 1.0\n'
        f'[job]\nname = "t"\nprofile = "off"\nworkdir = "."\ncommand = ["{sys.executable}", "train.py"]\n'
    )
    done = shared.cluster.tried("tune", str(sweep), cwd=shared.folder)  # relative to the file
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" uploaded") == 1
    async with shared.cluster.client() as client:
        sweep_id = done.stdout.split()[0]
        async for seen in client.follow_sweep(sweep_id, 0.1):
            if len(seen.trials) == 4 and all(trial.state in {"CD", "F"} for trial in seen.trials):
                break
        assert {trial.state for trial in seen.trials} == {"CD"}
    sweep.unlink()


async def test_what_is_left_in_place_is_not_uploaded(shared: Shared) -> None:
    done = shared.cluster.tried(
        "submit", "--workdir", ".", "--no-upload", "--hold", "--", sys.executable, "train.py", cwd=shared.project
    )
    assert (done.returncode, "uploaded" in done.stderr) == (0, False)
    async with shared.cluster.client() as client:
        spec = (await client.job(done.stdout.strip())).spec
    assert (spec.code, spec.cwd) == ("", str(shared.project))


async def test_a_person_uploads_over_an_account_of_their_own_and_names_nobody_elses(shared: Shared) -> None:
    for name in ("jane", "sam.b"):
        shared.cluster.run("user", "add", name, "--out", str(shared.folder / f"{name}.json"))
    logins = [read_login(shared.folder / f"{name}.json") for name in ("jane", "sam.b")]
    (shared.project / "secret.txt").write_text("x" * 3000)
    async with (
        penstock.Client(shared.cluster.url, login=logins[0]) as jane,
        penstock.Client(shared.cluster.url, login=logins[1]) as sam,
    ):
        hers = await jane.upload(shared.project)
        assert (await jane.upload(shared.project)).sent_bytes == 0
        with pytest.raises(ServiceError, match=r"sam\.b has not uploaded the code"):
            await sam.submit(name="x", command=("true",), code=hers.digest)
        assert (await sam.upload(shared.project)).sent_bytes == hers.size_bytes
    (shared.project / "secret.txt").unlink()


def test_what_cannot_be_uploaded_is_said_and_submits_nothing(shared: Shared) -> None:
    link = shared.project / "out"
    link.symlink_to("/etc/passwd")
    try:
        done = shared.cluster.tried("submit", "--workdir", ".", "--", "true", cwd=shared.project)
        assert (done.returncode, done.stdout) == (2, "")
        assert "out lead out of the folder" in done.stderr
        done = shared.cluster.tried("submit", "--workdir", "nowhere", "--", "true", cwd=shared.project)
        assert (done.returncode, "is no folder" in done.stderr) == (2, True)
    finally:
        link.unlink()
