"""A shadow on a real server with Penstock's own configuration: it follows, publishes, and may not write the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest
from shadow_cases import node, placed, started, submitted

from penstock_bus import Append, Unauthorized
from penstock_bus.identity.access import ADMIN, CLIENT, SHADOW
from penstock_bus.nats import NatsBus, connect
from penstock_bus.servers.server import Server, ServerSettings, running
from penstock_bus.shell import Shell
from penstock_log import AnyEvent, Commit, JobCancelled, RoundDecided, codec, subjects
from penstock_log.services import CORE
from penstock_simulator.shadow.plan import ShadowSettings, status_of
from penstock_simulator.shadow.runner import run
from penstock_simulator.shadow.shadow_score import score_of
from penstock_testing import eventually, subject_of

ROUND = subjects.shadowed("fifo", subjects.round_("default"))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """Penstock's own configuration, with the streams made."""
    async with running(ServerSettings(data_dir=tmp_path)) as started, as_user(started, ADMIN):
        yield started


def as_user(server: Server, user: str) -> AbstractAsyncContextManager[NatsBus]:
    return connect(server.url, login=server.logins[user], name=user, timeout_s=20.0, as_client=user == CLIENT)


async def write(bus: NatsBus, *facts: AnyEvent) -> None:
    for number, fact in enumerate(facts):
        commit = Commit(id=f"{subject_of(fact)} {number}", actor="test", facts=(fact,))
        await bus.append(Append(subject=subject_of(fact), commit=commit, expected=None))


async def test_a_shadow_may_write_nothing_of_the_log_and_asks_nobody_for_anything(server: Server) -> None:
    cancelled = JobCancelled(job_id="x1", at_s=0.0)
    async with as_user(server, SHADOW) as bus:
        for kind in subjects.WRITERS:
            item = Append(
                subject=subjects.entity(kind, "x1"),
                commit=Commit(id=kind, actor="shadow", facts=(cancelled,)),
                expected=None,
            )
            with pytest.raises(Unauthorized, match=rf"does not let this user publish to penstock\.evt\.{kind}\.x1"):
                await bus.append(item)
        with pytest.raises(Unauthorized):
            await bus.submit(subjects.INBOX_JOBS, b"{}")
        with pytest.raises(Unauthorized):
            await bus.request(subjects.command("cancel"), b"{}")
        await bus.write_shadow(ROUND, b"would have")
        assert await bus.last_seq() == 0


@pytest.mark.parametrize("user", [CLIENT, *CORE])
async def test_nobody_else_may_speak_for_a_shadow(server: Server, user: str) -> None:
    async with as_user(server, user) as bus:
        with pytest.raises(Unauthorized):
            await bus.write_shadow(ROUND, b"forged")
        assert await bus.last_shadow(ROUND) is None


async def test_a_shadow_follows_publishes_and_is_scored(server: Server) -> None:
    now_s = time.time()  # noqa: TID251 - the server's clock dates the log
    facts: list[AnyEvent] = [node(now_s), submitted("j1", now_s), placed("j1", now_s), started("j1", now_s)]
    async with as_user(server, ADMIN) as admin, as_user(server, SHADOW) as bus, as_user(server, CLIENT) as client:
        await write(admin, *facts)
        shell = Shell(bus, SHADOW)
        settings = ShadowSettings(
            policy="2d-las", set={"thresholds_gpu_s": [0.001], "min_run_s": 0.0}, tick_s=0.05, lag_s=0.0
        )
        working = asyncio.ensure_future(run(shell, settings))
        await eventually(lambda: _is_there(client, "2d-las"))
        await write(admin, submitted("j2", now_s))
        await eventually(lambda: _has_started(client, "j2"))
        shell.stopping.set()
        await working
        status = await status_of(client, "2d-las")
        assert status is not None
        assert (status.plan.from_seq, status.seq) == (4, 5)
        found = await score_of(client, status, now_s + 100.0)
        assert found.agreement.shadow_preemptions >= 1
        assert found.agreement.preemptions == found.all.jobs == 0
        log = [one.commit.facts[0] for one in await client.read(subjects.STREAM_SUBJECTS[subjects.EVT])]
        assert log == [*facts, submitted("j2", now_s)]
        assert msgspec.json.decode(await _consumers(admin)) == []


async def _is_there(bus: NatsBus, name: str) -> bool:
    return await status_of(bus, name) is not None


async def _has_started(bus: NatsBus, job_id: str) -> bool:
    pattern = subjects.shadowed("2d-las", subjects.ROUNDS)
    facts = [fact async for one in bus.read_shadow(pattern) for fact in codec.decode(one.body).facts]
    rounds = [fact for fact in facts if isinstance(fact, RoundDecided)]
    return any(placement.job_id == job_id for one in rounds for placement in one.placements)


async def _consumers(bus: NatsBus) -> bytes:
    """Return the names of the log's durable consumers."""
    answer = await bus.link.api(f"CONSUMER.LIST.{subjects.EVT}")
    return msgspec.json.encode([one["name"] for one in answer["consumers"] or [] if "durable_name" in one["config"]])
