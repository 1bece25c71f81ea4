"""What the command line says of errors of the system: what is wrong, and what to do about it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock_cli.invocation import explain


def said(number: int, path: Path) -> str:
    failure = explain(OSError(number, os.strerror(number), str(path)), "nats://127.0.0.1:4222")
    assert failure is not None
    return str(failure)


def test_of_a_folder_that_may_not_be_entered_it_is_the_folder_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    monkeypatch.setattr(os, "access", lambda path, _: closed not in (Path(path), *Path(path).parents))
    what = f"the folder {closed} may not be entered by this user; name another, or have its owner open it"
    assert said(errno.EACCES, closed / "below" / "python") == what
    assert said(errno.EACCES, tmp_path / "file").startswith(f"{tmp_path / 'file'} may not be used by this user")


def test_room_is_asked_for_only_where_there_is_none(tmp_path: Path) -> None:
    assert said(errno.ENOSPC, tmp_path).endswith("No space left on device; make room there")
    assert said(errno.EISDIR, tmp_path) == f"cannot use {tmp_path}: Is a directory"
