"""Backups: a running log comes back as it was, and a file that is torn, altered or of another kind is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sqlite3
import stat
import tarfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from penstock_bus import Append, Snapshot
from penstock_bus.follower import background
from penstock_bus.identity.access import ADMIN
from penstock_bus.nats import NatsBus, connect
from penstock_bus.nats.link import Link
from penstock_bus.servers.server import ServerSettings, running
from penstock_cli.local import backup_file
from penstock_cli.local.backup_file import BackupContent, BackupError
from penstock_gateway.archived_ids import FILE, ArchivedIds
from penstock_log import Commit, JobHeld, subjects

MADE_S = 1_700_000_000.0


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[NatsBus]:
    """Run a server on a folder, and connect to it as its administrator."""
    async with (
        running(ServerSettings(data_dir=folder, sync_interval="2m")) as server,
        connect(server.url, login=server.logins[ADMIN]) as bus,
    ):
        yield bus


@asynccontextmanager
async def empty(folder: Path) -> AsyncIterator[tuple[Link, int]]:
    """The same, without streams."""
    async with (
        running(ServerSettings(data_dir=folder, sync_interval="2m")) as server,
        connect(server.url, login=server.logins[ADMIN], as_client=True) as bus,
    ):
        yield bus.link, server.store_bytes


def held(job_id: str, number: int) -> Append:
    fact = JobHeld(job_id=job_id, at_s=float(number))
    commit = Commit(id=f"{job_id}-{number}", actor="gateway/test", facts=(fact,))
    return Append(subject=subjects.job(job_id), commit=commit, expected=None)


async def backed_up(tmp_path: Path, jobs: int = 3) -> tuple[Path, BackupContent]:
    """Write a small log, and a backup of it."""
    folder, file = tmp_path / "data", tmp_path / "b.tar.gz"
    async with served(folder) as bus:
        await bus.append_many([held(f"j{i}", i) for i in range(jobs)])
        await bus.submit(subjects.INBOX_JOBS, b"waits for a gateway")
        await bus.save_snapshot("gateway", Snapshot(schema="s", last_seq=2, state=b"x" * 1000))
        await bus.write_output("j0", 0, b"said\n")
        return file, await backup_file.write(file, bus.link, folder, MADE_S)


async def test_a_log_comes_back_with_its_sequences_snapshots_output_and_what_waits(tmp_path: Path) -> None:
    file, content = await backed_up(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert backup_file.check(file) == content
    restored = tmp_path / "restored"
    await backup_file.restore(file, restored, empty)
    assert (restored / "nats" / "keys.json").read_bytes() != (tmp_path / "data/nats/keys.json").read_bytes()
    assert stat.S_IMODE((restored / "nats" / "keys.json").stat().st_mode) == 0o600
    async with served(restored) as bus:
        assert [(one.seq, one.subject) for one in await bus.read("penstock.evt.>")] == [
            (i + 1, subjects.job(f"j{i}")) for i in range(3)
        ]
        snapshot = await bus.load_snapshot("gateway")
        assert snapshot is not None
        assert snapshot.last_seq == 2
        assert [line.data async for line in bus.read_output("j0")] == [b"said\n"]
        assert [work.body async for work in first(bus.work("w", [subjects.INBOX_JOBS]))] == [b"waits for a gateway"]
        assert await bus.append(held("j9", 9)) == 4, "the log goes on where it was"


async def first(works: AsyncIterator[object]) -> AsyncIterator[object]:
    async for work in works:
        yield work
        return


async def test_what_is_written_meanwhile_is_in_the_backup_as_a_beginning_of_the_log(tmp_path: Path) -> None:
    folder, file = tmp_path / "data", tmp_path / "b.tar.gz"
    async with served(folder) as bus:
        await bus.append_many([held("j", i) for i in range(3000)])

        async def go_on() -> None:
            for i in range(3000, 4000):
                await bus.append(held("j", i))

        async with background(go_on()):
            content = await backup_file.write(file, bus.link, folder, MADE_S)
    last_seq = content.streams["EVT"]["last_seq"]
    assert last_seq >= 3000
    await backup_file.restore(file, tmp_path / "restored", empty)
    async with served(tmp_path / "restored") as bus:
        assert [one.seq for one in await bus.read("penstock.evt.>")] == list(range(1, last_seq + 1))


async def test_what_the_archive_takes_out_of_the_log_meanwhile_is_in_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = tmp_path / "data", tmp_path / "b.tar.gz"
    async with served(folder) as bus:
        await bus.append_many([held("j", i) for i in range(3)])
        whole = backup_file._add_stream

        async def archived_before_the_log_is_copied(writer: Any, link: Link, name: str) -> dict[str, Any]:
            if name == subjects.EVT:
                for kept in ("archive", "history"):
                    (folder / kept).mkdir()
                (folder / "history" / "0a-1-b.past.sqlite").write_bytes(b"made again from the log")
                (folder / "archive" / "2026-01-31.jsonl.gz").write_bytes(b"the job's facts")
                await bus.trim(subjects.job("j"), 4)
            return await whole(writer, link, name)

        monkeypatch.setattr(backup_file, "_add_stream", archived_before_the_log_is_copied)
        await backup_file.write(file, bus.link, folder, MADE_S)
    await backup_file.restore(file, tmp_path / "restored", empty)
    assert (tmp_path / "restored" / "archive" / "2026-01-31.jsonl.gz").read_bytes() == b"the job's facts"
    assert not (tmp_path / "restored" / "history").exists()


async def test_a_database_is_copied_as_it_was_between_two_writes(tmp_path: Path) -> None:
    folder, file = tmp_path / "data", tmp_path / "b.tar.gz"
    ids = ArchivedIds(folder / "archive")
    async with served(folder) as bus:
        ids.add([(f"j{i}", "alice") for i in range(20_000)])
        with closing(sqlite3.connect(folder / "archive" / FILE, isolation_level=None)) as writing:
            writing.execute("PRAGMA cache_size = 1")  # so that pages are written before the end of the transaction
            writing.execute("BEGIN")
            writing.execute("UPDATE owners SET user = 'mallory'")
            with pytest.raises(BackupError, match="cannot be copied: database is locked"):
                await backup_file.write(file, bus.link, folder, MADE_S)
            writing.execute("ROLLBACK")
            writing.execute("BEGIN")
            writing.execute("UPDATE owners SET user = 'mallory' WHERE id = 'j1'")
            content = await backup_file.write(file, bus.link, folder, MADE_S)
    assert [name for name in content.files if name.startswith("archive/")] == [f"archive/{FILE}"]
    await backup_file.restore(file, tmp_path / "restored", empty)
    restored = ArchivedIds(tmp_path / "restored" / "archive")
    ids_of_some = ("j0", "j1", "j19999")
    assert restored.owners(ids_of_some) == dict.fromkeys(ids_of_some, "alice")


async def test_every_torn_file_is_refused_by_its_name_and_makes_no_folder(tmp_path: Path) -> None:
    file, _ = await backed_up(tmp_path)
    whole, torn = file.read_bytes(), tmp_path / "torn.tar.gz"
    for length in (0, 1, 20, len(whole) // 3, len(whole) // 2, len(whole) - 600, len(whole) - 8, len(whole) - 1):
        torn.write_bytes(whole[:length])
        with pytest.raises(BackupError, match=r"torn\.tar\.gz"):
            await backup_file.restore(torn, tmp_path / "restored", empty)
    assert {path.name for path in tmp_path.iterdir()} == {"data", file.name, torn.name}


def rewritten(file: Path, change: dict[str, bytes | None], more: Iterable[str] = (), before: str | None = None) -> Path:
    """Return a copy of a backup with other members, packed as it was: its own checksum says that it is whole."""
    made = file.with_name("rewritten.tar.gz")
    with gzip.open(made, "wb") as packed, tarfile.open(fileobj=packed, mode="w|") as out:
        with tarfile.open(file) as archive:
            members = [(info.name, archive.extractfile(info).read()) for info in archive]  # type: ignore[union-attr]
        at = next((i for i, (name, _) in enumerate(members) if name == before), len(members))
        members[at:at] = [(name, b"more") for name in more]
        for name, body in members:
            if (kept := change.get(name, body)) is not None:
                info = tarfile.TarInfo(name)
                info.size = len(kept)
                out.addfile(info, io.BytesIO(kept))
    return made


async def test_an_altered_missing_or_added_member_is_named(tmp_path: Path) -> None:
    file, _ = await backed_up(tmp_path)
    for change, more, said in [
        ({"files/nats/passwords.json/README": b"{}"}, [], "files/nats/passwords.json/README"),
        ({"streams/EVT/0000000": b"other"}, [], "streams/EVT/0000000"),
        ({"streams/EVT/0000000": None}, [], "streams/EVT/0000000"),
        ({"members.json": None}, [], "torn"),
        ({}, ["files/more"], "files/more"),
    ]:
        with pytest.raises(BackupError, match=said):
            backup_file.check(rewritten(file, change, more))  # type: ignore[arg-type]


async def test_a_file_of_a_later_version_or_of_something_else_is_refused(tmp_path: Path) -> None:
    file, _ = await backed_up(tmp_path)
    head = {"format": 99, "version": "9.9", "made_s": 1.0}
    with pytest.raises(BackupError, match=r"Penstock 9\.9 in format 99.*at least as new"):
        backup_file.check(rewritten(file, {"backup.json": json.dumps(head).encode()}))
    with pytest.raises(BackupError, match="no backup of Penstock"):
        backup_file.check(rewritten(file, {"backup.json": None}))
    other = tmp_path / "text"
    other.write_text("no archive")
    with pytest.raises(BackupError, match="text is torn or damaged, or no backup at all"):
        backup_file.check(other)
    with pytest.raises(BackupError, match="cannot be read: No such file"):
        backup_file.check(tmp_path / "absent")


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "nats/../../evil"])
async def test_no_member_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    made = tmp_path / "evil.tar.gz"
    with tarfile.open(made, "w:gz") as out:
        head = json.dumps({"format": 1, "version": "0", "made_s": 0.0}).encode()
        for member, body in [("backup.json", head), (f"files/{name}", b"x"), ("members.json", b"[]")]:
            info = tarfile.TarInfo(member)
            info.size = len(body)
            out.addfile(info, io.BytesIO(body))
    with pytest.raises(BackupError, match="outside of a data folder"):
        await backup_file.restore(made, tmp_path / "sub" / "restored", empty)


async def test_nothing_is_overwritten(tmp_path: Path) -> None:
    file, _ = await backed_up(tmp_path)
    before = file.read_bytes()
    async with served(tmp_path / "data") as bus:
        with pytest.raises(BackupError, match="exists"):
            await backup_file.write(file, bus.link, None, MADE_S)
    assert file.read_bytes() == before
    with pytest.raises(BackupError, match="not empty"):
        await backup_file.restore(file, tmp_path / "data", empty)


async def test_output_and_checkpoints_of_jobs_and_logins_are_left_out_and_all_else_is_in(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    logins = ("nats/accounts/AB.jwt", "nats/logins/matcher.json", "nats-2/accounts/AB.jwt")
    of_jobs = ("checkpoints/j/1", "executor-2/runs/x", "logs/matcher-1.log")
    for name in (*logins, *of_jobs, "nats/tls/ca.pem", "archive/2026-01-31.jsonl.gz"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "nats/revoked.json").write_text("{}")
    async with served(folder) as bus:
        content = await backup_file.write(tmp_path / "b", bus.link, folder, MADE_S)
    assert sorted(content.files) == ["archive/2026-01-31.jsonl.gz", "nats/passwords.json/README", "nats/tls/ca.pem"]


async def test_the_keys_in_a_file_of_an_earlier_version_are_left_there(tmp_path: Path) -> None:
    file, _ = await backed_up(tmp_path)
    with tarfile.open(file) as archive:
        members = json.loads(archive.extractfile("members.json").read())  # type: ignore[union-attr]
    names = ("files/nats/keys.json", "files/nats/revoked.json", "files/nats/tls/ca.pem")
    added = [{"name": name, "bytes": 4, "sha256": hashlib.sha256(b"more").hexdigest()} for name in names]
    listed = {"members.json": json.dumps([*members, *added]).encode()}
    earlier = rewritten(file, listed, names, before="members.json")
    assert {name.removeprefix("files/") for name in names} <= set(backup_file.check(earlier).files)
    await backup_file.restore(earlier, tmp_path / "restored", empty)
    assert (tmp_path / "restored/nats/tls/ca.pem").read_bytes() == b"more"
    assert (tmp_path / "restored/nats/keys.json").read_bytes() != b"more"
    assert not (tmp_path / "restored/nats/revoked.json").exists()
