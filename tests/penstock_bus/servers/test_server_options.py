"""A disk that fills up and is emptied again, told by a list of what is free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock_bus.servers.server import FULL_BYTES, ROOM_BYTES, wait_for_disk_space


def disk(*free: int) -> tuple[Callable[[Path], int], asyncio.Event]:
    """A disk with so much room at each look, for ever with the last; and an event for when all was looked at."""
    left, over = list(free), asyncio.Event()

    def free_bytes(_: Path) -> int:
        if len(left) > 1:
            return left.pop(0)
        over.set()
        return left[0]

    return free_bytes, over


@pytest.mark.parametrize(
    "free",
    [
        (10 * ROOM_BYTES,),
        (FULL_BYTES, 10 * ROOM_BYTES),
        (0, 0, 0),
        (0, ROOM_BYTES - 1),
    ],
)
async def test_a_server_goes_on_while_its_disk_has_room_or_still_has_none(
    free: tuple[int, ...], tmp_path: Path
) -> None:
    free_bytes, over = disk(*free)
    watching = asyncio.create_task(wait_for_disk_space(tmp_path, 0.0, free_bytes))
    await over.wait()
    await asyncio.sleep(0)
    assert not watching.done()
    watching.cancel()


async def test_when_a_full_disk_has_room_again_the_server_is_to_be_started_anew(tmp_path: Path) -> None:
    free_bytes, _ = disk(ROOM_BYTES, FULL_BYTES - 1, 0, FULL_BYTES, ROOM_BYTES)
    with capture_logs() as logs:
        await wait_for_disk_space(tmp_path, 0.0, free_bytes)
    assert [line["event"] for line in logs] == ["disk_full", "disk_has_room_again"]
    assert logs[0]["advice"] == "the log takes nothing, and no job is started; free 16 MiB and all goes on"


async def test_it_looks_at_the_disk_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await wait_for_disk_space(tmp_path, 0.01)
