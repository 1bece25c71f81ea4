"""The shim that every process of a job is started through: what it runs, what it keeps, and what it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from other_users import ALICE, acting_as, as_root, let_through

from penstock_cluster.host_limits import Rlimit
from penstock_executor.launchers import process_launcher, shim
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.fork_launcher import ForkLauncher
from penstock_executor.launchers.launcher import OutputLimits
from penstock_executor.launchers.process_launcher import ShimProcess
from penstock_testing import eventually

pytestmark = pytest.mark.slow

PATH = {"PATH": os.defpath}
reap = process_launcher.reap


@pytest.fixture(scope="module", params=["exec", "fork"], autouse=True)
def _started_by(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let shims be programs of their own, and forks of a template."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "fork":
            launcher = ForkLauncher()
            patch.setattr(process_launcher, "start", launcher.start)
            patch.setattr(sys.modules[__name__], "reap", launcher.reap)
        yield


async def code_of(folder: Path, process: ShimProcess) -> int | None:
    """Return how a program ended, once it has."""
    await eventually(lambda: not process_launcher.is_alive(process))
    return reap(process, folder)


async def test_a_program_that_was_to_end_before_it_began_is_not_run(tmp_path: Path) -> None:
    slow = ["sh", "-c", 'sleep 600 && touch "$0"', str(tmp_path / "ran")]  # a forked shim may have begun it by then
    process = process_launcher.start(tmp_path, slow, PATH, "/")
    process_launcher.signal_group(process, signal.SIGTERM)  # before the first line of a shim that is executed
    assert await code_of(tmp_path, process) == 128 + signal.SIGTERM
    assert not (tmp_path / "ran").exists()


async def test_a_program_is_run_whatever_its_environment_holds(tmp_path: Path) -> None:
    odd = {"PYTHONHOME": "/nowhere", "LD_LIBRARY_PATH": "/nowhere", "LC_ALL": "nowhere", "LANG": "C", "A": "b"}
    process = process_launcher.start(tmp_path, ["env"], PATH | odd, "/")
    assert await code_of(tmp_path, process) == 0
    seen = dict(line.split("=", 1) for line in (tmp_path / "stdout").read_text().splitlines())
    del seen["PWD"], seen["OLDPWD"]  # the shell's
    assert seen == PATH | odd | {"PENSTOCK_PROCESS": str(tmp_path)}


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -9 $$"), 137),
        (("./nothing",), 127),
        (("./no-program",), 126),
    ],
)
async def test_how_a_program_ends_is_noted(tmp_path: Path, command: tuple[str, ...], code: int) -> None:
    (tmp_path / "no-program").write_text("text")
    process = process_launcher.start(tmp_path, command, PATH, str(tmp_path))
    assert await code_of(tmp_path, process) == code
    assert process_launcher.exit_code(tmp_path) == code


@pytest.mark.parametrize("cap_bytes", [128 << 20, 1 << 30])
async def test_a_program_has_the_limits_that_its_shell_would_have_set(tmp_path: Path, cap_bytes: int) -> None:
    script = "import os, resource; print(*resource.getrlimit(resource.RLIMIT_DATA), os.getcwd(), os.environ['PWD'])"
    (tmp_path / "work").mkdir()
    command = Rlimit().command("j", [sys.executable, "-c", script], cap_bytes, 2 << 30)
    process = process_launcher.start(tmp_path, command, PATH, str(tmp_path / "work"))
    assert await code_of(tmp_path, process) == 0
    where = str(tmp_path / "work")
    assert (tmp_path / "stdout").read_text().split() == [str(cap_bytes), str(2 << 30), where, where]


async def test_a_slightly_confined_program_has_no_new_privileges_and_its_own_descriptors_alone(tmp_path: Path) -> None:
    left_open = os.dup(0)
    os.set_inheritable(left_open, True)
    process_launcher.confine(tmp_path, Confinement())
    script = "grep NoNewPrivs /proc/self/status; ls /proc/$$/fd"
    process = process_launcher.start(tmp_path, ["sh", "-c", script], PATH, "/")
    assert await code_of(tmp_path, process) == 0
    os.close(left_open)
    assert (tmp_path / "stdout").read_text().split() == ["NoNewPrivs:", "1", "0", "1", "2"]


async def test_a_script_that_does_not_say_what_runs_it_is_run_by_a_shell(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("echo $0 $1\n")
    (tmp_path / "script").chmod(0o755)
    process = process_launcher.start(tmp_path, ["./script", "a"], PATH, str(tmp_path))
    assert await code_of(tmp_path, process) == 0
    assert (tmp_path / "stdout").read_text() == "./script a\n"


LEAVING = """
import os, subprocess, sys, time
wait = [sys.executable, "-S", "-c", "import time, sys; sys.stdout.close(); time.sleep(600)"]
started = [
    subprocess.Popen(wait),
    subprocess.Popen(wait, start_new_session=True),
    subprocess.Popen(wait, start_new_session=True, env={}, stdout=subprocess.DEVNULL),
]
reader, writer = os.pipe()
if not os.fork():
    os.setsid()
    if daemon := os.fork():
        os.write(writer, b"%d" % daemon)
        os._exit(0)
    os.closerange(0, 3)
    time.sleep(600)
