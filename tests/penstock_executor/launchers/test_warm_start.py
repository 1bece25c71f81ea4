"""Programs that start warm, forked from a server, do and print what they do and print after an exec."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from warm_scripts import SCRIPTS, in_folder

from penstock_executor.launchers import fork_client, process_launcher
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.fork_client import ForkError, ForkServer
from penstock_executor.launchers.fork_launcher import ForkLauncher
from penstock_executor.launchers.launcher import WarmRequest
from penstock_executor.launchers.warm_command import StartsCold, WarmCommand, warm_command
from penstock_executor.launchers.warm_pool import WarmRules
from penstock_executor.settings import ExecutorSettings
from penstock_testing import eventually

pytestmark = pytest.mark.slow

PRELOADED = (
    *("numpy.random", "asyncio", "concurrent.futures", "json", "logging.config", "multiprocessing", "pickle", "random"),
    *("runpy", "subprocess", "tempfile", "threading", "unittest", "warnings", "inspect", "traceback"),
)
ENV = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "HOME": "/", "LANG": "C.UTF-8"}
WAIT_S = 60.0
MOST_RUNS = 40


class Ended(NamedTuple):
    """What came of a program."""

    code: int | None
    out: str
    err: str
    how: str


def command_of(argv: tuple[str, ...], env: Mapping[str, str], cwd: Path) -> WarmCommand:
    """Return a command line that may start warm."""
    return warm_command(argv, env, str(cwd))


async def run(folder: Path, argv: tuple[str, ...], env: Mapping[str, str], server: ForkServer | None = None) -> Ended:
    """Run a program in a folder to its end, from a server or by exec."""
    rank = folder.parent / f"{folder.name}-{'warm' if server else 'cold'}"
    rank.mkdir()
    how = "exec"
    if server is None:
        process = process_launcher.start(rank, argv, env, str(folder))
    else:
        told = process_launcher.order(rank, argv, env, str(folder))
        forked = server.fork(told._replace(warm=command_of(argv, env, folder).order()))
        process, how = process_launcher.noted(rank, forked.pid), forked.how
    await eventually(lambda: not process_launcher.is_alive(process))
    code = process_launcher.reap(process, rank)
    if server is not None:
        server.reap(process.pid)
    out, err = (
        re.sub(r"0x[0-9a-f]+|started \d+", "ADDRESS", (rank / name).read_text().replace(str(rank), "RANK"))
        for name in ("stdout", "stderr")
    )
    assert (rank / "shim.log").read_text() == ""
    return Ended(code, out, err, how)


def ready(server: ForkServer) -> ForkServer:
    """Return a server that can fork."""
    assert server.is_ready(WAIT_S)
    return server


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    command = command_of(("python", "x.py"), ENV, Path("/"))
    server = ready(fork_client.warm_server(command, PRELOADED, ENV))
    yield server
    server.close()


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_script_does_the_same_warm_and_cold(tmp_path: Path, server: ForkServer, name: str) -> None:
    folder = in_folder(tmp_path / "run", SCRIPTS[name])
    argv = ("python", "s.py", "one", "two words")
    cold, warm = await run(folder, argv, ENV), await run(folder, argv, ENV, server)
    assert warm.out.splitlines() == cold.out.splitlines()
    assert warm.err.splitlines() == cold.err.splitlines()
    assert warm == cold._replace(how="warm")


OTHER_WAYS = {
    "module": ("-m", "package", "one"),
    "module_of_the_library": ("-m", "json.tool", "data.json"),
    "no_module": ("-m", "nothing.there"),
    "module_that_exits": ("-m", "leaving"),
    "text": ("-c", "import sys; print(sys.argv, sys.path[0], __name__, sorted(vars())); 1/0", "one"),
    "text_that_exits": ("-c", "raise SystemExit(5)"),
    "unbuffered": ("-u", "s.py"),
    "optimised": ("-OO", "s.py"),
    "isolated": ("-I", "s.py"),
    "without_site": ("-S", "-B", "s.py"),
    "errors": ("-W", "error", "s.py"),
}


@pytest.mark.parametrize("name", OTHER_WAYS)
async def test_other_command_lines_do_the_same_warm_and_cold(tmp_path: Path, name: str) -> None:
    folder = in_folder(
        tmp_path / "run", SCRIPTS["argv"] + "; assert False, 'no debug'; import warnings; warnings.warn('w')"
    )
    (folder / "data.json").write_text("[1]")
    (folder / "leaving.py").write_text("import sys; sys.exit('bye')")
    argv = ("python", *OTHER_WAYS[name])
    server = ready(fork_client.warm_server(command_of(argv, ENV, folder), ("json",), ENV))
    try:
        cold, warm = await run(folder, argv, ENV), await run(folder, argv, ENV, server)
    finally:
        server.close()
    assert warm == cold._replace(how="warm")


async def test_two_runs_of_a_server_draw_different_numbers(tmp_path: Path, server: ForkServer) -> None:
    drawing = """
        import random, numpy, uuid, os, secrets, multiprocessing as mp, tempfile
        print(random.random(), numpy.random.rand(), numpy.random.default_rng().random())
        print(uuid.uuid4(), secrets.token_hex())
        print(bytes(mp.current_process().authkey), tempfile.mktemp())
    """
    seen = []
    for name in ("one", "two"):
        folder = in_folder(tmp_path / name, drawing)
        seen.append(await run(folder, ("python", "s.py"), ENV, server))
    assert not {*seen[0].out.split()} & {*seen[1].out.split()}


async def test_two_runs_of_a_server_with_torch_draw_different_numbers(tmp_path: Path, site: Path) -> None:
    (site / "torch.py").write_text(
        "import os\nclass cuda:\n    is_initialized = staticmethod(lambda: False)\n"
        "class Generator:\n    def seed(self): self.drawn = os.urandom(8).hex()\n"
        "default_generator = Generator()\ndefault_generator.seed()\n"
    )
    argv = (str(site.parents[2] / "bin/python"), "s.py")
    folders = [in_folder(tmp_path / name, "import torch; print(torch.default_generator.drawn)") for name in ("a", "b")]
    server = ready(fork_client.warm_server(command_of(argv, ENV, tmp_path), ("torch",), ENV))
    first, second = [await run(folder, argv, ENV, server) for folder in folders]
    server.close()
    assert (first.how, second.how) == ("warm", "warm")
    assert first.out != second.out


async def test_a_program_has_its_own_descriptors_and_no_other(tmp_path: Path, server: ForkServer) -> None:
    folder = in_folder(tmp_path / "run", "import os; print(sorted(os.listdir('/proc/self/fd')))")
    assert (await run(folder, ("python", "s.py"), ENV, server)).out == "['0', '1', '2', '3']\n"  # 3 lists the folder


@pytest.mark.parametrize("where", ["random.py", "lib/random.py", "numpy/__init__.py"])
async def test_a_file_with_the_name_of_an_imported_module_has_the_program_start_cold(
    tmp_path: Path, server: ForkServer, where: str
) -> None:
    folder = in_folder(
        tmp_path / "run",
        "import sys; sys.path.append('lib'); import random, numpy; print(random.__file__, numpy.__file__)",
    )
    (folder / where).parent.mkdir(exist_ok=True)
    (folder / where).touch()
    cold, warm = await run(folder, ("python", "s.py"), ENV), await run(folder, ("python", "s.py"), ENV, server)
    assert (
        warm.how
        == f"cold: {folder / where if '/' not in where else folder / where.split('/', maxsplit=1)[0]}".replace(
            str(folder / "lib"), str(folder / "lib/random.py")
        )
        + " has the name of a module that was imported"
    )
    assert warm[:3] == cold[:3]


async def test_a_file_beside_a_script_is_no_reason_where_nothing_of_its_name_was_imported(
    tmp_path: Path, server: ForkServer
) -> None:
    folder = in_folder(tmp_path / "run", "import mailbox; print(mailbox.here)")
    (folder / "mailbox.py").write_text("here = 'mine'")
    assert await run(folder, ("python", "s.py"), ENV, server) == Ended(0, "mine\n", "", "warm")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The folder of installed modules of an environment with Python of its own."""
    venv.create(tmp_path / "venv", system_site_packages=False, with_pip=False)
    return next((tmp_path / "venv").glob("lib/python*/site-packages"))


