"""Runs that go on on another node, where each node has a checkpoint folder of its own."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import stat
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import executor_machine_cases
import msgspec
import pytest
from executor_cases import Node, World, python

from penstock_bus import Endpoint, Reply, Request
from penstock_bus.memory import MemoryBus
from penstock_executor import machine
from penstock_executor.checkpoint_folder import (
    MANIFEST,
    CheckpointFolder,
    CheckpointUnavailable,
    FilePiece,
    HeldCheckpoint,
    PieceRequest,
    serving,
)
from penstock_executor.checkpoint_transfer import CheckpointFinder, CopyLimits, Resume, ResumeRequest
from penstock_executor.launchers.environment import LaunchSite
from penstock_executor.process_host import ProcessHost
from penstock_executor.run_state import LocalRun, RunProcess
from penstock_log import AnyEvent, Checkpoint, NodeLeft, RunCheckpointed, RunRewound, RunStarted, RunWarned, subjects
from penstock_log.agent_protocol import Hello, StepProgress
from penstock_testing import eventually

pytestmark = pytest.mark.slow

TRAINING = """
import sys, penstock
seen = []
with penstock.session() as session:
    session.on_checkpoint(
        lambda folder: (folder / "seen").write_text(repr(seen)),
        lambda folder: seen.extend(eval((folder / "seen").read_text())),
    )
    print("begins at", session.step, "with", len(seen), flush=True)
    for item in session.iterations(range(int(sys.argv[1]))):
        seen.append(item)
        if len(seen) == int(sys.argv[2]):
            print("far enough", flush=True)
