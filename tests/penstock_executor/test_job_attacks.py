"""What the author of a job would try, against the node and against other people's jobs there; with real users."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_cases import JOB, World
from other_users import SYSTEM_PYTHON, acting_as, as_root, let_through

from penstock_executor.launchers import confinement
from penstock_executor.launchers.confinement import Confinement
from penstock_testing import eventually

pytestmark = [pytest.mark.slow, as_root]
USERS = {"run_as": "user", "users": {"alice": "nobody", "mallory": "daemon"}}
with_python = pytest.mark.skipif(
    not os.path.exists(SYSTEM_PYTHON), reason=f"NOT TESTED: there is no {SYSTEM_PYTHON}, which any user may run"
)
SECRET = "hunter2-of-the-executor"


HARMLESS = 'if [ "$(id -u)" = 0 ]; then echo NOT CONFINED; exit 99; fi; '
"""Before each attack: should the executor not confine it, it must do no harm to the machine that tests it."""


async def attack(world: World, script: str, *, user: str = "mallory", job_id: str = "attack", device: int = 1) -> str:
    """Run a shell script as a user's job; return all that it printed, when it has ended."""
    env = {"PATH": "/usr/bin:/bin"}
    await world.submit(job_id, "/bin/sh", "-c", HARMLESS + script, user=user, cwd="/", env=env)
    await world.place(job_id, device)
    await world.ended(job_id)
    said = (await world.output(job_id)).decode(errors="replace")
    assert not said.startswith("NOT CONFINED")
    return said


@pytest.fixture
def service() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the executor's user with a password in its environment, as services have."""
    started = subprocess.Popen(["sleep", "600"], env={"PENSTOCK_PASSWORD": SECRET})
    yield started
    started.kill()
    started.wait()


