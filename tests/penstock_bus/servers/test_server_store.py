"""What the streams may hold together, and what becomes of a store that is full."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_bus import Append, Snapshot, StorageFull, Unauthorized, Unavailable
from penstock_bus.identity.access import ADMIN, CLIENT
from penstock_bus.nats import NatsBus, StreamLimits, connect, streams
from penstock_bus.nats.streams import configs, outdated
from penstock_bus.servers.server import ServerSettings
from penstock_bus.servers.server_group import ServerGroup, running
from penstock_log import Commit, JobHeld, subjects

pytestmark = pytest.mark.slow

MIB = 1 << 20
SMALL = 64 * MIB
BODY = os.urandom(900_000)


def bus_of(server: ServerGroup, user: str = ADMIN, **options: Any) -> AbstractAsyncContextManager[NatsBus]:
    options = {"limits": StreamLimits.of_store(SMALL), "as_client": user == CLIENT, "timeout_s": 2.0, **options}
    return connect(server.url, login=server.logins[user], **options)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerGroup]:
    """A small store without streams."""
    async with running(ServerSettings(data_dir=tmp_path, max_store_bytes=SMALL, sync_interval="2m")) as started:
        yield started


def held(job_id: str) -> Append:
    fact = JobHeld(job_id=job_id, at_s=1.0)
    return Append(
        subject=subjects.job(job_id), commit=Commit(id=job_id, actor="gateway/1", facts=(fact,)), expected=None
    )


async def fill(bus: NatsBus, subject: str) -> int:
    """Publish until it is refused; return how many were taken."""
    count = 0
    while (await bus.link.store(subject, BODY, {"Nats-Msg-Id": f"{subject} {count}"})).error is None:
        count += 1
        assert count * len(BODY) < 2 * SMALL
    return count


@given(st.integers(1 * MIB, 1 << 50))
def test_three_eighths_of_every_store_are_left_to_the_log(store_bytes: int) -> None:
    limited = {name: config.get("max_bytes") for name, config in configs(StreamLimits.of_store(store_bytes)).items()}
    assert limited.pop(subjects.EVT) is None
    assert all(limited.values())
    assert sum(limited.values()) <= store_bytes * 5 / 8


async def test_nobody_can_fill_the_store_with_submissions(server: ServerGroup) -> None:
    async with bus_of(server) as admin, bus_of(server, CLIENT) as client:
        for subject in (subjects.INBOX_JOBS, subjects.INBOX_SWEEPS):
            await fill(client, subject)
        with pytest.raises(StorageFull, match="nothing was stored"):
            await client.submit(subjects.INBOX_JOBS, BODY)
        with pytest.raises(Unavailable, match="no stream took"):
            await admin.link.store("penstock.inbox.trash", b"x", {})
        assert await admin.append(held("j1"))
        lease = await admin.acquire("matcher", "m1", 5.0)
        assert lease is not None
        (largest, *_) = await streams.streams(admin.link)
        assert (largest.name, largest.max_bytes) == (subjects.INBOX, SMALL // 16)
        assert largest.bytes <= SMALL // 16


async def test_output_gives_way_to_newer_output_and_never_to_facts(server: ServerGroup) -> None:
    async with bus_of(server) as admin:
        for number in range(30):
            await admin.write_output(f"j{number}", 0, BODY)
        found = {one.name: one for one in await streams.streams(admin.link)}
        assert 0 < found[subjects.LOG].bytes <= 3 * SMALL // 16
        assert [line.job_id async for line in admin.read_output("j29")] == ["j29"]
        assert await admin.append(held("j1"))


def test_streams_on_several_servers_are_not_compressed_also_where_an_earlier_version_made_them() -> None:
    """nats-server 2.15.1 spoils compressed blocks of a server that comes back after it was killed."""
    alone, three = configs(StreamLimits()), configs(StreamLimits(replicas=3))
    assert {config.get("compression", "none") for config in three.values()} == {"none"}
    for name, config in alone.items():
        made, moved = ({"max_bytes": -1} | config | {"num_replicas": count} for count in (1, 3))
        compressed = config.get("compression", "none") != "none"
        assert "compression" not in outdated(made, config), "one server alone may go on"
        assert outdated(moved, config).get("compression") == ("none" if compressed else None), name
        assert outdated(made, three[name]).get("compression") == ("none" if compressed else None), name
        assert "compression" not in outdated({"max_bytes": -1} | three[name], config), "nobody compresses it again"


async def old_streams(admin: NatsBus) -> None:
    """Make the streams as earlier versions did: without limits, and with all of a kind in one stream."""
    for name, config in configs(StreamLimits()).items():
        if name in {subjects.CODE, subjects.SERIES, subjects.NODES}:
            continue
        old = {key: value for key, value in config.items() if not key.startswith("deny_") or "KV" in name}
        if name in {subjects.INBOX, subjects.STATE} or "KV" in name:
            old.pop("max_bytes")
        if name == subjects.INBOX:
            old |= {"subjects": ["penstock.inbox.>"], "discard": "old"}
            del old["max_msgs_per_subject"], old["discard_new_per_subject"]
        if name in {subjects.LOG, subjects.STATE}:
            old |= {"subjects": [f"penstock.{name.lower()}.>"], "allow_rollup_hdrs": True}
        small = {"max_bytes": MIB} if name in {subjects.LOG, subjects.SHADOW, subjects.REJECTED} else {}
        await admin.link.api(f"STREAM.CREATE.{name}", old | small)


async def test_a_full_store_of_an_earlier_version_starts_takes_facts_and_says_what_to_purge(
    server: ServerGroup,
) -> None:
    async with bus_of(server, as_client=True) as admin:
        await old_streams(admin)
        trash = await fill(admin, "penstock.inbox.trash")
        with pytest.raises(StorageFull):
            await admin.append(held("j1"))
    told = await server.widen_if_full()
    assert told.startswith("is full: 6")
    assert f"{trash * len(BODY) // MIB} MiB of it in INBOX; `penstock purge --data {server.settings.data_dir}`" in told
    async with bus_of(server) as admin:
        assert await admin.append(held("j1"))
        assert await admin.acquire("matcher", "m1", 5.0)
        queue = await streams.stream(admin.link, subjects.INBOX)
        assert (queue.subjects, queue.max_bytes) == ({"penstock.inbox.trash": trash}, SMALL // 16)
        with pytest.raises(Unavailable, match="no stream took"):
            await admin.link.store("penstock.inbox.trash", b"x", {})
        assert await streams.purge(admin.link, subjects.INBOX) == trash
        await admin.submit(subjects.INBOX_JOBS, b"{}")
        bounded = (await admin.link.api(f"STREAM.INFO.{subjects.INBOX}"))["config"]
        assert (bounded["max_msgs_per_subject"], bounded["discard_new_per_subject"]) == (20_000, True)
        with pytest.raises(ValueError, match="nothing brings back"):
            await streams.purge(admin.link, subjects.EVT)
        kept = (await admin.link.api(f"STREAM.INFO.{subjects.EVT}"))["config"]
        assert (kept["deny_delete"], kept.get("deny_purge", False)) == (True, False)  # the gateway forgets jobs by it
        answer = await admin.link.client.request(f"$JS.API.STREAM.MSG.DELETE.{subjects.EVT}", b'{"seq": 1}')
        assert "error" in msgspec.json.decode(answer.data)
        for user in sorted(server.logins.keys() - {ADMIN, "gateway"}):
            async with bus_of(server, user, timeout_s=1.0) as other:
                with pytest.raises(Unauthorized):
                    await other.trim(subjects.job("j1"), 2)
        assert [one.seq for one in await admin.read(subjects.STREAM_SUBJECTS[subjects.EVT])] == [1]
        assert await admin.last_seq() == 1
    assert await server.widen_if_full() == ""


async def test_output_series_and_snapshots_of_an_earlier_version_are_kept_when_their_streams_are_split(
    server: ServerGroup,
) -> None:
    snapshot = Snapshot(schema="s", last_seq=7, state=b"true")
    async with bus_of(server, as_client=True) as admin:
        await old_streams(admin)
        await admin.write_output("j1", 0, b"printed")
        await admin.link.store(subjects.series("j1", 1), b"series", {"Nats-Rollup": "sub"})
        await admin.save_snapshot("matcher", snapshot)
    async with bus_of(server) as admin, bus_of(server, "executor") as executor:
        assert [line.data async for line in admin.read_output("j1")] == [b"printed"]
        assert await admin.load_snapshot("matcher") == snapshot
        await executor.write_series("j1", 2, b"of the next run")
        earlier = await executor.link.store(subjects.series("j1", 3), b"of an earlier executor", {"Nats-Rollup": "sub"})
        assert earlier.error is None
        found = [message.body async for message in admin.read_series("j1")]
        assert found == [b"series", b"of the next run", b"of an earlier executor"]
        await executor.save_snapshot("executor.n1", snapshot)
        assert await executor.load_snapshot("executor.n1") == snapshot
        for name, config in configs(StreamLimits.of_store(SMALL)).items():
            assert outdated((await admin.link.api(f"STREAM.INFO.{name}"))["config"], config) == {}


async def test_limits_that_an_operator_has_set_stay(server: ServerGroup) -> None:
    async with bus_of(server) as admin:
        config = (await admin.link.api(f"STREAM.INFO.{subjects.INBOX}"))["config"]
        await admin.link.api(f"STREAM.UPDATE.{subjects.INBOX}", config | {"max_bytes": 2 * MIB})
    async with bus_of(server) as admin:
        assert (await streams.stream(admin.link, subjects.INBOX)).max_bytes == 2 * MIB


async def test_the_same_streams_are_not_changed_twice(server: ServerGroup) -> None:
    async with bus_of(server) as admin:
        for name, config in configs(StreamLimits.of_store(SMALL)).items():
            found = (await admin.link.api(f"STREAM.INFO.{name}"))["config"]
            assert outdated(found, config) == {}
