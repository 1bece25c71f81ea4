"""Removing from the log, on both adapters: what is named goes, and all else stays where it was."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest
from bus_harness import append, take

from penstock_bus import Bus, TrimDenied, Unauthorized
from penstock_bus.identity.access import ADMIN
from penstock_bus.nats import connect
from penstock_bus.servers.server import ServerSettings, running
from penstock_log import subjects

ALL = subjects.STREAM_SUBJECTS[subjects.EVT]


async def test_commits_of_a_subject_before_a_sequence_go_and_others_keep_theirs(bus: Bus) -> None:
    await bus.append_many([append(f"j{number % 2}", None) for number in range(6)])
    assert await bus.trim(subjects.job("j0"), 5) == 2
    assert await bus.trim(subjects.job("j0"), 5) == 0
    assert [(one.seq, one.subject[-2:]) for one in await bus.read(ALL)] == [(2, "j1"), (4, "j1"), (5, "j0"), (6, "j1")]
    assert await bus.last_seq() == 6
    async with aclosing(bus.follow()) as deliveries:
        assert [(one.seq, one.pending) for one in await take(deliveries, 4)] == [(2, 3), (4, 2), (5, 1), (6, 0)]


async def test_a_subject_that_is_empty_again_is_new(bus: Bus) -> None:
    await bus.append(append("j"))
    await bus.append(append("other"))
    assert await bus.trim(subjects.job("j"), 2) == 1
    assert await bus.last(subjects.job("j")) is None
    assert await bus.append(append("j", 0)) == 3


async def test_a_pattern_removes_what_all_extensions_say_of_an_entity(bus: Bus) -> None:
    await bus.append(append("j"))
    assert await bus.holds(subjects.every("job"))
    assert not await bus.holds(f"{subjects.EXTENSIONS}>")
    assert await bus.trim(subjects.extensions("j"), 100) == 0
    assert await bus.trim("penstock.evt.*.j", 100) == 1
    assert not await bus.holds(subjects.every("job"))
    assert await bus.last_seq() == 1


async def test_a_log_of_an_earlier_version_says_what_makes_it_one_of_today(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path, sync_interval="2m")
    async with (
        running(settings) as server,
        connect(server.url, login=server.logins[ADMIN]) as bus,
    ):
        config = (await bus.link.api(f"STREAM.INFO.{subjects.EVT}"))["config"]
        await bus.link.api(f"STREAM.UPDATE.{subjects.EVT}", config | {"deny_purge": True})
        await bus.append(append("j"))
        with pytest.raises(TrimDenied, match="penstock backup"):
            await bus.trim(subjects.job("j"), 2)
        assert await bus.last_seq() == 1


async def test_no_service_but_the_gateway_may_remove_anything(tmp_path: Path) -> None:
    settings = ServerSettings(data_dir=tmp_path, sync_interval="2m")
    async with running(settings) as server:
        async with connect(server.url, login=server.logins[ADMIN]) as bus:
            await bus.append(append("j"))
        for user in sorted(server.logins.keys() - {ADMIN, "gateway", "client"}):
            async with connect(server.url, login=server.logins[user], timeout_s=1.0) as bus:
                with pytest.raises(Unauthorized):
                    await bus.trim(subjects.job("j"), 2)
        async with connect(server.url, login=server.logins["gateway"]) as bus:
            assert await bus.trim(subjects.job("j"), 2) == 1
