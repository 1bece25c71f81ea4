"""
Fence in time: for how long this node's runs may go on while the matcher does not hear the node.

A node whose heartbeats have stopped is lost: the matcher gives its jobs to other nodes. The node cannot be told, since
it may be cut off, and its executor may be stopped. So its runs have to end by a clock, before the matcher's patience is
over, and whoever keeps them within their time must not need the executor.

Each heartbeat carries the time of the node's own clock, and the matcher that leads answers it with that time, unless
the node is lost. :class:`HeardPage` keeps the time of the last heartbeat that was answered, in a file that the shims
and sessions of all runs read. A matcher gives up a node no earlier than its patience after it has last answered; the
heartbeat was sent before it was answered; so what is counted from the sending is over sooner. :func:`fence_of` says
what happens when.

A run that is stopped is not ended: when the node is heard again and was not given up, it goes on. If it was given up,
the executor ends the run before it writes to the page again.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

import structlog

from penstock_bus.clock import ticks
from penstock_executor.launchers.launcher import RunFence
from penstock_executor.run_state import HOLD
from penstock_log import Placement

END: Final = 0.9
"""The part after which the kernel ends one that could not be stopped. The rest is for clocks of different rates."""
BEATS: Final = 6.0
"""Heartbeats in the time after which runs are stopped, at least."""
_TIME: Final = struct.Struct("@q")
_log: Final = structlog.get_logger("penstock.executor")


def fence_of(placement: Placement | None, page: Path, keep_s: float) -> RunFence | None:
    """
    Return the fence of a grant's run; None where the matcher that gave it answers no heartbeats.

    Examples
    --------
    >>> placement = Placement(job_id="j", epoch=1, kind="fast", slots=(), patience_s=10.0)
    >>> fence = fence_of(placement, Path("heard"), 600.0)
    >>> (fence.hold_s, fence.end_s)
    (7.5, 9.0)
    """
    if placement is None or not placement.patience_s:
        return None
    return RunFence(page=page, hold_s=HOLD * placement.patience_s, end_s=END * placement.patience_s, keep_s=keep_s)


class HeardPage:
    """
    The page on which stands when the last heartbeat was sent that the matcher has answered.

    It outlives the executor: what an earlier one has written holds, so that an executor can be restarted while its runs
    go on.

    Parameters
    ----------
    path : Path
        Made if it is not there, and of the executor's user alone to write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.fchmod(self._file, 0o644)  # jobs run as other users
        before = os.pread(self._file, _TIME.size, 0)
        self._heard_s = _TIME.unpack(before)[0] / 1e9 if len(before) == _TIME.size else 0.0
        if not 0.0 < self._heard_s <= ticks():  # of before the machine was started anew
            self._heard_s = 0.0
            self._write(0.0)

    def note(self, sent_s: float) -> None:
        """Note that a heartbeat was answered which was sent at a time of :func:`penstock_bus.clock.ticks`."""
        if self._heard_s < sent_s <= ticks() and self._write(sent_s):
            self._heard_s = sent_s

    def _write(self, sent_s: float) -> bool:
        """Write a time; False where a disk without room does not even take these bytes: the next answer comes soon."""
        try:
            return os.pwrite(self._file, _TIME.pack(int(sent_s * 1e9)), 0) == _TIME.size
        except OSError as error:
            _log.warning("answer_not_noted", path=str(self.path), error=str(error))
            return False

    @property
    def unheard_s(self) -> float:
        """How long ago the heartbeat was sent."""
        return ticks() - self._heard_s

    def close(self) -> None:
        """Close the file; who reads it goes on."""
        os.close(self._file)
