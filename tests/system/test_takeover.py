"""A standby takes over from a leader that was killed: real processes on a real server."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest
from release_decider import submitted

from penstock_bus import Append, Delivery
from penstock_bus.health import Vitals
from penstock_bus.nats import NatsBus
from penstock_bus.replica import RENEW_S, TTL_S
from penstock_cli.local.service_template import ServiceProcess, ServiceTemplate
from penstock_log import Commit, subjects
from penstock_testing.fixtures import NatsAccount

TAKEOVER_S = 5.0  # on a machine that lets the standby run when it wants to
PATIENCE_S = 60.0


@asynccontextmanager
async def replica(
    template: ServiceTemplate, account: NatsAccount, service: str, replica_id: str
) -> AsyncIterator[ServiceProcess]:
    process = await template.fork(service, {**account.environment, "PENSTOCK_REPLICA_ID": replica_id}, None)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def until(bus: NatsBus, service: str, replica_id: str, *, leading: bool) -> None:
    """Wait for the heartbeat of a ready replica that leads, or does not."""
    async with asyncio.timeout(PATIENCE_S):
        async for _, body in bus.subscribe(subjects.replicas(service)):
            vitals = msgspec.json.decode(body, type=Vitals)
            if vitals.replica == replica_id and vitals.ready and vitals.leading == leading:
                return


async def submit(bus: NatsBus, job_id: str) -> int:
    commit = Commit(id=f"submit-{job_id}", actor="gateway/test", facts=(submitted(job_id, 1.0),))
    return await bus.append(Append(subject=subjects.job(job_id), commit=commit, expected=0))


async def next_of(bus: NatsBus, service: str, after_seq: int) -> Delivery:
    async for delivery in bus.follow(after_seq):
        if delivery.commit.actor.startswith(f"{service}/"):
            return delivery
    raise AssertionError("following the log has ended")


@pytest.mark.parametrize("service", ["ranker", "matcher"])
async def test_a_standby_decides_within_five_seconds_of_the_leaders_kill(
    nats_account: NatsAccount, nats_bus: NatsBus, service: str
) -> None:
    async with AsyncExitStack() as stack:
        template = await stack.enter_async_context(ServiceTemplate([service]))
        leader = await stack.enter_async_context(replica(template, nats_account, service, "first"))
        await until(nats_bus, service, "first", leading=True)
        await stack.enter_async_context(replica(template, nats_account, service, "second"))
        await until(nats_bus, service, "second", leading=False)

        leader.send_signal(signal.SIGKILL)
        seq = await submit(nats_bus, "j1")
        assert TTL_S + RENEW_S < TAKEOVER_S
        async with asyncio.timeout(PATIENCE_S):
            decided = await next_of(nats_bus, service, seq)

        assert decided.commit.actor == f"{service}/second"
