"""
What is to be done about a disk, or a store, without room.

A NATS server that met one answers every look, but confirms no message to its streams; and it goes on like that when
there is room again, until it is started anew.

A store that has reached its limit takes nothing either, not even leases, so that nothing could start on it: it is given
a little more, and people are told what to purge.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock_bus import permissions
from penstock_bus.logger import get_logger
from penstock_bus.nats import connect, store
from penstock_bus.server import Server
from penstock_events import subjects

FULL_BYTES: Final = 4 << 20
ROOM_BYTES: Final = 16 << 20
LOOK_S: Final = 1.0
_RESERVE: Final = 16  # the part of a store that a full one is given besides
_LEAST_RESERVE_BYTES: Final = 16 << 20
_log = get_logger("penstock.storing")


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


async def until_room_again(
    folder: Path, look_s: float = LOOK_S, free_bytes_of: Callable[[Path], int] = _free_bytes
) -> None:
    """
    Return when the disk under a folder, after it was full, has room again: the server on it has to be started anew.

    That it is full is told in the log, once.
    """
    full = False
    while True:
        free_bytes = free_bytes_of(folder)
        if full and free_bytes >= ROOM_BYTES:
            _log.warning("disk_has_room_again", folder=str(folder), free_bytes=free_bytes)
            return
        if not full and free_bytes < FULL_BYTES:
            full = True
            advice = f"the log takes nothing, and no job is started; free {ROOM_BYTES >> 20} MiB and all goes on"
            _log.error("disk_full", folder=str(folder), free_bytes=free_bytes, advice=advice)
        await asyncio.sleep(look_s)


async def with_room(server: Server) -> str:
    """
    Start a server anew with a reserve if its store is full; return what to tell people, empty where there is room.

    Parameters
    ----------
    server : Server
        One that runs, with Penstock's own users.
    """
    async with connect(
        server.url, user=permissions.ADMIN, password=server.passwords[permissions.ADMIN], as_client=True
    ) as bus:
        used, limit = await store.used_bytes(bus.link), server.store_bytes
        reserve = max(limit // _RESERVE, _LEAST_RESERVE_BYTES)
        if used + reserve // 2 <= limit:
            return ""
        largest = [one for one in await store.streams(bus.link) if one.name != subjects.EVT][:1]
    await server.widen(used + reserve)
    of = "".join(f", {one.bytes >> 20} MiB of it in {one.name}" for one in largest if one.bytes >> 20)
    purge = f"`penstock purge --data {server.settings.data_dir}`"
    told = f"is full: {used >> 20} of {limit >> 20} MiB{of}; {purge} says what can go, `--max-store` gives more"
    _log.error("store_full", used_bytes=used, limit_bytes=limit, reserve_bytes=reserve, advice=purge)
    return told
