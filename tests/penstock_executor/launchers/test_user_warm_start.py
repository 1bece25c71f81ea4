"""Programs of other users than the executor's that start warm: as after an exec, and as safe for everybody else."""

from __future__ import annotations

import os
import re
import select
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from other_users import ALICE, BOB, SYSTEM_PYTHON, acting_as, as_root, let_through
from warm_scripts import SCRIPTS, in_folder

from penstock_executor.launchers import fork_client, process_launcher, shim
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.fork_client import ForkError, KeptServer, ServerLimits
from penstock_executor.launchers.launcher import EntryRequest, RunFence
from penstock_executor.launchers.process_launcher import ShimProcess
from penstock_executor.launchers.warm_command import warm_command
from penstock_testing import eventually
from sweeps import sampled

pytestmark = [
    pytest.mark.slow,
    as_root,
    pytest.mark.skipif(
        not os.path.exists(SYSTEM_PYTHON), reason=f"NOT TESTED: there is no {SYSTEM_PYTHON}, which any user may run"
    ),
]
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/", "LANG": "C.UTF-8"}
PRELOADED = ("asyncio", "concurrent.futures", "json", "logging.config", "multiprocessing", "pickle", "tempfile")
LIMITS = ServerLimits(import_s=60.0, most_bytes=1 << 30, idle_s=600.0)
ARGV = (SYSTEM_PYTHON, "s.py", "one", "two words")
WAIT_S = 60.0
OF_THE_SHIM = {"session", "numpy", "faulthandler", "warnings"}
"""Scripts that ask who their parent is, or need more than the library of the interpreter."""


class Ended(NamedTuple):
    """What came of a program."""

    code: int | None
    out: str
    err: str
    how: str


class Place:
    """Where a user's programs run."""

    def __init__(self, folder: Path, user: tuple[int, int] = ALICE) -> None:
        self.folder, self.user, self.runs = let_through(folder), user, 0
        self.code = folder / "code"
        self.servers: list[KeptServer] = []

    def confined(self) -> Confinement:
        """Return what the next program gives up; it has a temporary folder of its own."""
        self.runs += 1
        tmp = self.folder / f"tmp{self.runs}"
        tmp.mkdir(mode=0o700)
        os.chown(tmp, *self.user)
        kept = (str(self.code),)
        uid, gid = self.user
        return Confinement(user="alice", uid=uid, gid=gid, groups=(gid,), tmp=str(tmp), kept=kept, most_tasks=4096)

    def server(self, *modules: str, limits: ServerLimits = LIMITS, **env: str) -> KeptServer:
        """Return a server of the user's, which may be importing."""
        command = warm_command(ARGV, {**ENV, **env}, str(self.code))
        made = fork_client.user_server(command, modules, {**ENV, **env}, self.confined(), limits)
        self.servers.append(made)
        return made

    def rank(self) -> Path:
        """Return the folder of a process that is to be started, confined."""
        confined = self.confined()
        rank = self.folder / f"rank{self.runs}"
        rank.mkdir(mode=0o700)
        process_launcher.confine(rank, confined)
        return rank

    def start(
        self,
        rank: Path,
        server: KeptServer,
        argv: tuple[str, ...] = ARGV,
        fence: RunFence | None = None,
        **env: str,
    ) -> ShimProcess:
        """Start a program warm."""
        command = warm_command(argv, {**ENV, **env}, str(self.code))
        order = process_launcher.order(rank, argv, {**ENV, **env}, str(self.code), fence=fence)
        forked = server.fork(order._replace(warm=command.order()))
        assert forked.how == "warm"
        return process_launcher.noted(rank, forked.pid, server.pid, server.memory_pid)

    async def cold(self, argv: tuple[str, ...] = ARGV) -> Ended:
        """Run a program by exec."""
        rank = self.rank()
        return await self.ended(rank, process_launcher.start(rank, argv, ENV, str(self.code)), None)

    async def warm(self, server: KeptServer, argv: tuple[str, ...] = ARGV, **env: str) -> Ended:
        """Run a program from a server."""
        rank = self.rank()
        return await self.ended(rank, self.start(rank, server, argv, None, **env), server)

    async def ended(self, rank: Path, process: ShimProcess, server: KeptServer | None) -> Ended:
        """Wait for the end of a program, and return what came of it."""
        await eventually(lambda: not process_launcher.is_alive(process))
        code = process_launcher.reap(process, rank)
        how = "cold"
        if server is not None:
            server.reap(process.pid)
            how = (rank / "how").read_text() if (rank / "how").exists() else "warm"
        texts = ((rank / name).read_text() for name in ("stdout", "stderr"))
        out, err = (re.sub(r"0x[0-9a-f]+|started \d{3,}", "ADDRESS", text.replace(str(rank), "RANK")) for text in texts)
        assert (rank / "shim.log").read_text() == ""
        return Ended(code, out, err, how)


