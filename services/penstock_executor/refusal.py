"""
End of this node's runs where the bus refuses the executor: its node was revoked, or is one of another cluster.

Nothing is left then that the executor could tell, and nobody will tell it anything. Its runs would be stopped by their
fence and stand so for ``held_s``, with their memory, for an executor that takes them up again and does not come.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import structlog

from penstock_bus.service_folder import alone_in
from penstock_executor import run_folders
from penstock_executor.launchers import LAUNCHERS
from penstock_executor.launchers.launcher import Launcher
from penstock_executor.run_folders import ExecutorError
from penstock_executor.settings import ExecutorSettings

GRACE_S: Final = 5.0
"""So long after TERM what is left is killed: before the fence stops it, for who was just heard of."""
KILL_S: Final = 5.0
_log: Final = structlog.get_logger("penstock.executor")


def end_runs(settings: ExecutorSettings, grace_s: float = GRACE_S) -> None:
    """
    End all runs of an executor's data folder: TERM first, then KILL.

    They are found by their folders, so those that an earlier executor has left are ended too. Where another executor
    works in the folder they are its own, and go on.
    """
    try:
        with alone_in(settings.data_dir, "executor", ExecutorError) as data:
            _end_all(data / "runs", LAUNCHERS[settings.launcher](settings), grace_s)
    except ExecutorError as error:
        _log.warning("runs_not_ended", reason=str(error))


def _end_all(runs: Path, launcher: Launcher[Any], grace_s: float) -> None:
    folders = [run_folders.rank_path(runs, run.key, rank) for run in run_folders.scan(runs) for rank in run.ranks]
    alive = [process for folder in folders if (process := launcher.adopt(folder)) is not None]
    if not alive:
        return
    _log.warning("runs_ended", processes=len(alive), reason="this node is none of the cluster any more")
    for process in alive:
        launcher.signal_group(process, signal.SIGTERM)
    _wait(launcher, alive, grace_s)
    for process in alive:
        launcher.kill(process)
    _wait(launcher, alive, KILL_S)
    for folder in folders:
        if launcher.adopt(folder) is None:
            launcher.clean_up(folder)


def _wait(launcher: Launcher[Any], processes: Iterable[Any], most_s: float) -> None:
    """Wait until all processes have ended, but not for ever."""
    ends_s = time.monotonic() + most_s  # noqa: TID251 - there is no event loop any more
    poll, left = select.poll(), set()
    for process in processes:
        try:
            fd = launcher.exit_fd(process)
        except ProcessLookupError:
            continue
        poll.register(fd, select.POLLIN)
        left.add(fd)
    while left and (rest_s := ends_s - time.monotonic()) > 0:  # noqa: TID251 - as above
        for fd, _ in poll.poll(rest_s * 1000):
            poll.unregister(fd)
            os.close(fd)
            left.discard(fd)
    for fd in left:
        os.close(fd)
