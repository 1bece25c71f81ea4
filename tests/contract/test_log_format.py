"""A log of a later version is refused by its format, by whoever would write to it or fold it, and left as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_bus import LogFromFuture
from penstock_bus.identity.access import ADMIN
from penstock_bus.nats import connect
from penstock_bus.nats.link import Link
from penstock_bus.servers.server import ServerSettings, running
from penstock_log import LOG_FORMAT, subjects

MARK = "penstock-log-format"


async def marks(link: Link) -> dict[str, str]:
    found: dict[str, str] = (await link.api(f"STREAM.INFO.{subjects.EVT}"))["config"]["metadata"]
    return found


async def mark(link: Link, number: str | None) -> None:
    config = (await link.api(f"STREAM.INFO.{subjects.EVT}"))["config"]
    config["metadata"].pop(MARK)
    await link.api(f"STREAM.UPDATE.{subjects.EVT}", config | {"metadata": {MARK: number} if number else {}})


async def test_a_log_says_its_format_and_one_that_says_none_is_of_the_first(tmp_path: Path) -> None:
    async with running(ServerSettings(data_dir=tmp_path, sync_interval="2m")) as server:
        async with connect(server.url, login=server.logins[ADMIN]) as bus:
            assert (await marks(bus.link))[MARK] == str(LOG_FORMAT)
            await mark(bus.link, None)
            assert MARK not in await marks(bus.link)
        async with connect(server.url, login=server.logins[ADMIN]) as bus:
            assert (await marks(bus.link))[MARK] == str(LOG_FORMAT)


@pytest.mark.parametrize("number", [str(LOG_FORMAT + 1), "next"])
async def test_a_later_format_is_refused_by_its_number_and_kept(tmp_path: Path, number: str) -> None:
    async with running(ServerSettings(data_dir=tmp_path, sync_interval="2m")) as server:
        async with connect(server.url, login=server.logins[ADMIN]) as bus:
            await mark(bus.link, number)
        for user in (ADMIN, "matcher", "gateway"):
            with pytest.raises(
                LogFromFuture, match=f"format {number}.*formats up to {LOG_FORMAT}.*nothing was changed"
            ):
                async with connect(server.url, login=server.logins[user]):
                    pass
        async with connect(server.url, login=server.logins[ADMIN], as_client=True) as bus:
            assert (await marks(bus.link))[MARK] == number


async def test_up_does_not_start_on_a_folder_of_a_later_version(tmp_path: Path) -> None:
    async with (
        running(ServerSettings(data_dir=tmp_path / "data", sync_interval="2m")) as server,
        connect(server.url, login=server.logins[ADMIN]) as bus,
    ):
        await mark(bus.link, "9")
    command = [sys.executable, "-m", "penstock", "up", "--data", str(tmp_path / "data"), "--port", "-1", "-d"]
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=120)  # noqa: ASYNC221
    assert done.returncode == 1
    assert "the log is of format 9" in done.stderr
