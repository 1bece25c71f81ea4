"""The real command against real services on a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import Cluster

PENSTOCK = (sys.executable, "-c", "from penstock_cli import main; main()")
LOOP = """\
import time
import penstock

with penstock.session() as session:
    for _ in session.iterations(range(600)):
        time.sleep(0.05)
        print("step", flush=True)
"""


class Shell:
    """A shell with PENSTOCK_URL set, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}

    def __call__(self, *args: str, code: int = 0) -> str:
        done = subprocess.run(
            [*PENSTOCK, *args], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=110, check=False
        )
        assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PENSTOCK, *args], cwd=self.folder, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )


@pytest.fixture(scope="module")
def shell(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    shell = Shell(tmp_path_factory.mktemp("shell"))
    shell.env["PENSTOCK_URL"] = cluster.url
    return shell


@pytest.mark.thorough
def test_up_and_down_need_no_option(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    try:
        said = shell("up", "--detach", "--port", "-1", "--emulate", "fast:2@1.0:1GiB")
        (url,) = [line.partition("=")[2] for line in said.splitlines() if "export PENSTOCK_URL=" in line]
        assert "fast" in shell("nodes", "--url", url)
    finally:
        shell("down")


def test_run_shows_the_output_of_a_gang_and_returns_its_exit_code(shell: Shell) -> None:
    both = "echo here; : > said.$PENSTOCK_RANK; until [ -e said.0 ] && [ -e said.1 ]; do sleep 0.01; done; exit 3"
    said = shell("run", "--gpus", "2", "--", "sh", "-c", both, code=3)
    assert "[0] here\n" in said
    assert "[1] here\n" in said


def test_a_job_that_is_waited_for_is_known_to_every_query(shell: Shell) -> None:
    shell("submit", "--wait", "--id", "done", "--", "echo", "hello")
    assert shell("logs", "done") == "hello\n"
    assert json.loads(shell("show", "done", "-o", "json"))["job"]["exit_code"] == 0
    assert "completed" in shell("story", "done")
    assert "is CD" in shell("why", "done")
    assert "job.finished.v1" in shell("events", "done")
    assert [job["id"] for job in json.loads(shell("ps", "--name", "echo", "-o", "json"))["jobs"]] == ["done"]


def test_an_array_has_an_index_each(shell: Shell) -> None:
    shell("submit", "--wait", "--id", "part", "--array", "0-2", "--", "sh", "-c", "echo $PENSTOCK_ARRAY_INDEX")
    assert [shell("logs", f"part-{i}") for i in range(3)] == ["0\n", "1\n", "2\n"]


def test_what_can_never_fit_waits_with_a_reason_or_is_refused(shell: Shell) -> None:
    assert "can never fit" in shell("submit", "--id", "huge", "--gpus", "9", "--", "true")
    assert "never fits" in shell("why", "huge")
    assert "can never fit" in shell("submit", "--strict", "--gpus", "9", "--", "true", code=2)
    assert "would wait" in shell("submit", "--dry-run", "--gpus", "9", "--", "true")
    assert "huge is cancelled" in shell("cancel", "huge")


def test_the_same_id_with_other_content_is_a_conflict(shell: Shell) -> None:
    shell("submit", "--id", "same", "--hold", "--", "true")
    assert "equal content" in shell("submit", "--id", "same", "--hold", "--", "true")
    assert "other content" in shell("submit", "--id", "same", "--hold", "--", "false", code=5)
    shell("cancel", "same")


def test_ctrl_c_in_run_cancels_the_job(shell: Shell) -> None:
    (shell.folder / "loop.py").write_text(LOOP)
    running = shell.start("run", "--id", "loop", "--", sys.executable, "loop.py")
    assert running.stdout is not None
    assert running.stdout.readline() == "step\n"
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=110)
    assert running.returncode == 130
    assert "loop was cancelled" in said


def test_a_closed_terminal_cancels_the_job_of_its_run(shell: Shell) -> None:
    (shell.folder / "loop.py").write_text(LOOP)
    ours, theirs = os.openpty()
    program = (sys.executable, "-c", f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{PENSTOCK[2]}")
    words = ("run", "--id", "there", "--", sys.executable, "loop.py")
    running = subprocess.Popen(
        [*program, *words],
        cwd=shell.folder,
        env=shell.env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    heard = b""
    while b"step" not in heard:
        heard += os.read(ours, 1024)
    os.close(ours)
    assert running.wait(timeout=110) == 128 + signal.SIGHUP
    assert "penstock run was ended by SIGHUP" in shell("events", "there", "-o", "json")


def test_a_drained_node_takes_no_jobs(shell: Shell) -> None:
    (node,) = json.loads(shell("nodes", "-o", "json"))["nodes"]
    shell("node", "drain", node["id"])
    assert "no nodes" in shell("submit", "--dry-run", "--", "true")
    shell("node", "resume", node["id"])
    assert "at once" in shell("submit", "--dry-run", "--", "true")


def test_the_doctor_finds_nothing_wrong(shell: Shell) -> None:
    assert "fail" not in shell("doctor")


def test_a_wrong_address_is_named_with_what_to_do(shell: Shell) -> None:
    said = shell("ps", "--url", "nats://127.0.0.1:1", code=3)
    assert "nats://127.0.0.1:1" in said
    assert "penstock up" in said
