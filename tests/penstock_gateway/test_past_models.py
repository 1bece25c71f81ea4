"""The index of the past: whatever becomes of its folder, answers are those of a fold from the log's beginning."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_cases import NOW_S, gateway, joined, refusal, submitted
from random_history import RandomHistory
from structlog.testing import capture_logs
from test_past_fold import whole

from penstock_bus import Append, Delivery, Gathering
from penstock_bus.decider import Fold
from penstock_bus.follower import FoldFollower, background
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_gateway import machine, past_models
from penstock_gateway.log_reader import LogMoment
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.past_fold import PastFold
from penstock_gateway.past_models import PastModels
from penstock_gateway.snapshot_file import IndexDamaged, SnapshotFile
from penstock_log import ARCHIVE, AnyEvent, Commit, JobsArchived, LogTrimmed, subjects
from penstock_testing import eventually, subject_of
from sweeps import sampled

DECIDER = machine.decider(GatewaySettings())
EVERY = 10


class ReadingBus(MemoryBus):
    """A bus that tells from where the log was read."""

    def __init__(self, server: MemoryServer | None = None) -> None:
        super().__init__(server)
        self.begun: list[int] = []
        self.name = "log"

    async def follow(
        self, after_seq: int = 0, subjects: Sequence[str] = (), gathering: Gathering | None = None
    ) -> AsyncIterator[Delivery]:
        self.begun.append(after_seq)
        async for delivery in super().follow(after_seq, subjects, gathering):
            yield delivery


async def store(bus: ReadingBus, facts: Sequence[AnyEvent], at: list[float] | None = None) -> None:
    for fact in facts:
        if at is not None:
            at[0] = max(at[0], fact.at_s)
        number = await bus.last_seq()
        commit = Commit(id=f"{bus.name}-{number}", actor="test", facts=(fact,))
        await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))


async def log_of(seed: int, number: int = 200) -> ReadingBus:
    now = [NOW_S]
    bus = ReadingBus(MemoryServer(now=lambda: now[0]))
    bus.name = f"log{seed}"
    await store(bus, [joined("n1"), joined("n2"), *RandomHistory(seed, trims=False).facts(number)], now)
    return bus


@asynccontextmanager
async def indexed(bus: MemoryBus, folder: Path | str) -> AsyncIterator[PastModels]:
    async with FoldFollower(bus, DECIDER) as live:
        await live.caught_up()
        ticks = asyncio.get_running_loop().time
        past = PastModels(bus, live, str(folder), ticks=ticks, patience_s=60.0, every=EVERY)
        async with background(past.run()):
            await past.model_at(LogMoment(seq=await bus.last_seq()))
            yield past


async def as_folded(bus: MemoryBus, until_seq: int) -> Any:
    fold = Fold(DECIDER)
    for delivery in await bus.read("penstock.evt.>", 0, until_seq):
        fold.apply(delivery)
    return whole(fold.state)


async def check(past: PastModels, bus: MemoryBus, seed: int = 1) -> None:
    """Check some moments."""
    last_seq = await bus.last_seq()
    rng = np.random.default_rng(seed)
    for seq in {1, last_seq, *rng.integers(1, last_seq, 4).tolist()}:
        model = await past.model_at(LogMoment(seq=seq))
        there = await bus.read("penstock.evt.>", 0, seq)
        assert model.seq == there[-1].seq  # the moment's own fact, unless it was removed from the log
        assert whole(model.state) == await as_folded(bus, seq)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.past.sqlite"))


async def test_a_question_begins_at_the_last_snapshot_before_its_moment(tmp_path: Path) -> None:
    bus = await log_of(1)
    async with indexed(bus, tmp_path) as past:
        bus.begun.clear()
        for seq in (57, 101, 200):
            model = await past.model_at(LogMoment(seq=seq))
            assert (model.seq, model.now_s) == (seq, (await bus.read("penstock.evt.>", seq - 1, seq))[0].stored_s)
    assert bus.begun == [50, 100]


async def test_another_question_about_the_same_moment_reads_nothing(tmp_path: Path) -> None:
    bus = await log_of(1)
    async with indexed(bus, tmp_path) as past:
        first = await past.model_at(LogMoment(seq=57))
        bus.begun.clear()
        assert (await past.model_at(LogMoment(seq=57))).state is first.state
    assert bus.begun == []


async def test_snapshots_are_written_as_the_log_goes_on(tmp_path: Path) -> None:
    bus = await log_of(2)
    async with indexed(bus, tmp_path) as past:
        await store(bus, [submitted(f"late{n}", at_s=NOW_S + 900 + n) for n in range(5 * EVERY)])
        await check(past, bus)
        (path,) = files(tmp_path)
        last = SnapshotFile(path).nearest(None)
        assert last is not None
        assert last.seq > 200 + 2 * EVERY


async def test_an_index_that_is_there_is_used_after_a_start(tmp_path: Path) -> None:
    bus = await log_of(3)
    async with indexed(bus, tmp_path) as past:
        await check(past, bus)
    before = files(tmp_path)
    bus.begun.clear()
    async with indexed(bus, tmp_path) as past:
        await check(past, bus)
    assert files(tmp_path) == before
    assert sum(seq == 0 for seq in bus.begun) == 2  # the live fold, and the question about commit 1


async def test_a_time_is_the_last_commit_that_was_stored_by_then(tmp_path: Path) -> None:
    bus = await log_of(4)
    async with indexed(bus, tmp_path) as past:
        for at_s in (NOW_S - 1, NOW_S + 0.5, NOW_S + 60, NOW_S + 1e6):
            model = await past.model_at(LogMoment(time_s=at_s))
            stored = [one.seq for one in await bus.read("penstock.evt.>") if one.stored_s <= at_s]
            assert (model.seq, model.now_s) == (max(stored, default=0), at_s)


@pytest.mark.parametrize("seed", sampled(range(12)))
async def test_a_file_in_which_anything_was_changed_is_made_again(tmp_path: Path, seed: int) -> None:
    bus, rng = await log_of(5), np.random.default_rng(seed)
    async with indexed(bus, tmp_path):
        pass
    (path,) = files(tmp_path)
    body = bytearray(path.read_bytes())
    for _ in range(3):
        at = int(rng.integers(len(body)))
        body[at] ^= 1 << int(rng.integers(8))
    path.write_bytes(body)
    async with indexed(bus, tmp_path) as past:
        await check(past, bus, seed)


@pytest.mark.parametrize("left", [0.0, 0.3, 0.9])
async def test_a_file_that_was_cut_off_is_said_dropped_and_made_again(tmp_path: Path, left: float) -> None:
    bus = await log_of(5)
    async with indexed(bus, tmp_path):
        pass
    (path,) = files(tmp_path)
    path.write_bytes(path.read_bytes()[: int(left * path.stat().st_size)])
    with capture_logs() as logs:
        async with indexed(bus, tmp_path) as past:
            await check(past, bus)
    assert "index_snapshots_damaged" in {line["event"] for line in logs}
    assert files(tmp_path) != [path]


async def test_the_folder_may_be_removed_while_the_gateway_runs(tmp_path: Path) -> None:
    bus = await log_of(6)
    async with indexed(bus, tmp_path / "history") as past:
        shutil.rmtree(tmp_path / "history")
        await check(past, bus)
        await store(bus, [submitted(f"late{n}", at_s=NOW_S + 900 + n) for n in range(3 * EVERY)])
        await past.model_at(LogMoment(seq=await bus.last_seq()))
        await check(past, bus)
        await eventually(lambda: bool(files(tmp_path / "history")))
        await check(past, bus)


async def test_a_file_that_is_spoilt_while_the_gateway_runs_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_models, "EVERY", EVERY)
    settings = GatewaySettings(history_dir=str(tmp_path), query_timeout_s=60.0)
    facts = [joined(), *(submitted(f"j{n}") for n in range(100))]
    async with gateway(MemoryBus(), *facts, settings=settings) as served:
        before = await served.query("jobs", {"at": 95})
        (path,) = files(tmp_path)
        await eventually(lambda: (last := SnapshotFile(path).nearest(None)) is not None and last.seq >= 100)
        for one in (path, path.with_name(f"{path.name}-wal")):  # pages are read from either
            with one.open("r+b") as file:
                file.seek(4096)
                file.write(bytes(max(one.stat().st_size - 4096, 0)))
        with capture_logs() as logs:
            after = await served.query("jobs", {"at": 94})
            assert [job["id"] for job in after["jobs"]] == [job["id"] for job in before["jobs"][:-1]]
        assert [line["event"] for line in logs if "damaged" in line["event"]] == ["index_snapshots_damaged"]
        assert await served.query("jobs", {"at": 95}) == before


async def test_a_file_of_another_layout_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = await log_of(7)
    with monkeypatch.context() as patched:
        patched.setattr(past_models, "_FORM", "of an earlier version")
        async with indexed(bus, tmp_path):
            pass
    before = files(tmp_path)
    async with indexed(bus, tmp_path) as past:
        await check(past, bus)
    assert len(before) == len(files(tmp_path)) == 1
    assert before != files(tmp_path)


async def test_a_file_of_another_log_is_removed(tmp_path: Path) -> None:
    async with indexed(await log_of(8), tmp_path):
        pass
    for other in (await log_of(9), await log_of(10, number=45)):
        async with indexed(other, tmp_path) as past:
            await check(past, other)


async def test_two_gateways_share_a_folder(tmp_path: Path) -> None:
    bus = await log_of(11)
    async with indexed(bus, tmp_path) as one, indexed(bus, tmp_path) as other:
        for number in range(4):
            facts = [submitted(f"late{number}-{n}", at_s=NOW_S + 900 + n) for n in range(3 * EVERY)]
            await store(bus, facts)
            await asyncio.gather(check(one, bus), check(other, bus))
    (path,) = files(tmp_path)
    SnapshotFile(path).check()


async def test_of_two_that_write_the_same_snapshot_one_goes_on_from_the_others(tmp_path: Path) -> None:
    bus = await log_of(12)
    async with indexed(bus, tmp_path):
        pass
    (path,) = files(tmp_path)
    await store(bus, [submitted(f"late{n}", at_s=NOW_S + 900 + n) for n in range(EVERY)])
    folds = []
    for _ in range(2):
        file = SnapshotFile(path)
        fold = PastFold(file, DECIDER, file.nearest(None))
        for delivery in await bus.read("penstock.evt.>", fold.base_seq):
            fold.apply(delivery)
        folds.append(fold)
    assert [fold.save() for fold in folds] == [True, False]


async def test_what_was_removed_from_the_log_is_not_answered_from_the_index(tmp_path: Path) -> None:
    bus = await log_of(13)
    async with indexed(bus, tmp_path) as past:
        archived = JobsArchived(at_s=NOW_S + 800, archive=ARCHIVE, job_ids=("j1", "j2"))
        await store(bus, [archived])
        for job_id in archived.job_ids:
            for subject in (subjects.job(job_id), subjects.run(job_id)):
                await bus.trim(subject, await bus.last_seq())
        trimmed = LogTrimmed(
            at_s=NOW_S + 801, archive=ARCHIVE, archived_seq=await bus.last_seq(), before_seq=9, removed=9
        )
        more = [submitted(f"late{n}", at_s=NOW_S + 900 + n) for n in range(4 * EVERY)]
        await store(bus, [trimmed, *more])
        await past.model_at(LogMoment(seq=await bus.last_seq()))
        await check(past, bus)
    async with indexed(bus, tmp_path) as past:
        await check(past, bus)


async def test_a_log_of_which_a_long_stretch_was_removed_is_indexed(tmp_path: Path) -> None:
    bus = await log_of(14)
    await bus.trim("penstock.evt.>", 5 * EVERY)
    async with indexed(bus, tmp_path) as past:
        model = await past.model_at(LogMoment(seq=150))
        assert whole(model.state) == await as_folded(bus, 150)


async def test_without_a_folder_that_can_be_written_the_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("in the way")
    bus = await log_of(15)
    with capture_logs() as logs:
        async with indexed(bus, tmp_path / "history") as past:
            await check(past, bus)
    assert [line["event"] for line in logs].count("index_snapshots_not_written") == 1


async def test_a_temporary_folder_goes_with_the_gateway() -> None:
    bus = await log_of(16)
    async with indexed(bus, "") as past:
        await check(past, bus)
        folder = past._temporary
        assert folder is not None
        assert files(folder)
    assert not folder.exists()


async def test_a_question_that_waits_too_long_for_the_index_is_told_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(past_models, "EVERY", EVERY)
    monkeypatch.setattr(PastModels, "_write_on", never)
    settings = GatewaySettings(history_dir=str(tmp_path), query_timeout_s=0.05)
    async with gateway(MemoryBus(), joined(), *(submitted(f"j{n}") for n in range(50)), settings=settings) as served:
        code, message = await refusal(served.query("status", {"at": 40}))
    assert (code, message) == (
        503,
        "the past is being indexed up to commit 40, and it has come to 0 of 51; ask again in a moment",
    )


async def test_of_two_questions_that_meet_one_damage_the_second_leaves_the_new_file(tmp_path: Path) -> None:
    bus = await log_of(1)
    async with indexed(bus, tmp_path) as past:
        (old,) = files(tmp_path)
        damage = IndexDamaged(old, "an entry ends too early")
        await past.drop(damage)
        await past.model_at(LogMoment(seq=await bus.last_seq()))
        (new,) = files(tmp_path)
        assert new != old
        await past.drop(damage)
        assert files(tmp_path) == [new]
        await check(past, bus)
        assert files(tmp_path) == [new]
