"""Code of jobs on nodes: fetched, checked, laid out for each run, and kept for the next one within a bound."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from executor_cases import World, python
from job_images import small_root
from other_users import ALICE, as_root, let_through

from penstock import code_folder
from penstock_bus.memory import MemoryBus
from penstock_executor import code_cache, code_fetch, job_folders
from penstock_executor.code_cache import CodeCache, WorkFolders
from penstock_executor.launchers import sandbox
from penstock_executor.run_identity import IdentityRule
from penstock_log import JobSpec, ProfileSample, RunStarted, RunWarned, SamplesRequested, code_tree, subjects
from penstock_log.code_tree import PART_BYTES, BadTree, CodeRecord, CodeTree, TreeEntry, TreePart
from penstock_testing import eventually

pytestmark = pytest.mark.slow

SHOW = (
    "import os, pkg\n"
    "print(pkg.VALUE, open('data/x.txt').read(), os.environ['PENSTOCK_NODE'], sorted(os.listdir('.')), flush=True)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project whose script imports a package beside it, and reads data relative to where it runs."""
    made = tmp_path / "project"
    for name in ("pkg", "data", "empty"):
        (made / name).mkdir(parents=True)
    (made / "pkg" / "__init__.py").write_text("VALUE = 42\n")
    (made / "data" / "x.txt").write_text("hello")
    (made / "large.bin").write_bytes(os.urandom(20 * PART_BYTES + 3))
    (made / "link").symlink_to("data/x.txt")
    (made / "none").touch()
    return made


async def uploaded(bus: MemoryBus, folder: Path, user: str = "") -> str:
    """Store a folder as the gateway does; return its digest."""
    code = code_folder.read(code_folder.scan(folder))
    manifest = code_tree.encode(code.tree)
    pieces = code_tree.split(manifest)
    record = CodeRecord(parts=tuple(TreePart(code_tree.digest_of(one), len(one)) for one in pieces))
    items = [(subjects.code_part(user, code_tree.digest_of(one), len(one)), one) for one in pieces]
    items += [(subjects.code_part(user, *part), code.part(part)) for part in code_tree.all_parts(code.tree)]
    digest = code_tree.digest_of(manifest)
    await bus.put_code([*items, (subjects.code_record(user, digest), msgspec.json.encode(record))])
    return digest


async def test_a_run_begins_in_its_own_copy_of_the_folder(world: World, folder: Path) -> None:
    await world.node()
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    await world.run("j1", *python(SHOW), code=code)
    assert (await world.ended("j1")).outcome == "completed"
    names = "['data', 'empty', 'large.bin', 'link', 'none', 'pkg']"
    assert (await world.output("j1")).decode() == f"42 hello n1 {names}\n"
    work = world.folder / "n1" / "work" / "j1-1" / "code"
    assert (work / "large.bin").read_bytes() == (folder / "large.bin").read_bytes()
    assert (os.readlink(work / "link"), work.stat().st_mode & 0o777) == ("data/x.txt", 0o700)


async def test_the_working_directory_is_within_the_folder(world: World, folder: Path) -> None:
    await world.node()
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    await world.run("j1", *python("print(open('x.txt').read())"), code=code, cwd="data")
    await world.ended("j1")
    assert await world.output("j1") == b"hello\n"
    await world.submit("j2", *python("pass"), code=code, cwd="nowhere")
    await world.place("j2")
    ended = await world.ended("j2")
    assert (ended.outcome, "nowhere" in ended.reason) == ("failed", True)


async def test_a_preempted_job_goes_on_elsewhere_with_the_same_files_and_nothing_of_its_first_run(
    world: World, folder: Path
) -> None:
    await world.node("n1")
    await world.node("n2")
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    waits = "import time; time.sleep(60 if os.environ['PENSTOCK_NODE'] == 'n1' else 0)"
    script = f"{SHOW}\nopen('written', 'w').close()\n{waits}"
    await world.run("j1", *python(script), code=code, grace_s=1.0)
    await world.says("j1", "42 hello n1")
    await world.preempt("j1")
    await world.ended("j1", 1)
    await world.place("j1", 0, epoch=2, node_id="n2")
    assert (await world.ended("j1", 2, "n2")).outcome == "completed"
    first, second = (await world.output("j1")).decode().splitlines()
    assert first.replace("n1", "n2") == second


