"""Child processes that do not outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)  # looked up before the fork: not safe after it


def dies_with_parent(signum: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """Return a ``preexec_fn`` with which the kernel signals the child when its parent is gone, even after kill -9."""
    parent = os.getpid()

    def before_exec() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signum)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return before_exec
