"""
What is to be done about a disk without room.

A NATS server that met one answers every look, but confirms no message to its streams; and it goes on like that when
there is room again, until it is started anew.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock_bus.logger import get_logger

FULL_BYTES: Final = 4 << 20
ROOM_BYTES: Final = 16 << 20
LOOK_S: Final = 1.0
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
