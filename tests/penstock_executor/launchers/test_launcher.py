"""One conformance suite for all launchers, and an executor that runs on another one than its own."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any, get_args

import pytest
from executor_cases import world_on
from fake_launcher import FakeLauncher

from penstock_bus.memory import MemoryBus
from penstock_executor.launchers import LAUNCHERS, LauncherName
from penstock_executor.launchers.launcher import EntryRequest, LaunchedProcess, Launcher, OutputFate, OutputLimits
from penstock_executor.settings import ExecutorSettings

ENV = {"PATH": os.environ["PATH"]}
ENDED = (128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""By which of the two is the launcher's business."""
WAIT_MS = 30_000


@pytest.fixture(params=[*LAUNCHERS, "fake"])
def launcher(request: pytest.FixtureRequest) -> Launcher[Any]:
    return FakeLauncher() if request.param == "fake" else LAUNCHERS[request.param](ExecutorSettings())


def has_ended(launcher: Launcher[Any], process: LaunchedProcess, wait_ms: int = WAIT_MS) -> bool:
    """Say whether a process ends within some time."""
    fd, poll = launcher.exit_fd(process), select.poll()
    try:
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(wait_ms))
    finally:
        os.close(fd)


def test_every_name_of_the_settings_has_a_launcher() -> None:
    assert set(LAUNCHERS) == set(get_args(LauncherName))
    assert ExecutorSettings().launcher in LAUNCHERS


def test_a_program_that_is_where_the_launcher_looks_may_start(launcher: Launcher[Any]) -> None:
    assert launcher.problem(["sh", "-c", "true"], "/", launcher.base_environment().get("PATH", "")) == ""


def test_its_processes_are_held_to_their_memory_in_a_way_that_has_a_name(launcher: Launcher[Any]) -> None:
    assert launcher.memory_caps(None).name


def test_a_program_that_ends_leaves_its_status(launcher: Launcher[Any], tmp_path: Path) -> None:
    process = launcher.start(tmp_path, ["sh", "-c", "exit 3"], ENV, "/")
    assert has_ended(launcher, process)
    assert launcher.reap(process, tmp_path) == 3
    assert launcher.exit_code(tmp_path) == 3
    assert launcher.adopt(tmp_path) is None
    assert launcher.fates(tmp_path) == (OutputFate(), OutputFate())


def test_a_program_that_lives_is_adopted_by_its_folder(launcher: Launcher[Any], tmp_path: Path) -> None:
    process = launcher.start(tmp_path, ["sleep", "600"], ENV, "/")
    try:
        assert launcher.adopt(tmp_path) == process
        assert launcher.exit_code(tmp_path) is None
        assert not has_ended(launcher, process, wait_ms=0)
        assert launcher.belongs_to(process.pid, process)
        assert not launcher.belongs_to(os.getpid(), process)
    finally:
        launcher.kill(process)
    assert has_ended(launcher, process)
    assert launcher.reap(process, tmp_path) in ENDED
    assert launcher.adopt(tmp_path) is None


def test_a_program_is_told_to_end(launcher: Launcher[Any], tmp_path: Path) -> None:
    process = launcher.start(tmp_path, ["sleep", "600"], ENV, "/")
    launcher.signal_group(process, signal.SIGTERM)
    assert has_ended(launcher, process)
    assert launcher.reap(process, tmp_path) in ENDED


def test_what_has_ended_is_signalled_killed_and_cleaned_up_in_vain(launcher: Launcher[Any], tmp_path: Path) -> None:
    process = launcher.start(tmp_path, ["true"], ENV, "/")
    assert has_ended(launcher, process)
    assert launcher.reap(process, tmp_path) == 0
    launcher.signal_group(process, signal.SIGTERM)
    launcher.kill(process)
    launcher.clean_up(tmp_path)
    assert launcher.exit_code(tmp_path) == 0


def test_nothing_is_known_of_a_folder_without_a_process(launcher: Launcher[Any], tmp_path: Path) -> None:
    assert (launcher.adopt(tmp_path), launcher.exit_code(tmp_path)) == (None, None)


def test_a_command_runs_beside_a_process_until_it_ends(launcher: Launcher[Any], tmp_path: Path) -> None:
    process = launcher.start(tmp_path, ["sleep", "600"], ENV, "/")
    nothing = os.open(os.devnull, os.O_RDWR)
    with entered(launcher, tmp_path, EntryRequest(argv=("true",)), [nothing] * 3) as control:
        os.close(nothing)
        assert control.recv(64) == b"0\n"
        assert control.recv(64) == b""
    with entered(launcher, tmp_path, EntryRequest(port=1), []) as control:
        assert control.recv(64)[:1] == b"-"  # nobody listens there
    launcher.kill(process)
    assert has_ended(launcher, process)
    launcher.reap(process, tmp_path)
    with pytest.raises(OSError, match="refused"):
        launcher.enter(tmp_path, EntryRequest(argv=("true",)), [])


def test_a_command_gets_a_signal_that_is_sent_before_it_has_begun(tmp_path: Path) -> None:
    launcher: Launcher[Any] = LAUNCHERS["process"](ExecutorSettings())
    process = launcher.start(tmp_path, ["sleep", "600"], ENV, "/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) * 2:
        with entered(launcher, tmp_path, EntryRequest(argv=("sleep", "600")), [nothing] * 3) as control:
            control.sendall(bytes([signum]))
            assert control.recv(64) == b"%d\n" % (128 + signum)
    os.close(nothing)
    master, slave = pty.openpty()
    with entered(launcher, tmp_path, EntryRequest(argv=("sleep", "600"), terminal=True), [slave]) as control:
        control.sendall(bytes([signal.SIGINT]))
        with control.makefile("rb") as said:  # both lines may come at once
            leader, ended = said.readlines()
        assert (leader[:1], ended) == (b"@", b"%d\n" % (128 + signal.SIGINT))
    os.close(master), os.close(slave)
    launcher.kill(process)
    assert has_ended(launcher, process)
    launcher.reap(process, tmp_path)


def entered(launcher: Launcher[Any], folder: Path, asked: EntryRequest, fds: list[int]) -> socket.socket:
    """Enter a process, once it can be."""
    for _ in range(WAIT_MS // 10):
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            control = launcher.enter(folder, asked, fds)
            control.settimeout(WAIT_MS / 1000)
            return control
        time.sleep(0.01)
    raise AssertionError("it does not listen")


def test_output_goes_where_it_is_kept(launcher: Launcher[Any], tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "rank"
    kept.mkdir()
    folder.mkdir()
    process = launcher.start(folder, ["true"], ENV, "/", OutputLimits(kept))
    assert has_ended(launcher, process)
    launcher.reap(process, folder)
    assert {path.name for path in kept.iterdir()} == {"stdout", "stderr"}


def test_a_folder_that_is_not_there_is_an_error(launcher: Launcher[Any], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        launcher.start(tmp_path / "none", ["true"], ENV, "/")


async def test_an_executor_runs_jobs_on_any_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeLauncher()
    monkeypatch.setitem(LAUNCHERS, "process", lambda _: fake)
    async with world_on(MemoryBus(), tmp_path) as world:
        await world.node()
        await world.run("j1", "true")
        assert (await world.ended("j1")).outcome == "completed"
        await world.run("j2", "sh", "-c", "exit 3")
        assert (await world.ended("j2")).outcome == "failed"
        await world.run("j3", "sleep", "600")
        await world.cancel("j3")
        assert (await world.ended("j3")).outcome == "cancelled"
    assert [process.env["PENSTOCK_JOB_ID"] for process in fake.processes.values()] == ["j1", "j2", "j3"]