print(*(each.pid for each in started), os.read(reader, 20).decode(), flush=True)
"""
"""Leaves a child, one in a session of its own, one that has no environment either, and a daemon."""


@contextlib.contextmanager
def innocent() -> Iterator[int]:
    """A process that is nobody's of a job's, and has much in common with one."""
    env = {**os.environ, "PENSTOCK_PROCESS": "/somewhere/else", "PENSTOCK_JOB_ID": "j1"}
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], env=env)
    try:
        yield process.pid
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


async def left_by(folder: Path) -> list[int]:
    """Return the processes that :data:`LEAVING` has started."""
    await eventually(lambda: (folder / "stdout").read_text().endswith("\n"))
    return [int(pid) for pid in (folder / "stdout").read_text().split()]


async def test_what_a_program_leaves_behind_ends_with_it_in_whatever_session_it_is(tmp_path: Path) -> None:
    with innocent():
        process = process_launcher.start(tmp_path, [sys.executable, "-S", "-c", LEAVING + "sys.exit(3)"], PATH, "/")
        assert await code_of(tmp_path, process) == 3
        left = await left_by(tmp_path)
        assert len(left) == 4
        assert [pid for pid in left if not process_launcher.gone(pid)] == []


async def test_on_kill_all_end_and_the_shim_says_so(tmp_path: Path) -> None:
    with innocent():
        process = process_launcher.start(tmp_path, [sys.executable, "-S", "-c", LEAVING + "time.sleep(600)"], PATH, "/")
        left = await left_by(tmp_path)
        process_launcher.kill(process)
        assert await code_of(tmp_path, process) == 137
        assert [pid for pid in left if not process_launcher.gone(pid)] == []


@pytest.mark.parametrize("restarted", [False, True])
async def test_where_the_shim_was_killed_what_it_has_started_is_found_and_ended(
    tmp_path: Path, restarted: bool
) -> None:
    code = "\nimport signal; signal.pause()"
    with innocent():
        process = process_launcher.start(tmp_path, [sys.executable, "-S", "-c", LEAVING + code], PATH, "/")
        left = await left_by(tmp_path)
        program = shim.descendants(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        await eventually(lambda: not process_launcher.is_alive(process))
        if restarted:
            with contextlib.suppress(ChildProcessError):  # the template's child
                os.waitpid(process.pid, os.WNOHANG)  # noqa: ASYNC222 - it does not wait
            process_launcher.clean_up(tmp_path)
        else:
            assert process_launcher.reap(process, tmp_path) is None
        marked = {left[0], left[1], left[3], *program} - {left[2]}
        assert [pid for pid in marked if not process_launcher.gone(pid)] == []
        with contextlib.suppress(ProcessLookupError):
            os.kill(left[2], signal.SIGKILL)  # its environment was cleared, its session its own, its parents gone


async def test_a_stopped_shim_is_killed_too(tmp_path: Path) -> None:
    process = process_launcher.start(tmp_path, ["sh", "-c", "echo up; kill -STOP 0; sleep 600"], PATH, "/")
    await eventually(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "T")
    process_launcher.kill(process)
    assert await code_of(tmp_path, process) == 137
    assert (tmp_path / "stdout").read_text() == "up\n"


async def test_signals_to_its_group_are_the_programs_and_not_the_shims(tmp_path: Path) -> None:
    code = "trap 'echo usr1' USR1; kill -USR1 0; kill -QUIT 0; exit 4"
    process = process_launcher.start(tmp_path, ["sh", "-c", f"trap '' QUIT; {code}"], PATH, "/")
    assert await code_of(tmp_path, process) == 4
    assert (tmp_path / "stdout").read_text() == "usr1\n"


# --- output where the disk has no room

PRINTING = """
import os, sys, time
print('up', flush=True)
while not os.path.exists('GO'):
    time.sleep(0.01)