async def test_a_later_run_on_the_same_node_begins_with_the_files_as_they_were(world: World, folder: Path) -> None:
    await world.node()
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    script = "import os, time; print(os.path.exists('x'), flush=True); open('pkg/__init__.py', 'a').write('?')\n"
    await world.run("j1", *python(script + "open('x', 'w'); time.sleep(60)"), code=code, grace_s=1.0)
    await world.says("j1", "False")
    await world.preempt("j1")
    await world.ended("j1", 1)
    await world.place("j1", 0, epoch=2)
    await world.says("j1", "False", 2)
    assert not (world.folder / "n1" / "work" / "j1-1").exists()
    assert (world.folder / "n1" / "work" / "j1-2" / "code" / "x").exists()


async def test_a_gang_has_its_files_on_both_nodes(world: World, folder: Path) -> None:
    await world.node("n1")
    await world.node("n2")
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    await world.submit("j1", *python(SHOW), code=code, gpus=3)
    await world.place_on("j1", {"n1": (0, 1), "n2": (0,)})
    assert (await world.ended("j1", 1, "n1")).outcome == "completed"
    assert (await world.ended("j1", 1, "n2")).outcome == "completed"
    assert (await world.output("j1")).count(b"42 hello") == 3


async def test_code_that_is_not_there_or_is_somebody_elses_fails_the_run_and_says_so(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_fetch, "_LOOK_S", 0.01)
    await world.node()
    code = await uploaded(world.bus, folder, "bob")  # type: ignore[arg-type]
    for job_id, user in (("j1", "alice"), ("j2", "")):
        await world.run(job_id, *python(SHOW), code=code, user=user)
        ended = await world.ended(job_id)
        assert (ended.outcome, ended.exit_code) == ("failed", None)
        assert "cannot be had: a part of it is not in the cluster (any more); submit the job again" in ended.reason
        assert await world.facts(job_id) == ["RunEnded"]


async def test_a_part_that_is_not_what_was_uploaded_fails_the_run(world: World, folder: Path) -> None:
    await world.node()
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    stored = world.bus.server.code  # type: ignore[attr-defined]
    subject = subjects.code_part("", code_tree.digest_of(b"hello"), 5)
    stored[subject] = b"hallo"
    await world.run("j1", *python(SHOW), code=code)
    assert "not what was uploaded" in (await world.ended("j1")).reason


