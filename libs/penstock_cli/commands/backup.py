"""
Commands ``backup`` and ``restore``.

``penstock backup`` writes a running cluster into one file, and ``penstock restore`` makes a data folder from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock_cli import render
from penstock_cli.commands.up import administrator, as_administrator
from penstock_cli.invocation import Failure, bad_input, tell

if TYPE_CHECKING:
    from penstock_bus.nats.link import Link
    from penstock_cli.local.backup_file import BackupContent

_TWICE: Final = (
    "do not start it while the cluster that was backed up still runs: the copy would run the same people's open jobs a "
    "second time"
)
_NEW_LOGINS: Final = (
    "no login from before counts there, as the backup does not know whose were revoked since. Nodes come back by "
    "`penstock node token --uses N`, and on each `penstock node join TOKEN` with its folder as it is; people by "
    "`penstock user rotate NAME`. Whoever was removed since is in the list again: `penstock user rm NAME`"
)
Backup = Annotated[Path, typer.Argument(metavar="FILE", help="Such as penstock-2026-01-31.tar.gz.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(backup)
    app.command()(restore)


def backup(
    ctx: typer.Context,
    file: Backup,
    *,
    data: Annotated[
        Path, typer.Option("--data", help="Data folder of `penstock up`; its archive goes with the log.")
    ] = (Path("penstock-data")),
) -> None:
    """
    Write the log and the archive of a cluster to one file.

    Everything goes on meanwhile. What jobs have written (checkpoints, results) is not in it; their output is, as far
    as the log's server keeps it. Logins are not: `penstock restore` says how people and nodes get new ones.
    """
    from penstock_cli.local import backup_file

    login = administrator(data, ctx.obj["url"])
    folder = data if (data / "nats").is_dir() else None
    if folder is None:
        tell(f"{data} is no data folder: the cluster's archive and certificates are not in the backup")
    made_s = time.time()  # noqa: TID251 - for people who read the file
    try:
        content = as_administrator(login, lambda link: backup_file.write(file, link, folder, made_s))
    except backup_file.BackupError as error:
        raise Failure(str(error)) from error
    render.say(f"{file}: {render.size(content.bytes)}, {_about(content)}")


def restore(
    file: Backup,
    *,
    data: Annotated[Path, typer.Option("--data", help="Data folder to make; must not exist, or be empty.")] = (
        Path("penstock-data")
    ),
    check: Annotated[bool, typer.Option("--check", help="Only read the file and say whether it is whole.")] = False,
) -> None:
    """
    Make a data folder from a backup, for `penstock up`.

    `penstock up` then goes on from there. Jobs that ran when the backup was made run again, from their last checkpoint
    where it is still there. Stop executors that still run for the lost server first: beside a cluster that goes on, the
    copy runs the same people's open jobs a second time.

    Nobody's login from before counts there, since the backup does not know whose were revoked later: nodes join again,
    and people get new logins.
    """
    from penstock_bus.port import BusError
    from penstock_cli.local import backup_file

    try:
        if check:
            content = backup_file.check(file)
            render.say(f"{file} is whole: {_about(content)}")
            return
        if not file.exists():
            bad_input(f"there is no {file}")
        content = asyncio.run(backup_file.restore(file, data.absolute(), _server))
    except (backup_file.BackupError, BusError) as error:
        raise Failure(str(error)) from error
    render.say(f"{data} holds what {file} held: {_about(content)}")
    flag = "" if str(data) == "penstock-data" else f" --data {data}"
    render.say(f"start it with `penstock up{flag}`")
    render.say(_TWICE)
    render.say(_NEW_LOGINS)


def _about(content: BackupContent) -> str:
    made = datetime.fromtimestamp(content.head.made_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    state = content.streams.get("EVT", {})
    files = render.count(len(content.files), "file")
    return (
        f"the log up to sequence {state.get('last_seq', 0)} and {files}, of {made} by Penstock {content.head.version}"
    )


@asynccontextmanager
async def _server(folder: Path) -> AsyncIterator[tuple[Link, int]]:
    """Run a server on a folder that is being restored; what it is given is brought to disk at the end, all at once."""
    from penstock_bus.identity import access
    from penstock_bus.identity.node_issuer import end_all_logins
    from penstock_bus.nats import connect, streams
    from penstock_bus.servers.server import ServerSettings, running
    from penstock_log import subjects

    async with (
        running(ServerSettings(data_dir=folder, sync_interval="10m")) as server,
        connect(server.url, login=server.logins[access.ADMIN], as_client=True) as bus,
    ):
        yield bus.link, server.store_bytes
        if any(one.name == subjects.EVT for one in await streams.streams(bus.link)):
            now_s = time.time()  # noqa: TID251 - for people who read the log
            await end_all_logins(bus, now_s, "restored from a backup")
