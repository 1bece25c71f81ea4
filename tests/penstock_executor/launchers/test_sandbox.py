"""Bubblewrap around jobs: its command line, and what jobs see within it, with the real program."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from executor_cases import World
from other_users import SYSTEM_PYTHON, let_through

from penstock_bus.memory import MemoryBus
from penstock_bus.shell import Shell
from penstock_executor.launchers import sandbox
from penstock_executor.run_folders import ExecutorError
from penstock_executor.runner import run
from penstock_executor.settings import ExecutorSettings
from penstock_log import Device

IS_ROOT = os.geteuid() == 0
NO_SANDBOX = sandbox.problem(65_534 if IS_ROOT else None)
with_bubblewrap = pytest.mark.skipif(bool(NO_SANDBOX), reason=f"NOT TESTED: {NO_SANDBOX}")
USERS = {"run_as": "user", "users": {"alice": "nobody"}} if IS_ROOT else {"run_as": "executor"}
SANDBOXED = {**USERS, "sandbox": "bubblewrap"}


async def said_by(world: World, script: str, job_id: str = "j1", **spec: object) -> str:
    """Run a shell script as a job; return what it printed, when it has ended."""
    await world.submit(job_id, "/bin/sh", "-c", script, user="alice", **{"cwd": "/", **spec})
    await world.place(job_id)
    await world.ended(job_id)
    return (await world.output(job_id)).decode(errors="replace")


def gpu(index: int, uuid: str, **more: object) -> Device:
    return Device(index=index, kind="h100", memory_bytes=80 << 30, backend="cuda", uuid=uuid, **more)  # type: ignore[arg-type]


def test_a_job_has_the_nodes_of_its_own_gpus_as_the_driver_numbers_them(tmp_path: Path) -> None:
    for bus, uuid, minor in (("0000:01", "GPU-a", 3), ("0000:02", "GPU-b", 0), ("0000:03", "GPU-c", 1)):
        (tmp_path / bus).mkdir()
        text = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
        (tmp_path / bus / "information").write_text(text)

    def of_gpus(*devices: Device) -> list[str]:
        nodes = sandbox.device_nodes(devices, tmp_path)
        return [node for node in nodes if node.removeprefix("/dev/nvidia").isdigit()]

    assert of_gpus(gpu(0, "GPU-a")) == ["/dev/nvidia3"]
    assert of_gpus(gpu(1, "GPU-b"), gpu(2, "GPU-c")) == ["/dev/nvidia0", "/dev/nvidia1"]
    assert of_gpus(gpu(0, "MIG-1", parent="GPU-c")) == ["/dev/nvidia1"]
    assert "/dev/nvidiactl" in [*sandbox.device_nodes([gpu(0, "GPU-a")], tmp_path)]
    host = Device(index=0, kind="cpu", memory_bytes=1 << 30, backend="cpu")
    assert [*sandbox.device_nodes([host], tmp_path)] == []


async def test_an_executor_that_cannot_sandbox_does_not_start(
    memory_bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    settings = ExecutorSettings(
        node_id="n1", devices="cpu", data_dir=str(tmp_path / "n1"), run_as="executor", sandbox="bubblewrap"
    )
    with pytest.raises(ExecutorError, match="bwrap was not found; install bubblewrap"):
        await run(Shell(memory_bus, "executor"), settings)


@with_bubblewrap
async def test_the_node_is_read_only_but_for_what_is_the_jobs(world: World) -> None:
    let_through(world.folder)
    shared = world.folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    await world.node("n1", **SANDBOXED)
    shown = "ls /tmp; rm /dev/shm/pens*$$"
    written = f"touch {shared}/x /dev/shm/penstock-test-$$ /tmp/penstock-own $PENSTOCK_CHECKPOINT_DIR/x; {shown}"
    said = await said_by(
        world, f"{written}; ls -a $PENSTOCK_CHECKPOINT_DIR; ls /dev; id -u; grep NoNew /proc/self/status"
    )
    assert f"touch: cannot touch '{shared}/x': " in said
    assert said.count("cannot touch") == 1
    lines = said.split("\n")
    assert {"x", "penstock-own"} <= set(lines)
    assert "NoNewPrivs:\t1" in lines
    assert str(65_534 if IS_ROOT else os.getuid()) in lines
    assert not {"mem", "sda", "vda", "kmsg", "nvidia0"} & set(lines)
    assert (world.folder / "checkpoints" / "j1" / "x").exists()
    assert not Path("/tmp/penstock-own").exists()
    assert not (shared / "x").exists()


@with_bubblewrap
async def test_the_operator_and_the_working_directory_open_more(world: World) -> None:
    let_through(world.folder)
    mine, scratch = world.folder / "mine", world.folder / "scratch"
    for folder in (mine, scratch):
        folder.mkdir()
    if IS_ROOT:
        os.chown(mine, 65_534, 65_534)
    scratch.chmod(0o777)
    await world.node("n1", **SANDBOXED, writable=(str(scratch), "~", "/not/there"))
    said = await said_by(world, f"touch here {scratch}/there && echo fine", cwd=str(mine))
    assert "fine" in said
    assert (mine / "here").exists()
    assert (scratch / "there").exists()


@with_bubblewrap
async def test_signals_reach_the_program_and_not_what_is_around_it(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **SANDBOXED)
    await world.submit(
        "j1",
        "/bin/sh",
        "-c",
        "trap 'echo saving; sleep 0.3; echo saved; exit 75' TERM; echo up; while :; do sleep 0.05; done 2>/dev/null",
        user="alice",
        cwd="/",
    )
    await world.place("j1")
    await world.says("j1", "up")
    await world.preempt("j1")
    ended = await world.ended("j1")
    assert (ended.outcome, (await world.output("j1")).decode()) == ("preempted", "up\nsaving\nsaved\n")
    said = await said_by(world, "kill -TERM $$; sleep 5; echo survived", job_id="j2")
    assert "survived" not in said
    assert (await world.ended("j2")).exit_code == 143


@with_bubblewrap
async def test_a_cancelled_job_leaves_no_process(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **SANDBOXED)
    mark = f"penstock-sandbox-{os.getpid()}"
    await world.submit(
        "j1", "/bin/sh", "-c", f"echo up; (sleep 600; : {mark}) & wait", user="alice", cwd="/", grace_s=0.1
    )
    await world.place("j1")
    await world.says("j1", "up")
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _holds(path, mark)]
    assert left == []


def _holds(path: Path, mark: str) -> bool:
    try:
        return mark.encode() in path.read_bytes()
    except OSError:
        return False


@with_bubblewrap
@pytest.mark.skipif(not os.path.exists(SYSTEM_PYTHON), reason=f"NOT TESTED: there is no {SYSTEM_PYTHON}")
async def test_a_sandboxed_job_speaks_to_its_executor(world: World) -> None:
    let_through(world.folder)
    await world.node("n1", **SANDBOXED)
    job = Path(__file__).parents[2] / "support" / "speaking_job.py"
    code = job.read_text().replace("FOLDER.parent", "FOLDER")  # what is above is not the job's
    await world.submit("j1", SYSTEM_PYTHON, "-S", "-c", code, "7", user="alice", cwd="/")
    await world.place("j1")
    ended = await world.ended("j1")
    assert (ended.outcome, ended.reason, ended.steps) == ("completed", "", 7)
