"""Real processes under a real executor, on the bus in memory: how runs begin and end."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from executor_cases import World, python, speaking

from penstock_executor.launchers import process_launcher
from penstock_log import NodeJoined, RunCheckpointed, RunStarted, RunWarned, subjects
from penstock_testing import eventually

pytestmark = pytest.mark.slow

SHOW_ENV = "import os, json; print(json.dumps(dict(os.environ)))"
WAIT = "import time; print('up', flush=True); time.sleep(60)"
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\n"
    "while True: time.sleep(1)"
)


async def test_a_job_runs_and_its_end_and_output_are_in_the_log(world: World) -> None:
    await world.node()
    await world.run("j1", *python("print('hello')"))
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code, ended.reason) == ("completed", 0, "")
    assert await world.facts("j1") == ["RunStarted", "RunEnded"]
    assert await world.output("j1") == b"hello\n"
    started = await world.fact(RunStarted, "j1")
    assert (started.node_id, started.devices, started.epoch) == ("n1", (0,), 1)


async def test_a_process_finds_its_place_in_the_environment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PASSWORD", "secret")
    await world.node()
    await world.submit("j1", *python(SHOW_ENV), gpus=2, params={"lr": 0.1}, env={"MINE": "1", "RANK": "7"})
    await world.place("j1", 0, 1)
    await world.ended("j1")
    lines = (await world.output("j1")).splitlines()
    first, second = sorted((json.loads(line) for line in lines), key=lambda env: str(env["RANK"]))
    assert (first["RANK"], first["LOCAL_RANK"], first["WORLD_SIZE"]) == ("0", "0", "2")
    assert (second["PENSTOCK_RANK"], second["PENSTOCK_DEVICES"]) == ("1", "1")
    assert first["MASTER_ADDR"] == "127.0.0.1"
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert json.loads(first["PENSTOCK_PARAMS"]) == {"lr": 0.1}
    assert (first["PENSTOCK_BACKEND"], first["PENSTOCK_EMULATED_SPEED"]) == ("emulated", "1.0")
    assert first["CUDA_VISIBLE_DEVICES"] == ""
    assert first["MINE"] == "1"
    assert "PENSTOCK_PASSWORD" not in first


async def test_a_crash_is_reported_with_its_exit_code_and_last_words(world: World) -> None:
    await world.node()
    await world.run("j1", *python("raise ValueError('no such layer')"))
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("failed", 1)
    assert ended.reason == "exit code 1: ValueError: no such layer"
    assert b"ValueError: no such layer" in await world.output("j1")


async def test_a_job_that_uses_more_of_the_host_than_it_may_is_ended_with_its_children(world: World) -> None:
    await world.node()
    (delivery,) = await world.bus.read(subjects.node("n1"))
    (joined,) = delivery.commit.facts
    assert isinstance(joined, NodeJoined)
    assert joined.cpus > 0
    assert joined.host_memory_bytes > 0
    assert joined.held_by in {"cgroup", "rlimit"}
    hold = "x = bytearray(b'x') * (40 << 20); import time; time.sleep(600)"
    both = f"import subprocess, sys; [subprocess.Popen([sys.executable, '-c', {hold!r}]) for _ in range(3)][0].wait()"
    await world.run("j1", *python(both), host_memory_bytes=100 << 20)
    ended = await world.ended("j1")
    assert (ended.outcome, ended.reason) == ("failed", "ended for using more than its 100 MiB of host memory")
    assert not ended.out_of_memory


async def test_a_deadly_signal_is_reported_by_its_name(world: World) -> None:
    await world.node()
    await world.run("j1", *python("import os; os.kill(os.getpid(), 11)"))
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("failed", 139)
    assert ended.reason.startswith("signal SIGSEGV (exit code 139)")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("no-such-program", "x"), "program 'no-such-program' was not found; looked in PATH ("),
        (("python", "nowhere/train.py"), "script 'nowhere/train.py' was not found; looked in /"),
        (("python", "-u", "train.py", "--lr", "1"), "script 'train.py' was not found"),
    ],
)
async def test_what_is_missing_is_said_at_once(world: World, command: tuple[str, ...], reason: str) -> None:
    await world.node()
    await world.run("j1", *command, cwd="/")
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("failed", 127)
    assert ended.reason.startswith(reason)
    assert await world.facts("j1") == ["RunEnded"]


async def test_a_missing_working_directory_is_said_at_once(world: World) -> None:
    await world.node()
    await world.run("j1", "true", cwd="/no/such/folder")
    assert "the working directory /no/such/folder does not exist" in (await world.ended("j1")).reason


async def test_a_cancelled_job_gets_term(world: World) -> None:
    await world.node()
    await world.run("j1", *python(WAIT))
    await world.says("j1", "up")
    await world.cancel("j1")
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("cancelled", 143)
    assert ended.reason == "cancelled by alice"


async def test_a_job_that_ignores_term_gets_kill_after_its_grace_period(world: World) -> None:
    await world.node()
    await world.run("j1", *python(DEAF), grace_s=0.2)
    await world.says("j1", "up")
    await world.cancel("j1")
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("cancelled", 137)


async def test_what_a_process_leaves_behind_is_ended_with_it(world: World) -> None:
    await world.node()
    await world.run("j1", "sh", "-c", "sleep 600 & echo $!")
    await world.ended("j1")
    pid = int(await world.output("j1"))
    await eventually(lambda: process_launcher.gone(pid))


async def test_run_folders_are_gone_once_the_end_is_in_the_log(world: World) -> None:
    node = await world.node()
    await world.run("j1", "true")
    await world.ended("j1")
    await world.run("j2", "true")
    await world.ended("j2")
    await node.stop()
    assert not list((world.folder / "n1" / "runs").glob("*"))


async def test_steps_and_metrics_come_from_the_process(world: World) -> None:
    await world.node()
    told = asyncio.create_task(world.progress("j1"))
    await world.run("j1", *speaking("5"))
    ended = await world.ended("j1")
    assert (ended.steps, ended.loop_steps, ended.loop_s) == (5, 5, 0.5)
    assert ended.metrics == {"loss": 0.25, "rank": 0.0}
    assert {"job_id", "step", "metrics", "loop_s", "loop_steps", "batch_size", "samples", "iteration_s"} <= set(
        await told
    )


async def test_a_checkpoint_is_a_fact(world: World) -> None:
    await world.node()
    await world.run("j1", *speaking("5", "save_at=3"))
    await world.ended("j1")
    assert (await world.fact(RunCheckpointed, "j1")).step == 3
    assert await world.facts("j1") == ["RunStarted", "RunCheckpointed", "RunEnded"]


async def test_a_checkpoint_that_cannot_be_written_is_a_warning(world: World) -> None:
    await world.node()
    await world.run("j1", *speaking("5", "save_at=3", "fail_save"))
    assert (await world.ended("j1")).outcome == "completed"
    warning = (await world.fact(RunWarned, "j1")).warning
    assert warning == "the checkpoint after step 3 could not be written: No space left on device"


async def test_a_preempted_job_leaves_a_checkpoint_and_goes_on_from_there(world: World) -> None:
    await world.node()
    await world.run("j1", *speaking("100000"))
    await world.progress("j1")
    await world.preempt("j1")
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code, ended.reason) == ("preempted", 75, "outranked")
    assert (await world.fact(RunCheckpointed, "j1")).step == ended.steps > 0
    await world.place("j1", 1, epoch=2)
    await world.says("j1", f"resumed at {ended.steps}")
    await world.cancel("j1")
    assert (await world.ended("j1", epoch=2)).outcome == "cancelled"
    steps = [int(line) for line in (world.folder / "checkpoints" / "steps-0").read_text().split()]
    assert steps == list(range(1, len(steps) + 1))


async def test_a_job_that_never_spoke_gets_term_at_once(world: World) -> None:
    await world.node()
    await world.run("j1", *python(WAIT), grace_s=60.0)
    await world.says("j1", "up")
    await world.preempt("j1")
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code, ended.steps) == ("preempted", 143, 0)


async def test_a_job_that_does_not_answer_is_ended_and_keeps_its_last_checkpoint(world: World) -> None:
    await world.node()
    await world.run("j1", *speaking("100000", "stubborn", "save_at=2"), grace_s=1.0)
    await world.fact(RunCheckpointed, "j1")
    await world.preempt("j1")
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code, ended.steps) == ("preempted", 143, 2)


async def test_a_gang_stops_after_one_and_the_same_step(world: World) -> None:
    await world.node()
    await world.submit("j1", *speaking("100000"), gpus=2)
    await world.place("j1", 0, 1)
    await world.progress("j1")
    await eventually((world.folder / "checkpoints" / "steps-1").exists)
    await world.preempt("j1")
    ended = await world.ended("j1")
    assert ended.outcome == "preempted"
    steps = [(world.folder / "checkpoints" / f"steps-{rank}").read_text().split()[-1] for rank in (0, 1)]
    assert steps == [str(ended.steps)] * 2


async def test_a_gang_over_two_nodes_stops_after_one_and_the_same_step(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    await world.submit("j1", *speaking("100000"), gpus=2)
    await world.place_on("j1", {"n1": [0], "n2": [1]})
    await world.progress("j1")
    await eventually((world.folder / "checkpoints" / "steps-1").exists)
    await world.preempt("j1")
    first, second = await world.ended("j1", node_id="n1"), await world.ended("j1", node_id="n2")
    assert {first.outcome, second.outcome} == {"preempted"}
    steps = [(world.folder / "checkpoints" / f"steps-{rank}").read_text().split()[-1] for rank in (0, 1)]
    assert steps == [str(first.steps)] * 2


async def test_a_gang_does_not_wait_for_the_answers_of_those_that_are_gone(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    await world.submit("j1", *speaking("100000", "mute_rank=1"), gpus=2, grace_s=60.0)
    await world.place_on("j1", {"n1": [0], "n2": [1]})
    await world.progress("j1")
    await world.fact(RunStarted, "j1", lambda fact: fact.node_id == "n2")
    await world.preempt("j1")
    first, second = await world.ended("j1", node_id="n1"), await world.ended("j1", node_id="n2")
    assert (first.exit_code, second.exit_code) == (75, 143)
    assert (await world.fact(RunCheckpointed, "j1")).step == first.steps > 0


async def test_one_failed_rank_ends_the_others(world: World) -> None:
    await world.node()
    await world.submit("j1", *speaking("100000", "crash_at=3", "only_rank=1"), gpus=2, grace_s=30.0)
    await world.place("j1", 0, 1)
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("failed", 1)
    assert ended.reason == "rank 1 of 2: exit code 1: RuntimeError: crashed at step 3"


async def test_a_gang_that_fails_on_one_node_ends_on_the_other(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    await world.submit("j1", *speaking("100000", "crash_at=3", "only_rank=1"), gpus=2, grace_s=30.0)
    await world.place_on("j1", {"n1": [0], "n2": [1]})
    assert (await world.ended("j1", node_id="n2")).outcome == "failed"
    assert (await world.ended("j1", node_id="n1")).outcome == "preempted"


async def test_a_sample_of_a_script_without_penstock_is_not_run(world: World, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    await world.node()
    await world.sample("s1", "python", str(script))
    await world.place("s1")
    ended = await world.ended("s1")
    assert ended.outcome == "failed"
    assert ended.reason.startswith("opaque: ")
    assert not (tmp_path / "ran").exists()


async def test_a_sample_knows_how_many_iterations_it_has(world: World, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os  # penstock\nprint(os.environ['PENSTOCK_SAMPLE_ITERATIONS'])")
    await world.node()
    await world.sample("s1", "python", str(script))
    await world.place("s1")
    assert (await world.ended("s1")).outcome == "completed"
    assert await world.output("s1") == b"5\n"


async def test_a_sample_that_takes_too_long_is_ended(world: World, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time  # penstock\ntime.sleep(600)")
    await world.node(sample_limit_s=0.2)
    await world.sample("s1", "python", str(script))
    await world.place("s1")
    ended = await world.ended("s1")
    assert (ended.outcome, ended.reason) == ("failed", "the sample took longer than 0.2 s and was ended")


async def test_checkpoints_of_finished_jobs_can_be_removed(world: World) -> None:
    node = await world.node(keep_checkpoints=False)
    await world.run("j1", *speaking("5", "save_at=3"))
    await world.ended("j1")
    await world.run("j2", "true")
    await world.ended("j2")
    await node.stop()
    assert not (world.folder / "checkpoints" / "j1").exists()


async def test_a_process_that_vanishes_without_a_status_is_lost_and_not_to_blame(world: World) -> None:
    await world.node()
    await world.run("j1", *python(WAIT))
    await world.says("j1", "up")
    pid = int((world.folder / "n1/runs/j1/1/0/pid").read_text().split()[0])
    os.killpg(pid, signal.SIGKILL)
    ended = await world.ended("j1")
    assert (ended.outcome, ended.exit_code) == ("lost", None)


async def test_heartbeats_name_node_and_incarnation(world: World) -> None:
    node = await world.node(heartbeat_s=0.05)
    async for _, body in world.bus.subscribe(subjects.heartbeat("n1")):
        beat = json.loads(body)
        break
    assert (beat["node_id"], beat["incarnation"]) == ("n1", (await world.joined())[0].incarnation)
    assert beat["at_s"] > 0
    await node.stop()


async def test_what_it_knows_is_kept_where_only_executors_may_write(world: World) -> None:
    node = await world.node()
    await node.stop()
    assert await world.bus.load_snapshot("executor.n1") is not None


async def test_a_job_of_the_image_in_which_its_node_runs_needs_no_container(world: World) -> None:
    await world.node(image="lab/torch:1", containers="none")
    assert (await world.joined())[0].image == "lab/torch:1"
    await world.run("j1", *python("print('here')"), image="lab/torch:1")
    assert (await world.ended("j1")).outcome == "completed"
    await world.run("j2", "no-such-program", image="lab/torch:1")
    ended = await world.ended("j2")
    assert (ended.outcome, ended.exit_code) == ("failed", 127), ended
    await world.run("j3", *python("print('here')"), image="lab/torch:2")
    assert (await world.ended("j3")).outcome == "failed"
