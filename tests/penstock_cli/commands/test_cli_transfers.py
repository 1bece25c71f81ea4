"""The job's side of ``penstock cp``: what becomes of files that are written while they are packed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock_cli.commands.transfers import PACK


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
