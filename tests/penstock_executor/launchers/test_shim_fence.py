"""The fence that the shim keeps: what it stops, lets go on and ends, and what the kernel does where the shim cannot."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from penstock_executor.launchers import process_launcher, shim
from penstock_executor.launchers.launcher import RunFence
from penstock_executor.launchers.process_launcher import ShimProcess
from penstock_testing import eventually

pytestmark = pytest.mark.slow

PATH = {"PATH": os.defpath}
BUSY = """
import os, subprocess, sys, time
if len(sys.argv) < 3:
    loop = [sys.executable, "-S", "-c", sys.argv[1], sys.argv[1], "child"]
    subprocess.Popen(loop)
    subprocess.Popen(loop, start_new_session=True, env={})
with open("/proc/self/stat") as stat:
    pid = stat.read().split()[0]
while True:
    print(pid, time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
    time.sleep(0.005)
"""
"""Writes the time again and again, and has a child that does so as well, and one in a session of its own."""


class Page:
    """The page of a node, as its executor writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def heard(self, ago_s: float = 0.0) -> float:
        """Write that a heartbeat was answered that was sent so long ago; return when it was."""
        at_s = now_s() - ago_s
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT)
        os.pwrite(file, struct.pack("@q", int(at_s * 1e9)), 0)
        os.close(file)
        return at_s

    async def heard_until(self, condition: Callable[[], bool]) -> float:
        """Write it again and again until a condition holds; return when it was the last time."""
        await eventually(lambda: self.heard() > 0 and condition())
        return heard(self)

    def fence(self, hold_s: float, end_s: float = 600.0, keep_s: float = 600.0) -> RunFence:
        return RunFence(page=self.path, hold_s=hold_s, end_s=end_s, keep_s=keep_s)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path / "heard")


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start(folder: Path, fence: RunFence, *argv: str) -> ShimProcess:
    return process_launcher.start(folder, argv or [sys.executable, "-S", "-c", BUSY, BUSY], PATH, "/", fence=fence)


def times(folder: Path) -> dict[str, list[float]]:
    """Return when each process has written."""
    found: dict[str, list[float]] = {}
    for line in (folder / "stdout").read_text().splitlines():
        pid, at_s = line.split()
        found.setdefault(pid, []).append(float(at_s))
    return found


def writers(folder: Path) -> int:
    return len(times(folder))


def states(process: ShimProcess) -> set[str]:
    return {shim.state(pid).decode() for pid in shim.descendants(process.pid)}


async def ended(process: ShimProcess) -> None:
    await eventually(lambda: not process_launcher.is_alive(process))


async def test_a_program_and_all_that_it_started_stops_when_nothing_is_heard_and_goes_on_afterwards(
    tmp_path: Path, page: Page
) -> None:
    page.heard()
    process = start(tmp_path, page.fence(1.0))
    heard_s = await page.heard_until(lambda: writers(tmp_path) == 3)
    await eventually(lambda: states(process) == {"T"})
    last_s = max(map(max, times(tmp_path).values()))
    assert heard_s < last_s
    again_s = page.heard()
    await eventually(lambda: all(max(each) > again_s for each in times(tmp_path).values()))
    gaps = [(a, b) for each in times(tmp_path).values() for a, b in pairwise(each) if b > again_s > a]
    assert len(gaps) == 3
    process_launcher.kill(process)
    await ended(process)
    assert process_launcher.reap(process, tmp_path) == 137


async def test_a_program_that_is_stopped_can_be_ended(tmp_path: Path, page: Page) -> None:
    page.heard()
    process = start(tmp_path, page.fence(0.5))
    await page.heard_until(lambda: states(process) == {"S"})
    await eventually(lambda: states(process) == {"T"})
    process_launcher.kill(process)
    await ended(process)
    assert process_launcher.reap(process, tmp_path) == 137


async def test_a_program_that_stopped_itself_is_not_woken(tmp_path: Path, page: Page) -> None:
    page.heard()
    process = start(tmp_path, page.fence(1.0), "sh", "-c", "kill -STOP $$; echo woken; sleep 600")
    await page.heard_until(lambda: states(process) == {"T"})
    await eventually(lambda: now_s() > float(heard(page)) + 1.5)
    page.heard()
    await eventually(lambda: now_s() > float(heard(page)) + 0.5)
    assert (tmp_path / "stdout").read_text() == ""
    process_launcher.kill(process)
    await ended(process)
    process_launcher.reap(process, tmp_path)


