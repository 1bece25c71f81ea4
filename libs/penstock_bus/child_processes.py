"""Child processes: they do not outlive their parent, and import nothing from the folder where it was started."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def module_command(module: str, *arguments: str) -> tuple[str, ...]:
    """
    Return the command line that runs a module of ours.

    Its imports do not come from the current folder: that is where somebody happened to start Penstock, and a
    ``queue.py`` there would be taken for the standard library's. It is an option rather than ``PYTHONSAFEPATH``, which
    the jobs would inherit, whose scripts count on their own folder.
    """
    return (sys.executable, "-P", "-m", module, *arguments)


@contextmanager
def safe_imports() -> Iterator[None]:
    """
    Have processes that ``multiprocessing`` starts within import nothing from the current folder.

    For those that run no job: they inherit the variable. ``spawn`` begins them with ``python -c``, which looks for
    every module in the current folder first, and takes no options of ours.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SAFE_PATH, None)
        else:
            os.environ[_SAFE_PATH] = before


_SAFE_PATH: Final = "PYTHONSAFEPATH"
