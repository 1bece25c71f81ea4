"""Jobs whose Python has the SDK, what it needs and nothing else: each Python from 3.9 on that is on this host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock_log import JobSpec, MemoryNeed

LIBS = Path(__file__).parents[3] / "libs"
PACKAGES = ("msgspec", "nats", "nkeys", "nacl", "cffi", "_cffi_backend", "pycparser")
"""What the SDK depends on; the last five are ``nats-py[nkeys]``, by which a login is proved."""
VERSIONS = [f"3.{minor}" for minor in range(9, 15)]
SCRIPT = """
import json, pathlib, sys, time
import penstock
state = {"done": 0}
with penstock.session() as session:
    session.on_checkpoint(
        lambda folder: (folder / "state.json").write_text(json.dumps(state)),
        lambda folder: state.update(json.loads((folder / "state.json").read_text())),
    )
    for _ in session.iterations(range(20)):
        time.sleep(0.01)
        state["done"] += 1
        session.report(done=state["done"])
    print("python", *sys.version_info[:2], "did", state["done"], "of job", session.job_id)
"""
CLIENT = """
import asyncio, sys
import penstock
async def main(script):
    async with penstock.Client(timeout_s=60.0) as client:
        answer = await client.submit(name="light", command=(sys.executable, script), profile="off")
        job = await client.wait(answer.id)
        print(job.state, job.exit_code, job.metrics["done"])
        print(b"".join([line.data async for line in client.logs(job.id)]).decode())
        print(job.id in [job.id for job in (await client.jobs()).jobs], (await client.story(job.id)).id == job.id)
asyncio.run(main(sys.argv[1]))
"""


def interpreter(version: str) -> str | None:
    """Return a Python of a version, if it is on this host."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    found = shutil.which(f"python{version}")
    runs = found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
    return found if runs else None


def own(folder: Path) -> None:
    """Have an environment of this Python get the SDK's files from here, and what it needs from this environment."""
    packages = next(folder.glob("lib/python*/site-packages"))
    for name in PACKAGES:
        origin = Path(str(find_spec(name).origin))  # type: ignore[union-attr]
        origin = origin.parent if origin.name == "__init__.py" else origin
        packages.joinpath(origin.name).symlink_to(origin)
    wheel = tomllib.loads((LIBS / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for name in wheel["only-include"]:
        packages.joinpath(name).parent.mkdir(exist_ok=True)
        packages.joinpath(name).symlink_to(LIBS / name)


@pytest.fixture(scope="module", params=VERSIONS)
def python(request, tmp_path_factory) -> Path:
    """A Python with nothing but the SDK."""
    found = interpreter(request.param)
    if found is None:
        pytest.skip(f"there is no Python {request.param} on this host")
    folder = tmp_path_factory.mktemp("environment") / request.param
    subprocess.run([found, "-m", "venv", *(["--without-pip"] if found == sys.executable else []), folder], check=True)
    if found == sys.executable:
        own(folder)
    else:
        install = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", LIBS]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"Python {request.param} could not be given the SDK: {done.stderr[-300:]}")
    return folder / "bin/python"


def test_a_client_submits_a_session_and_reads_what_it_printed(cluster, python, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "client.py").write_text(CLIENT)
    done = subprocess.run(
        [python, tmp_path / "client.py", tmp_path / "train.py"],
        env={**os.environ, "PENSTOCK_URL": cluster.url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended, printed, _, found = done.stdout.splitlines()
    assert ended == "CD 0 20.0"
    assert printed.startswith(f"python {python.parent.parent.name.replace('.', ' ')} did 20 of job")
    assert found == "True True"


async def test_a_session_takes_turns(cluster, python, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    spec = JobSpec(
        name="turns",
        command=(str(python), str(tmp_path / "train.py")),
        profile="off",
        sharing="lane",
        memory=MemoryNeed(40 * 2**20, 0, 60 * 2**20),
    )
    async with cluster.client() as client:
        job = await client.wait((await client.submit(spec)).id)
        printed = b"".join([line.data async for line in client.logs(job.id)]).decode()
    assert (job.state, job.reason) == ("CD", ""), printed
    assert "did 20" in printed
