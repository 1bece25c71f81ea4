"""
A NATS server for Penstock by itself, for containers: ``python -m penstock_bus.standalone``.

It makes the streams, and for each login a folder of its own in the credentials folder, so that a container can be given
one and no other: ``SERVICE/password`` (``PENSTOCK_PASSWORD_FILE``), and for people and foreign services
``client/client.json`` and ``extension/extension.json`` (``PENSTOCK_CREDENTIALS``). An extension that is configured
(``PENSTOCK_EXTENSIONS_NAMES``) gets ``extension-NAME/extension-NAME.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock_bus import access
from penstock_bus.nats import StreamLimits, connect
from penstock_bus.port import BusError
from penstock_bus.server import ServerSettings, running, wait_for_disk_space, widen_full_store
from penstock_bus.settings import load
from penstock_bus.shell import handle_signals
from penstock_log.services import LOGINS


async def serve(settings: ServerSettings, shared: Path, url: str, stopping: asyncio.Event) -> int:
    """
    Run the server until ``stopping`` is set.

    Returns 1 if it ends before that, or has to be started anew because its disk was full.

    Parameters
    ----------
    shared : Path
        Existing folder for one folder a login, named after it.
    url : str
        Where people find the server: the address in their credentials.
    """
    async with running(settings) as server:
        await widen_full_store(server)
        admin, limits = server.passwords[access.ADMIN], StreamLimits.of_store(server.store_bytes)
        async with connect(server.url, user=access.ADMIN, password=admin, name="penstock server", limits=limits):
            pass  # the first connection of an admin makes the streams
        _write_logins(server.passwords, settings.extensions, shared, url)
        ends: list[Coroutine[Any, Any, Any]] = [stopping.wait(), server.wait(), wait_for_disk_space(settings.data_dir)]
        tasks = [asyncio.ensure_future(end) for end in ends]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        return 0 if stopping.is_set() else 1


def _write_logins(passwords: Mapping[str, str], extensions: Sequence[str], shared: Path, url: str) -> None:
    for service in LOGINS:
        folder = shared / service
        folder.mkdir(exist_ok=True)
        access.write_private(folder / "password", passwords[service].encode())
    for role, user in access.users_of_roles(extensions).items():
        login = access.Login(url=url, user=user, password=passwords[user], description="Penstock")
        access.write_login(shared / role / access.file_name(role), login)


async def _main(settings: ServerSettings, shared: Path, url: str) -> int:
    stopping = asyncio.Event()
    handle_signals(stopping)
    try:
        return await serve(settings, shared, url, stopping)
    except BusError as error:
        sys.stderr.write(f"penstock server: {error}\n")
        return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m penstock_bus.standalone", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the streams")
    parser.add_argument("--credentials", type=Path, required=True, help="folder for everybody's credentials")
    parser.add_argument("--url", default="nats://127.0.0.1:4222", help="where people find it, for their credentials")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 a container's own
    parser.add_argument("--port", type=int, default=4222)
    return parser.parse_args()


if __name__ == "__main__":
    args = _arguments()
    args.credentials.mkdir(parents=True, exist_ok=True)
    extensions = load(access.Extensions, "extensions").names
    settings = ServerSettings(data_dir=args.data, host=args.host, port=args.port, extensions=extensions)
    sys.exit(asyncio.run(_main(settings, args.credentials, args.url)))