for step in range(40):
    print('step', step, flush=True)
print('x' * SIZE, flush=True)
print('the last words', flush=True)
sys.exit(5)
"""


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of so many bytes; skips loudly where nothing can be mounted."""
    where = folder / "small"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(where)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here, so no disk can be full: {mounted.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount command, so no disk can be made full")
@pytest.mark.parametrize("size", [200_000, 3_000_000])
async def test_a_program_on_a_full_disk_notices_nothing_and_its_last_words_are_kept(tmp_path: Path, size: int) -> None:
    with small_disk(tmp_path, 512 * 1024) as disk:
        with (disk / "filler").open("wb") as filler:
            code = PRINTING.replace("SIZE", str(size)).replace("GO", str(tmp_path / "go"))
            process = process_launcher.start(
                tmp_path, [sys.executable, "-S", "-c", code], PATH, "/", OutputLimits(disk, room_s=0.0)
            )
            await eventually(lambda: (disk / "stdout").stat().st_size > 0)
            fill(filler)
        (tmp_path / "go").touch()
        assert await code_of(tmp_path, process) == 5
        out, _ = process_launcher.fates(tmp_path)
        text = (disk / "stdout").read_text()
    assert text.startswith("up\n")
    assert text.endswith("the last words\n")
    assert not out.lost_bytes or os.strerror(out.refused) == "No space left on device"
    assert bool(out.lost_bytes) == (size > 512 * 1024)
    assert not out.lost_bytes or f"\n[penstock: {out.lost_bytes} bytes lost: No space left on device]\n" in text
    whole = "up\n" + "".join(f"step {step}\n" for step in range(40)) + "x" * size + "\nthe last words\n"
    notice = f"[penstock: {out.lost_bytes} bytes lost: No space left on device]\n" if out.lost_bytes else ""
    assert len(whole) - out.lost_bytes <= len(text) - len(notice) <= len(whole) - out.lost_bytes + 1


def fill(filler: IO[bytes]) -> None:
    """Leave a disk no room."""
    with contextlib.suppress(OSError):
        while True:
            os.write(filler.fileno(), bytes(4096))


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount command, so no disk can be made full")
@pytest.mark.parametrize("ends_by", ["room", "kill", "patience"])
async def test_what_begins_and_ends_while_the_disk_is_full_counts_as_running_until_there_is_room(
    tmp_path: Path, ends_by: str
) -> None:
    with small_disk(tmp_path, 256 * 1024) as disk:
        for name in ("stdout", "stderr", "pid"):
            (disk / name).touch()
        with (disk / "filler").open("wb") as filler:
            fill(filler)
        code = f"import pathlib; print('a line\\n' * 40, flush=True); pathlib.Path('{tmp_path}/over').touch()"
        keep = OutputLimits(disk, room_s=0.4 if ends_by == "patience" else 60.0)
        process = process_launcher.start(disk, [sys.executable, "-S", "-c", code], PATH, "/", keep)
        await eventually(lambda: (tmp_path / "over").exists() and not shim.descendants(process.pid))
        assert not (disk / "exit").exists()
        if ends_by == "room":
            (disk / "filler").unlink()
        elif ends_by == "kill":
            process_launcher.kill(process)
        assert await code_of(disk, process) == 0
        assert (disk / "stdout").read_text() == ("a line\n" * 40 + "\n") * (ends_by == "room")
        assert (disk / "exit").exists() == (ends_by == "room")


@contextlib.contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Let the kernel refuse to make files longer, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


chunks = st.lists(st.binary(min_size=1, max_size=30).map(lambda data: data * 2_000), max_size=8)


@given(chunks, chunks, chunks, st.sampled_from([4_096, 70_000, 200_000]))
def test_what_a_disk_refuses_is_held_until_there_is_room(
    before: list[bytes], meanwhile: list[bytes], after: list[bytes], room: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "stdout")
        Path(path).touch()
        sink = shim.OutputSink(path, 1 << 30)
        with files_of_at_most(room):
            for data in (*before, *meanwhile):
                sink.put(data)
                sink.flush()
        for data in after:
            sink.flush()
            sink.put(data)
        sink.close()
        assert Path(path).read_bytes() == b"".join((*before, *meanwhile, *after))
        assert sink.lost_bytes == 0


def test_what_is_held_is_bounded_and_the_loss_is_said_on_a_line_of_its_own() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "stdout")
        Path(path).touch()
        sink = shim.OutputSink(path, 1 << 30)
        with files_of_at_most(65_536 * 2):
            sink.put(b"begin\ninside a line")
            for _ in range(40):
                sink.put(b"z" * 65_536)
        sink.flush()
        sink.put(b"\nend\n")
        sink.close()
        text = Path(path).read_bytes()
    lost = sink.lost_bytes
    assert text.startswith(b"begin\ninside a line")
    assert b"\n[penstock: %d bytes lost: File too large]\n" % lost in text
    assert text.endswith(b"z\nend\n")
    assert text.count(b"z") == 40 * 65_536 - lost
    assert 1_000_000 < len(text) < 1_400_000


