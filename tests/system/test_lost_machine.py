"""A machine is lost with all that was on it, and another one goes on from a backup."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

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
        devices = "fast:3@1.0:1GiB"
        self.say("up", "-d", "--data", str(self.folder), "--port", "-1", "--emulate", devices)
        found = data_folder.read(self.folder)
        assert found is not None
        self._env["PENSTOCK_URL"] = found.url

    def say(self, *words: str) -> str:
        command = [sys.executable, "-m", "penstock", *words]
        done = subprocess.run(command, check=False, env=self._env, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.say("show", job_id, "-o", "json"))["job"]
        return found

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


@pytest.mark.timeout(240)  # two clusters, one after the other
async def test_jobs_that_ran_run_again_and_all_others_are_what_they_were(
    tmp_path: Path, machines: tuple[Machine, Machine]
) -> None:
    one, two = machines
    script, file = tmp_path / "steps.py", tmp_path / "backup.tar.gz"
    script.write_text(STEPS)
    one.up()
    begun, go = [tmp_path / "command-began", tmp_path / "steps-began"], tmp_path / "go"
    one.say("submit", "--id", "held", "--hold", "--", "true")
    one.say("submit", "--id", "command", "--", "sh", "-c", f"touch {begun[0]}; {GATED}", "sh", str(go))
    one.say("submit", "--id", "steps", "--", sys.executable, str(script), str(begun[1]), str(go))
    one.say("submit", "--id", "done", "--wait", "--", "echo", "said")
    await eventually(lambda: all(path.exists() for path in begun), within_s=120.0)
    assert {one.job(job_id)["state"] for job_id in ("command", "steps")} == {"R"}
    one.say("backup", str(file), "--data", str(one.folder))
    one.say("submit", "--id", "later", "--", "true")
    one.burn()

    assert "is whole" in two.say("restore", str(file), "--check")
    two.say("restore", str(file), "--data", str(two.folder))
    two.up()
    go.touch()
    assert two.job("done")["state"] == "CD"
    assert two.say("logs", "done") == "said\n"
    assert two.job("held")["state"] == "PD"
    for job_id in ("command", "steps"):
        two.say("logs", "--follow", job_id)
        assert two.job(job_id)["state"] == "CD"
        assert "(run 2)" in two.say("story", job_id)
    assert two.say("logs", "steps").count("step 99") == 1
    assert "later" not in two.say("ps", "--all")
    two.say("submit", "--id", "new", "--wait", "--", "true")
