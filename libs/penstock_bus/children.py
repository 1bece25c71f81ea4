"""Child processes that do not outlive their parent."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable
from typing import Final, Protocol

_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


class Process(Protocol):
    """What :class:`asyncio.subprocess.Process` and others have that can be signalled and waited for."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """Its exit status; None while it runs."""

    async def wait(self) -> int:
        """Wait until it has ended; return its exit status."""

    def send_signal(self, signal: int) -> None:
        """Signal it."""


def dies_with_parent(signum: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """Return a ``preexec_fn`` with which the kernel signals the child when its parent is gone, even after kill -9."""
    parent = os.getpid()

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return before_exec


async def end(process: Process, grace_s: float) -> int:
    """Ask a process to end, and kill it if it has not after ``grace_s``; return its exit status."""
    if process.returncode is None:
        signal_if_there(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await process.wait()
        except TimeoutError:
            signal_if_there(process, signal.SIGKILL)
    return await process.wait()


def signal_if_there(process: Process, signum: signal.Signals) -> None:
    """Signal a process, unless it has ended meanwhile."""
    try:
        process.send_signal(signum)
    except ProcessLookupError:
        return