def ready(server: KeptServer) -> KeptServer:
    """Return a server that can fork."""
    assert server.is_ready(WAIT_S)
    return server


def is_gone(pid: int) -> bool:
    """Return whether a process has ended."""
    return shim.state(pid) in b"ZX"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    for server in place.servers:
        server.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, KeptServer]]:
    place = Place(tmp_path_factory.mktemp("user"))
    place.code.mkdir()
    yield place, ready(place.server(*PRELOADED))
    place.servers[0].close()


# --- the same as after an exec
@pytest.mark.parametrize("name", sampled(sorted({*SCRIPTS} - OF_THE_SHIM), every=3))
async def test_a_script_of_another_user_does_the_same_warm_and_cold(
    shared: tuple[Place, KeptServer], name: str
) -> None:
    place, server = shared
    place.code = in_folder(place.folder / name, SCRIPTS[name])
    cold, warm = await place.cold(), await place.warm(server)
    assert warm.out.splitlines() == cold.out.splitlines()
    assert warm.err.splitlines() == cold.err.splitlines()
    assert warm == cold._replace(how="warm")


WHO = """
    import os, resource
    print(os.getresuid(), os.getresgid(), os.getgroups(), os.umask(0), os.nice(0), os.getcwd())
    print(os.getpid() == os.getpgrp(), os.getpid() == os.getsid(0), os.tcgetpgrp if os.isatty(0) else "no terminal")
    print([resource.getrlimit(n) for n in range(16)], open("/proc/self/oom_score_adj").read())
    kinds = ("Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "TracerPid", "Cpus_allowed_list")
    print([line for line in open("/proc/self/status") if line.startswith(kinds)])
    print(sorted(os.listdir("/proc/self/fd")), os.environ.get("TMPDIR"), os.stat("/tmp").st_uid)
    print(len(os.listdir("/tmp")), len(os.listdir("/var/tmp")), open("/proc/keys").read() == "" or "keys")
    open("/tmp/left", "w").write("for nobody")
    open("/var/tmp/left2", "w").close()
    print(os.path.samestat(os.stat("/tmp/left2"), os.stat("/var/tmp/left2")))
    print(open("/proc/self/cgroup").read(), os.stat("/proc/self").st_uid)
"""


async def test_a_program_has_the_rights_limits_and_folders_of_an_exec_and_nothing_of_the_run_before(
    place: Place,
) -> None:
    in_folder(place.code, WHO)
    server = ready(place.server(*PRELOADED))
    cold = await place.cold()
    assert (cold.err, cold.code) == ("", 0)
    for _ in range(3):
        assert await place.warm(server) == cold._replace(how="warm")


async def test_a_limit_on_memory_holds_that_no_program_can_raise(place: Place) -> None:
    in_folder(place.code, "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))")
    command = warm_command(ARGV, ENV, str(place.code))
    confined = place.confined()._replace(data_bytes=(1 << 30, 1 << 30))
    server = ready(fork_client.user_server(command, (), ENV, confined, LIMITS))
    ended = await place.warm(server)
    assert (ended.code, ended.err.splitlines()[-1]) == (1, "ValueError: not allowed to raise maximum limit")
    server.close()