UNFIT = {
    "leaves_thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "threads",
    ),
    "leaves_file": ("kept = open(__file__)", "leave a file open"),
    "opens_device": (
        "import os; kept = os.open('/dev/dri', 0) if os.path.exists('/dev/dri') else open('/dev/zero')",
        "open",
    ),
    "prints": ("print('welcome')", "its imports print: 'welcome"),
    "fails": ("1/0", "cannot be imported: ZeroDivisionError"),
    "fails_at_length": ("raise ImportError('x' * 150_000)", "^fails_at_length cannot be imported: ImportError: x{150}"),
    "prints_at_length": ("print('x' * 60_000)", "its imports print: 'x{150}"),
    "exits": ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
    "dies": ("import os; os._exit(3)", "it has ended"),
    "torch": ("class cuda:\n    is_initialized = staticmethod(lambda: True)", "initialise CUDA"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_module_that_leaves_what_no_new_process_has_is_refused(site: Path, name: str) -> None:
    body, why = UNFIT[name]
    (site / f"{name}.py").write_text(body)
    argv = (str(site.parents[2] / "bin/python"), "s.py")
    server = fork_client.warm_server(command_of(argv, ENV, site), (name,), ENV)
    with pytest.raises(ForkError, match=why) as refused:
        server.is_ready(WAIT_S)
    assert (server.alive, len(str(refused.value)) <= fork_client.MOST_SAID) == (False, True)


def test_a_module_of_the_users_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").touch()
    env = {**ENV, "PYTHONPATH": str(tmp_path)}
    server = fork_client.warm_server(command_of(("python", "s.py"), env, tmp_path), ("mymodel",), env)
    with pytest.raises(ForkError, match="the module mymodel is a file of the user's own"):
        server.is_ready(WAIT_S)


async def test_a_server_whose_modules_have_changed_starts_programs_cold(tmp_path: Path, site: Path) -> None:
    (site / "installed.py").write_text("version = 1")
    argv = (str(site.parents[2] / "bin/python"), "s.py")
    folder = in_folder(tmp_path / "run", "import installed; print(installed.version)")
    server = ready(fork_client.warm_server(command_of(argv, ENV, folder), ("installed",), ENV))
    (site / "installed.py").write_text("version = 1 + 1")
    ended = await run(folder, argv, ENV, server)
    assert ended == Ended(0, "2\n", "", f"cold: {fork_client.CHANGED}")
    server.close()


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("sh", "s.sh"), "not called python"),
        (("torchrun", "s.py"), "not called python"),
        (("python",), "standard input"),
        (("python", "-"), "standard input"),
        (("python", "-i", "s.py"), "option -i"),
        (("python", "-X", "dev", "s.py"), "option -X"),
        (("./python", "s.py"), "relative path"),
        (("python", "-c"), "no argument"),
    ],
)
def test_what_cannot_start_warm_has_a_reason(tmp_path: Path, argv: tuple[str, ...], why: str) -> None:
    with pytest.raises(StartsCold, match=why):
        warm_command(argv, ENV, str(tmp_path))


