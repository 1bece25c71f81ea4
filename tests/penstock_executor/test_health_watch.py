"""What an executor says of its devices' health, and what becomes of the runs on one that fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from executor_cases import PATIENCE_S, World, python

from penstock_bus import Append, Unavailable
from penstock_cluster import DeviceError
from penstock_cluster.device_health import HealthReading
from penstock_cluster.nodes import Cluster, Node
from penstock_executor import device_watch, health_watch
from penstock_executor.health_watch import HealthWatch
from penstock_log import (
    AnyEvent,
    Device,
    DeviceDrained,
    DeviceFailed,
    DeviceRecovered,
    DeviceResumed,
    NodeJoined,
    subjects,
)

FIT = HealthReading()


class NodeLog:
    """A node as the log has it, and a watch over it."""

    def __init__(self) -> None:
        devices = tuple(Device(index=i, kind="h100", memory_bytes=1, backend="cuda", uuid=f"GPU-{i}") for i in range(2))
        self.cluster = Cluster()
        self.cluster.apply(NodeJoined(at_s=0.0, node_id="n1", devices=devices))
        self.restart()

    def restart(self, boot: str = "monday") -> None:
        self.watch = HealthWatch("n1", (), boot)

    @property
    def node(self) -> Node:
        return self.cluster.nodes["n1"]

    def say(self, *facts: AnyEvent) -> None:
        for fact in facts:
            self.cluster.apply(fact)

    def read(self, *readings: HealthReading) -> list[AnyEvent]:
        """Note readings of the first devices; return the facts that the log has by then."""
        self.watch.note(dict(enumerate(readings)))
        told = list(self.watch.facts(self.node, 5.0))
        self.say(*told)
        for fact in told:
            assert isinstance(fact, (DeviceFailed, DeviceRecovered))
            self.watch.note_told(fact)
        return told


@pytest.fixture
def log() -> NodeLog:
    return NodeLog()


def test_a_failure_is_told_once_with_its_figures(log: NodeLog) -> None:
    (fact,) = log.read(FIT, HealthReading(uncorrected=3))
    assert isinstance(fact, DeviceFailed)
    assert (fact.index, fact.code, fact.boot) == (1, "ecc_uncorrected", "monday")
    assert fact.reason == "3 uncorrected ECC errors since its last reset"
    assert log.read(FIT, HealthReading(uncorrected=4)) == []
    assert log.node.outage(1) is not None


def test_what_is_measured_no_more_is_over(log: NodeLog) -> None:
    log.read(HealthReading(lost="GPU is lost"))
    assert [type(fact) for fact in log.read(FIT)] == [DeviceRecovered]
    assert log.node.outage(0) is None


def test_an_event_counts_until_the_machine_is_started_again(log: NodeLog) -> None:
    log.read(HealthReading(xids=(79,)))
    assert log.read(FIT) == []
    log.restart()
    assert log.read(FIT) == []
    log.restart(boot="tuesday")
    assert [type(fact) for fact in log.read(FIT)] == [DeviceRecovered]


def test_an_event_whose_boot_is_not_known_counts_until_an_operator_resumes_the_device(log: NodeLog) -> None:
    log.restart(boot="")
    log.read(HealthReading(xids=(79,)))
    log.restart(boot="tuesday")
    assert log.read(FIT) == []


def test_a_device_that_an_operator_resumed_is_not_failed_again_for_the_same_event(log: NodeLog) -> None:
    log.read(HealthReading(xids=(48,)))
    log.say(DeviceResumed(at_s=6.0, node_id="n1", index=0))
    assert log.read(FIT) == []
    assert [fact.code for fact in log.read(HealthReading(xids=(48,))) if isinstance(fact, DeviceFailed)] == ["xid 48"]


def test_a_device_that_an_operator_resumed_fails_again_for_what_is_still_measured(log: NodeLog) -> None:
    log.read(HealthReading(pending=True))
    log.say(DeviceResumed(at_s=6.0, node_id="n1", index=0))
    assert [type(fact) for fact in log.read(HealthReading(pending=True))] == [DeviceFailed]


def test_what_an_operator_drained_is_not_the_watchs_to_give_back(log: NodeLog) -> None:
    log.say(DeviceDrained(at_s=1.0, node_id="n1", index=0))
    assert log.read(FIT) == []
    log.read(HealthReading(pending=True))
    log.read(FIT)
    outage = log.node.outage(0)
    assert outage is not None
    assert outage.state == "drained"


def test_of_a_device_that_could_not_be_read_nothing_changes(log: NodeLog) -> None:
    log.read(HealthReading(pending=True))
    log.restart()
    assert log.read() == []


def test_an_event_is_kept_over_restarts_until_the_log_has_it(log: NodeLog, tmp_path: Path) -> None:
    file = tmp_path / "events.json"

    def started(boot: str = "monday") -> HealthWatch:
        return HealthWatch("n1", (), boot, file)

    watch = started()
    watch.note({0: HealthReading(xids=(79,)), 1: FIT})
    assert [fact.code for fact in watch.facts(log.node, 1.0) if isinstance(fact, DeviceFailed)] == ["xid 79"]
    watch = started()  # it was stopped while it waited for the log
    watch.note({0: FIT, 1: FIT})
    assert watch.unfit(0).startswith("XID 79")
    assert list(started("tuesday").facts(log.node, 2.0)) == []
    (fact,) = watch.facts(log.node, 2.0)
    log.say(fact)
    watch.note_told(fact)
    log.say(DeviceResumed(at_s=3.0, node_id="n1", index=0))
    assert list(watch.facts(log.node, 4.0)) == list(started().facts(log.node, 4.0)) == []
    file.write_bytes(b'{"boot": "mon')
    assert list(started().facts(log.node, 5.0)) == []


class Driver:
    """Tells what it is told to, as a driver does."""

    def __init__(self) -> None:
        self.readings: dict[int, HealthReading] = {0: FIT, 1: FIT}
        self.away = False
        self.hangs = threading.Event()
        self.hangs.set()
        self.closed = False

    def read(self) -> Mapping[int, HealthReading]:
        self.hangs.wait()
        if self.away:
            raise DeviceError("the driver hangs")
        return self.readings

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(health_watch, "readers", lambda _: [driver])
    return driver


async def device_facts(world: World, count: int) -> list[AnyEvent]:
    """Return so many facts about devices of the node, waiting for them."""
    found: list[AnyEvent] = []
    async with asyncio.timeout(PATIENCE_S):
        async for delivery in world.bus.follow(subjects=[subjects.node("n1")]):
            found += [fact for fact in delivery.commit.facts if isinstance(fact, (DeviceFailed, DeviceRecovered))]
            if len(found) >= count:
                return found
    raise AssertionError("a follower ended")


async def test_an_executor_tells_the_log_of_a_device_that_fails_and_lives_through_a_driver_that_hangs(
    world: World, driver: Driver
) -> None:
    driver.away = True
    node = await world.node(devices="fast:2", device_health_s=0.02)
    driver.readings[1] = HealthReading(pending=True)
    driver.away = False
    (fact,) = await device_facts(world, 1)
    assert isinstance(fact, DeviceFailed)
    assert (fact.node_id, fact.index, fact.code) == ("n1", 1, "remap_pending")
    driver.readings[1] = FIT
    assert [type(fact) for fact in await device_facts(world, 2)] == [DeviceFailed, DeviceRecovered]
    await node.stop()
    assert driver.closed


async def test_an_event_that_comes_while_the_log_is_away_is_told_once_it_is_back_also_after_a_restart(
    world: World, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await world.node(devices="fast:2", device_health_s=0.02)
    tried, append = asyncio.Event(), world.bus.append

    async def away(given: Append) -> int:
        if any(isinstance(fact, DeviceFailed) for fact in given.commit.facts):
            tried.set()
            raise Unavailable("no server is there")
        return await append(given)

    monkeypatch.setattr(world.bus, "append", away)
    driver.readings[1] = HealthReading(xids=(79,))
    async with asyncio.timeout(PATIENCE_S):
        await tried.wait()
    driver.readings[1] = FIT  # a driver tells of it once
    await node.kill()
    monkeypatch.setattr(world.bus, "append", append)
    await node.start()
    (fact,) = await device_facts(world, 1)
    assert isinstance(fact, DeviceFailed)
    assert (fact.index, fact.code) == (1, "xid 79")


async def test_a_run_that_crashes_on_a_device_that_fails_is_lost_and_has_not_failed(
    world: World, driver: Driver
) -> None:
    await world.node(devices="fast:2", device_health_s=3600.0)
    driver.readings[0] = HealthReading(lost="GPU is lost")
    await world.run("j1", *python("import sys; sys.exit(1)"))
    ended = await world.ended("j1")
    assert ended.outcome == "lost"
    assert ended.reason.startswith("device n1/fast0 failed: the driver cannot reach it: GPU is lost; exit code 1")


async def test_the_end_of_a_run_is_told_also_while_the_driver_hangs(
    world: World, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_watch, "DRIVER_PATIENCE_S", 0.1)
    await world.node(devices="fast:2", device_health_s=3600.0)
    driver.hangs.clear()
    try:
        await world.run("j1", *python("import sys; sys.exit(1)"))
        assert (await world.ended("j1")).outcome == "failed"
    finally:
        driver.hangs.set()


async def test_a_run_that_crashes_beside_a_device_that_fails_has_failed(world: World, driver: Driver) -> None:
    await world.node(devices="fast:2", device_health_s=3600.0)
    driver.readings[1] = HealthReading(lost="GPU is lost")
    await world.run("j1", *python("import sys; sys.exit(1)"))
    assert (await world.ended("j1")).outcome == "failed"