# --- nothing of it is left, or is told to anybody
LEAVING = """
import os
there, begun = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.closerange(0, 3)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
os.close(begun)
os.read(there, 1)  # until it is another program
"""


async def test_nothing_that_a_program_has_started_outlives_it(place: Place) -> None:
    in_folder(place.code, LEAVING)
    server = ready(place.server())
    ended = await place.warm(server)
    assert ended.how == "warm"
    assert is_gone(int(ended.out))
    assert [pid for pid in shim.descendants(server.pid) if not is_gone(pid)] == [server.memory_pid]


async def test_a_server_has_no_descriptor_right_or_secret_but_its_users(place: Place) -> None:
    in_folder(place.code, "import os; print(os.environ['KEY'])")
    server = ready(place.server("json"))
    assert (await place.warm(server, KEY="hunter2-of-the-run")).out == "hunter2-of-the-run\n"
    about = Path(f"/proc/{server.memory_pid}")
    assert sorted(os.listdir(about / "fd")) == ["0", "1", "2", "3"]
    status = (about / "status").read_text()
    assert f"Uid:\t{ALICE[0]}\t{ALICE[0]}\t{ALICE[0]}\t{ALICE[0]}\n" in status
    assert "CapPrm:\t0000000000000000\n" in status
    assert "NoNewPrivs:\t1\n" in status
    assert b"hunter2" not in (about / "environ").read_bytes()
    with (about / "maps").open() as maps, (about / "mem").open("rb", buffering=0) as memory:
        for line in maps:
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            if "rw" in line.split()[1]:
                memory.seek(begin)
                assert b"hunter2-of-the-run" not in memory.read(end - begin)


async def test_a_long_command_line_and_environment_cost_no_warm_start(place: Place) -> None:
    in_folder(place.code, "import os, sys; print(len(sys.argv[1]), len(sys.argv[2]), len(os.environ['LONG']))")
    server = ready(place.server())
    argv = (SYSTEM_PYTHON, "s.py", "x" * 100_000, "y" * 100_000)
    for _ in range(2):
        assert await place.warm(server, argv, LONG="z" * 30_000) == Ended(0, "100000 100000 30000\n", "", "warm")


async def test_a_server_is_stopped_while_it_has_nothing_to_fork(place: Place) -> None:
    in_folder(place.code, "import time; print('up', flush=True); time.sleep(600)")
    server = ready(place.server())
    assert shim.state(server.memory_pid) == b"T"
    rank = place.rank()
    process = place.start(rank, server)
    await eventually(lambda: (rank / "stdout").read_text() == "up\n")
    assert shim.state(server.memory_pid) == b"T"
    process_launcher.kill(process)
    assert (await place.ended(rank, process, server)).code == 128 + signal.SIGKILL
    assert shim.state(server.memory_pid) == b"T"


def test_a_user_can_neither_end_nor_look_into_anything_but_his_own(place: Place) -> None:
    place.code.mkdir()
    server = ready(place.server())

    def attack(target: int) -> list[str]:
        gains = []
        for what, act in {
            "reads memory": lambda: Path(f"/proc/{target}/mem").open("rb").close(),
            "reads the environment": lambda: Path(f"/proc/{target}/environ").read_bytes(),
            "takes descriptors": lambda: os.listdir(f"/proc/{target}/fd"),
            "signals": lambda: os.kill(target, signal.SIGKILL),
        }.items():
            try:
                act()
            except PermissionError:
                continue
            gains.append(what)
        return gains

    def of_alice() -> None:
        assert attack(server.pid) == []
        assert attack(server.memory_pid) == ["signals"]  # it does not show itself even to its own user

    def of_bob() -> None:
        assert attack(server.pid) == []
        assert attack(server.memory_pid) == []

    acting_as(BOB, of_bob)
    acting_as(ALICE, of_alice)