@pytest.mark.parametrize("path", ["lib", "/lib:", "/lib:./x"])
def test_a_path_that_depends_on_the_folder_has_a_program_start_cold(tmp_path: Path, path: str) -> None:
    with pytest.raises(StartsCold, match="relative path"):
        warm_command(("python", "s.py"), {**ENV, "PYTHONPATH": path}, str(tmp_path))


async def test_a_module_that_was_imported_is_run_cold_as_the_main_module(tmp_path: Path) -> None:
    folder, argv = in_folder(tmp_path / "run", ""), ("python", "-m", "json.tool", "data.txt")
    server = ready(fork_client.warm_server(command_of(argv, ENV, folder), ("json.tool",), ENV))
    cold, warm = await run(folder, argv, ENV), await run(folder, argv, ENV, server)
    server.close()
    assert warm == cold._replace(how="cold: json.tool was imported, and is to be run as the main module")


LOOKS_FOR_SECRETS = """
import os, re
def found(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            if "rw" in line.split()[1]:
                memory.seek(begin)
                yield from re.findall(rb"secret-of-ru[n]-[0-9]+", memory.read(end - begin))
print(os.environ["KEY"], sorted({*found("self")}))
"""
"""A script that prints its own secret, and those that are in its memory."""


async def test_a_secret_is_in_no_memory_but_that_of_its_own_run(tmp_path: Path) -> None:
    launcher, warm, in_server = ForkLauncher(WarmRules()), 0, set[bytes]()
    scan: dict[str, Any] = {}
    exec(LOOKS_FOR_SECRETS.rpartition("print")[0], scan)  # noqa: S102 - what the script does
    for number in range(MOST_RUNS):
        rank, folder = tmp_path / f"rank{number}", in_folder(tmp_path / f"run{number}", LOOKS_FOR_SECRETS)
        rank.mkdir()
        asked = WarmRequest(code="a digest", private=frozenset({"KEY"}))
        env = {**ENV, "KEY": f"secret-of-run-{number}"}
        process = launcher.start(rank, ("python", "s.py"), env, str(folder), warm=asked)
        await eventually(lambda process=process: not process_launcher.is_alive(process))
        if launcher.how(rank) == "warm":
            warm += 1
            server = int(Path(f"/proc/{process.pid}/stat").read_text().split()[3])
            in_server.update(scan["found"](server))
            assert b"PATH=" in Path(f"/proc/{server}/environ").read_bytes()
        assert launcher.reap(process, rank) == 0
        own = f"secret-of-run-{number}"
        assert (rank / "stdout").read_text() == f"{own} {[own.encode()]}\n"
        if warm == 4:
            break
    assert (warm, in_server) == (4, set())
    launcher.close()


