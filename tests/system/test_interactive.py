"""Entering running jobs on a real cluster: commands, terminals, ports and files, with pipes and with a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusters import Cluster, identity

from penstock_testing import eventually

BIG = os.urandom(1 << 20) * 20
LOST = 255
PATIENCE_S = 60.0


class Entered:
    """A cluster whose owner and another person have a job each, and what they type."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cluster = folder, Cluster(folder / "data", "--emulate", "fast:8")

    def submit(self, *command: str, options: tuple[str, ...] = ()) -> str:
        words = ("submit", "--profile", "off", "--name", "held", "--cwd", str(self.folder), *options, "--", *command)
        return self.cluster.run(*words).stdout.strip()

    def running(self, *options: str) -> str:
        """Submit a job that goes on, and return its id once it runs."""
        job = self.submit("sleep", "600", options=options)
        self.comes_to(job, "R")
        return job

    def state(self, job: str) -> str:
        return str(json.loads(self.cluster.run("show", job, "-o", "json").stdout)["job"]["state"])

    def comes_to(self, job: str, state: str) -> None:
        """Return once a job is in a state; fail where it has ended in another one, or stays in one for too long."""

        def is_there() -> bool:
            found = self.state(job)
            assert found == state or found not in {"CD", "F", "CA"}, f"job {job} has ended: {found}"
            return found == state

        until(is_there)

    def begin(self, *words: str, **more: object) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PENSTOCK_URL": self.cluster.url, **more.pop("env", {})}  # type: ignore[dict-item]
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen([sys.executable, "-m", "penstock", *words], env=env, cwd=self.folder, **given)  # type: ignore[call-overload,no-any-return]

    def ran(self, *words: str, given: bytes = b"", **more: object) -> tuple[int, bytes, str]:
        process = self.begin(*words, stdin=subprocess.PIPE, **more)
        stdout, stderr = process.communicate(given, timeout=PATIENCE_S)
        return process.returncode, stdout, stderr.decode()

    def exec(
        self, job: str, *command: str, given: bytes = b"", options: tuple[str, ...] = ()
    ) -> tuple[int, bytes, str]:
        return self.ran("exec", *options, job, "--", *command, given=given)


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entered]:
    found = Entered(tmp_path_factory.mktemp("entered"))
    found.cluster.up()
    try:
        yield found
    finally:
        found.cluster.down()


@pytest.fixture(scope="module")
def job(entered: Entered) -> str:
    return entered.running()


