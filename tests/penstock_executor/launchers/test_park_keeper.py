"""A program that its shim keeps stopped: for as long as who has asked for it is there, and no longer."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from penstock_executor.launchers import process_launcher
from penstock_executor.launchers.launcher import OutputLimits
from penstock_executor.launchers.process_launcher import ShimProcess

ENV = {"PATH": os.environ["PATH"]}
WAIT_S = 60.0
COUNTING = (
    "import os, time; print(os.getpid(), flush=True)\nfor i in range(10**6): print(i, flush=True); time.sleep(0.002)"
)


class Program:
    """A program that counts, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rank"
        self.folder.mkdir()
        argv = [sys.executable, "-S", "-c", COUNTING]
        self.shim: ShimProcess = process_launcher.start(self.folder, argv, ENV, "/")
        self._fd = process_launcher.exit_fd(self.shim)
        self.pid = int(self.reads(1)[0])

    def reads(self, lines: int, folder: Path | None = None) -> list[str]:
        """Return what it has printed, once that is so many lines."""
        path = (folder or self.folder) / "stdout"
        while True:
            text = path.read_text() if path.exists() else ""
            if text.count("\n") >= lines:
                return text.splitlines()
            assert not select.select([self._fd], [], [], 0.01)[0], (self.folder / "stderr").read_text()

    def code(self) -> int | None:
        """Return its exit status, once it has ended."""
        assert select.select([self._fd], [], [], WAIT_S)[0]
        os.close(self._fd)
        return process_launcher.reap(self.shim, self.folder)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def ask(link: socket.socket, line: str) -> str:
    """Return what the shim answers."""
    link.settimeout(WAIT_S)
    link.sendall(f"{line}\n".encode())
    return link.recv(4096).decode().rstrip("\n")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_it_stops_and_goes_on_with_its_output_in_another_folder(program: Program, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("stdout", "stderr"):
        (other / name).touch()
    program.reads(5)
    link = process_launcher.park(program.folder)
    assert ask(link, f"park {program.pid}") == "parked"
    assert state_of(program.pid) == "T"
    before = program.reads(5)
    assert ask(link, f"go {other}") == "going"
    after = program.reads(5, other)
    assert program.reads(5) == before
    assert int(after[0]) == int(before[-1]) + 1
    link.close()
    program.reads(len(after) + 5, other)
    process_launcher.kill(program.shim)
    assert program.code() == 128 + signal.SIGKILL


def test_it_ends_as_one_that_has_left_when_nobody_asks_any_more(program: Program) -> None:
    link = process_launcher.park(program.folder)
    assert ask(link, f"park {program.pid}") == "parked"
    link.close()
    assert program.code() == 75
    assert process_launcher.gone(program.pid)


def test_it_ends_when_who_has_asked_is_killed(program: Program) -> None:
    asks = textwrap.dedent(f"""
        import pathlib, time
        from penstock_executor.launchers import process_launcher
        link = process_launcher.park(pathlib.Path({str(program.folder)!r}))
        link.setblocking(True)
        link.sendall(b"park {program.pid}\\n")
        print(link.recv(100).decode(), flush=True)
        time.sleep(600)
    """)
    env = {**ENV, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", asks], stdout=subprocess.PIPE, text=True, env=env) as asker:
        assert asker.stdout is not None
        assert asker.stdout.readline() == "parked\n"
        asker.kill()
    assert program.code() == 75


def test_none_but_the_program_itself_is_parked_and_no_word_is_taken_out_of_turn(program: Program) -> None:
    link = process_launcher.park(program.folder)
    assert ask(link, f"park {os.getpid()}") == "a process of its program asks, and not itself"
    assert ask(link, "go /nowhere") == "'go' is not to be done now"
    assert ask(link, "dance") == "'dance' is not to be done now"
    assert ask(link, f"park {program.pid}") == "parked"
    assert ask(link, f"park {program.pid}") == "'park' is not to be done now"
    assert ask(link, "go /nowhere").startswith("its output cannot go to /nowhere: ")
    assert state_of(program.pid) == "T"
    process_launcher.kill(program.shim)
    assert program.code() == 128 + signal.SIGKILL
    link.close()


def test_a_second_who_asks_is_not_let_in(program: Program) -> None:
    first, second = process_launcher.park(program.folder), process_launcher.park(program.folder)
    assert ask(first, f"park {program.pid}") == "parked"
    second.settimeout(WAIT_S)
    assert second.recv(100) == b""
    assert state_of(program.pid) == "T"
    first.close()
    assert program.code() == 75


def test_what_exceeds_the_limit_of_a_file_is_counted_for_each_anew(tmp_path: Path) -> None:
    folder = tmp_path / "rank"
    folder.mkdir()
    printing = "import os, sys\nprint(os.getpid(), flush=True)\nfor i in sys.stdin: print('x' * 99, flush=True)"
    argv = ["sh", "-c", f'exec "$0" -S -c "$1" < {tmp_path}/lines', sys.executable, printing]
    os.mkfifo(tmp_path / "lines")
    shim = process_launcher.start(folder, argv, ENV, "/", OutputLimits(folder, 250))
    fd = process_launcher.exit_fd(shim)
    with (tmp_path / "lines").open("w") as lines:
        lines.write("1\n2\n3\n4\n")
        lines.flush()
        while "limit of 250 bytes" not in (text := (folder / "stdout").read_text()):
            select.select([fd], [], [], 0.01)
        link = process_launcher.park(folder)
        assert ask(link, f"park {text.split()[0]}") == "parked"
        other = tmp_path / "other"
        other.mkdir()
        for name in ("stdout", "stderr"):
            (other / name).touch()
        assert ask(link, f"go {other}") == "going"
        lines.write("5\n")
    select.select([fd], [], [], WAIT_S)
    os.close(fd)
    assert process_launcher.reap(shim, folder) == 0
    assert (folder / "stdout").read_text().endswith("x" * 99 + "\n")
    assert (other / "stdout").read_text() == "x" * 99 + "\n"