def heard(page: Page) -> float:
    return struct.unpack("@q", page.path.read_bytes())[0] / 1e9


async def test_a_program_is_not_begun_before_the_node_is_heard(tmp_path: Path, page: Page) -> None:
    page.heard(ago_s=2.0)
    process = start(tmp_path, page.fence(1.0), "sh", "-c", "echo begun")
    await eventually((tmp_path / "pid").exists)
    await eventually(lambda: now_s() > heard(page) + 3.0)
    assert (tmp_path / "stdout").read_text() == ""
    page.heard()
    await ended(process)
    assert (tmp_path / "stdout").read_text() == "begun\n"
    assert process_launcher.reap(process, tmp_path) == 0


async def test_a_program_that_never_began_ends_when_it_is_told_to(tmp_path: Path, page: Page) -> None:
    page.heard(ago_s=2.0)
    process = start(tmp_path, page.fence(1.0), "sh", "-c", "echo begun")
    process_launcher.signal_group(process, signal.SIGTERM)
    await ended(process)
    assert process_launcher.reap(process, tmp_path) == 128 + signal.SIGTERM
    assert (tmp_path / "stdout").read_text() == ""


async def test_a_program_that_nobody_asks_for_any_more_is_ended(tmp_path: Path, page: Page) -> None:
    page.heard()
    process = start(tmp_path, page.fence(0.5, keep_s=0.5))
    await page.heard_until(lambda: states(process) == {"S"} or writers(tmp_path) == 3)
    await ended(process)
    assert process_launcher.reap(process, tmp_path) == 137


async def test_where_all_are_stopped_none_ever_goes_on(tmp_path: Path, page: Page) -> None:
    """Who would be woken first, the shim or the program? The kernel ends both before, without waking either."""
    begun_s = page.heard()
    process = start(tmp_path, page.fence(4.0, end_s=6.0), "sh", "-c", "sleep 600 & exec sleep 600")
    await page.heard_until(lambda: len(shim.descendants(process.pid)) == 2)
    pids = shim.descendants(process.pid)
    os.killpg(process.pid, signal.SIGSTOP)
    await ended(process)
    assert now_s() >= begun_s + 6.0
    await eventually(lambda: all(map(process_launcher.gone, pids)))
    assert process_launcher.reap(process, tmp_path) is None


async def test_where_all_are_stopped_those_in_groups_of_their_own_end_too(tmp_path: Path, page: Page) -> None:
    page.heard()
    process = start(tmp_path, page.fence(4.0, end_s=6.0))
    await page.heard_until(lambda: writers(tmp_path) == 3)
    pids = shim.descendants(process.pid)
    assert len({os.getpgid(pid) for pid in pids}) == 2
    await page.heard_until(lambda: tied(process) == 2)
    for pid in (process.pid, *pids):
        os.kill(pid, signal.SIGSTOP)
    await ended(process)
    await eventually(lambda: all(map(process_launcher.gone, pids)))
    assert process_launcher.reap(process, tmp_path) is None


def tied(process: ShimProcess) -> int:
    """Return how many process groups end with a shim: it holds a pipe for each, beside the two of the output."""
    ends, ours = pipes(process.pid), pipes(os.getpid())
    return len([end for end in ends if ends.count(end) == 1 and end not in ours]) - 2


def pipes(pid: int) -> list[str]:
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(path))
    return [end for end in found if end.startswith("pipe:")]


async def test_a_shim_that_is_killed_takes_its_group_with_it_although_nobody_looks(tmp_path: Path, page: Page) -> None:
    page.heard()
    process = start(tmp_path, page.fence(60.0), "sh", "-c", "sleep 600 & exec sleep 600")
    await eventually(lambda: len(shim.descendants(process.pid)) == 2)
    pids = shim.descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    await eventually(lambda: all(map(process_launcher.gone, pids)))
    process_launcher.reap(process, tmp_path)


async def test_the_kernel_does_not_end_what_is_heard_or_stopped_in_time(tmp_path: Path, page: Page) -> None:
    page.heard()
    process = start(tmp_path, page.fence(4.0, end_s=8.0), "sleep", "600")
    begun_s = await page.heard_until(lambda: states(process) == {"S"})
    await page.heard_until(lambda: now_s() > begun_s + 10.0)
    await eventually(lambda: states(process) == {"T"})
    await eventually(lambda: now_s() > heard(page) + 9.0)
    await page.heard_until(lambda: states(process) == {"S"})
    process_launcher.kill(process)
    await ended(process)
    assert process_launcher.reap(process, tmp_path) == 137
