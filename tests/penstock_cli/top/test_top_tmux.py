"""`penstock top` in a real terminal, tmux, on a real `penstock up`: it looks, acts, ends, and leaves all as it was."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster, running

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.slow,
    pytest.mark.timeout(300),  # a whole cluster is started
    pytest.mark.skipif(shutil.which("tmux") is None, reason="NOT TESTED: there is no tmux; install it (apt, brew)"),
]
PATIENCE_S = 60.0
PROMPT = "ready>"


class TmuxTerminal:
    """A terminal with a shell in it, of a tmux server of its own."""

    def __init__(self, socket: Path, columns: int, lines: int, environment: dict[str, str]) -> None:
        self._socket = socket
        shell = shlex.join(["env", *(f"{name}={value}" for name, value in environment.items()), f"PS1={PROMPT}", "sh"])
        self._tmux("-u", "-f", os.devnull, "new-session", "-d", "-x", str(columns), "-y", str(lines), shell)
        self.sees(PROMPT)

    def close(self) -> None:
        self._tmux("kill-server")

    def type(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    @property
    def text(self) -> str:
        return self._tmux("capture-pane", "-p")

    @property
    def shows_cursor(self) -> bool:
        return self._of_pane("cursor_flag") == "1"

    @property
    def has_other_screen(self) -> bool:
        return self._of_pane("alternate_on") == "1"

    @property
    def takes_mouse(self) -> bool:
        return self._of_pane("mouse_any_flag") == "1"

    def sees(self, *wanted: str) -> str:
        """Wait until all of some texts are on the screen; return what is."""
        end_s = time.monotonic() + PATIENCE_S  # noqa: TID251 - a deadline of a test that waits for a process
        while not all(text in (shown := self.text) for text in wanted):
            assert time.monotonic() < end_s, f"never seen: {wanted}\n{shown}"  # noqa: TID251 - see above
            time.sleep(0.02)  # there is no event: tmux is looked at from outside
        return shown

    def _of_pane(self, name: str) -> str:
        return self._tmux("display-message", "-p", f"#{{{name}}}").strip()

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._socket), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("top") / "data", "--emulate", "fast:2@1.0:16GiB") as made:
        yield made


@pytest.fixture
def terminal(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TmuxTerminal]:
    environment = {
        "PENSTOCK_URL": cluster.url,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "LANG": getattr(request, "param", "C.UTF-8"),
        "LC_ALL": "",
        "XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"],
    }
    made = TmuxTerminal(tmp_path / "tmux", 80, 24, environment)
    try:
        yield made
    finally:
        made.close()


TOP = f"{sys.executable} -m penstock top"


def test_a_running_job_is_seen_and_cancelled_and_the_terminal_is_as_before(
    cluster: Cluster, terminal: TmuxTerminal
) -> None:
    job_id = cluster.run("submit", "--name", "sleeper", "--no-check", "--", "sleep", "1000").stdout.strip()
    terminal.type(TOP, "Enter")
    terminal.sees(job_id, "sleeper", " R ", "fast 1 busy 1 idle")
    assert terminal.has_other_screen
    assert terminal.takes_mouse
    terminal.type("Enter")
    terminal.sees("command:", "sleep 1000")
    terminal.type("c")
    terminal.sees("Cancel this job?")
    terminal.type("y")
    terminal.sees("(cancelled)")
    terminal.type("q")
    terminal.sees("NODES/REASON", "CA 1")
    terminal.type("q")
    terminal.sees(PROMPT, "penstock top")
    assert terminal.shows_cursor
    assert not terminal.has_other_screen
    assert not terminal.takes_mouse
    terminal.type("echo still-$((40 + 2))", "Enter")
    terminal.sees("still-42")


@pytest.mark.parametrize("terminal", ["C"], indirect=True)
def test_a_terminal_without_utf_8_gets_ascii_and_ctrl_c_ends_it(terminal: TmuxTerminal) -> None:
    terminal.type(TOP, "Enter")
    terminal.sees("NODES/REASON")
    terminal.type("?")
    assert terminal.sees("drain the node").isascii()
    terminal.type("C-c")
    terminal.sees(PROMPT)
    assert not terminal.has_other_screen


def test_nobody_there_is_said_in_a_line_and_not_on_a_screen(terminal: TmuxTerminal) -> None:
    terminal.type(f"{TOP} --url nats://127.0.0.1:1; echo code $?", "Enter")
    terminal.sees("code 3", "penstock: ")
    assert not terminal.has_other_screen
