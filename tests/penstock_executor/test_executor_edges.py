"""The edges to the host: what is checked before a start, and who may speak over the socket."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from executor_cases import World, python, speaking
from hypothesis import given
from hypothesis import strategies as st

from penstock import submission
from penstock_bus import service_folder
from penstock_executor import fact_outbox, gang, run_state, runner
from penstock_executor.launchers import environment, process_launcher
from penstock_executor.launchers.fork_launcher import ForkLauncher
from penstock_executor.run_state import LocalRun, RunProcess
from penstock_log import Job, JobSpec, RunStarted, RunWarned
from penstock_log.agent_protocol import STOP_MARGIN, Hello

DOCTESTS = (gang, environment, run_state)
PATH = os.environ["PATH"]


@pytest.mark.parametrize(
    ("command", "fine"),
    [
        (("python3", "-c", "pass"), True),
        (("python3", "-m", "http.server"), True),
        (("python3", "-u", "there.py"), True),
        (("python3", "-W", "ignore", "there.py"), True),
        (("python3", "-u", "-W", "ignore", "missing.py"), False),
        (("sh", "missing.sh"), False),
        (("sh", "-c", "missing.sh"), True),
        (("./missing", "x"), False),
        (("./tool",), True),
        (("echo", "missing.py"), True),
    ],
)
def test_only_what_is_certainly_missing_is_refused(tmp_path: Path, command: tuple[str, ...], fine: bool) -> None:
    (tmp_path / "there.py").touch()
    (tmp_path / "tool").touch(mode=0o700)
    problem = process_launcher.problem(command, str(tmp_path), PATH)
    assert (problem == "") is fine, problem
    assert fine or str(tmp_path) in problem


@pytest.mark.parametrize("command", [("./pipe",), ("python3", "pipe"), ("cat", "pipe")])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path, command: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "pipe", 0o755)
    assert process_launcher.problem(command, str(tmp_path), PATH) == ""
    assert environment.opaque(command, str(tmp_path)).startswith("opaque: ")
    assert submission.digest(command, tmp_path) == ""


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    assert submission.beginning_of(tmp_path / "pipe") == b""


@pytest.mark.parametrize(
    ("body", "command", "is_opaque"),
    [
        ("import penstock", ("python3", "train.py"), False),
        ("import torch", ("python3", "train.py"), True),
        ("#!/opt/penstock/bin/python\nimport torch", ("python3", "train.py"), True),
        ("import penstock", ("python3", "-m", "train"), False),
        ("import penstock", ("python3", "other.py"), True),
    ],
)
def test_a_script_that_does_not_mention_penstock_is_opaque(
    tmp_path: Path, body: str, command: tuple[str, ...], is_opaque: bool
) -> None:
    (tmp_path / "train.py").write_text(body)
    assert environment.opaque(command, str(tmp_path)).startswith("opaque: ") is is_opaque


@given(st.dictionaries(st.integers(0, 7), st.integers(0, 1000), min_size=8, max_size=8))
def test_no_process_has_passed_the_agreed_step(answers: dict[int, int]) -> None:
    step = gang.stop_step(8, answers)
    assert step is not None
    assert all(answer + STOP_MARGIN <= step for answer in answers.values())
    assert gang.stop_step(9, answers) is None


@pytest.mark.parametrize(
    ("said", "is_memory"),
    [
        ("MemoryError", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes", True),
        ("terminate called after throwing an instance of 'std::bad_alloc'", True),
        ("KeyError: 'lr'", False),
    ],
)
def test_a_capped_process_that_ends_for_want_of_memory_is_told_its_cap(said: str, *, is_memory: bool) -> None:
    run = LocalRun(
        job_id="j1", epoch=1, cap_bytes=64 << 20, ranks={0: RunProcess(exit_code=1, ended_s=2.0, last_line=said)}
    )
    job = Job(id="j1", spec=JobSpec(name="j1", command=("x",)), submitted_s=1.0)
    reason = run_state.ended(run, job, "n1", now_s=3.0).reason
    assert reason.endswith("it may hold 64 MiB of its device, which it shares") is is_memory


def test_the_same_facts_have_the_same_commit_id() -> None:
    fact = RunStarted(job_id="j", epoch=1, node_id="n", devices=(0,), at_s=1.0)
    later = msgspec.structs.replace(fact, at_s=2.0)
    assert fact_outbox.commit("executor/n", (fact,)).id == fact_outbox.commit("executor/n", (later,)).id
    assert fact_outbox.commit("executor/n", (fact,)).id != fact_outbox.commit("executor/m", (fact,)).id


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of the test's own, whose path is short."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.parametrize(
    ("uses", "mode"),
    [([False], 0o700), ([True], 0o711), ([True, False], 0o711), ([False, True], 0o711)],
    ids=["for one user", "for all", "for all before", "for all later"],
)
def test_a_long_data_folder_still_has_a_socket(temporary: Path, tmp_path: Path, uses: list[bool], mode: int) -> None:
    paths = [service_folder.path_in(tmp_path / ("x" * 120), for_all=for_all) for for_all in uses]
    assert len(set(paths)) == 1
    assert len(os.fsencode(paths[0])) <= service_folder.LONGEST_PATH
    assert stat.S_IMODE(paths[0].parent.stat().st_mode) == mode
    assert paths[0].parent.parent == temporary


def test_where_a_socket_has_no_place_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(OSError, match="use a data_dir with a path of at most 90 bytes"):
        service_folder.path_in(long)


def test_a_folder_of_sockets_that_others_may_read_is_refused(temporary: Path, tmp_path: Path) -> None:
    (temporary / f"penstock-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="is open to others"):
        service_folder.path_in(tmp_path / ("x" * 120))


def test_nobody_else_may_open_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with service_folder.bind(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def hello(epoch: int = 1) -> bytes:
    return msgspec.json.encode(Hello(version=1, job_id="j1", epoch=epoch, rank=0, pid=os.getpid())) + b"\n"


@pytest.mark.parametrize(
    "line",
    [hello(), hello(epoch=7), b"nonsense\n", b'{"type":"at","step":1}\n', b"x" * 300_000],
    ids=["a stranger", "another epoch", "nonsense", "no hello", "no end"],
)
async def test_a_process_that_is_not_of_the_run_is_hung_up_on(world: World, line: bytes) -> None:
    node = await world.node()
    await world.run("j1", *speaking("100000"))
    await world.progress("j1")
    path = service_folder.path_in(Path(node.settings.data_dir))
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(line)
    with pytest.raises((ConnectionResetError, BrokenPipeError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "No space left on device (ENOSPC); free some space there"),
        (errno.EMFILE, "Too many open files (EMFILE); raise the limit of open files of the executor"),
        (errno.EAGAIN, "Resource temporarily unavailable (EAGAIN); raise the limit of processes of the executor"),
        (errno.ENOMEM, "Cannot allocate memory (ENOMEM); end what holds the node's memory"),
    ],
)
async def test_a_run_for_which_its_node_lacks_something_waits_for_it_is_warned_and_completes(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    spawn, tries = ForkLauncher.start, 0

    def full_at_first(*arguments: Any, **more: Any) -> process_launcher.ShimProcess:
        nonlocal tries
        tries += 1
        if tries <= 3:
            raise OSError(number, os.strerror(number))
        return spawn(*arguments, **more)

    await world.node()
    monkeypatch.setattr(ForkLauncher, "start", full_at_first)
    monkeypatch.setattr(runner, "RETRY_S", 0.05)
    await world.run("j1", "true")
    assert (await world.ended("j1")).outcome == "completed"
    assert await world.facts("j1") == ["RunWarned", "RunStarted", "RunEnded"]
    warning = (await world.fact(RunWarned, "j1")).warning
    assert says in warning
    assert warning.endswith("; it is tried again until then")


async def test_a_run_that_waits_for_room_can_be_cancelled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> process_launcher.ShimProcess:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    await world.node()
    monkeypatch.setattr(ForkLauncher, "start", full)
    await world.run("j1", "true")
    await world.fact(RunWarned, "j1")
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"


async def test_a_gang_of_which_some_have_started_when_the_room_ends_fails_with_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn, tries = ForkLauncher.start, 0

    def full_at_last(*arguments: Any, **more: Any) -> process_launcher.ShimProcess:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return spawn(*arguments, **more)

    await world.node()
    monkeypatch.setattr(ForkLauncher, "start", full_at_last)
    await world.submit("j1", "sleep", "60", gpus=2)
    await world.place("j1", 0, 1)
    ended = await world.ended("j1")
    assert ended.outcome == "failed"
    assert "No space left on device (ENOSPC); free some space there" in ended.reason


def test_a_program_gets_its_arguments_unchanged_and_leaves_its_status(tmp_path: Path) -> None:
    odd = "$HOME; 'quoted' \"twice\" *"
    process = process_launcher.start(
        tmp_path, python("import sys; print(sys.argv[1]); sys.exit(7)", odd), {}, str(tmp_path)
    )
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_launcher.reap(process, tmp_path) == 7
    assert (tmp_path / "stdout").read_text() == odd + "\n"
    assert process_launcher.adopt(tmp_path) is None


def test_a_pid_that_was_given_anew_is_not_taken_for_ours(tmp_path: Path) -> None:
    fields = Path("/proc/self/stat").read_text().split()
    fields[21] = "1"
    (tmp_path / "pid").write_text(" ".join(fields))
    assert process_launcher.adopt(tmp_path) is None
    (tmp_path / "pid").write_text(Path("/proc/self/stat").read_text())
    found = process_launcher.adopt(tmp_path)
    assert found is not None
    assert found.pid == os.getpid()
