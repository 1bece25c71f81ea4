"""The job's side of ``penstock cp``, and ports that are listened at before the job's are known to be others."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from penstock_cli.commands.transfers import PACK, Listener, PortPair
from penstock_testing import eventually


@pytest.mark.parametrize(
    ("complaint", "status", "code", "told"),
    [
        ("tar: out.csv: file changed as we read it", 1, 0, ""),
        ("tar: a/b: File removed before we read it", 1, 0, "tar: a/b: File removed before we read it\n"),
        ("tar: a: file changed as we read it\ntar: b: File shrank by 9 bytes; padding with zeros", 1, 1, "shrank"),
        ("tar: out.csv: Cannot open: Permission denied", 2, 2, "Permission denied"),
        ("", 1, 1, ""),
        ("", 0, 0, ""),
    ],
)
def test_a_file_that_grows_while_it_is_packed_is_copied_and_one_that_cannot_be_read_is_told(
    tmp_path: Path, complaint: str, status: int, code: int, told: str
) -> None:
    tar = tmp_path / "bin" / "tar"
    tar.parent.mkdir()
    tar.write_text(f"#!/bin/sh\nprintf packed\n[ -z '{complaint}' ] || echo '{complaint}' >&2\nexit {status}\n")
    tar.chmod(0o755)
    (tmp_path / "out.csv").write_text("1,2\n")
    done = subprocess.run(
        ["/bin/sh", "-c", PACK, "sh", "out.csv"],
        cwd=tmp_path,
        env={"PATH": f"{tar.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "packed")
    assert told in done.stderr if told else done.stderr == ""


class NoSession:
    """A session that nobody asks for anything."""


async def test_connections_that_came_before_a_port_was_open_are_ended_with_it() -> None:
    listener = Listener(cast("Any", NoSession()), PortPair(local=0, remote=80))
    server = await listener.listen("127.0.0.1")
    opened = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(3)]
    opened[0][1].write(b"first")
    await eventually(lambda: len(listener.held) == len(opened))
    server.close()
    await listener.end_connections()
    for reader, writer in opened:
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
    await server.wait_closed()
