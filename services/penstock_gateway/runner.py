"""The gateway on a bus: it follows the log, announces, answers requests, and takes submissions from the inbox."""

from __future__ import annotations

import asyncio
import base64
import secrets
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from penstock_bus import LogReader
from penstock_bus.follower import FoldFollower, background
from penstock_bus.health import VERSION
from penstock_bus.replica import Replica
from penstock_bus.settings import load
from penstock_bus.shell import Shell
from penstock_gateway import authority, log_reader, machine, sight
from penstock_gateway.archiver import Archiver
from penstock_gateway.authority import Admit, Caller
from penstock_gateway.bulk import BulkCommands
from penstock_gateway.code_collection import CodeCollector
from penstock_gateway.code_store import CodeStore
from penstock_gateway.commands import Commands, take_submissions
from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_gateway.notification_targets import NotificationCommands, TargetFolder, send
from penstock_gateway.notifier import Notifier
from penstock_gateway.past_models import PastModels
from penstock_gateway.queries import Presence, Queries
from penstock_gateway.user_queues import UserQueues
from penstock_log import subjects
from penstock_scheduler.kernel_warmup import MatchingKernels
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.sizing.problem import SizingSettings

_OF_PATIENCE: Final = 0.75
"""The part of a query's time for which it may wait until the past is indexed: then it can still be refused in words."""


async def run(shell: Shell, settings: GatewaySettings) -> None:
    """Serve until the shell is stopping."""
    presence = Presence(shell.now_s)
    replica = Replica(shell, machine.decider(settings), on_delivery=presence.forget, says_ready=False)

    async def admit(request: str, user: str) -> Caller:
        return await admitted(shell.bus, replica.live, settings, request, user)

    async def may_read(user: str, subject: str) -> str:
        try:
            caller = await admit("read", user)
            await sight.check_read(shell.bus, replica.live, caller, subject)
        except RequestRefused as error:
            return str(error)
        return ""

    kernels = MatchingKernels(shell)
    code = CodeStore(shell.bus, settings, now_s=shell.now_s, ticks=shell.monotonic, admit=admit)
    commands = commands_of(shell, replica.live, settings, admit, code)
    past = PastModels(
        shell.bus,
        replica.live,
        settings.history_dir,
        ticks=shell.monotonic,
        patience_s=_OF_PATIENCE * settings.query_timeout_s,
    )
    queries = queries_of(
        shell,
        replica.live,
        settings,
        admit,
        presence,
        past=past,
        may_match=kernels.usable,
        most_bytes=commands.most_bytes,
    )
    async with kernels, background(*presence.listening(shell.bus)), asyncio.TaskGroup() as group:
        group.create_task(replica.run())  # ends by itself, after its last snapshot
        await replica.live.caught_up()
        many = BulkCommands(commands, admit, shell.bus.max_body_bytes)
        targets, sending = TargetFolder(settings.notify_dir), send(settings)
        telling = NotificationCommands(
            commands,
            admit,
            targets,
            settings,
            new_id=_short_id,
            sending=sending,
            most_bytes=shell.bus.max_body_bytes,
        )
        notifier = Notifier(shell, shell.bus, replica.live, settings, targets=targets, sending=sending)
        endpoints = [
            *commands.endpoints(),
            *many.endpoints(),
            *code.endpoints(),
            *telling.endpoints(),
            *queries.endpoints(),
        ]
        async with (
            shell.bus.serve("gateway", VERSION, endpoints, {"replica": shell.replica_id}),
            shell.bus.relaying(may_read),
            background(
                past.run(),
                CodeCollector(shell, shell.bus, replica.live, settings).run(),
                *([notifier.run()] if settings.notify_dir else []),
                *([Archiver(shell, shell.bus, replica.live, settings).run()] if settings.archive_dir else []),
                take_submissions(shell.bus, "gateway-jobs", subjects.INBOX_JOBS, commands.accept_job, settings),
                take_submissions(shell.bus, "gateway-sweeps", subjects.INBOX_SWEEPS, commands.accept_sweep, settings),
            ),
        ):
            shell.vitals.ready = True  # now that it can be asked
            await shell.stopping.wait()
            commands.close()
            telling.close()
            code.close()
            queries.close()


def commands_of(
    shell: Shell, live: FoldFollower[GatewayState], settings: GatewaySettings, admit: Admit, code: CodeStore
) -> Commands:
    """Return what answers the commands of people."""
    return Commands(
        shell.bus,
        live,
        settings,
        actor=f"{shell.service}/{shell.replica_id}",
        now_s=shell.now_s,
        new_id=_short_id,
        new_commit_id=lambda: uuid.uuid4().hex,
        ticks=shell.monotonic,
        admit=admit,
        code=code,
        matcher=load(MatcherSettings, "matcher"),
    )


def queries_of(
    shell: Shell,
    live: FoldFollower[GatewayState],
    settings: GatewaySettings,
    admit: Admit,
    presence: Presence,
    *,
    past: PastModels,
    may_match: Callable[[], Awaitable[None]],
    most_bytes: int,
) -> Queries:
    """Return what answers the questions of people."""
    return Queries(
        shell.bus,
        live,
        presence,
        may_match=may_match,
        now_s=shell.now_s,
        most_bytes=most_bytes,
        most_s=settings.query_timeout_s,
        settings=load(MatcherSettings, "matcher"),
        sizes=load(SizingSettings, "autoscaler"),
        admit=admit,
        owner=settings.owner,
        new_queues=lambda: UserQueues(
            "queries of this kind",
            slots=1,
            most=settings.waiting_queries,
            most_bytes=settings.waiting_bytes,
            rate=None,
            now_s=shell.monotonic,
        ),
        past=past,
    )


async def admitted(
    bus: LogReader, live: FoldFollower[GatewayState], settings: GatewaySettings, request: str, user: str
) -> Caller:
    """
    Return who asks, if they may.

    Somebody whom the read model does not know may have been added a moment ago: the log is asked before the refusal.

    Raises
    ------
    RequestRefused
        403 for a request that is not theirs to make.
    """
    try:
        caller = authority.caller(live.state.users, settings.owner, user)
    except RequestRefused:
        await log_reader.catch_up(bus, live)
        caller = authority.caller(live.state.users, settings.owner, user)
    caller.require(request)
    return caller


def _short_id() -> str:
    return base64.b32encode(secrets.token_bytes(5)).decode().lower()