async def test_what_an_interpreter_reads_when_it_starts_is_no_secret_of_a_warm_start(tmp_path: Path) -> None:
    with pytest.raises(StartsCold, match="PYTHONHASHSEED is a secret, and an interpreter reads it when it starts"):
        warm_command(("python", "s.py"), {**ENV, "PYTHONHASHSEED": "1"}, str(tmp_path), {"PYTHONHASHSEED", "KEY"})


@pytest.mark.parametrize(
    ("argv", "env", "how"),
    [
        (
            ("python", "s.py", *(letter * 100_000 for letter in "xyz")),
            {},
            "cold: its command line and environment have 30",
        ),
        (("python", "s.py"), {f"LONG{letter}": letter * 100_000 for letter in "xyz"}, "cold: its command line and env"),
        (("python", "s.py"), {"LONG": "x" * 100_000}, "cold: its environment is too long"),
        (("python", "-c", f"print(1) # {'x' * 100_000}"), {}, "warm"),
        (("python", "s.py", "x" * 100_000), {}, "warm"),
    ],
)
async def test_a_program_whose_order_is_too_long_starts_cold_and_its_server_serves_the_next(
    tmp_path: Path, argv: tuple[str, ...], env: dict[str, str], how: str
) -> None:
    launcher = ForkLauncher(WarmRules())
    folder = in_folder(tmp_path / "run", "import os, sys; print(len(sys.argv), len(os.environ))")
    private = frozenset(env)

    async def ended(number: int, words: tuple[str, ...], more: dict[str, str]) -> str:
        rank = tmp_path / f"rank{number}"
        rank.mkdir()
        asked = WarmRequest(modules=("json",), private=private)
        process = launcher.start(rank, words, {**ENV, **more}, str(folder), warm=asked)
        await eventually(lambda: not process_launcher.is_alive(process))
        assert launcher.reap(process, rank) == 0
        return launcher.how(rank)

    usual = argv[:2] if argv[1] == "s.py" else argv
    for number in range(MOST_RUNS):
        if await ended(number, usual, {}) == "warm":
            break
    assert (await ended(MOST_RUNS, argv, env)).startswith(how)
    assert await ended(MOST_RUNS + 1, usual, {}) == "warm"
    assert launcher.kept()[0] == 1
    launcher.close()