# --- what a user does to his own server costs him the warm start, and nobody else anything
async def test_a_program_that_ends_its_server_goes_on_and_the_next_one_starts_cold(place: Place) -> None:
    server = ready(place.server())
    in_folder(place.code, f"import os, signal; os.kill({server.memory_pid}, signal.SIGKILL); print('still here')")
    assert await place.warm(server) == Ended(0, "still here\n", "", "warm")
    await eventually(lambda: server.ended() == "it has ended; the end of what it printed: ''")


async def test_a_server_that_is_let_go_on_by_its_user_is_ended(place: Place) -> None:
    server = ready(place.server())
    in_folder(place.code, f"import os, signal; os.kill({server.memory_pid}, signal.SIGCONT); print('still here')")
    assert await place.warm(server) == Ended(0, "still here\n", "", "warm")
    await eventually(lambda: is_gone(server.memory_pid) and server.ended() != "")


SERVES = """
import os, runpy, socket, sys, time
fork, forks = os.fork, []
def hostile(): return fork()
{}
os.fork = lambda: forks.append(1) or (hostile() if len(forks) > 1 else fork())  # the first is part of the imports
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def hostile(place: Place, body: str, limits: ServerLimits = LIMITS) -> KeptServer:
    """Return a server in which a user's code runs before its own, which may change whatever it likes."""
    command = warm_command(ARGV, ENV, str(place.code))
    theirs = command._replace(interpreter=(SYSTEM_PYTHON, "-c", SERVES.format(body)))
    made = fork_client.user_server(theirs, (), ENV, place.confined(), limits)
    place.servers.append(made)
    return made


WHEN_IT_FORKS = {
    "none": ("hostile = lambda: fork() or os._exit(0)", "was to fork one program, and 0 processes"),
    "two": (
        "def hostile():\n"
        "    if not (pid := fork()):\n"
        "        fork() and os._exit(0)\n"
        "        time.sleep(600)\n"
        "    os.waitpid(pid, 0)\n"
        "    return fork()",
        "was to fork one program, and",
    ),
    "a child": ("hostile = lambda: fork() if fork() else time.sleep(600)", "has started"),
    "its end": ("hostile = lambda: os._exit(3)", "has ended"),
    "a session": ("hostile = lambda: fork() or os.setsid() or 0", "Operation not permitted"),
}


@pytest.mark.parametrize("what", WHEN_IT_FORKS)
async def test_a_program_runs_once_whatever_its_server_does_when_it_is_to_fork_it(place: Place, what: str) -> None:
    body, why = WHEN_IT_FORKS[what]
    in_folder(place.code, "import os; print('ran', os.getuid())")
    server = ready(hostile(place, body))
    known = {*shim.descendants(server.pid)}
    ended = await place.warm(server)
    assert (ended.code, ended.out) == (0, f"ran {ALICE[0]}\n")
    assert why in ended.how
    assert ended.err == f"penstock: the program starts {ended.how}\n"
    await eventually(lambda: not {pid for pid in shim.descendants(server.pid) if not is_gone(pid)} - known)


WHEN_IT_IMPORTS = {
    "leaves a daemon": ("fork() or (os.setsid(), time.sleep(600))", "it has started 1 processes of its own"),
    "leaves an orphan": ("(fork() or (fork() and os._exit(0)) or time.sleep(600)) and os.wait()", ""),
    "floods its socket": (
        "s = socket.socket(fileno=os.dup(3))\ntry:\n    while True: s.send(b'+' * 4096, socket.MSG_DONTWAIT)\n"
        "except OSError: pass",
        "+++",
    ),
    "sends no text": ("socket.socket(fileno=os.dup(3)).send(bytes(range(1, 256)))", "\x02"),
    "ends": ("os._exit(0)", "it has ended"),
    "hangs": ("time.sleep(600)", "its imports have not ended within 3 s"),
    "takes memory": ("kept = b'x' * (600 << 20); time.sleep(600)", "MiB, and may hold 256 MiB"),
}


