"""A shadow on a bus: what it publishes, where it goes on, and what it leaves alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shadow_cases import commits, ended, followed, node, placed, started, submitted

from penstock_bus import Append, Delivery
from penstock_bus.memory import MemoryBus, MemoryServer
from penstock_bus.shell import Shell
from penstock_log import AnyEvent, Commit, codec, subjects
from penstock_simulator.shadow.plan import ShadowPlan, ShadowSettings, ShadowStatus, actor_of, status_of, statuses
from penstock_simulator.shadow.runner import ShadowNameTaken, run
from penstock_testing import eventually

LAS = ShadowSettings(
    policy="2d-las", set={"thresholds_gpu_s": [4.0], "min_run_s": 0.0}, tick_s=0.001, lag_s=0.0, status_s=5.0
)
EVERYTHING = subjects.STREAM_SUBJECTS[subjects.EVT]
FIRST = (node(), submitted("j1", 2.0), placed("j1", 2.1), started("j1", 2.2))
THEN = (submitted("j2", 5.0), submitted("j3", 6.0), ended("j1", 22.2))


@dataclass
class Clock:
    now_s: float = 1.0

    def __call__(self) -> float:
        return self.now_s


class LateBus(MemoryBus):
    """What is followed arrives late, while its gate is closed."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server)
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0

    async def follow(self, after_seq: int = 0, subjects: Sequence[str] = ()) -> AsyncIterator[Delivery]:
        async for one in super().follow(after_seq, subjects):
            await self.gate.wait()
            yield one

    async def last_seq(self) -> int:
        self.asked += 1
        return await super().last_seq()