"""
FOREVER = 10**9


def training(steps: int = FOREVER, far: int = 20) -> tuple[str, ...]:
    return python(TRAINING, str(steps), str(far))


async def two_nodes(world: World, **settings: object) -> tuple[Node, Node]:
    return (
        await world.node("n1", checkpoint_dir=""),
        await world.node("n2", checkpoint_dir="", **settings),
    )


async def preempted(world: World, job_id: str, epoch: int = 1, node_id: str = "n1") -> int:
    """Preempt a job that is far enough; return its steps."""
    await world.says(job_id, "far enough")
    await world.preempt(job_id, epoch)
    return (await world.ended(job_id, epoch, node_id)).steps


async def started(world: World, job_id: str, epoch: int, node_id: str = "n2") -> RunStarted:
    return await world.fact(RunStarted, job_id, lambda fact: (fact.epoch, fact.node_id) == (epoch, node_id))


async def test_a_job_that_is_moved_goes_on_with_its_checkpoint_copied_from_the_node_that_has_it(world: World) -> None:
    await two_nodes(world)
    await world.run("j1", *training())
    steps = await preempted(world, "j1")
    await world.place("j1", epoch=2, node_id="n2")
    begun = await started(world, "j1", 2)
    assert (begun.resumed_step, begun.copied_from) == (steps, "n1")
    await world.says("j1", f"begins at {steps} with {steps}")
    copied = world.folder / "n2" / "checkpoints" / "j1"
    assert stat.S_IMODE(copied.stat().st_mode) == 0o700
    assert "RunRewound" not in await world.facts("j1")


async def test_a_job_whose_checkpoint_went_with_its_node_begins_anew_and_the_log_says_so(world: World) -> None:
    n1, _ = await two_nodes(world)
    await world.run("j1", *training())
    steps = await preempted(world, "j1")
    await n1.kill()
    await world.lose("n1")
    await world.place("j1", epoch=2, node_id="n2")
    rewound = await world.fact(RunRewound, "j1")
    assert (rewound.step, rewound.lost_step, rewound.node_id) == (0, steps, "n2")
    assert rewound.reason == f"the checkpoint after step {steps} is on n1, which is not there"
    assert (await started(world, "j1", 2)).resumed_step == 0
    await world.says("j1", "begins at 0 with 0")


async def test_a_checkpoint_that_is_too_large_to_be_copied_is_said_to_be(world: World) -> None:
    await two_nodes(world, checkpoint_copy_bytes=10)
    await world.run("j1", *training())
    await preempted(world, "j1")
    await world.place("j1", epoch=2, node_id="n2")
    rewound = await world.fact(RunRewound, "j1")
    assert "more than the 10 B that are copied (checkpoint_copy_bytes)" in rewound.reason
    await world.says("j1", "begins at 0 with 0")


async def test_in_a_shared_folder_nothing_is_copied(world: World) -> None:
    await world.node("n1")
    await world.node("n2")
    await world.run("j1", *training())
    steps = await preempted(world, "j1")
    await world.place("j1", epoch=2, node_id="n2")
    begun = await started(world, "j1", 2)
    assert (begun.resumed_step, begun.copied_from) == (steps, "")
    await world.says("j1", f"begins at {steps} with {steps}")


async def test_an_older_checkpoint_on_the_node_itself_is_better_than_none(world: World) -> None:
    _, n2 = await two_nodes(world)
    await world.run("j1", *training(far=20))
    first = await preempted(world, "j1")
    await world.place("j1", epoch=2, node_id="n2")
    await world.says("j1", f"begins at {first}")
    await world.preempt("j1", 2)
    second = (await world.ended("j1", 2, "n2")).steps
    assert second > first
    await n2.kill()
    await world.lose("n2")
    await world.place("j1", epoch=3, node_id="n1")
    rewound = await world.fact(RunRewound, "j1")
    assert (rewound.step, rewound.lost_step) == (first, second)
    assert (await started(world, "j1", 3, "n1")).resumed_step == first


async def test_two_jobs_begin_at_once_with_the_checkpoint_of_one_on_another_node(world: World) -> None:
    await two_nodes(world)
    await world.run("a", *training(steps=30), keep_checkpoint=True)
    assert (await world.ended("a")).steps == 30
    for i, job in enumerate(("b", "c")):
        await world.submit(job, *training(steps=40), begins_from="a")
        await world.place(job, i, node_id="n2")
    begun = [await started(world, job, 1) for job in ("b", "c")]
    assert [(one.resumed_step, one.begun_from) for one in begun] == [(30, "a"), (30, "a")]
    assert sorted(one.copied_from for one in begun) == ["", "n1"]
    assert [(await world.ended(job, 1, "n2")).steps for job in ("b", "c")] == [40, 40]


async def test_a_job_that_cannot_have_what_it_is_to_begin_from_says_so(world: World) -> None:
    n1, _ = await two_nodes(world)
    await world.run("a", *training(steps=30), keep_checkpoint=True)
    await world.ended("a")
    await n1.kill()
    await world.lose("n1")
    await world.submit("b", *training(steps=40), begins_from="a")
    await world.place("b", node_id="n2")
    rewound = await world.fact(RunRewound, "b")
    assert (rewound.step, rewound.lost_step) == (0, 30)
    begun = await started(world, "b", 1)
    assert (begun.resumed_step, begun.begun_from) == (0, "")


async def test_a_gang_over_two_nodes_goes_on_from_one_step_or_begins_anew_as_a_whole(world: World) -> None:
    """The second node may not copy anything: what the first one has does not do."""
    await two_nodes(world, checkpoint_copy_bytes=0)
    await world.submit("g", *training(), gpus=2)
    await world.place_on("g", {"n1": [0, 1]})
    steps = await preempted(world, "g")
    assert steps
    await world.place_on("g", {"n1": [0], "n2": [0]}, epoch=2)
    ended = await world.ended("g", 2, "n2")
    assert (ended.outcome, "nothing is copied here" in ended.reason) == ("preempted", True)
    await world.ended("g", 2, "n1")
    await world.place_on("g", {"n1": [0], "n2": [0]}, epoch=3)
    assert [(await started(world, "g", 3, node)).resumed_step for node in ("n1", "n2")] == [0, 0]


async def test_each_node_of_a_gang_has_a_copy_of_what_the_first_one_goes_on_from(world: World) -> None:
    await two_nodes(world)
    await world.submit("g", *training(), gpus=2)
    await world.place_on("g", {"n1": [0, 1]})
    steps = await preempted(world, "g")
    await world.place_on("g", {"n2": [0], "n1": [0]}, epoch=2)
    begun = [await started(world, "g", 2, node) for node in ("n2", "n1")]
    assert [(one.resumed_step, one.copied_from) for one in begun] == [(steps, "n1"), (steps, "")]


async def test_a_script_that_does_not_load_its_checkpoint_is_said_to_begin_where_it_does(world: World) -> None:
    await world.node(park_bytes=0)
    folder = world.folder / "checkpoints" / "j1"
    await world.run("j1", *training(), checkpoint_s=1e-9)
    steps = await preempted(world, "j1")
    newest = folder / f"step-{steps}" / "seen"
    newest.write_text("(" * newest.stat().st_size)  # as long as it was, and no state
    await world.place("j1", epoch=2)
    assert (await started(world, "j1", 2, "n1")).resumed_step == steps
    rewound = await world.fact(RunRewound, "j1")
    assert (rewound.step, rewound.lost_step) == (steps - 1, steps)
    assert rewound.reason == f"its script has not loaded the checkpoint after step {steps}"
    await world.preempt("j1", 2)
    assert (await world.ended("j1", 2)).steps >= steps - 1


async def test_an_executor_that_leaves_hands_out_what_its_jobs_need_elsewhere_before_it_ends(world: World) -> None:
    n1, _ = await two_nodes(world)
    await world.run("j1", *training())
    await world.says("j1", "far enough")
    leaving = asyncio.create_task(n1.stop())
    steps = (await world.ended("j1")).steps
    async for delivery in world.bus.follow(subjects=[subjects.node("n1")]):
        if isinstance(delivery.commit.facts[0], NodeLeft):
            break
    await world.place("j1", epoch=2)  # decided before the matcher heard of that
    assert (await world.ended("j1", 2)).outcome == "preempted"
    await world.place("j1", epoch=3, node_id="n2")
    begun = await started(world, "j1", 3)
    assert (begun.resumed_step, begun.copied_from) == (steps, "n1")
    await leaving


async def test_a_disk_that_is_away_is_waited_for_and_nothing_is_begun_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.node(park_bytes=0)
    await world.run("j1", *training())
    steps = await preempted(world, "j1")
    held, away = CheckpointFolder.held, [True]

    def stale(folder: CheckpointFolder, job_id: str) -> list[HeldCheckpoint]:
        if away:
            raise OSError(errno.ESTALE, "Stale file handle")
        return held(folder, job_id)

    monkeypatch.setattr(CheckpointFolder, "held", stale)
    await world.place("j1", epoch=2)
    warned = await world.fact(RunWarned, "j1")
    assert "cannot be read: Stale file handle" in warned.warning
    away.clear()
    assert (await started(world, "j1", 2, "n1")).resumed_step == steps


def test_where_a_run_began_is_told_once_the_disk_says_what_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[AnyEvent] = []
    nothing: Any = lambda *_: None  # noqa: E731 - one for each callable that plays no part here
    site = LaunchSite(node_id="n1", devices=(), socket="", checkpoints=tmp_path, cwd="/")
    host = ProcessHost(site, tmp_path / "runs", clock=lambda: 0.0, watch=nothing, report=told.append, wake=nothing)
    host.runs["j", 2] = LocalRun(job_id="j", epoch=2, ranks={0: RunProcess()}, resumed_step=20, resumed_generation=1)
    line: Any = SimpleNamespace(hello=Hello(version=1, job_id="j", epoch=2, rank=0, pid=1))
    wanted = write_checkpoint(tmp_path, "j", 7, {"weights": b"x"})
    of_step, away = CheckpointFolder.of_step, [True]

    def stale(folder: CheckpointFolder, job_id: str, step: int) -> HeldCheckpoint | None:
        if away:
            raise OSError(errno.ESTALE, "Stale file handle")
        return of_step(folder, job_id, step)

    monkeypatch.setattr(CheckpointFolder, "of_step", stale)
    for step in (8, 9, 10):
        host.handle(line, StepProgress(step=step, loop_steps=step - 7, loop_s=1.0))
        away = away if step == 8 else []
    assert [(fact.step, fact.digest) for fact in told if isinstance(fact, RunRewound)] == [(7, wanted.digest)]


def test_no_run_begins_before_its_first_step(tmp_path: Path) -> None:
    told: list[AnyEvent] = []
    nothing: Any = lambda *_: None  # noqa: E731 - as above
    site = LaunchSite(node_id="n1", devices=(), socket="", checkpoints=tmp_path, cwd="/")
    host = ProcessHost(site, tmp_path / "runs", clock=lambda: 0.0, watch=nothing, report=told.append, wake=nothing)
    host.runs["j", 1] = LocalRun(job_id="j", epoch=1, ranks={0: RunProcess()})
    line: Any = SimpleNamespace(hello=Hello(version=1, job_id="j", epoch=1, rank=0, pid=1))
    host.handle(line, StepProgress(step=1, loop_steps=10, loop_s=1.0))
    assert told == []


def test_an_executor_waits_for_those_alone_who_need_what_lies_nowhere_else() -> None:
    node = executor_machine_cases.Node().given(
        executor_machine_cases.joined(),
        executor_machine_cases.joined("n2"),
        executor_machine_cases.submitted(),
        executor_machine_cases.placed(),
    )
    saved = RunCheckpointed(job_id="j1", epoch=1, node_id="n1", step=5, digest="d", at_s=4.0)
    node.given(executor_machine_cases.started(), saved, executor_machine_cases.ended(outcome="preempted"))
    state = node.log.state
    assert machine.is_awaited(state, "n1", {"n1"})
    assert not machine.is_awaited(state, "n1", {"n1", "n2"}), "they share the folder"
    assert not machine.is_awaited(state, "n2", {"n2"})
    moved = RunStarted(job_id="j1", epoch=2, node_id="n2", devices=(0,), resumed_step=5, resumed_digest="d", at_s=5.0)
    node.given(executor_machine_cases.placed(epoch=2, nodes=("n2",)))
    assert machine.is_awaited(state, "n1", {"n1"})
    node.given(moved)
    assert not machine.is_awaited(node.log.state, "n1", {"n1"})


# --- copies, piece by piece
LIMITS = CopyLimits(largest_bytes=2**30, longest_s=60.0)


def write_checkpoint(root: Path, job_id: str, step: int, files: dict[str, bytes], generation: int = 1) -> Checkpoint:
    folder = root / job_id / f"step-{step}"
    for name, body in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    manifest = {
        "format": 1,
        "step": step,
        "generation": generation,
        "history": {},
        "files": {name: len(body) for name, body in files.items()},
        "checksums": {name: zlib.crc32(body) for name, body in files.items()},
    }
    body = json.dumps(manifest).encode()
    (folder / MANIFEST).write_bytes(body)
    digest = hashlib.sha256(body).hexdigest()
    return Checkpoint(generation=generation, step=step, digest=digest, node_ids=("n1",))


def finder(bus: MemoryBus, root: Path, limits: CopyLimits = LIMITS, *, present: bool = True) -> CheckpointFinder:
    return CheckpointFinder(bus, CheckpointFolder(root, "n2"), "n2", lambda _: present, limits)


async def test_large_files_empty_ones_and_folders_arrive_as_they_were(memory_bus: MemoryBus, tmp_path: Path) -> None:
    files = {"a/b/weights": bytes(range(256)) * 10_000, "empty": b"", "small": b"x"}
    wanted = write_checkpoint(tmp_path / "n1", "j", 7, files)
    async with serving(memory_bus, [CheckpointFolder(tmp_path / "n1", "n1")], "n1"):
        found = await finder(memory_bus, tmp_path / "n2").find(ResumeRequest(job_id="j", own=wanted))
    assert (found.source.step, found.source.digest, found.copied_from) == (7, wanted.digest, "n1")
    copy = tmp_path / "n2" / "j" / "step-7"
    assert {name: (copy / name).read_bytes() for name in files} == files
    assert [path.name for path in copy.parent.iterdir()] == ["step-7"]


async def test_what_comes_with_other_bytes_is_no_checkpoint(memory_bus: MemoryBus, tmp_path: Path) -> None:
    wanted = write_checkpoint(tmp_path / "n1", "j", 7, {"weights": b"right"})
    (tmp_path / "n1" / "j" / "step-7" / "weights").write_bytes(b"wrong")
    async with serving(memory_bus, [CheckpointFolder(tmp_path / "n1", "n1")], "n1"):
        found = await finder(memory_bus, tmp_path / "n2").find(ResumeRequest(job_id="j", own=wanted))
    assert (found.lost, found.source.step) == (wanted, 0)
    assert found.reason.endswith("its file weights came with other bytes than were written")
    assert not (tmp_path / "n2" / "j").exists()


async def test_another_checkpoint_of_that_step_is_not_taken_for_it(memory_bus: MemoryBus, tmp_path: Path) -> None:
    wanted = write_checkpoint(tmp_path / "n1", "j", 7, {"weights": b"right"}, generation=2)
    write_checkpoint(tmp_path / "n2", "j", 7, {"weights": b"stale"}, generation=1)
    async with serving(memory_bus, [CheckpointFolder(tmp_path / "n1", "n1")], "n1"):
        found = await finder(memory_bus, tmp_path / "n2").find(ResumeRequest(job_id="j", own=wanted))
    assert found.source.generation == 2
    assert (tmp_path / "n2" / "j" / "step-7" / "weights").read_bytes() == b"right"


async def test_a_copy_that_was_killed_half_way_leaves_nothing_that_bears_its_name(
    memory_bus: MemoryBus, tmp_path: Path
) -> None:
    wanted = write_checkpoint(tmp_path / "n1", "j", 7, {"first": b"x", "second": b"y"})
    served, half_way = CheckpointFolder(tmp_path / "n1", "n1"), asyncio.Event()

    async def slowly(request: Request) -> Reply:
        ask = msgspec.msgpack.decode(request.body, type=PieceRequest)
        if ask.name == "second":
            half_way.set()
            await asyncio.Event().wait()
        return Reply(body=msgspec.msgpack.encode(served.read(ask, 1000)))

    endpoint = Endpoint(name="read", subject=subjects.checkpoints("n1"), handler=slowly)
    async with memory_bus.serve("slow", "1", [endpoint]):
        killed = asyncio.create_task(finder(memory_bus, tmp_path / "n2").find(ResumeRequest(job_id="j", own=wanted)))
        await half_way.wait()
        (left,) = (tmp_path / "n2" / ".copying" / "n2" / "j").iterdir()
        left.rename(left.with_name("left"))  # as a kill would leave it
        killed.cancel()
    async with serving(memory_bus, [served], "n1"):
        again = await finder(memory_bus, tmp_path / "n2").find(ResumeRequest(job_id="j", own=wanted))
    assert again.copied_from == "n1"
    assert [path.name for path in (tmp_path / "n2" / "j").iterdir()] == ["step-7"]
    assert [path.name for path in (tmp_path / "n2" / ".copying").rglob("*")] == ["n2"]


async def test_a_copy_that_takes_too_long_is_given_up(memory_bus: MemoryBus, tmp_path: Path) -> None:
    wanted = write_checkpoint(tmp_path / "n1", "j", 7, {"weights": b"x"})
    limits = CopyLimits(largest_bytes=100, longest_s=1e-9)
    async with serving(memory_bus, [CheckpointFolder(tmp_path / "n1", "n1")], "n1"):
        found = await finder(memory_bus, tmp_path / "n2", limits).find(ResumeRequest(job_id="j", own=wanted))
    assert found.reason.endswith("it could not be copied within 1e-09 s (checkpoint_copy_s)")


async def test_a_node_that_comes_back_soon_is_waited_for(memory_bus: MemoryBus, tmp_path: Path) -> None:
    wanted = write_checkpoint(tmp_path / "n1", "j", 7, {"weights": b"x"})
    finding = asyncio.create_task(finder(memory_bus, tmp_path / "n2").find(ResumeRequest(job_id="j", own=wanted)))
    await asyncio.sleep(0)
    async with serving(memory_bus, [CheckpointFolder(tmp_path / "n1", "n1")], "n1"):
        assert (await finding).copied_from == "n1"


async def test_a_checkpoint_that_nobody_could_report_is_gone_on_from_and_reported(
    memory_bus: MemoryBus, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, "j", 7, {"weights": b"x"}, generation=2)
    known = Checkpoint(generation=2, step=5, digest="of another", node_ids=("n1",))
    request = ResumeRequest(job_id="j", own=known)
    found = await finder(memory_bus, tmp_path).find(request)
    (fact,) = found.unreported(request, {"job_id": "j", "epoch": 3, "node_id": "n2", "at_s": 1.0})
    assert isinstance(fact, RunCheckpointed)
    assert (fact.step, fact.generation) == (7, 2)


async def test_checkpoints_of_runs_that_were_given_up_do_not_count(memory_bus: MemoryBus, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "j", 7, {"weights": b"x"}, generation=2)
    assert (await finder(memory_bus, tmp_path).find(ResumeRequest(job_id="j", rewound=3))) == Resume()


async def test_a_damaged_checkpoint_is_none(tmp_path: Path) -> None:
    wanted = write_checkpoint(tmp_path, "j", 7, {"weights": b"whole"})
    (tmp_path / "j" / "step-7" / "weights").write_bytes(b"torn")
    assert CheckpointFolder(tmp_path, "n1").find("j", wanted) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"format":2,"step":7,"files":{},"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"format":2,"step":1180591620717411303424,"files":{}}',
        b'{"format":2,"step":-7,"files":{}}',
        b'{"format":2,"step":7,"files":{},"generation":1180591620717411303424}',
        b'{"format":2,"step":7,"files":{},"place":{"samples":1180591620717411303424}}',
        b'{"format":2,"step":7,"files":{"weights":-1}}',
        b'{"format":2,"step":7,"files":{"a\\u0000b":1}}',
        b"\xff",
        b"",
    ],
)
async def test_whatever_a_job_writes_as_a_manifest_is_no_end_of_the_executor(
    memory_bus: MemoryBus, tmp_path: Path, body: bytes
) -> None:
    path = tmp_path / "n1" / "j" / "step-7"
    path.mkdir(parents=True)
    (path / MANIFEST).write_bytes(body)
    folder = CheckpointFolder(tmp_path / "n1", "n1")
    assert folder.held("j") == []
    wanted = Checkpoint(generation=1, step=7, digest=hashlib.sha256(body).hexdigest(), node_ids=("n1",))
    async with serving(memory_bus, [folder], "n1"):
        found = await finder(memory_bus, tmp_path / "n2").find(ResumeRequest(job_id="j", own=wanted))
    assert (found.held, found.lost) == (None, wanted)


async def test_a_manifest_without_an_end_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "j" / "step-7"
    path.mkdir(parents=True)
    with (path / MANIFEST).open("wb") as file:
        file.truncate(1 << 42)  # of which nothing is on the disk
    assert CheckpointFolder(tmp_path, "n1").held("j") == []


@pytest.mark.parametrize("name", [MANIFEST, "weights"])
async def test_nobody_waits_for_a_pipe_in_a_files_place(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path, "j", 7, {"weights": b""})
    path = tmp_path / "j" / "step-7" / name
    path.unlink()
    os.mkfifo(path)
    folder = CheckpointFolder(tmp_path, "n1")
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(folder.held, "j") == []
        with pytest.raises(CheckpointUnavailable, match="no regular file"):
            await asyncio.to_thread(folder.read, PieceRequest(job_id="j", step=7, name="weights"), 100)


async def test_two_checkpoints_of_one_job_are_copied_one_after_the_other(memory_bus: MemoryBus, tmp_path: Path) -> None:
    both = [write_checkpoint(tmp_path / "n1", "j", step, {"weights": bytes(32 << 20)}) for step in (7, 8)]
    copying = finder(memory_bus, tmp_path / "n2")
    async with serving(memory_bus, [CheckpointFolder(tmp_path / "n1", "n1")], "n1"):
        first = asyncio.ensure_future(copying.find(ResumeRequest(job_id="j", own=both[0])))
        await eventually(lambda: bool(list((tmp_path / "n2").glob(".copying/n2/j/*/weights"))))
        second = await copying.find(ResumeRequest(job_id="j", own=both[1]))
        found = [await first, second]
    assert [(resume.source.step, resume.copied_from, resume.reason) for resume in found] == [
        (7, "n1", ""),
        (8, "n1", ""),
    ]


async def test_a_checkpoint_without_a_digest_is_whatever_lies_there_of_its_job(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "own-format").touch()
    found = CheckpointFolder(tmp_path, "n1").find("j", Checkpoint(generation=1, step=7))
    assert found == HeldCheckpoint(step=7, generation=1)
    assert CheckpointFolder(tmp_path, "n1").find("other", Checkpoint(generation=1, step=7)) is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../../b", ""])
async def test_a_file_that_would_lie_outside_of_the_copy_is_refused(
    memory_bus: MemoryBus, tmp_path: Path, name: str
) -> None:
    body = json.dumps({"format": 1, "step": 7, "files": {name: 1}}).encode()

    async def forged(_: Request) -> Reply:
        return Reply(body=msgspec.msgpack.encode(FilePiece(size=len(body), data=body)))

    endpoint = Endpoint(name="read", subject=subjects.checkpoints("n1"), handler=forged)
    wanted = Checkpoint(generation=1, step=7, digest=hashlib.sha256(body).hexdigest(), node_ids=("n1",))
    async with memory_bus.serve("forger", "1", [endpoint]):
        found = await finder(memory_bus, tmp_path).find(ResumeRequest(job_id="j", own=wanted))
    assert found.reason.endswith(f"its file {name!r} would lie outside of it")


@pytest.mark.parametrize("job_id", ["..", "../j", "j/..", ".", ""])
def test_nothing_outside_of_the_checkpoints_is_handed_out(tmp_path: Path, job_id: str) -> None:
    write_checkpoint(tmp_path / "checkpoints", "j", 7, {"weights": b"x"})
    write_checkpoint(tmp_path, ".", 7, {"secret": b"x"})
    with pytest.raises(CheckpointUnavailable, match="no job's id"):
        CheckpointFolder(tmp_path / "checkpoints", "n1").read(PieceRequest(job_id=job_id, step=7), 100)


def test_only_files_of_the_manifest_are_handed_out(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "j", 7, {"weights": b"x"})
    (tmp_path / "j" / "secret").write_text("x")
    folder = CheckpointFolder(tmp_path, "n1")
    with pytest.raises(CheckpointUnavailable, match=r"has no file '\.\./secret'"):
        folder.read(PieceRequest(job_id="j", step=7, name="../secret"), 100)
    with pytest.raises(CheckpointUnavailable, match="no checkpoint of job j after step 8 lies here"):
        folder.read(PieceRequest(job_id="j", step=8), 100)
    with pytest.raises(CheckpointUnavailable, match="another checkpoint"):
        folder.read(PieceRequest(job_id="j", step=7, digest="other"), 100)