async def test_no_password_is_found_in_any_process(
    world: World, service: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PENSTOCK_PASSWORD", "PENSTOCK_CREDENTIALS", "NATS_CREDS", "SSH_AUTH_SOCK", "SITE_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("https_proxy", f"http://operator:{SECRET}@proxy:3128")
    let_through(world.folder)
    await world.node("n1", **USERS, pass_env=("*",))
    monkeypatch.setenv("SITE_TOKEN", "the operator passes all, and means it")
    said = await attack(
        world,
        "env; cat /proc/self/environ /proc/$PPID/environ /proc/$PPID/cmdline; "
        f"cat /proc/{service.pid}/environ; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; true",
    )
    assert "PENSTOCK_JOB_ID=attack" in said
    assert SECRET not in said
    assert f"/proc/{service.pid}/environ: Permission denied" in said


@pytest.mark.parametrize("hides", [True, False])
def test_a_process_of_the_same_user_reads_nothing_of_one_that_hides(hides: bool) -> None:
    nobody = pwd.getpwnam("nobody")
    held, told = os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        os.setresgid(nobody.pw_gid, nobody.pw_gid, nobody.pw_gid)
        os.setresuid(nobody.pw_uid, nobody.pw_uid, nobody.pw_uid)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after an exec
        if hides:
            confinement.hide_from_jobs()
        os.write(told[1], b"x")
        os.close(held[1])
        os.read(held[0], 1)
        os._exit(0)
    os.read(told[0], 1)
    try:
        with pytest.raises(AssertionError) if hides else contextlib.nullcontext():
            acting_as((nobody.pw_uid, nobody.pw_gid), Path(f"/proc/{pid}/environ").read_bytes)
    finally:
        for fd in (*held, *told):
            os.close(fd)
        os.waitpid(pid, 0)


async def test_nothing_of_the_executor_or_of_another_users_job_is_read_or_written(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **USERS)
    data = world.folder / "n1"
    await world.submit(
        "victim",
        "/bin/sh",
        "-c",
        'echo private >"$PENSTOCK_CHECKPOINT_DIR/weights"; echo private >/tmp/notes; echo private; sleep 600',
        user="alice",
        cwd="/",
    )
    await world.place("victim", 0)
    await world.says("victim", "private")
    said = await attack(
        world,
        f"cat {data}/runs/victim/1/run.json {data}/output/victim/1/0/stdout {world.folder}/checkpoints/victim/weights "
        f"/tmp/notes /var/tmp/notes {data}/tmp/victim-1/notes /proc/[0-9]*/root/tmp/notes /proc/[0-9]*/cwd/weights; "
        f"ls {data} {data}/runs {data}/output {data}/tmp {world.folder}/checkpoints; "
        f"echo forged >{data}/runs/victim/1/0/exit; echo forged >{data}/output/victim/1/0/stdout; "
        f"rm -rf {data}/runs/victim {data}/output/victim {world.folder}/checkpoints/victim; "
        f"mv {data}/agent.sock {data}/old; ls /tmp | wc -l",
    )
    assert "private" not in said
    assert "forged" not in said.replace("Permission", "")
    assert "victim" not in said.replace(f"{data}/", "").replace("checkpoints/victim", "") or "denied" in said
    assert (world.folder / "checkpoints" / "victim" / "weights").read_text() == "private\n"
    assert (data / "tmp" / "victim-1" / "notes").read_text() == "private\n"
    assert not Path("/tmp/notes").exists()
    assert (data / "agent.sock").is_socket()
    await world.cancel("victim")
    assert (await world.ended("victim")).outcome == "cancelled"
    await eventually(lambda: not (data / "tmp" / "victim-1").exists())


async def test_neither_the_shim_nor_anothers_process_is_ended_or_entered(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **USERS)
    await world.submit("victim", "/bin/sh", "-c", "echo up; sleep 600", user="alice", cwd="/")
    await world.place("victim", 0)
    await world.says("victim", "up")
    said = await attack(
        world,
        f"kill -0 $PPID; kill -0 {os.getpid()}; cat /proc/$PPID/environ; ls /proc/$PPID/fd; : </proc/$PPID/mem; exit 3",
    )
    assert said.count("ermi") == 5  # "Permission denied", "Operation not permitted"
    ended = await world.ended("attack")
    assert ended.outcome == "failed"
    assert "RunEnded" not in await world.facts("victim")
    await world.cancel("victim")
    await world.ended("victim")


async def test_no_program_gives_a_job_more_than_its_user_has(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **USERS)
    setuid = world.folder / "n1" / "id-of-root"  # below, /tmp is another one to the job
    shutil.copy("/usr/bin/id", setuid)
    setuid.chmod(0o4755)
    said = await attack(
        world, f"{setuid} -u; grep -E 'NoNewPrivs|CapEff|CapAmb' /proc/self/status; ls -l /proc/self/fd; cat /proc/keys"
    )
    assert f"\n{pwd.getpwnam('daemon').pw_uid}\n" in f"\n{said}"
    assert "\n0\n" not in f"\n{said}"
    assert "NoNewPrivs:\t1" in said
    assert said.count("0000000000000000") == 2
    await world.nodes[0].stop()
    await world.node("n2", **USERS, new_privileges=True)  # where the operator wants sudo and Apptainer
    there = shutil.move(setuid, world.folder / "n2" / "id-of-root")
    await world.submit("sudo", "/bin/sh", "-c", f"{there} -u", user="mallory", cwd="/")
    await world.place("sudo", node_id="n2")
    await world.ended("sudo", node_id="n2")
    nosuid = bool(os.statvfs(world.folder).f_flag & os.ST_NOSUID)
    assert nosuid or "0\n" in (await world.output("sudo")).decode()


async def test_a_fork_bomb_of_one_user_leaves_room_to_others(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **USERS, most_tasks=40)
    said = await attack(world, "for i in $(seq 100); do sleep 30 & done 2>&1; echo made $(jobs | wc -l); kill 0")
    assert "Cannot fork" in said
    assert "made 100" not in said
    assert "still room" in await attack(world, "echo still room", user="alice", job_id="other", device=0)


SPEAK_FOR_ANOTHER = """
import json, os, socket, sys, time
path, kind = sys.argv[1:3]
hello = {"type": "hello", "version": 1, "job_id": "victim", "epoch": 1, "rank": 0, "pid": int(sys.argv[3])}
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect(path)
    return s
if kind == "forked":
    # The kernel names the process that connected; when it has ended, nobody can say any more whose child it was.
    s, parent = connect(), os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.01)
else:
    s = connect()
try:
    s.sendall(json.dumps(hello).encode() + b"\\n")
    s.sendall(json.dumps({"type": "done", "step": 9, "loop_steps": 9, "loop_s": 1.0}).encode() + b"\\n")
except OSError as error:
    print("unsent:", error, flush=True)
print("answer:", s.recv(1000).decode(), flush=True)
if len(sys.argv) > 4:
    open(sys.argv[4], "w").close()  # the job ends then, and its children with it
"""


@with_python
@pytest.mark.parametrize("kind", ["plain", "forked"])
async def test_nobody_speaks_for_another_users_run(world: World, kind: str) -> None:
    let_through(world.folder)
    await world.node("n1", **USERS)
    code = JOB.read_text().replace("FOLDER.parent", "FOLDER")  # what is above is not the job's
    await world.submit("victim", SYSTEM_PYTHON, "-S", "-c", code, "100000", user="alice", cwd="/")
    await world.place("victim", 0)
    await world.progress("victim")
    script = world.folder / "n1" / "attack.py"
    script.write_text(SPEAK_FOR_ANOTHER)
    script.chmod(0o644)
    speak = f"{SYSTEM_PYTHON} {script} {world.folder}/n1/agent.sock {kind} 1 /tmp/said"
    said = await attack(world, f"{speak}; until [ -e /tmp/said ]; do sleep 0.05; done")
    assert "run 1 of job victim is not of uid 1; only the run's own user may speak for it" in said
    assert "RunEnded" not in await world.facts("victim")
    await world.progress("victim", lambda told: told["step"] > 9)  # the attack may take less time than 9 steps
    await world.cancel("victim")
    ended = await world.ended("victim")
    assert (ended.outcome, ended.steps > 9) == ("cancelled", True)


@with_python
async def test_a_user_without_a_run_here_is_hung_up_on_with_a_message(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **USERS)
    script = world.folder / "n1" / "attack.py"
    script.write_text(SPEAK_FOR_ANOTHER)
    script.chmod(0o644)
    said = world.folder / "said"
    said.touch(mode=0o666)
    said.chmod(0o666)
    with subprocess.Popen(  # noqa: ASYNC220 - it is waited for without blocking
        [SYSTEM_PYTHON, str(script), str(world.folder / "n1" / "agent.sock"), "plain", "1"],
        stdout=said.open("wb"),
        user=54_399,
        group=54_399,
        extra_groups=[],
    ) as stranger:
        await eventually(lambda: stranger.poll() is not None)
    assert "uid 54399 has no run on this node" in said.read_text()


def test_what_cannot_be_given_up_keeps_the_program_from_running(tmp_path: Path) -> None:
    with pytest.raises(confinement.ConfinementError, match="cannot enter the control group: No such file"):
        Confinement(cgroup=str(tmp_path / "none")).enter({})
