import os
from pathlib import Path

import msgspec
import pytest

from penstock_bus import ServiceError
from penstock_bus.health import Peers, Vitals
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.shell import Shell
from penstock_log import subjects
from penstock_testing import eventually


def ready(service: str = "matcher") -> str:
    return subjects.query("ready", service)


async def test_ready_is_refused_until_the_service_has_caught_up(memory_bus: MemoryBus) -> None:
    shell = Shell(memory_bus, "matcher", "r1")
    async with shell.serving():
        with pytest.raises(ServiceError, match="matcher/r1 is still catching up; ask again") as caught:
            await memory_bus.request(ready(), b"")
        assert caught.value.code == 503
        shell.vitals.ready = True
        vitals = msgspec.json.decode(await memory_bus.request(ready(), b""), type=Vitals)
    assert (vitals.service, vitals.replica, vitals.ready) == ("matcher", "r1", True)


async def test_live_answers_whatever_it_is_doing(memory_bus: MemoryBus) -> None:
    async with Shell(memory_bus, "matcher", "r1").serving():
        body = await memory_bus.request(subjects.query("live", "matcher"), b"")
    assert msgspec.json.decode(body, type=Vitals).ready is False


async def test_metrics_are_served_in_text_form(memory_bus: MemoryBus) -> None:
    shell = Shell(memory_bus, "matcher", "r1")
    shell.metrics.counter("penstock_rounds_total").inc()
    async with shell.serving():
        body = await memory_bus.request(subjects.query("metrics", "matcher"), b"")
    assert b'penstock_rounds_total{replica="r1",service="matcher"} 1\n' in body


@pytest.mark.slow
async def test_replicas_of_one_service_know_each_other() -> None:
    server = MemoryServer()
    first, second = (Shell(MemoryBus(server), "profiler", name) for name in ("r1", "r2"))
    other = Shell(MemoryBus(server), "ranker", "r3")
    async with first.serving(), second.serving(), other.serving():
        await eventually(lambda: first.peers() == second.peers() == ["r1", "r2"])
        assert other.peers() == ["r3"]


async def test_a_file_says_that_a_replica_is_ready_as_long_as_it_is(memory_bus: MemoryBus, tmp_path: Path) -> None:
    file = tmp_path / "ready"
    shell = Shell(memory_bus, "matcher", "r1", ready_file=file)
    async with shell.serving():
        await eventually(lambda: shell.peers() == ["r1"] and bool(memory_bus.server.hub.listeners))
        assert not file.exists()
        shell.vitals.ready = True
        await eventually(file.exists)
        os.utime(file, (0, 0))
        await eventually(lambda: file.stat().st_mtime > 0)  # again with the next heartbeat
        shell.vitals.ready = False
        await eventually(lambda: not file.exists())


async def test_another_file_says_that_it_lives_whether_it_is_ready_or_not(
    memory_bus: MemoryBus, tmp_path: Path
) -> None:
    file = tmp_path / "live"
    shell = Shell(memory_bus, "matcher", "r1", live_file=file)
    async with shell.serving():
        await eventually(file.exists)
        os.utime(file, (0, 0))
        await eventually(lambda: file.stat().st_mtime > 0)
        assert not shell.vitals.ready


async def test_it_speaks_for_no_other_replica(tmp_path: Path) -> None:
    server, file = MemoryServer(), tmp_path / "ready"
    first = Shell(MemoryBus(server), "matcher", "r1", ready_file=file)
    second = Shell(MemoryBus(server), "matcher", "r2")
    second.vitals.ready = True
    async with first.serving(), second.serving():
        await eventually(lambda: first.peers() == second.peers() == ["r1", "r2"])
        assert not file.exists()
        first.vitals.ready = True
        await eventually(file.exists)


def test_a_replica_that_fell_silent_is_gone() -> None:
    now = [0.0]
    peers = Peers(lambda: now[0], gone_after_s=3.0)
    peers.see(Vitals(service="ranker", replica="r1"))
    now[0] = 2.0
    peers.see(Vitals(service="ranker", replica="r2"))
    assert [vitals.replica for vitals in peers.alive()] == ["r1", "r2"]
    now[0] = 4.0
    assert [vitals.replica for vitals in peers.alive()] == ["r2"]


@pytest.mark.parametrize("words", [b"hello", b'{"service":"\xff","replica":"r2"}', b'{"host":' + b"[" * 100_000])
async def test_words_that_are_no_heartbeat_are_not_heard(memory_bus: MemoryBus, words: bytes) -> None:
    shell = Shell(memory_bus, "ranker", "r1")
    async with shell.serving():
        await eventually(lambda: bool(memory_bus.server.hub.listeners))
        await memory_bus.publish(subjects.replica("ranker", "r2"), words)
        await memory_bus.publish(
            subjects.replica("ranker", "r3"), msgspec.json.encode(Vitals(service="ranker", replica="r3"))
        )
        await eventually(lambda: shell.peers() == ["r1", "r3"])
