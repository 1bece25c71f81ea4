"""
The fence in time, as a session keeps it: no step is begun while the matcher does not hear the node.

The node's executor keeps a page with the time of its last heartbeat that was answered. The process that all others of
the run descend from stops them all when that is too long ago. :class:`HeartbeatFence` is for the case that this process
has itself been stopped: the session looks before it goes on, so that not one step is done after the time.
"""

from __future__ import annotations

import logging
import os
import struct
import time
from math import inf
from typing import Final

LOOK_S: Final = 0.05
_TIME: Final = struct.Struct("@q")
_log = logging.getLogger("penstock.session")


class HeartbeatFence:
    """
    The page of this node, and how long after the time on it the process may go on.

    Parameters
    ----------
    path : str
        The page; where it cannot be read, or the clock is not known here, there is no fence in this process.
    hold_s : float
    """

    def __init__(self, path: str, hold_s: float) -> None:
        self._hold_s = hold_s
        self._page = -1
        if hasattr(time, "CLOCK_BOOTTIME"):
            try:
                self._page = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                _log.warning(
                    "heartbeat_page_not_read path=%s error=%s; the executor's shim still reads it", path, error
                )

    def wait(self) -> float:
        """Wait until the process may go on; return for how many seconds it may without another look."""
        if self._page < 0:
            return inf
        waited = False
        while (left_s := self._left_s()) <= 0:
            if not waited:
                _log.warning("run_held: the matcher has not heard this node for %s s; waiting", self._hold_s)
                waited = True
            time.sleep(LOOK_S)
        return left_s

    def close(self) -> None:
        """Close the page."""
        if self._page >= 0:
            os.close(self._page)
            self._page = -1

    def _left_s(self) -> float:
        page = os.pread(self._page, _TIME.size, 0)
        heard_s = _TIME.unpack(page)[0] / 1e9 if len(page) == _TIME.size else 0.0
        return heard_s + self._hold_s - time.clock_gettime(time.CLOCK_BOOTTIME)