async def test_an_executor_that_is_killed_while_it_fetches_goes_on_with_what_it_has(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await world.node()
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    real, asked = MemoryBus.get_code, list[str]()
    stuck = asyncio.Event()

    async def slow(self: MemoryBus, wanted: Sequence[str]) -> dict[str, bytes]:
        asked.extend(wanted)
        if len(asked) > 10:
            stuck.set()
            await asyncio.Event().wait()
        return await real(self, wanted)

    monkeypatch.setattr(MemoryBus, "get_code", slow)
    await world.run("j1", *python(SHOW), code=code)
    await stuck.wait()
    await node.kill()
    monkeypatch.undo()
    await node.start()
    assert (await world.ended("j1")).outcome == "completed"
    assert list((world.folder / "n1" / "code" / "fresh").glob("*")) == []


async def test_a_full_disk_is_a_warning_and_the_run_begins_once_there_is_room(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_fetch, "FULL_S", 0.05)
    await world.node()
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    real, full = code_cache.lay_out, [True]

    def lay_out(tree: CodeTree, cache: CodeCache, where: Path) -> None:
        if full:
            raise OSError(28, "No space left on device")
        real(tree, cache, where)

    monkeypatch.setattr(code_cache, "lay_out", lay_out)
    await world.run("j1", *python(SHOW), code=code)
    warned = await world.fact(RunWarned, "j1")
    assert "No space left on device; free some space there; it is tried again" in warned.warning
    full.clear()
    assert (await world.ended("j1")).outcome == "completed"
    assert (await world.facts("j1")).count("RunWarned") == 1


async def test_what_no_disk_takes_fails_the_run_instead_of_holding_its_devices(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lay_out(tree: CodeTree, cache: CodeCache, where: Path) -> None:
        raise OSError(36, "File name too long")

    await world.node()
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    monkeypatch.setattr(code_cache, "lay_out", lay_out)
    await world.run("j1", *python(SHOW), code=code)
    ended = await world.ended("j1")
    assert (ended.outcome, "File name too long" in ended.reason) == ("failed", True)


async def test_what_nobody_expected_of_code_fails_its_run_and_not_the_executor(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lay_out(tree: CodeTree, cache: CodeCache, where: Path) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    await world.node()
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    with monkeypatch.context() as patched:
        patched.setattr(code_cache, "lay_out", lay_out)
        await world.run("j1", *python(SHOW), code=code)
        ended = await world.ended("j1")
    assert (ended.outcome, "RecursionError; see the executor's log" in ended.reason) == ("failed", True)
    await world.run("j2", *python(SHOW), code=code)
    assert (await world.ended("j2")).outcome == "completed"


def test_folders_are_made_one_after_the_other_however_deep_they_are(passing: Path) -> None:
    deep = b"/".join([b"a"] * 1024)
    code_cache.lay_out(CodeTree((TreeEntry(deep, "folder"),)), CodeCache(passing / "cache", 0), passing / "laid")
    assert os.path.isdir(os.path.join(os.fsencode(passing / "laid"), deep))


async def test_trees_that_are_laid_out_keep_no_other_work_of_the_node_waiting(tmp_path: Path, folder: Path) -> None:
    goes_on, looking = threading.Event(), []

    class Slow(CodeCache):
        def missing(self, tree: CodeTree) -> list[TreeEntry]:
            looking.append(1)
            assert goes_on.wait(60)
            return super().missing(tree)

    async with MemoryBus() as bus, asyncio.TaskGroup() as tasks:
        code = await uploaded(bus, folder)
        pending = code_fetch.PendingCode(
            bus,
            Slow(tmp_path / "cache", 1 << 30),
            WorkFolders(tmp_path / "work"),
            tasks,
            rule=IdentityRule(run_as="executor"),
            warn=lambda *_: None,
            wake=lambda: None,
        )
        job: Any = SimpleNamespace(spec=SimpleNamespace(code=code, user=""))
        try:
            for number in range(40):
                pending.fetch((f"j{number}", 1), job)
            await eventually(lambda: bool(looking))
            async with asyncio.timeout(30):  # heartbeats and fences take such a thread
                assert await asyncio.to_thread(lambda: "a thread is free") == "a thread is free"
        finally:
            goes_on.set()
        await eventually(lambda: all(one.at == "ready" for one in pending.found.values()))
        pending.cancel()


async def test_a_cancelled_job_is_not_fetched_for_any_more(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.node()
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    asked = asyncio.Event()

    async def never(self: MemoryBus, wanted: Sequence[str]) -> dict[str, bytes]:
        asked.set()
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(MemoryBus, "get_code", never)
    await world.run("j1", *python(SHOW), code=code)
    await asked.wait()
    await world.cancel("j1")
    assert (await world.ended("j1")).outcome == "cancelled"


async def test_the_cache_keeps_to_its_bound_and_a_second_job_fetches_nothing(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.node(code_cache_bytes=21 * PART_BYTES)
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    await world.run("j1", *python(SHOW), code=code)
    await world.ended("j1")
    asked = list[str]()
    real = MemoryBus.get_code

    async def noted(self: MemoryBus, wanted: Sequence[str]) -> dict[str, bytes]:
        asked.extend(wanted)
        return await real(self, wanted)

    monkeypatch.setattr(MemoryBus, "get_code", noted)
    await world.run("j2", *python(SHOW), code=code)
    await world.ended("j2")
    assert len(asked) == 2, "the record, and the list of files"
    (folder / "large.bin").write_bytes(os.urandom(20 * PART_BYTES))
    other = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    await world.run("j3", *python(SHOW), code=other)
    await world.ended("j3")
    cached = world.folder / "n1" / "code"

    def size() -> int:
        return sum(path.stat().st_size for path in cached.glob("??/*"))

    await eventually(lambda: size() <= 21 * PART_BYTES)


def test_what_is_pinned_stays_in_the_cache_whatever_its_bound(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "cache", 0)
    entry = _entry(b"a", b"body")
    cache.add(entry, [b"bo", b"dy"])
    tree = CodeTree((entry,))
    with cache.pinned(tree):
        assert (cache.evict(), cache.missing(tree)) == (0, [])
    assert (cache.evict(), cache.missing(tree)) == (1, [entry])


def test_a_file_of_other_content_is_not_kept(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path / "cache", 100)
    with pytest.raises(BadTree):
        cache.add(_entry(b"a", b"body"), [b"soul"])
    assert [path for path in cache.folder.rglob("*") if path.is_file()] == []


def _entry(path: bytes, body: bytes) -> TreeEntry:
    return TreeEntry(path, "file", 0o644, len(body), bytes.fromhex(code_tree.digest_of(body)))


def test_work_folders_go_some_time_after_their_run(tmp_path: Path) -> None:
    folders, cache = WorkFolders(tmp_path / "work"), CodeCache(tmp_path / "cache", 100)
    tree = CodeTree((TreeEntry(b"empty", "folder"),))
    for key in (("my-job", 1), ("my-job-2", 1), ("other", 3)):
        folders.make(key, tree, cache, None)
    folders.make(("my-job", 2), tree, cache, None)
    there = sorted(path.name for path in folders.folder.iterdir())
    assert there == ["my-job-2", "my-job-2-1", "other-3"]
    ended_s = (folders.folder / "other-3").stat().st_mtime
    assert sorted(folders.expire(ended_s + 100, {("my-job", 2)}, 50.0)) == ["my-job-2-1", "other-3"]
    assert folders.expire(ended_s + 10, (), 50.0) == []


def test_a_folder_that_a_job_has_made_very_deep_goes_too(passing: Path) -> None:
    folders, cache = WorkFolders(passing / "work"), CodeCache(passing / "cache", 100)
    tree = CodeTree((TreeEntry(b"empty", "folder"),))
    for key in (("j1", 1), ("j2", 1)):
        folders.make(key, tree, cache, None)
        at = os.open(folders.path(key), os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("a", dir_fd=at)
            below = os.open("a", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
        os.close(at)
    folders.make(("j1", 2), tree, cache, None)
    assert sorted(path.name for path in folders.folder.iterdir()) == ["j1-2", "j2-1"]
    ended_s = (folders.folder / "j2-1").stat().st_mtime
    assert "j2-1" in folders.expire(ended_s + 100, {("j1", 2)}, 50.0)
    assert [path.name for path in folders.folder.iterdir()] == ["j1-2"]


@as_root
def test_a_folder_belongs_to_its_runs_user_and_nobody_else_looks_into_it(tmp_path: Path) -> None:
    folders, cache = WorkFolders(tmp_path / "work"), CodeCache(tmp_path / "cache", 100)
    entry = _entry(b"pkg/a", b"body")
    cache.add(entry, [b"body"])
    tree = CodeTree((TreeEntry(b"etc", "link", target=b"pkg/a"), entry))
    folders.make(("j1", 1), tree, cache, ALICE)
    path = folders.path(("j1", 1))
    owners = {os.lstat(one).st_uid for one in (path, *path.rglob("*"))}
    assert owners == {ALICE[0]}
    assert path.stat().st_mode & 0o777 == job_folders.OWNER_ONLY
    assert (path.parent.stat().st_uid, path.parent.stat().st_mode & 0o777) == (0, job_folders.PASSABLE)


@as_root
async def test_a_users_job_runs_in_a_folder_of_its_users_on_a_node_of_roots(world: World, folder: Path) -> None:
    let_through(world.folder)
    await world.node(run_as="user", users={"alice": "nobody"})
    code = await uploaded(world.bus, folder, "alice")  # type: ignore[arg-type]
    script = "import os; open('written', 'w').close(); print(os.geteuid(), open('data/x.txt').read(), flush=True)"
    await world.submit("j1", "/usr/bin/python3", "-c", script, code=code, user="alice", env={"PATH": "/usr/bin"})
    await world.place("j1")
    ended = await world.ended("j1")
    assert ended.outcome == "completed", ended.reason
    assert (await world.output("j1")).decode() == "65534 hello\n"
    assert await world.fact(RunStarted, "j1")


@as_root
@pytest.mark.parametrize("within", [{"sandbox": "bubblewrap"}, {"containers": "bubblewrap"}])
@pytest.mark.thorough
async def test_the_whole_folder_is_seen_and_written_in_a_sandbox_and_in_an_image(
    world: World, folder: Path, tmp_path_factory: pytest.TempPathFactory, within: dict[str, str]
) -> None:
    if why := sandbox.problem(65_534):
        pytest.skip(f"NOT TESTED: {why}")
    root = small_root(let_through(tmp_path_factory.mktemp("image")))
    let_through(world.folder)  # which a new folder of pytest's closes again
    await world.node(run_as="user", users={"alice": "nobody"}, **within)
    code = await uploaded(world.bus, folder, "alice")  # type: ignore[arg-type]
    script = "cat x.txt ../pkg/__init__.py && echo && echo mine > ../written && cat ../written"
    image = str(root) if "containers" in within else ""
    await world.submit("j1", "sh", "-c", script, code=code, cwd="data", user="alice", image=image)
    await world.place("j1")
    ended = await world.ended("j1")
    assert ended.outcome == "completed", (ended.reason, await world.output("j1"))
    assert (await world.output("j1")).decode().split() == ["helloVALUE", "=", "42", "mine"]
    assert (world.folder / "n1" / "work" / "j1-1" / "code" / "written").stat().st_uid == 65_534


async def test_a_sample_of_the_profilers_runs_in_the_folder_too(world: World, folder: Path) -> None:
    (folder / "train.py").write_text("import pkg\nprint('sampled', pkg.VALUE)  # by penstock\n")
    (folder / "other.py").write_text("print('never')\n")
    await world.node()
    code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
    for number, script in enumerate(("train.py", "other.py")):
        spec = JobSpec(name="s", command=(sys.executable, script), code=code)
        sample = ProfileSample(sample_id=f"s{number}", kind="fast", iterations=5)
        await world.write(SamplesRequested(key=f"k{number}", spec=spec, samples=(sample,), at_s=world.now_s()))
        await world.place(f"s{number}")
        await world.ended(f"s{number}")
    assert await world.output("s0") == b"sampled 42\n"
    assert "opaque" in (await world.ended("s1")).reason


async def test_a_module_of_the_folders_own_is_that_of_the_run_and_of_no_earlier_one(world: World, folder: Path) -> None:
    await world.node()
    (folder / "train.py").write_text("import pkg\nprint(pkg.VALUE)\n")
    for number in range(3):
        (folder / "pkg" / "__init__.py").write_text(f"VALUE = {number}\n")
        code = await uploaded(world.bus, folder)  # type: ignore[arg-type]
        await world.run(f"j{number}", sys.executable, "train.py", code=code)
        await world.ended(f"j{number}")
        assert await world.output(f"j{number}") == b"%d\n" % number