@pytest.mark.parametrize("what", WHEN_IT_IMPORTS)
async def test_whatever_a_server_does_when_it_imports_ends_with_it(place: Place, what: str) -> None:
    body, why = WHEN_IT_IMPORTS[what]
    place.code.mkdir()
    server = hostile(place, body, ServerLimits(3.0 if what == "hangs" else WAIT_S, 256 << 20, 600.0))
    if why:
        with pytest.raises(ForkError, match=re.escape(why)):
            ready(server)
    else:
        ready(server)
    keeper = server.pid
    await eventually(lambda: [*map(is_gone, shim.descendants(keeper))].count(False) == (0 if why else 1))


def test_a_server_that_answers_no_question_costs_the_executor_less_than_a_heartbeat(place: Place) -> None:
    in_folder(place.code, "")
    server = ready(hostile(place, "os.access = lambda *_: time.sleep(600)"))
    rank = place.rank()
    order = process_launcher.order(rank, ARGV, ENV, str(place.code))
    forked = server.fork(order._replace(warm=warm_command(ARGV, ENV, str(place.code)).order()))
    assert forked == (0, "cold: its server was ended: it did not answer within 0.3 s")


# --- the run
FAMILY = """
import os, signal, subprocess, sys, time
others = [subprocess.Popen(["sleep", "600"], env={}, start_new_session=alone).pid for alone in (False, True)]
print(os.getpid(), *others, flush=True)
time.sleep(600)
"""


async def family(
    place: Place, server: KeptServer, fence: RunFence | None = None
) -> tuple[ShimProcess, Path, list[int]]:
    """Start a program with two children, one of which has left its session; return it with all of their pids."""
    in_folder(place.code, FAMILY)
    rank = place.rank()
    process = place.start(rank, server, fence=fence)
    await eventually(lambda: (rank / "stdout").read_text() != "")
    return process, rank, [int(word) for word in (rank / "stdout").read_text().split()]


def write_heard(page: Path, at_s: float) -> None:
    """Write when the node was heard."""
    page.write_bytes(struct.pack("@q", int(at_s * 1e9)))


async def test_all_of_a_program_is_stopped_while_its_node_is_not_heard_and_ends_with_its_shim(place: Place) -> None:
    page = place.folder / "heard"
    write_heard(page, time.clock_gettime(time.CLOCK_BOOTTIME) + 600)
    fence = RunFence(page=page, hold_s=1.0, end_s=600.0, keep_s=600.0)
    process, rank, pids = await family(place, ready(place.server()), fence)
    assert {shim.state(pid) for pid in pids} == {b"S"}
    write_heard(page, time.clock_gettime(time.CLOCK_BOOTTIME) - 2)
    await eventually(lambda: {shim.state(pid) for pid in pids} == {b"T"})
    write_heard(page, time.clock_gettime(time.CLOCK_BOOTTIME) + 600)
    await eventually(lambda: {shim.state(pid) for pid in pids} == {b"S"})
    os.kill(process.pid, signal.SIGKILL)
    assert (await place.ended(rank, process, place.servers[0])).code is None
    await eventually(lambda: all(map(is_gone, pids)))
    await eventually(lambda: [*shim.descendants(process.keeper)] == [process.server])


async def test_a_program_whose_keeper_is_killed_ends_with_all_that_it_has_started(place: Place) -> None:
    process, rank, pids = await family(place, ready(place.server()))
    os.kill(process.keeper, signal.SIGKILL)
    await eventually(lambda: not process_launcher.is_alive(process))
    assert process_launcher.reap(process, rank) is None
    assert all(map(is_gone, pids[:1]))
    await eventually(lambda: is_gone(process.server))


async def test_a_program_whose_executor_kills_it_ends_with_all_that_it_has_started(place: Place) -> None:
    process, rank, pids = await family(place, ready(place.server()))
    process_launcher.kill(process)
    assert (await place.ended(rank, process, place.servers[0])).code == 128 + signal.SIGKILL
    assert all(map(is_gone, pids))


