"""The gateway on a bus: it follows the log, announces, answers requests, and takes submissions from the inbox."""

from __future__ import annotations

import asyncio
import base64
import secrets
import uuid

from penstock_bus.follower import background
from penstock_bus.health import VERSION
from penstock_bus.replica import Replica
from penstock_bus.settings import load
from penstock_bus.shell import Shell
from penstock_gateway import machine
from penstock_gateway.commands import Commands, take_submissions
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.queries import Presence, Queries
from penstock_log import subjects
from penstock_scheduler.kernel_warmup import MatchingKernels
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.sizing.problem import SizingSettings


async def run(shell: Shell, settings: GatewaySettings) -> None:
    """Serve until the shell is stopping."""
    presence = Presence(shell.now_s)
    replica = Replica(shell, machine.decider(settings), on_delivery=presence.forget, says_ready=False)
    commands = Commands(
        shell.bus,
        replica.live,
        settings,
        actor=f"{shell.service}/{shell.replica_id}",
        now_s=shell.now_s,
        new_id=_short_id,
        new_commit_id=lambda: uuid.uuid4().hex,
    )
    kernels = MatchingKernels(shell)
    queries = Queries(
        shell.bus,
        replica.live,
        presence,
        may_match=kernels.usable,
        now_s=shell.now_s,
        most_bytes=commands.most_bytes,
        most_s=settings.query_timeout_s,
        settings=load(MatcherSettings, "matcher"),
        sizes=load(SizingSettings, "autoscaler"),
    )
    async with kernels, background(*presence.listening(shell.bus)), asyncio.TaskGroup() as group:
        group.create_task(replica.run())  # ends by itself, after its last snapshot
        await replica.live.caught_up()
        endpoints = [*commands.endpoints(), *queries.endpoints()]
        async with (
            shell.bus.serve("gateway", VERSION, endpoints, {"replica": shell.replica_id}),
            background(
                take_submissions(shell.bus, "gateway-jobs", subjects.INBOX_JOBS, commands.submit_job, settings.retry_s),
                take_submissions(
                    shell.bus, "gateway-sweeps", subjects.INBOX_SWEEPS, commands.submit_sweep, settings.retry_s
                ),
            ),
        ):
            shell.vitals.ready = True  # now that it can be asked
            await shell.stopping.wait()


def _short_id() -> str:
    return base64.b32encode(secrets.token_bytes(5)).decode().lower()
