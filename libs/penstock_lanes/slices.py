"""
Waking up promptly on a machine whose processors are busy.

Where every processor has something to do, a process that is woken waits for a time slice of whoever runs there, some
3 ms. Linux 6.12 and later let a thread ask for shorter slices: it gets no more time for it, but gets it sooner. Those
that wait for a token do, until they have given it away. Elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

_SETATTR: Final = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
_SHORT_NS: Final = 100_000  # the shortest that the kernel gives
_USUAL_NS: Final = 0
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period

_syscall: Final = ctypes.CDLL(None, use_errno=True).syscall


class Slices:
    """The slices of the threads that call it."""

    def __init__(self) -> None:
        self._short = False
        self._possible = _SETATTR is not None

    def shorten(self) -> None:
        """Ask for short ones for this thread, unless it is scheduled in a way of its own."""
        if self._possible and not self._short:
            self._short = self._possible = os.sched_getscheduler(0) == os.SCHED_OTHER and _ask_for(_SHORT_NS)

    def restore(self) -> None:
        """Ask for the usual ones again."""
        if self._short:
            self._short = False
            _ask_for(_USUAL_NS)


def _ask_for(slice_ns: int) -> bool:
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, slice_ns, 0, 0)
    return bool(_syscall(_SETATTR, 0, ctypes.c_char_p(wanted), 0) == 0)