class Cluster:
    """A log on a bus in memory, written at the times that its facts name."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.server = MemoryServer(now=self.clock, lease_now=time.monotonic)  # noqa: TID251 - as leaders count
        self.log: list[Delivery] = []

    async def write(self, *facts: AnyEvent) -> None:
        async with MemoryBus(self.server) as bus:
            for one in commits(*facts):
                self.clock.now_s = max(self.clock.now_s, one.stored_s)
                commit = Commit(id=f"{one.subject} {one.stored_s}", actor="test", facts=one.commit.facts)
                await bus.append(Append(subject=one.subject, commit=commit, expected=None))

    @asynccontextmanager
    async def shadow(
        self, settings: ShadowSettings = LAS, bus_type: type[MemoryBus] = MemoryBus
    ) -> AsyncIterator[MemoryBus]:
        """Run a shadow; it ends in good order."""
        async with bus_type(self.server) as bus:
            shell = Shell(bus, "shadow", clock=self.clock)
            working = asyncio.ensure_future(run(shell, settings))
            try:
                yield bus
            finally:
                shell.stopping.set()
                await working

    async def at(self, bus: MemoryBus, now_s: float, name: str = "2d-las") -> ShadowStatus:
        """Let time pass, and wait until the shadow says that it has."""
        self.clock.now_s = now_s
        last_seq, found = await bus.last_seq(), list[ShadowStatus]()

        async def is_there() -> bool:
            self.clock.now_s += LAS.status_s  # or it would say nothing new
            status = await status_of(bus, name)
            found[:] = [status] if status is not None else []
            return status is not None and status.seq >= last_seq and status.at_s >= now_s

        await eventually(is_there)
        return found[0]


async def published(bus: MemoryBus, name: str = "2d-las") -> list[tuple[str, str]]:
    return [
        (subjects.entity_of(one.subject.replace(f"shadow.{name}", "evt"))[0], codec.decode(one.body).id)
        async for one in bus.read_shadow(f"penstock.shadow.{name}.>")
    ]


def expected(chosen: ShadowPlan, log: list[Delivery]) -> list[str]:
    return [one.commit.id for one in followed(chosen, log, until_s=10_000.0).take()]


async def test_it_publishes_what_it_would_have_done_and_leaves_the_log_alone() -> None:
    cluster = Cluster()
    await cluster.write(*FIRST)
    async with cluster.shadow() as bus:
        status = await cluster.at(bus, 4.0)
        assert (status.plan.from_seq, status.running) == (4, 1)
        await cluster.write(*THEN)
        await cluster.at(bus, 100.0)
        log = await bus.read(EVERYTHING)
        assert len(log) == len(FIRST) + len(THEN)
        assert [one.commit.actor for one in log] == ["test"] * len(log)
        found = await published(bus)
        assert {"rank", "round", "run"} == {kind for kind, _ in found}
        assert [commit_id for _, commit_id in found] == expected(status.plan, log)[: len(found)]


async def test_a_shadow_that_is_started_again_goes_on_and_repeats_nothing() -> None:
    cluster = Cluster()
    await cluster.write(*FIRST)
    async with cluster.shadow() as bus:
        before = await cluster.at(bus, 4.0)
        await cluster.write(THEN[0])
        await cluster.at(bus, 5.5)
        half = await published(bus)
    await cluster.write(*THEN[1:])
    cluster.server.streams[subjects.SHADOW].by_id.clear()  # a server forgets message ids after a while
    async with cluster.shadow() as bus:
        after = await cluster.at(bus, 200.0)
        assert after.plan == before.plan
        found = await published(bus)
        assert found[: len(half)] == half
        assert len(found) > len(half) > 0
        assert [commit_id for _, commit_id in found] == expected(after.plan, await bus.read(EVERYTHING))[: len(found)]


async def test_its_clock_waits_for_what_the_log_stored_before() -> None:
    cluster = Cluster()
    await cluster.write(*FIRST)
    async with cluster.shadow(bus_type=LateBus) as bus:
        assert isinstance(bus, LateBus)
        status = await cluster.at(bus, 4.0)
        bus.gate.clear()
        await cluster.write(*THEN)
        cluster.clock.now_s, asked = 500.0, bus.asked
        await eventually(lambda: bus.asked >= asked + 5)
        assert (await status_of(bus, "2d-las") or status).at_s < 500.0
        bus.gate.set()
        await cluster.at(bus, 600.0)
        found = [commit_id for _, commit_id in await published(bus)]
        assert found == expected(status.plan, await bus.read(EVERYTHING))[: len(found)]


async def test_a_name_stands_for_one_set_of_rules_until_it_begins_anew() -> None:
    cluster = Cluster()
    await cluster.write(*FIRST)
    async with cluster.shadow() as bus:
        first = await cluster.at(bus, 4.0)
    other = ShadowSettings(policy="fifo", name="2d-las", tick_s=0.001, lag_s=0.0, status_s=5.0)
    with pytest.raises(ShadowNameTaken, match=r"follows 2d-las with .*take another --name, or begin --anew"):
        async with MemoryBus(cluster.server) as bus:
            await run(Shell(bus, "shadow", clock=cluster.clock), other)
    anew = ShadowSettings(policy="fifo", name="2d-las", anew=True, tick_s=0.001, lag_s=0.0, status_s=5.0)
    async with cluster.shadow(anew) as bus:
        second = await cluster.at(bus, 300.0)
        assert second.plan.from_s > first.plan.from_s
        assert [(one.plan.name, one.plan.policy) for one in await statuses(bus)] == [("2d-las", "fifo")]


async def test_two_processes_of_one_name_publish_once() -> None:
    cluster = Cluster()
    await cluster.write(*FIRST)
    async with cluster.shadow() as bus, cluster.shadow():
        status = await cluster.at(bus, 4.0)
        await cluster.write(*THEN)
        await cluster.at(bus, 100.0)
        found = [commit_id for _, commit_id in await published(bus)]
        assert found
        assert len(found) == len(set(found))
        assert found == expected(status.plan, await bus.read(EVERYTHING))[: len(found)]


async def test_an_outage_of_the_bus_is_waited_for() -> None:
    cluster = Cluster()
    await cluster.write(*FIRST)
    async with cluster.shadow() as bus:
        await cluster.at(bus, 4.0)
        cluster.server.stop()
        await asyncio.sleep(0)
        cluster.server.start()
        await cluster.write(*THEN)
        status = await cluster.at(bus, 100.0)
        assert status.seq == await bus.last_seq()


def test_who_publishes_is_told_by_plan() -> None:
    one = ShadowPlan(name="a", policy="fifo", from_seq=1, from_s=2.0)
    assert actor_of(one) == "shadow/a@1-2.000000"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"policy": "nonsense"}, "there is no policy 'nonsense'"),
        ({"policy": "fifo", "set": {"nonsense": 1}}, "there is no setting 'nonsense'"),
        ({"policy": "fifo", "name": "A b"}, "a shadow's name is 'A b'"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_words(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ShadowSettings(**wrong)


def test_what_the_clusters_file_says_holds_where_the_policy_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[matcher]\nmin_run_s = 7.0\nwindow = 9\n[ranker]\norder = "fifo"\n')
    environ = {"PENSTOCK_CONFIG": str(file)}
    assert ShadowSettings(policy="2d-las", set={"alpha": 0.5}).rules(environ) == {"min_run_s": 7.0, "alpha": 0.5}
    assert ShadowSettings(policy="configured").rules(environ) == {"min_run_s": 7.0, "window": 9, "order": "fifo"}


def test_rules_are_what_comes_back_from_the_stream(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[ranker]\nthresholds_gpu_s = [3.0, 9.0]\n")
    chosen = ShadowSettings(policy="2d-las", set={"min_run_s": "7"})
    rules = chosen.rules({"PENSTOCK_CONFIG": str(file)})
    plan = ShadowPlan(name="a", policy="2d-las", settings=rules, from_seq=0, from_s=0.0)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=ShadowPlan).same_rules(plan)
    assert rules == {"thresholds_gpu_s": [3.0, 9.0], "min_run_s": "7"}