async def test_a_command_beside_a_program_has_its_user_and_its_folders(place: Place) -> None:
    in_folder(place.code, "open('/tmp/here', 'w').close(); print(1, flush=True); import time; time.sleep(600)")
    rank, server = place.rank(), ready(place.server())
    process = place.start(rank, server)
    await eventually(lambda: (rank / "stdout").read_text() != "")
    reader, writer = os.pipe()
    asked = EntryRequest(argv=("/bin/sh", "-c", "id -u; ls /tmp | grep -v pytest"))
    with process_launcher.enter(rank, asked, [writer, writer, writer]) as control:
        os.close(writer)
        with os.fdopen(reader) as said:
            assert said.read() == f"{ALICE[0]}\nhere\n"
        control.settimeout(WAIT_S)
        assert control.recv(100) == b"0\n"
    process_launcher.kill(process)
    assert (await place.ended(rank, process, server)).code == 128 + signal.SIGKILL


# --- the executor
async def test_a_run_outlives_the_executor_and_is_found_again_and_its_server_is_not_there_any_more(
    place: Place,
) -> None:
    in_folder(place.code, "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)")
    server = ready(place.server())
    rank, keeper = place.rank(), server.pid
    place.start(rank, server)
    await eventually(lambda: (rank / "stdout").read_text() != "")
    server.close()
    await eventually(lambda: is_gone(server.memory_pid))
    found = process_launcher.adopt(rank)
    program = int((rank / "stdout").read_text())
    assert found is not None
    assert not is_gone(program)
    assert process_launcher.belongs_to(program, found)
    process_launcher.signal_group(found, signal.SIGTERM)
    await eventually(lambda: is_gone(found.pid) and is_gone(keeper))
    assert process_launcher.exit_code(rank) == 128 + signal.SIGTERM


async def test_a_process_speaks_for_its_run_alone(place: Place) -> None:
    (place.folder / "other").mkdir()
    other = Place(place.folder / "other", BOB)
    processes, pids = [], []
    for one in (place, other):
        in_folder(one.code, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
        server, rank = ready(one.server()), one.rank()
        processes.append(one.start(rank, server))
        await eventually(lambda rank=rank: (rank / "stdout").read_text() != "")
        pids.append(int((rank / "stdout").read_text()))
    belongs = [[process_launcher.belongs_to(pid, process) for pid in pids] for process in processes]
    assert belongs == [[True, False], [False, True]]
    assert not process_launcher.belongs_to(processes[0].server, processes[0])
    for process, server in zip(processes, (place.servers[0], other.servers[0]), strict=True):
        assert process.session == server.pid
        process_launcher.kill(process)
        await eventually(lambda process=process: is_gone(process.pid))
        server.close()


async def test_a_server_that_nobody_uses_ends(place: Place) -> None:
    in_folder(place.code, "")
    server = ready(place.server(limits=LIMITS._replace(idle_s=0.5)))
    assert select.select([server._control], [], [], WAIT_S)[0]
    assert server.ended() == "it was not used for long"
    await eventually(lambda: is_gone(server.pid))


async def test_a_server_has_one_program_at_a_time(place: Place) -> None:
    in_folder(place.code, "import time; time.sleep(600)")
    server = ready(place.server())
    process = place.start(place.rank(), server)
    assert server.busy
    order = process_launcher.order(place.rank(), ARGV, ENV, str(place.code))
    forked = server.fork(order._replace(warm=warm_command(ARGV, ENV, str(place.code)).order()))
    assert forked == (0, "cold: its server has another program, which runs")
    process_launcher.kill(process)
    await eventually(lambda: is_gone(process.pid))


async def test_a_shim_that_has_ended_keeps_its_number_until_its_executor_has_asked_for_its_status(place: Place) -> None:
    in_folder(place.code, "raise SystemExit(3)")
    server, rank = ready(place.server()), place.rank()
    process = place.start(rank, server)
    await eventually(lambda: shim.state(process.pid) == b"Z")
    await eventually(lambda: shim.state(server.pid) == b"S")
    os.close(process_launcher.exit_fd(process))
    assert server.reap(process.pid) == 3
    assert shim.state(process.pid) == b"X"
