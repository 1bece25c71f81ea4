"""Jobs in containers, by each runtime that this machine has: what they see, how they end, and what is left of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from executor_cases import JOB, World
from job_images import SAYS, load, small_root
from other_users import ALICE, as_root, let_through

from penstock_executor.launchers import confinement, process_launcher
from penstock_executor.launchers.containers import ContainerRuntimes, mark_of
from penstock_executor.launchers.launcher import EntryRequest
from penstock_log import RunCheckpointed, RunWarned

RUNTIMES: Final = (
    pytest.param("docker", marks=pytest.mark.compose),
    pytest.param("podman", marks=pytest.mark.compose),
    "bubblewrap",
)
IS_ROOT: Final = os.geteuid() == 0
USERS: Final = {"run_as": "user", "users": {"alice": "nobody"}} if IS_ROOT else {"run_as": "executor"}
AS_EXECUTOR: Final = {"run_as": "executor"}
"""For a job that counts its steps beside its checkpoint folder, where only root may write within a container."""
NOBODY: Final = 65_534 if IS_ROOT else os.getuid()


class Runtime(NamedTuple):
    """One that works here, and the image that it runs."""

    name: str
    image: str


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    name = request.param
    found = ContainerRuntimes.survey(name, 65_534 if IS_ROOT else None)
    if not found.names:
        pytest.skip(f"NOT TESTED: {found.reasons[name]}")
    root = small_root(let_through(tmp_path_factory.mktemp("image")))
    return Runtime(name, str(root) if name == "bubblewrap" else load(name, root))


class Contained:
    """A node whose jobs run in containers."""

    def __init__(self, world: World, runtime: Runtime) -> None:
        self.world, self.runtime = world, runtime

    async def node(self, node_id: str = "n1", **settings: Any) -> Any:
        let_through(self.world.folder)
        return await self.world.node(node_id, **{**USERS, "containers": self.runtime.name, **settings})

    async def begin(self, *command: str, job_id: str = "j1", **spec: Any) -> None:
        let_through(self.world.folder)  # again: each pytest that starts closes the folder that all of them share
        await self.world.submit(job_id, *command, **{"user": "alice", "image": self.runtime.image, "cwd": "/", **spec})
        await self.world.place(job_id)

    async def said_by(self, script: str, job_id: str = "j1", **spec: Any) -> str:
        """Run a shell script as a job; return what it printed, when it has ended."""
        await self.begin("sh", "-c", script, job_id=job_id, **spec)
        await self.world.ended(job_id)
        return (await self.world.output(job_id)).decode(errors="replace")

    def script(self) -> str:
        """Copy the job that speaks to where its user comes to; return the folder."""
        folder = self.world.folder / "scripts"
        folder.mkdir(exist_ok=True)
        shutil.copyfile(JOB, folder / JOB.name)
        (folder / JOB.name).chmod(0o644)
        return str(folder)

    def containers(self) -> list[str]:
        """Return the containers that its nodes have made and not removed."""
        if self.runtime.name == "bubblewrap":
            return []
        marks = [f"label=org.penstock={mark_of(Path(node.settings.data_dir))}" for node in self.world.nodes]
        command = [self.runtime.name, "ps", "--all", "--format", "{{.Names}}", "--filter"]
        return [name for mark in marks for name in subprocess.check_output([*command, mark], text=True).split()]

    async def entered(self, *command: str) -> tuple[str, int]:
        """Run a command beside job j1; return what it said, and its exit status."""
        return await asyncio.to_thread(self._enter, command)

    def _enter(self, command: tuple[str, ...]) -> tuple[str, int]:
        asked = EntryRequest(argv=command)
        reader, writer = os.pipe()
        with open(os.devnull, "rb") as nothing, open(reader, encoding="utf-8") as said:
            streams = [nothing.fileno(), writer, writer]
            with process_launcher.enter(self.world.folder / "n1/runs/j1/1/0", asked, streams) as control:
                os.close(writer)
                text = said.read()
                control.setblocking(True)
                return text, int(control.recv(64))

    async def gone(self) -> None:
        """Stop its nodes; then there is no container left of them."""
        for node in self.world.nodes:
            await node.stop()
        assert self.containers() == []


@pytest.fixture
def contained(world: World, runtime: Runtime) -> Iterator[Contained]:
    contained = Contained(world, runtime)
    yield contained
    for name in contained.containers():
        subprocess.run([runtime.name, "rm", "--force", name], check=False, capture_output=True)


async def test_a_job_sees_the_files_of_its_image_and_of_the_host_what_it_needs(contained: Contained) -> None:
    await contained.node()
    mine = contained.world.folder / "mine <b>\n"
    mine.mkdir()
    (mine / "data").write_text("of the working directory\n")
    if IS_ROOT:
        os.chown(mine, NOBODY, NOBODY)
    said = await contained.said_by(
        "cat /etc/penstock-test data; ls -d /home /root/.. /etc/debian_version; id -u; echo $HOME; "
        "touch here /tmp/penstock-own && ls /tmp; touch $PENSTOCK_CHECKPOINT_DIR/x && echo saved; "
        "grep NoNewPrivs /proc/self/status; ls /dev; "
        f"ls {contained.world.folder}; cat $PENSTOCK_HEARD | head -c 0 && echo heard",
        cwd=str(mine),
    )
    lines = said.split("\n")
    assert {
        "a file of the image",
        "of the working directory",
        "/root/..",
        "saved",
        "/tmp",
        "penstock-own",
        "heard",
    } <= {*lines}
    assert str(NOBODY) in lines
    assert "NoNewPrivs:\t1" in lines
    assert not {"/home", "/etc/debian_version", "mem", "sda", "vda", "kmsg", "j9"} & {*lines}
    assert (mine / "here").exists()
    assert (contained.world.folder / "checkpoints/j1/x").exists()
    assert not Path("/tmp/penstock-own").exists()
    await contained.gone()


async def test_what_is_other_jobs_in_the_executors_folders_is_hidden(contained: Contained) -> None:
    (contained.world.folder / "checkpoints/j9").mkdir(parents=True)
    await contained.node(**AS_EXECUTOR)
    at = contained.world.folder
    said = await contained.said_by(f"ls {at}/checkpoints; echo -; ls {at}/n1/output {at}/n1/runs; ls {at}/n1/heard")
    assert said == f"j1\n-\n{at}/n1/output:\n\n{at}/n1/runs:\n{at}/n1/heard\n"


async def test_the_images_variables_are_there_and_its_entry_point_is_not_run(
    contained: Contained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/not/there")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/not/there/either")
    await contained.node()
    said = await contained.said_by("env", env={"MINE": "a\nb", "PENSTOCK_RANK": "7"})
    lines = said.split("\n")
    if contained.runtime.name != "bubblewrap":
        assert f"GREETING={SAYS}" in lines
    assert {"MINE=a", "b", "PENSTOCK_RANK=0", "HOME=/tmp"} <= {*lines}
    assert not [line for line in lines if line.startswith(("PYTHONHOME", "LD_LIBRARY_PATH"))]


async def test_a_job_speaks_saves_and_stops_as_any_other(contained: Contained) -> None:
    await contained.node(**AS_EXECUTOR)
    await contained.begin("python3", "-S", JOB.name, "100000", cwd=contained.script())
    await contained.world.progress("j1", lambda told: told["step"] > 3)
    await contained.world.preempt("j1")
    ended = await contained.world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("preempted", 75)
    saved = await contained.world.fact(RunCheckpointed, "j1")
    assert saved.step == ended.steps > 3
    await contained.gone()


async def test_how_a_program_ends_is_told(contained: Contained) -> None:
    await contained.node()
    for job_id, script, code in (("j1", "exit 3", 3), ("j2", "kill -9 $$", 137), ("j3", "no-such-program", 127)):
        await contained.begin("sh", "-c", script, job_id=job_id)
        assert (await contained.world.ended(job_id)).exit_code == code


async def test_a_program_or_folder_that_the_image_lacks_is_named(contained: Contained) -> None:
    await contained.node()
    await contained.begin("no-such-program")
    ended = await contained.world.ended("j1")
    assert ended.exit_code == 127
    assert "no-such-program" in ended.reason
    await contained.begin("true", job_id="j2", cwd="/not/there")
    ended = await contained.world.ended("j2")
    assert "/not/there" in ended.reason
    assert ended.outcome == "failed"


async def test_an_image_that_is_not_there_fails_the_job_with_what_to_do(contained: Contained) -> None:
    await contained.node()
    image = "/not/there" if contained.runtime.name == "bubblewrap" else "localhost:1/no/such:image"
    await contained.begin("true", image=image)
    ended = await contained.world.ended("j1")
    assert ended.outcome == "failed"
    assert image in ended.reason
    assert "put it there" in ended.reason or "check its name" in ended.reason
    if contained.runtime.name != "bubblewrap":
        assert "got from its registry" in (await contained.world.fact(RunWarned, "j1")).warning


async def test_term_reaches_the_program_and_kill_all_of_it(contained: Contained) -> None:
    await contained.node()
    trap = "trap 'echo saving; exit 75' TERM; echo up; while :; do sleep 0.05; done"
    await contained.begin("sh", "-c", trap)
    await contained.world.says("j1", "up")
    await contained.world.preempt("j1")
    assert (await contained.world.ended("j1")).outcome == "preempted"
    assert b"saving" in await contained.world.output("j1")
    deaf = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    deaf += "os.fork() or os.setsid()\nprint('up', os.getpid(), flush=True)\nwhile True: time.sleep(1)"
    await contained.begin("python3", "-c", deaf, job_id="j2", grace_s=0.2)
    await contained.world.says("j2", "up", 2)
    pids = [int(word) for word in (await contained.world.output("j2")).split() if word != b"up"]
    await contained.world.cancel("j2")
    await contained.world.ended("j2")
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def test_a_run_is_adopted_by_the_next_executor_and_its_container_is_removed_then(contained: Contained) -> None:
    node = await contained.node(**AS_EXECUTOR)
    await contained.begin("python3", "-S", JOB.name, "100000", cwd=contained.script())
    await contained.world.progress("j1", lambda told: told["step"] > 1)
    await node.kill()
    await node.start()
    await contained.world.progress("j1", lambda told: told["step"] > 5)
    await contained.world.cancel("j1")
    await contained.world.ended("j1")
    await contained.gone()


async def test_what_a_killed_executor_has_left_is_found_and_removed(contained: Contained) -> None:
    node = await contained.node()
    await contained.begin("sh", "-c", "echo $$; exec sleep 600")
    await contained.world.says("j1", "\n")
    await node.kill()
    os.kill(int(await contained.world.output("j1")), signal.SIGKILL)
    await node.start()
    assert (await contained.world.ended("j1")).exit_code == 137
    await contained.gone()


async def test_a_job_outlives_the_container_that_gave_it_its_files(contained: Contained) -> None:
    if contained.runtime.name == "bubblewrap":
        pytest.skip("no engine has a container of it")
    await contained.node()
    go = contained.world.folder / "go"
    go.mkdir()
    await contained.begin("sh", "-c", "echo up; until test -e it; do sleep 0.05; done; echo still", cwd=str(go))
    await contained.world.says("j1", "up")
    command = [contained.runtime.name, "kill", *contained.containers()]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    (go / "it").touch()
    assert (await contained.world.ended("j1")).outcome == "completed"
    await contained.gone()


async def test_a_command_entered_beside_a_job_has_its_files_variables_and_user(contained: Contained) -> None:
    await contained.node()
    await contained.begin("sh", "-c", "echo of the run > /tmp/mark; echo up; exec sleep 600", env={"MINE": "a b"})
    await contained.world.says("j1", "up")
    script = "cat /etc/penstock-test /tmp/mark; echo $MINE; id -u; pwd; grep NoNew /proc/self/status; exit 7"
    said, status = await contained.entered("sh", "-c", script)
    assert said.split("\n")[:5] == ["a file of the image", "of the run", "a b", str(NOBODY), "/"]
    assert "NoNewPrivs:\t1" in said
    assert status == 7
    said, status = await contained.entered("no-such-program")
    assert "no-such-program" in said
    assert status == 127


@pytest.mark.parametrize("cwd", ["/", "/tmp"])
async def test_what_enters_a_job_of_the_executors_user_has_its_tmp(contained: Contained, cwd: str) -> None:
    await contained.node(**AS_EXECUTOR)
    await contained.begin("sh", "-c", "echo of the run > /tmp/mark; echo up; exec sleep 600", cwd=cwd)
    await contained.world.says("j1", "up")
    assert await contained.entered("sh", "-c", "cat /tmp/mark; echo left > /tmp/left") == ("of the run\n", 0)
    assert await contained.entered("cat", "/tmp/left") == ("left\n", 0)
    assert not Path("/tmp/left").exists()
    await contained.world.cancel("j1")
    await contained.world.ended("j1")


async def test_a_program_runs_in_an_image_that_has_nothing_else(contained: Contained, tmp_path: Path) -> None:
    if contained.runtime.name == "bubblewrap":
        pytest.skip("in its images there is a shell")
    (tmp_path / "root").mkdir()
    shutil.copyfile("/sbin/ldconfig", tmp_path / "root/static-program")
    (tmp_path / "root/static-program").chmod(0o755)
    image = load(contained.runtime.name, tmp_path / "root", "penstock-test-scratch:1")
    await contained.node()
    await contained.begin("/static-program", "--version", image=image)
    ended = await contained.world.ended("j1")
    assert ended.outcome == "completed", ended.reason
    assert b"ldconfig" in await contained.world.output("j1")


async def test_a_program_in_a_container_is_held_to_its_memory(contained: Contained) -> None:
    await contained.node()
    wants = "x = bytearray(1 << 30); print('had it')"
    await contained.begin("python3", "-S", "-c", wants, host_memory_bytes=256 << 20)
    ended = await contained.world.ended("j1")
    assert ended.outcome == "failed"
    assert "256 MiB of host memory" in ended.reason or "0.25 GiB of host memory" in ended.reason


async def test_what_a_user_may_not_reach_outside_is_not_attached_for_him(contained: Contained) -> None:
    if contained.runtime.name == "bubblewrap" or not IS_ROOT:
        pytest.skip("what attaches has the user's rights alone")
    await contained.node()
    closed = contained.world.folder / "closed/open"
    closed.mkdir(parents=True)
    closed.parent.chmod(0o700)
    (closed / "secret").write_text("secret\n")
    said = await contained.said_by("cat secret", cwd=str(closed))
    assert "cannot come to" in said
    assert "secret\n" not in said
    link = contained.world.folder / "link"
    link.symlink_to(closed)
    said = await contained.said_by("cat secret", job_id="j2", cwd=str(link))
    assert "secret\n" not in said


async def test_root_in_a_container_has_few_of_roots_rights(contained: Contained) -> None:
    if contained.runtime.name == "bubblewrap" or not IS_ROOT:
        pytest.skip("there is no root in its containers")
    await contained.node(**AS_EXECUTOR)
    said = await contained.said_by("grep -E '^Cap(Eff|Bnd)' /proc/self/status")
    rights = {int(line.split()[1], 16) for line in said.splitlines()}
    assert rights == {sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 29, 31))}


@as_root
def test_a_link_that_a_user_has_put_there_leads_to_no_place_to_attach_to(tmp_path: Path) -> None:
    target, mine = let_through(tmp_path) / "target", tmp_path / "mine"
    target.mkdir()
    mine.mkdir()
    (mine / "link").symlink_to(target)
    os.close(confinement._open_below(f"{mine}/link/below", is_folder=True))  # of root
    assert (target / "below").is_dir()
    os.chown(mine, *ALICE)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        confinement._open_below(f"{mine}/link/other", is_folder=True)
    assert [path.name for path in target.iterdir()] == ["below"]