@given(chunks, st.integers(0, 100_000))
def test_over_the_limit_every_byte_is_kept_or_counted(printed: list[bytes], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "stdout")
        Path(path).touch()
        sink = shim.OutputSink(path, limit)
        for data in printed:
            sink.put(data)
        sink.close()
        text = Path(path).read_bytes()
    whole = b"".join(printed)
    if len(whole) <= limit:
        assert text == whole
    else:
        kept = min(shim.LAST_BYTES, len(whole) - limit)
        assert text.startswith(whole[:limit])
        assert text.endswith(whole[len(whole) - kept :])
        assert sink.over_bytes == len(whole) - limit - kept


class Entered:
    """What a shim's order says of where its socket is."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)


async def test_a_shim_that_gets_no_process_for_a_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entrance = shim._Entrance(Entered(tmp_path), shim.ProcessTree())  # type: ignore[arg-type]

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(tmp_path / shim.ENTRANCE))
        with monkeypatch.context() as patched:
            patched.setattr(shim.os, "fork", fork)
            entrance.let_in()
        assert asking.recv(1) == b"", "whoever asked hears the end"
    entrance.close()


@as_root
def test_a_shim_in_a_working_folder_that_is_closed_to_it_has_an_entrance_too(tmp_path: Path) -> None:
    closed, own = tmp_path / "closed", tmp_path / "own"
    closed.mkdir(mode=0o700)
    own.mkdir()
    os.chown(own, *ALICE)
    let_through(tmp_path)
    closed.chmod(0o700)

    def make() -> None:
        entrance = shim._Entrance(Entered(own), shim.ProcessTree())  # type: ignore[arg-type]
        assert entrance.fds

    here = os.open(".", os.O_PATH)
    os.chdir(closed)
    try:
        acting_as(ALICE, make)
    finally:
        os.fchdir(here)
        os.close(here)
    assert (own / shim.ENTRANCE).is_socket()
