"""
Sleeping on a word of shared memory and waking who sleeps there: the kernel's futex, called through ctypes.

Nothing here is atomic but single loads and stores of aligned words; the protocol needs no more (see
:mod:`penstock_lanes.page`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import time
from typing import Final

_FUTEX: Final = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283}.get(platform.machine())
_WAIT: Final = 0  # not the private operations: the word is shared between processes
_WAKE: Final = 1
_GLOBAL_EXPEDITED: Final = 1 << 1
_REGISTER_GLOBAL_EXPEDITED: Final = 1 << 2


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


LOOK_S: Final = 0.0005
_libc: Final = ctypes.CDLL(None, use_errno=True)
_syscall: Final = _libc.syscall
_syscall.restype = ctypes.c_long
_NULL: Final = ctypes.c_void_p(None)
_ZERO: Final = ctypes.c_int(0)
_ONE: Final = ctypes.c_int(1)


def available() -> bool:
    """Return whether this kernel has futexes that we know how to call: Linux on x86-64 or aarch64."""
    return _FUTEX is not None and sys.platform.startswith("linux")


class Word:
    """
    A word of 4 bytes to sleep on. Where futexes are not :func:`available`, it is looked at every :data:`LOOK_S`.

    Parameters
    ----------
    buffer : writable buffer
        Shared memory.
    offset : int
        In bytes; a multiple of 4.
    """

    def __init__(self, buffer: memoryview, offset: int) -> None:
        self.value = ctypes.c_uint32.from_buffer(buffer, offset)
        self._at = ctypes.byref(self.value)

    def wake(self) -> None:
        """Wake whoever sleeps on it."""
        if _FUTEX is None:
            return
        _syscall(_FUTEX, self._at, _WAKE, _ONE, _NULL, _NULL, _ZERO)

    def wait(self, seen: int, timeout_s: float) -> None:
        """
        Sleep while the word is as it was seen, until woken, interrupted by a signal, or for so many seconds.

        It may also return for no reason: whoever calls it looks again.

        Raises
        ------
        OSError
            If the kernel refuses.
        """
        if _FUTEX is None:
            time.sleep(min(LOOK_S, timeout_s))
            return
        whole = int(timeout_s)
        limit = _Timespec(whole, int((timeout_s - whole) * 1e9))
        expected = ctypes.c_uint32(seen)
        if _syscall(_FUTEX, self._at, _WAIT, expected, ctypes.byref(limit), _NULL, _ZERO) < 0:
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
                raise OSError(code, f"futex wait: {os.strerror(code)}")


def register_fences() -> bool:
    """Let :func:`fence` of other processes reach this one; return whether the kernel has it (Linux 4.16)."""
    return _MEMBARRIER is not None and _syscall(_MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, _ZERO, _ZERO) == 0


def fence() -> bool:
    """
    Have every registered process that runs now pass a full memory barrier; return whether the kernel did it.

    What they stored before it is seen by loads after it, and what was stored here before it is seen by their loads
    after it. So one side of a store-then-load pair needs no barrier of its own.
    """
    return _MEMBARRIER is not None and _syscall(_MEMBARRIER, _GLOBAL_EXPEDITED, _ZERO, _ZERO) == 0
