"""
Keeper of a run's fence: what stops a program in time, and has the kernel end it where the shim itself was stopped.

A part of the shim, which loads it by its path. Like the shim it imports nothing of Penstock. What it is for, and the
times, are told in :mod:`penstock_executor.fence`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

AGAIN_S: Final = 0.2
"""How often a program that is stopped is looked at, and whether it may go on."""
LOOK_S: Final = 0.025
"""Half the time to the first look for process groups; each later look comes after twice the time."""
_TETHER_FD: Final = 100
"""The lowest number of the program's end of the tether, so that no script meets it at a number that it uses itself."""
_libc: Final = ctypes.CDLL(None, use_errno=True)


class HeldTree(Protocol):
    """The program and all that descends from it, as :class:`penstock_executor.launchers.shim.ProcessTree`."""

    code: int | None

    def roots(self) -> Iterable[int]:
        """Return the processes from which all of them descend."""

    def hold(self) -> None:
        """Stop all of them that run."""

    def release(self) -> None:
        """Let those go on that were stopped."""

    def kill(self) -> None:
        """End all of them."""


def parse(text: str) -> Fence:
    """Return the fence of ``HOLD:END:KEEP:PATH``."""
    *times, path = text.split(":", 3)
    return Fence(path, *map(float, times))


class Fence:
    """
    For how long the program may go on, counted from the last heartbeat of the node that the matcher has answered.

    The executor writes the time of that heartbeat into a page that all shims of the node read. The matcher gives the
    program's devices away when the node was silent for longer than the fence allows, so that whatever has stopped,
    executor, network or shim, no two runs of a job are at work at the same time.

    Parameters
    ----------
    path : str
        The page: a time of ``CLOCK_BOOTTIME`` in nanoseconds, in 8 bytes of native order.
    hold_s : float
        After this long the program is stopped, until there is a newer time.
    end_s : float
        After this long the kernel ends a shim that has not looked, and with it the program.
    keep_s : float
        For how long a program is kept that is stopped; after that it is ended.
    """

    def __init__(self, path: str, hold_s: float, end_s: float, keep_s: float) -> None:
        self._page = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._hold_s, self._end_s, self._keep_s = hold_s, end_s, keep_s
        self._timer, self._over, self._held_s, self.tether = KernelTimer(), False, 0.0, Tether()

    def opens(self, ending: Iterable[int]) -> bool:
        """Wait until the program may begin; return False if it never may, as one of the signals or the time says."""
        end_s = _now_s() + self._keep_s
        while True:
            self._timer.set(self._heard_s() + self._end_s)
            if self._left_s() > 0:
                return True
            self._timer.set(0)  # nothing runs yet
            if signal.sigtimedwait(ending, AGAIN_S) is not None or _now_s() > end_s:
                return False

    @contextlib.contextmanager
    def kept(self, tree: HeldTree) -> Iterator[None]:
        """Keep the program within its time, until it and all that it started have ended."""
        threading.Thread(target=self._guard, args=(tree,), daemon=True).start()  # who writes may wait for a slow disk
        yield
        self._over = True
        self._timer.set(0)

    def _guard(self, tree: HeldTree) -> None:
        look_s = LOOK_S
        while tree.code is None and not self._over:
            left_s = self._left_s()
            if left_s > 0:
                self._held_s = 0.0
                tree.release()
                self._set_timer(self._heard_s() + self._end_s)
                self.tether.tie(_groups(tree.roots()))
                look_s = min(2 * look_s, self._hold_s / 4)
                time.sleep(min(left_s, look_s))
            else:
                tree.hold()
                self._held_s = self._held_s or _now_s()
                self._set_timer(self._held_s + self._keep_s + self._end_s)
                if _now_s() >= self._held_s + self._keep_s:
                    tree.kill()
                time.sleep(min(AGAIN_S, self._hold_s / 4))

    def _set_timer(self, at_s: float) -> None:
        self._timer.set(at_s)
        if self._over:  # meanwhile
            self._timer.set(0)

    def _left_s(self) -> float:
        return self._heard_s() + self._hold_s - _now_s()

    def _heard_s(self) -> float:
        page = os.pread(self._page, 8, 0)
        return struct.unpack("@q", page)[0] / 1e9 if len(page) == 8 else 0.0


class KernelTimer:
    """
    A timer by which the kernel kills this very process, also one that is stopped, or was suspended with its machine.

    Its clock is ``CLOCK_BOOTTIME``. Where the kernel has no such timer, nothing happens.
    """

    def __init__(self) -> None:
        self._id = ctypes.c_void_p()
        event = struct.pack("@Pii48x", 0, signal.SIGKILL, 0)  # struct sigevent, with SIGEV_SIGNAL
        self._there = hasattr(_libc, "timer_create") and not _libc.timer_create(
            time.CLOCK_BOOTTIME, event, ctypes.byref(self._id)
        )

    def set(self, at_s: float) -> None:
        """Have it kill at this time and no earlier one; 0: never."""
        if self._there:
            when = struct.pack("@4l", 0, 0, int(at_s), int(at_s % 1 * 1e9))  # struct itimerspec
            _libc.timer_settime(self._id, 1, when, None)


class Tether:
    """
    What has the kernel kill the program when the shim ends, though all of them be stopped and nobody can be told.

    For each process group there is a pipe whose closing sends KILL to the group. One end is open as long as the shim
    lives. The other lies in the queue of a socket that the program inherits, so that it is there when the first closes.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._groups: set[int] = set()
        try:
            self.inherited = fcntl.fcntl(self._theirs, fcntl.F_DUPFD, _TETHER_FD)
        except OSError:  # so many descriptors are not allowed
            self.inherited = os.dup(self._theirs.fileno())
            os.set_inheritable(self.inherited, True)
        self.tie({os.getpgrp()})

    def tie(self, groups: set[int]) -> None:
        """Tie groups that are new; what finds no room in the queue is left to the executor."""
        for group in groups - self._groups:
            self._groups.add(group)
            reader, _ = os.pipe2(os.O_CLOEXEC)  # the other end stays open
            with contextlib.suppress(OSError):
                fcntl.fcntl(reader, fcntl.F_SETOWN, -group)
                fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
                socket.send_fds(self._ours, [b"-"], [reader])
            os.close(reader)

    def leave(self) -> None:
        """Hold none of it in a child that has closed all but what it inherits."""
        self._ours.detach()
        self._theirs.detach()

    def hand_over(self) -> None:
        """Close our copies of what the program has inherited."""
        self._theirs.close()
        os.close(self.inherited)


def _groups(ancestors: Iterable[int]) -> set[int]:
    """Return the process groups below some, as far as they are seen without looking at all processes of the machine."""
    found, groups = [*map(str, ancestors)], {os.getpgrp()}
    for pid in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children") as file:
                    found += file.read().split()
            groups.add(os.getpgid(int(pid)))
    return groups


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