@pytest.mark.parametrize(
    ("confined", "why"),
    [
        (Confinement(user="nobody", uid=65_534, gid=65_534), "it runs as another user than the executor"),
        (Confinement(wrapper=("/usr/bin/env",)), "it runs in a sandbox"),
        (Confinement(namespace="/proc/self/ns/mnt"), "it runs in a container"),
        (None, "it shares its devices"),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="not root: no process can run as another user")
async def test_a_program_that_is_kept_apart_starts_cold(tmp_path: Path, confined: Confinement | None, why: str) -> None:
    launcher = ForkLauncher(WarmRules())
    for number in range(4):
        rank = tmp_path / f"rank{number}"
        rank.mkdir()
        if confined is not None:
            launcher.confine(rank, confined)
        asked = None if confined is None else WarmRequest(modules=("json",))
        process = launcher.start(rank, (sys.executable, "-c", "print(1)"), ENV, "/", warm=asked)
        await eventually(lambda process=process: not process_launcher.is_alive(process))
        launcher.reap(process, rank)
        assert launcher.how(rank).startswith(f"cold: {why}")
    assert launcher.kept() == (0, 0)
    launcher.close()


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("kind", ["template()", "warm_server(command, ['json'], env)"])
def test_a_server_ends_with_the_process_that_has_started_it(kind: str, heard: bool) -> None:
    wait = "server.is_ready(60)" if heard else "select.select([server._control], [], [])"
    code = (
        "from penstock_executor.launchers import fork_client, warm_command; import os, select, sys\n"
        "env = {**os.environ}; command = warm_command.warm_command((sys.executable, 's.py'), env, '/')\n"
        f"server = fork_client.{kind}; {wait}; print(server.pid, flush=True); os._exit(0)"
    )
    started = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    ended = os.pidfd_open(int(started.stdout)) if Path(f"/proc/{started.stdout.strip()}").exists() else -1
    if ended >= 0:
        assert select.select([ended], [], [], WAIT_S)[0]
        os.close(ended)


def test_a_server_that_does_not_answer_holds_up_no_executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert ExecutorSettings(node_id="n1").heartbeat_s / 2 >= fork_client.FORK_S
    reaped: list[int] = []

    def not_yet(pid: int, options: int) -> tuple[int, int]:
        """Say what the kernel says of a process whose memory it still takes back."""
        assert options & os.WNOHANG
        reaped.append(pid)
        return 0, 0

    server, wait = ready(fork_client.template()), os.waitpid
    os.kill(server.pid, signal.SIGSTOP)
    with monkeypatch.context() as held:
        held.setattr(os, "waitpid", not_yet)
        with pytest.raises(ForkError, match="it did not answer within"):
            server.fork(process_launcher.order(tmp_path, ("true",), {}, "/"))
    assert (reaped[-1], server.alive) == (server.pid, False)
    exited = os.pidfd_open(server.pid)
    assert select.select([exited], [], [], WAIT_S)[0]
    os.close(exited)
    fork_client.template().close()
    with pytest.raises(ChildProcessError):  # the next server's begin has reaped it
        wait(server.pid, os.WNOHANG)


async def test_where_no_order_can_be_written_programs_start_by_exec(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launcher, asked = ForkLauncher(WarmRules()), WarmRequest(modules=("json",))

    async def how(number: int) -> str:
        rank = tmp_path / f"rank{number}"
        rank.mkdir()
        process = launcher.start(rank, (sys.executable, "-c", "print(1)"), ENV, "/", warm=asked)
        await eventually(lambda: not process_launcher.is_alive(process))
        assert (launcher.reap(process, rank), (rank / "stdout").read_text()) == (0, "1\n")
        return launcher.how(rank)

    for number in range(MOST_RUNS):
        if await how(number) == "warm":
            break

    def refuse(name: str) -> int:
        raise PermissionError(f"vm.memfd_noexec is 2, and {name} would be executable")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert (await how(MOST_RUNS)).startswith("cold: its order cannot be written: vm.memfd_noexec is 2")
    launcher.close()


def test_an_interpreter_that_is_a_script_starts_cold(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(StartsCold, match="is a script, as pyenv has it"):
        warm_command(("python", "s.py"), {"PATH": str(tmp_path)}, str(tmp_path))
    with pytest.raises(StartsCold, match="was not found"):
        warm_command(("python", "s.py"), {"PATH": "/nowhere"}, str(tmp_path))


def test_variables_that_python_reads_when_it_starts_interactively_have_a_program_start_cold(tmp_path: Path) -> None:
    with pytest.raises(StartsCold, match="PYTHONINSPECT is set"):
        warm_command(("python", "s.py"), {**ENV, "PYTHONINSPECT": "1"}, str(tmp_path))