def gone(mark: str) -> bool:
    """Return whether no process has a word in its command line or environment, but those that type it."""
    found = (identity(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return not any(mark.encode() in text and b"penstock\0exec" not in text for text in found)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what processes of others do, of which there is no event."""
    asyncio.run(eventually(condition, within_s=PATIENCE_S))


def test_a_command_has_what_the_job_has_and_its_streams_and_exit_code_are_its_own(entered: Entered, job: str) -> None:
    script = 'echo "$PENSTOCK_JOB_ID $PENSTOCK_RANK $(pwd) ${PENSTOCK_SOCKET-none}"; echo wrong >&2; exit 7'
    code, stdout, stderr = entered.exec(job, "sh", "-c", script)
    assert (code, stdout.decode(), stderr) == (7, f"{job} 0 {entered.folder} none\n", "wrong\n")
    assert entered.exec(job, "sh", "-c", "kill -9 $$")[0] == 128 + signal.SIGKILL
    assert entered.exec(job, "no-such-program")[0] == 127


def test_bytes_come_through_both_ways_unchanged_and_to_their_end(entered: Entered, job: str) -> None:
    code, stdout, _ = entered.exec(job, "sha256sum", given=BIG)
    assert (code, stdout[:64].decode()) == (0, hashlib.sha256(BIG).hexdigest())
    code, stdout, _ = entered.exec(job, "cat", given=BIG[: 3 << 20])
    assert (code, stdout == BIG[: 3 << 20]) == (0, True)
    assert entered.exec(job, "head", "-c", "3", given=BIG)[:2] == (0, BIG[:3])


def test_what_prints_without_end_waits_for_who_reads_it(entered: Entered, job: str) -> None:
    process = entered.begin("exec", job, "--", "yes", "no-end-4711")
    assert process.stdout is not None
    assert process.stdout.read(12) == b"no-end-4711\n"
    process.stdout.close()
    process.wait(PATIENCE_S)
    until(lambda: gone("no-end-4711"))


def test_a_signal_goes_to_the_command_and_its_exit_code_comes_back(entered: Entered, job: str) -> None:
    process = entered.begin("exec", job, "--", "sh", "-c", "trap 'exit 9' TERM; echo in; sleep 600 & wait")
    assert process.stdout is not None
    assert process.stdout.read(3) == b"in\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 9


def test_two_sessions_of_one_job_do_not_meet(entered: Entered, job: str) -> None:
    both = [entered.begin("exec", job, "--", "sh", "-c", f"sleep 0.2; echo {n}; exit {n}") for n in (3, 4)]
    assert [one.communicate(timeout=PATIENCE_S)[0] for one in both] == [b"3\n", b"4\n"]
    assert [one.returncode for one in both] == [3, 4]


def test_what_a_command_leaves_behind_ends_with_it(entered: Entered, job: str) -> None:
    script = "LEFT=left-behind-31 setsid sh -c 'sleep 600 & sleep 600' & exit 0"
    assert entered.exec(job, "sh", "-c", script)[0] == 0
    until(lambda: gone("left-behind-31"))


@pytest.mark.thorough
def test_clients_that_vanish_leave_nothing_behind_and_a_shell_gives_its_devices_back(
    entered: Entered, job: str
) -> None:
    process = entered.begin("exec", job, "--", "sh", "-c", "echo in; exec env MARK=vanished-12 sleep 600")
    shell = entered.begin("shell", "-T", "--", "sh", "-c", "echo $PENSTOCK_JOB_ID; sleep 600")
    assert process.stdout is not None
    assert shell.stdout is not None
    assert process.stdout.read(3) == b"in\n"
    of_shell = shell.stdout.readline().decode().strip()
    for one in (process, shell):
        one.kill()
        one.wait()
    until(lambda: gone("vanished-12"))

    async def ended() -> str:
        async with entered.cluster.client() as client:
            return (await client.wait(of_shell)).state

    assert asyncio.run(ended()) == "CD"


def test_a_session_ends_with_its_job_and_says_so(entered: Entered) -> None:
    job = entered.running()
    process = entered.begin("exec", job, "--", "sh", "-c", "echo in; exec env MARK=with-its-job-9 sleep 600")
    assert process.stdout is not None
    assert process.stdout.read(3) == b"in\n"
    entered.cluster.run("cancel", job)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, f"rank 0 of job {job} was cancelled" in stderr.decode()) == (LOST, True)
    assert gone("with-its-job-9")


def test_each_rank_has_its_own_and_the_others_are_named(entered: Entered) -> None:
    job = entered.running("--gpus", "2")
    said = [entered.exec(job, "sh", "-c", "echo $RANK", options=("--rank", str(rank))) for rank in (0, 1, 2)]
    assert [(code, out) for code, out, _ in said] == [(0, b"0\n"), (0, b"1\n"), (4, b"")]
    assert "expected --rank 0 to 1" in said[2][2]
    entered.cluster.run("cancel", job)


def test_only_what_runs_can_be_entered(entered: Entered, job: str) -> None:
    waits = entered.submit("true", options=("--after", job))
    code, _, said = entered.exec(waits, "true")
    assert (code, "waits, and only a running job can be entered" in said) == (5, True)
    entered.cluster.run("cancel", waits)
    assert "is over" in entered.exec(waits, "true")[2]
    assert entered.exec("nosuch", "true")[0] == 4
    code, _, said = entered.ran("exec", job)
    assert (code, "there is no command" in said) == (2, True)


def test_entering_is_in_the_story_of_the_job(entered: Entered, job: str) -> None:
    entered.exec(job, "echo", "a-secret-word")
    story = entered.cluster.run("story", job).stdout
    assert re.search(r"a command is run beside rank 0 on \S+ by \w+", story)
    assert "a-secret-word" not in entered.cluster.run("events", job, "-o", "json").stdout


class Terminal:
    """A command of ours on a terminal."""

    def __init__(self, entered: Entered, *words: str) -> None:
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.environ |= {"PENSTOCK_URL": entered.cluster.url, "TERM": "xterm-mono"}
            os.execv(sys.executable, [sys.executable, "-m", "penstock", *words])  # noqa: S606 - on a terminal of its own
        termios.tcsetwinsize(self.fd, (31, 101))
        self.said = b""

    def until(self, text: bytes) -> bytes:
        """Return what is said up to a text, and that."""
        while text not in self.said:
            assert select.select([self.fd], [], [], PATIENCE_S)[0], self.said
            self.said += os.read(self.fd, 65_536)
        before, self.said = self.said.split(text, 1)
        return before + text

    def type(self, text: bytes) -> None:
        os.write(self.fd, text)

    def code(self) -> int:
        """Return the exit code, once it has ended."""
        with contextlib.suppress(OSError):
            while data := os.read(self.fd, 65_536):
                self.said += data
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def shown(terminal: Terminal, command: bytes) -> bytes:
    """Return what a command prints between two marks, which its own echo does not hold."""
    terminal.type(b"echo be''gin; " + command + b"; echo e''nd\r")
    terminal.until(b"begin\r\n")
    return terminal.until(b"end\r\n").removesuffix(b"end\r\n")


def test_a_terminal_has_its_size_kind_and_keys_and_is_given_back(entered: Entered, job: str) -> None:
    terminal = Terminal(entered, "exec", job, "--", "sh")
    terminal.until(b"# " if os.geteuid() == 0 else b"$ ")
    before = termios.tcgetattr(terminal.fd)
    assert shown(terminal, b"stty size; echo $TERM; tty").startswith(b"31 101\r\nxterm-mono\r\n/dev/")
    termios.tcsetwinsize(terminal.fd, (50, 140))
    until(lambda: shown(terminal, b"stty size") == b"50 140\r\n")  # the size is on its way
    # a process that is in the foreground before it says so; a shell's own `sleep` may be on its way there
    terminal.type(b"sh -c 'echo st\"\"arts; exec sleep 600'\r")
    terminal.until(b"starts\r\n")
    terminal.type(b"\x03")  # Ctrl-C is the command's
    assert shown(terminal, b"echo on") == b"on\r\n"
    terminal.type(b"exit 5\r")
    assert before[3] & termios.ECHO == 0
    with contextlib.suppress(OSError):
        terminal.until(b"exit 5")
    assert terminal.code() == 5


def test_what_needs_a_whole_terminal_works_and_one_can_leave(entered: Entered, job: str) -> None:
    (entered.folder / "lines").write_text("".join(f"line {n}\n" for n in range(500)))
    terminal = Terminal(entered, "exec", job, "--", "sh")
    terminal.until(b"# " if os.geteuid() == 0 else b"$ ")
    terminal.type(b"less lines\r")
    terminal.until(b"line 20")
    terminal.type(b"G")
    terminal.until(b"line 499")
    terminal.type(b"q")
    assert shown(terminal, b"echo back") == b"back\r\n"
    terminal.type(b"MARK=left-by-escape-5 sleep 600\r")
    until(lambda: not gone("left-by-escape-5"))
    terminal.type(b"\r~.")
    assert terminal.code() == LOST
    until(lambda: gone("left-by-escape-5"))


def test_a_shell_is_a_job_that_ends_with_it(entered: Entered) -> None:
    code, stdout, stderr = entered.ran(
        "shell", "--gpus", "2", "--time", "10m", "-T", given=b'echo "$PENSTOCK_JOB_ID on $PENSTOCK_DEVICES"\nexit 6\n'
    )
    job = stdout.split()[0].decode()
    assert len(stdout.split()[2].split(b",")) == 2  # one process has both
    assert (code, f"{job} runs on" in stderr) == (6, True)
    entered.comes_to(job, "CD")
    assert json.loads(entered.cluster.run("show", job, "-o", "json").stdout)["spec"]["idle"] == "allow"


def test_a_shell_with_several_processes_ends_as_a_whole(entered: Entered) -> None:
    code, stdout, _ = entered.ran(
        "shell", "--gpus", "2", "--processes", "device", "-T", given=b"echo $PENSTOCK_JOB_ID\n"
    )

    async def ended() -> str:
        async with entered.cluster.client() as client:
            return (await client.wait(stdout.decode().strip())).state

    assert (code, asyncio.run(ended())) == (0, "F")


def test_a_shell_that_is_interrupted_while_it_waits_is_cancelled(entered: Entered, job: str) -> None:
    process = entered.begin("shell", "--after", job)
    assert process.stderr is not None
    waiting = process.stderr.readline().decode().split()[1]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert json.loads(entered.cluster.run("show", waiting, "-o", "json").stdout)["job"]["state"] == "CA"


def test_attach_shows_the_last_lines_and_leaves_the_job_alone(entered: Entered) -> None:
    job = entered.submit("sh", "-c", "seq 100; until test -e go; do sleep 0.05; done; echo last; exit 3")
    process = entered.begin("attach", job, "-n", "2")
    assert process.stdout is not None
    assert (process.stdout.readline(), process.stdout.readline()) == (b"99\n", b"100\n")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "detached" in stderr.decode()) == (0, True)
    again = entered.begin("attach", job, "-n", "1")
    assert again.stderr is not None
    assert b"attached" in again.stderr.readline()
    (entered.folder / "go").touch()
    assert again.communicate(timeout=PATIENCE_S)[0].endswith(b"last\n")
    assert again.returncode == 3


def test_files_and_folders_are_copied_both_ways_under_the_names_that_cp_gives(entered: Entered, job: str) -> None:
    here, there = entered.folder / "here", entered.folder
    (here / "tree" / "odd\n<script>").mkdir(parents=True)
    (here / "tree" / "-rf").write_text("x")
    (here / "tree" / "run.sh").write_text("#!/bin/sh\n")
    (here / "tree" / "run.sh").chmod(0o755)
    (here / "tree" / "link").symlink_to("run.sh")
    (here / "tree" / "out").symlink_to("/etc/passwd")
    (here / "big").write_bytes(BIG)
    for source, target in (
        (here / "big", "as-big"),
        (here / "tree", ""),
        (here / "tree", "again"),
        ("here/big", "again"),
    ):
        assert entered.ran("cp", str(source), f"{job}:{target}")[0] == 0
    assert (there / "as-big").read_bytes() == BIG
    assert sorted(os.listdir(there / "again")) == ["-rf", "big", "link", "odd\n<script>", "out", "run.sh"]
    assert os.access(there / "tree" / "run.sh", os.X_OK)
    back = entered.folder / "back"
    code, _, said = entered.ran("cp", f"{job}:tree", str(back))
    assert (code, "left out" in said, "out" in said) == (1, True, True)  # a link that leads out of it
    assert sorted(os.listdir(back)) == ["-rf", "link", "odd\n<script>", "run.sh"]
    assert entered.ran("cp", f"{job}:as-big", str(back))[0] == 0
    assert (back / "as-big").read_bytes() == BIG
    (entered.folder / "all").mkdir()
    entered.ran("cp", f"{job}:tree/.", str(entered.folder / "all"))
    assert "run.sh" in os.listdir(entered.folder / "all")


@pytest.mark.thorough
def test_what_cannot_be_copied_is_said(entered: Entered, job: str) -> None:
    code, _, said = entered.ran("cp", f"{job}:nowhere", "x")
    assert (code, f"the job has no nowhere; it was looked for in {entered.folder}" in said) == (1, True)
    assert "make it first" in entered.ran("cp", "/etc/hostname", f"{job}:no/such/name")[2]
    assert entered.ran("cp", "a", "b")[0] == 2
    assert entered.ran("cp", f"{job}:a", f"{job}:b")[0] == 2
    code, _, said = entered.ran("cp", "file-4", f"{job}:")
    assert (code, "there is no file-4" in said) == (1, True)
    code, _, said = entered.ran("cp", f"{job}:/etc/hostname", "no/such/name")
    assert (code, "there is no folder no/such; make it first" in said) == (1, True)
    assert entered.ran("cp", "no-job:a", "x")[0] == 4


@pytest.mark.thorough
def test_a_forwarded_port_carries_many_connections_and_says_where_nobody_listens(entered: Entered) -> None:
    (entered.folder / "page").write_bytes(BIG)
    serve = "import http.server as s; h = s.ThreadingHTTPServer(('127.0.0.1', 0), s.SimpleHTTPRequestHandler); "
    serve += "print(h.server_port, flush=True); h.serve_forever()"
    job = entered.submit(sys.executable, "-c", serve)
    attached = entered.begin("attach", job)
    assert attached.stdout is not None
    remote = int(attached.stdout.readline())
    attached.kill()
    attached.communicate()
    forward = entered.begin("port-forward", job, f":{remote}", ":1")
    assert forward.stdout is not None
    ports = [int(found[1]) for _ in range(2) if (found := re.search(r":(\d+) is", forward.stdout.readline().decode()))]

    async def fetched(ending: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        writer.write(b"GET /page HTTP/1.0\r\n" + ending)
        writer.write_eof()  # one way is closed, and the answer comes all the same
        answer = await reader.read()
        writer.close()
        return answer.split(b"\r\n\r\n", 1)[1]

    async def many() -> list[bytes]:
        return await asyncio.gather(*(fetched(b"\r\n") for _ in range(8)))

    assert all(page == BIG for page in asyncio.run(many()))

    async def refused() -> None:
        reader, _ = await asyncio.open_connection("127.0.0.1", ports[1])
        await reader.read()

    with pytest.raises(ConnectionResetError):
        asyncio.run(refused())
    # the same port here, where nothing else listens yet, is connected to by the executor: it would go round for ever
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code, _, said = entered.ran("port-forward", job, str(port))
    assert (code, f"where port {port} is now this command's own" in said) == (1, True)
    entered.cluster.run("cancel", job)
    _, stderr = forward.communicate(timeout=PATIENCE_S)
    assert "port 1 of the job on node" in stderr.decode()
    assert (forward.returncode, "was cancelled" in stderr.decode()) == (LOST, True)


@pytest.mark.thorough
def test_people_enter_their_own_jobs_and_nobody_elses(entered: Entered, job: str) -> None:
    logins = {}
    for name, role in (("jane", "user"), ("sam", "operator")):
        logins[name] = {"PENSTOCK_CREDENTIALS": str(entered.folder / f"{name}.json")}
        entered.cluster.run("user", "add", name, "--role", role, "--out", logins[name]["PENSTOCK_CREDENTIALS"])
    hers = entered.ran("submit", "--profile", "off", "--", "sleep", "600", env=logins["jane"])[1].decode().strip()
    entered.comes_to(hers, "R")
    assert entered.ran("exec", hers, "--", "echo", "mine", env=logins["jane"])[:2] == (0, b"mine\n")
    assert entered.ran("exec", hers, "--", "cat", given=BIG, env=logins["jane"])[:2] == (0, BIG)
    assert entered.ran("exec", hers, "--", "echo", "ours", env=logins["sam"])[:2] == (0, b"ours\n")
    code, stdout, stderr = entered.ran("exec", job, "--", "echo", "theirs", env=logins["jane"])
    assert (code, stdout, "ask its owner" in stderr) == (1, b"", True)
    assert "by sam" in entered.cluster.run("story", hers).stdout
    code, stdout, stderr = entered.ran("shell", "--profile", "off", "-T", "--", "echo", "hers", env=logins["jane"])
    assert (code, stdout, "runs on" in stderr) == (0, b"hers\n", True)
    entered.cluster.run("cancel", hers)


def test_who_waits_and_whose_login_is_renewed_or_removed_is_told_and_what_to_do(entered: Entered) -> None:
    login = {"PENSTOCK_CREDENTIALS": str(entered.folder / "rose.json")}
    entered.cluster.run("user", "add", "rose", "--out", login["PENSTOCK_CREDENTIALS"])
    script = "echo begun; exec sleep 600"
    hers = entered.ran("submit", "--profile", "off", "--", "sh", "-c", script, env=login)[1].decode().strip()
    entered.comes_to(hers, "R")
    waiting = {
        words[0]: entered.begin(*words, env=login)
        for words in (("logs", "-f", hers), ("attach", hers), ("exec", hers, "--", "sh", "-c", script))
    }
    for process in waiting.values():
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
    entered.cluster.run("user", "rotate", "rose", "--out", str(entered.folder / "rose2.json"))
    for name, process in waiting.items():
        _, stderr = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == (LOST if name == "exec" else 3)
        assert re.search(
            r"refused user 'rose', whose login .* does not count: it was revoked .*`penstock login FILE`",
            stderr.decode(),
        )
        assert "bus_error" not in stderr.decode()
    login["PENSTOCK_CREDENTIALS"] = str(entered.folder / "rose2.json")
    again = entered.begin("logs", "-f", hers, env=login)
    assert again.stdout is not None
    assert again.stdout.readline() == b"begun\n"
    entered.cluster.run("user", "rm", "rose")
    assert "have an admin run" in again.communicate(timeout=PATIENCE_S)[1].decode()
    assert again.returncode == 3
    code, _, stderr = entered.ran("logs", "-f", hers, env=login)
    assert (code, "refused user 'rose'" in stderr) == (3, True)
    entered.cluster.run("cancel", hers)


def test_a_session_ends_with_its_executor_and_the_job_goes_on(entered: Entered, job: str) -> None:
    process = entered.begin("exec", job, "--", "sh", "-c", "echo in; exec env MARK=executor-gone-3 sleep 600")
    assert process.stdout is not None
    assert process.stdout.read(3) == b"in\n"
    for pid in entered.cluster.pids("executor"):
        os.kill(pid, signal.SIGKILL)
    until(lambda: gone("executor-gone-3"))
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "the executor was started again" in stderr.decode()) == (LOST, True)
    assert entered.exec(job, "echo", "again")[:2] == (0, b"again\n")  # the same run, another executor
