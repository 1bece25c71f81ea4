"""A machine is lost with all that was on it, and another one goes on from a backup."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.client import Client
from penstock_bus.identity.logins import read_login
from penstock_cli.local import data_folder
from penstock_testing import eventually

pytestmark = pytest.mark.faults

STEPS = """
import pathlib, sys, time, penstock
with penstock.session() as session:
    begun = []
    session.on_checkpoint(lambda: b"state", lambda body: begun.append(body))
    for step in session.iterations(range(100)):
        print("step", step, flush=True)
        if step == 3:
            pathlib.Path(sys.argv[1]).touch()
        while step > 3 and not pathlib.Path(sys.argv[2]).exists():
            time.sleep(0.05)
"""
GATED = "while ! test -e $1; do sleep 0.1; done; echo ended"


class Machine:
    """One that runs `penstock up` on a folder of its own."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self._env = {**os.environ, "XDG_CONFIG_HOME": str(home)}
        self._env.pop("PENSTOCK_URL", None)

    def up(self) -> None:
        self.say("up", "-d", "--data", str(self.folder), "--port", "-1", "--emulate", "fast:3@1.0:1GiB")
        found = data_folder.read(self.folder)
        assert found is not None
        self._env["PENSTOCK_URL"] = found.url

    def say(self, *words: str) -> str:
        command = [sys.executable, "-m", "penstock", *words]
        done = subprocess.run(command, check=False, env=self._env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def client(self) -> Client:
        """Return a client as its owner: one process for all that is asked, where each command would be another."""
        return Client(self._env["PENSTOCK_URL"], login=read_login(self.folder / "client.json"))

    def burn(self) -> None:
        """End every process that has to do with the folder, and remove the folder."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
                if str(self.folder).encode() in words and int(process.name) != os.getpid():
                    os.kill(int(process.name), signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    both = Machine(tmp_path / "one", tmp_path / "home-one"), Machine(tmp_path / "two", tmp_path / "home-two")
    yield both
    for machine in both:
        machine.burn()


@pytest.mark.timeout(600)  # two clusters, one after the other, on a machine that is busy
async def test_jobs_that_ran_run_again_and_all_others_are_what_they_were(
    tmp_path: Path, machines: tuple[Machine, Machine]
) -> None:
    one, two = machines
    script, file = tmp_path / "steps.py", tmp_path / "backup.tar.gz"
    script.write_text(STEPS)
    one.up()
    begun, go = [tmp_path / "command-began", tmp_path / "steps-began"], tmp_path / "go"
    command = ("sh", "-c", f"touch {begun[0]}; {GATED}", "sh", str(go))
    steps = (sys.executable, str(script), str(begun[1]), str(go))
    async with one.client() as client:
        await client.submit(id="held", name="held", command=("true",), hold=True)
        await client.submit(id="command", name="command", command=command)
        await client.submit(id="steps", name="steps", command=steps)
        await client.submit(id="done", name="done", command=("echo", "said"))
        await client.wait("done")
        await eventually(lambda: all(path.exists() for path in begun), within_s=120.0)
        assert [(await client.job(job_id)).job.state for job_id in ("command", "steps")] == ["R", "R"]
        one.say("backup", str(file), "--data", str(one.folder))
        await client.submit(id="later", name="later", command=("true",))
    one.burn()

    assert "is whole" in two.say("restore", str(file), "--check")
    restored = two.say("restore", str(file), "--data", str(two.folder))
    assert "no login from before counts there" in restored
    assert "the copy would run the same people's open jobs a second time" in restored
    two.up()
    go.touch()
    async with two.client() as client:
        assert (await client.job("done")).job.state == "CD"
        assert await printed(client, "done") == b"said\n"
        assert (await client.job("held")).job.state == "PD"
        for job_id in ("command", "steps"):  # which begin when the time is over that their first runs may still go on
            assert (await client.wait(job_id)).state == "CD"
            assert any("(run 2)" in line.text for line in (await client.story(job_id)).lines)
        assert (await printed(client, "steps")).count(b"step 99") == 1
        assert "later" not in {job.id for job in (await client.jobs()).jobs}
        await client.submit(id="new", name="new", command=("true",))
        assert (await client.wait("new")).state == "CD"


async def printed(client: Client, job_id: str) -> bytes:
    return b"".join([line.data async for line in client.logs(job_id)])
