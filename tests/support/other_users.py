"""Users of this host beside the one that the tests run as; there are tests that only root can do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

ALICE: Final = (54_321, 54_321)
"""A user and group without an account."""
BOB: Final = (54_322, 54_322)
as_root: Final = pytest.mark.skipif(
    os.geteuid() != 0, reason="NOT TESTED: other users' processes and files can only be made by root; run it as root"
)
SYSTEM_PYTHON: Final = "/usr/bin/python3"
"""An interpreter that other users may run too; that of the tests may lie in a home folder that is closed to them."""


def acting_as(user: tuple[int, int], act: Callable[[], object]) -> None:
    """Do something as another user, in a child of this process."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(user[1], user[1], user[1])
            os.setresuid(user[0], user[0], user[0])
            act()
            os._exit(0)
        except BaseException as error:  # a child of pytest must not go on as pytest
            sys.stderr.write(f"{error!r}\n")
            sys.stderr.flush()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def let_through(folder: Path) -> Path:
    """Open pytest's folders, which are their owner's alone, so that another user comes to what is below."""
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    return folder
