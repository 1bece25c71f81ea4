"""The matcher on a bus: rounds in the log, silent nodes, standbys and restarts."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from matcher_facts import job, node, rounds

from penstock_bus import Append, Bus
from penstock_bus.follower import background
from penstock_bus.shell import Shell
from penstock_log import AnyEvent, Commit, NodeJoined, RoundDecided, subjects
from penstock_log.request_bodies import NodeHeard, NodeHeartbeat
from penstock_matcher import machine
from penstock_matcher.__main__ import run
from penstock_policies.matching.flow import KERNELS, Ints
from penstock_scheduler import kernel_warmup
from penstock_scheduler.assignment import DeviceSchedule, SolvedWindow
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_testing import eventually, subject_of


@pytest.fixture(params=["memory_bus", "nats_bus"])
def bus(request: pytest.FixtureRequest) -> Bus:
    return request.getfixturevalue(request.param)


@asynccontextmanager
async def matcher(bus: Bus, replica_id: str = "r1", node_timeout_s: float = 60.0) -> AsyncIterator[Shell]:
    shell = Shell(bus, "matcher", replica_id)
    async with shell.serving():
        task = asyncio.create_task(run(shell, MatcherSettings(node_timeout_s=node_timeout_s)))
        try:
            yield shell
        finally:
            shell.stopping.set()
            await task


async def tell(bus: Bus, *facts: AnyEvent) -> None:
    for fact in facts:
        commit = Commit(id=uuid.uuid4().hex, actor="test", facts=(fact,))
        await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))


async def decided(bus: Bus) -> list[RoundDecided]:
    deliveries = await bus.read(subjects.round_("default"))
    return rounds([fact for delivery in deliveries for fact in delivery.commit.facts])


async def placed(bus: Bus) -> dict[str, int]:
    return {p.job_id: p.epoch for fact in await decided(bus) for p in fact.placements}


async def test_kernels_that_are_kept_are_loaded_before_the_first_round(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    decide = machine.decide

    def deciding(*args: Any) -> Any:
        said.append("decided")
        return decide(*args)

    monkeypatch.setattr(KERNELS, "are_kept", lambda: True)
    monkeypatch.setattr(kernel_warmup, "warm", lambda: said.append("warmed"))
    monkeypatch.setattr(machine, "decide", deciding)
    async with matcher(bus):
        await tell(bus, node("n1", fast=1), job("a"))
        await eventually(lambda: is_placed(bus, "a"))
    assert said[0] == "warmed"
    assert (said.count("warmed"), "decided" in said) == (1, True)


@pytest.mark.parametrize("keeps", [True, False], ids=["another process compiles", "this process compiles"])
async def test_jobs_are_placed_while_the_kernels_are_being_compiled(
    memory_bus: Bus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keeps: bool
) -> None:
    """The compiler of this test ends only after the job has been placed, in two kinds so that it has to be matched."""
    compiler, ended = tmp_path / "endless_compiler.py", threading.Event()
    compiler.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(KERNELS, "are_kept", lambda: False)
    monkeypatch.setattr(KERNELS, "can_be_kept", lambda: keeps)
    monkeypatch.setattr(kernel_warmup, "WARMING", compiler.stem)
    monkeypatch.setattr(kernel_warmup, "warm", ended.wait)
    solved: list[bool] = []
    solve = DeviceSchedule.solve

    def solving(self: DeviceSchedule, lengths_us: Ints) -> SolvedWindow:
        solved.append(KERNELS.interpreted)
        return solve(self, lengths_us)

    monkeypatch.setattr(DeviceSchedule, "solve", solving)
    try:
        async with matcher(memory_bus):
            await tell(memory_bus, node("n1", fast=1, slow=1), job("a"), job("b"), job("c"))
            await eventually(lambda: is_placed(memory_bus, "b"))
            ended.set()
    finally:
        ended.set()
    assert solved, "the jobs were placed without any matching, which proves nothing"
    assert all(solved)
    assert not KERNELS.interpreted


async def test_a_job_is_placed_over_a_bus_and_the_round_names_its_cause(bus: Bus) -> None:
    async with matcher(bus):
        await tell(bus, node("n1", fast=1), job("a"))
        await eventually(lambda: is_placed(bus, "a"))
    (last,) = await bus.read(subjects.round_("default"))
    assert last.commit.actor == "matcher/r1"
    assert 0 < last.commit.cause < last.seq


async def is_placed(bus: Bus, job_id: str) -> bool:
    return job_id in await placed(bus)


@pytest.mark.slow
async def test_a_node_that_falls_silent_is_lost_and_its_jobs_move_to_one_that_is_heard(bus: Bus) -> None:
    async with matcher(bus, node_timeout_s=1.5), background(beating(bus, "n2")):
        async with background(beating(bus, "n1")):
            await tell(bus, node("n1", fast=1), job("a"))
            await eventually(lambda: is_placed(bus, "a"))
            await tell(bus, node("n2", fast=1))
        await eventually(lambda: has_epoch(bus, "a", 2))
    assert [fact.lost_nodes for fact in await decided(bus) if fact.lost_nodes] == [("n1",)]


@pytest.mark.slow
async def test_the_leader_alone_answers_heartbeats_and_none_of_a_node_that_it_has_given_up(bus: Bus) -> None:
    answers: list[NodeHeard] = []

    async def follow() -> None:
        async for _, body in bus.subscribe(subjects.heard("n1")):
            answers.append(msgspec.json.decode(body, type=NodeHeard))

    async def beat(ticks_s: float) -> None:
        said = NodeHeartbeat(node_id="n1", incarnation="boot-1", ticks_s=ticks_s)
        await bus.publish(subjects.heartbeat("n1"), msgspec.json.encode(said))

    async def answered(ticks_s: float) -> bool:
        await beat(ticks_s)
        return NodeHeard(incarnation="boot-1", ticks_s=ticks_s) in answers

    async with (
        matcher(bus, "r1", node_timeout_s=1.5),
        background(follow()),
        matcher(bus, "r2", node_timeout_s=1.5) as standby,
    ):
        await eventually(lambda: standby.vitals.ready)
        await tell(bus, NodeJoined(node_id="n1", devices=(), incarnation="boot-1", at_s=1.0))
        await eventually(lambda: answered(1.0))
        await beat(2.0)
        await eventually(lambda: answered(3.0))
        assert [answer.ticks_s for answer in answers].count(2.0) == 1
        await eventually(lambda: has_lost(bus))
        await beat(4.0)
        await tell(bus, NodeJoined(node_id="n1", devices=(), incarnation="boot-2", at_s=2.0))
        await beat(5.0)
        await tell(bus, NodeJoined(node_id="n1", devices=(), incarnation="boot-1", at_s=3.0))
        await eventually(lambda: answered(6.0))
        assert {answer.ticks_s for answer in answers} == {1.0, 2.0, 3.0, 6.0}


async def has_lost(bus: Bus) -> bool:
    return any(fact.lost_nodes for fact in await decided(bus))


async def beating(bus: Bus, node_id: str) -> None:
    while True:
        await bus.publish(subjects.heartbeat(node_id), b"{}")
        await asyncio.sleep(0.1)


async def has_epoch(bus: Bus, job_id: str, epoch: int) -> bool:
    return (await placed(bus)).get(job_id) == epoch


@pytest.mark.slow
async def test_a_standby_decides_nothing_until_it_leads(bus: Bus) -> None:
    async with matcher(bus, "r1") as first:
        await eventually(lambda: first.vitals.leading)
        async with matcher(bus, "r2") as second:
            await eventually(lambda: second.vitals.ready)
            await tell(bus, node("n1", fast=2), job("a"))
            await eventually(lambda: is_placed(bus, "a"))
            assert not second.vitals.leading
            first.stopping.set()
            await eventually(lambda: second.vitals.leading)
            await tell(bus, job("b"))
            await eventually(lambda: is_placed(bus, "b"))
    deliveries = await bus.read(subjects.round_("default"))
    assert [delivery.commit.actor for delivery in deliveries] == ["matcher/r1", "matcher/r2"]


@pytest.mark.slow
async def test_a_restart_places_nothing_twice_with_snapshots_and_without(bus: Bus) -> None:
    async with matcher(bus, "r1"):
        await tell(bus, node("n1", fast=2), job("a"))
        await eventually(lambda: is_placed(bus, "a"))
    for replica_id, extra in (("r2", "b"), ("r3", "c")):
        async with matcher(bus, replica_id) as shell:
            await eventually(lambda shell=shell: shell.vitals.leading)
            await tell(bus, job(extra))
            await eventually(lambda extra=extra: is_explained_or_placed(bus, extra))
        await bus.delete_snapshots()
    assert await placed(bus) == {"a": 1, "b": 1}


async def is_explained_or_placed(bus: Bus, job_id: str) -> bool:
    known = {wait.job_id for fact in await decided(bus) for wait in fact.waits}
    return job_id in known | set(await placed(bus))
