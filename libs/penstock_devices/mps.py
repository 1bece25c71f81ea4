"""
NVIDIA's multi-process service: whether the operator runs it. It is never started, stopped or set from here.

A CUDA program uses it by itself where its daemon listens in the pipe directory. Here is only how one knows.

References
----------
NVIDIA, Multi-Process Service: the control daemon notes its pid in the pipe directory; ``CUDA_MPS_PIPE_DIRECTORY``,
by default ``/tmp/nvidia-mps``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT: Final = "/tmp/nvidia-mps"  # noqa: S108 -- the driver's default, not ours
_PID_FILE: Final = "nvidia-cuda-mps-control.pid"


def running(environ: Mapping[str, str]) -> Path | None:
    """
    Return the pipe directory of the daemon that programs with this environment would find; None if none lives.

    A directory that a dead daemon left behind does not count, nor does one whose daemon lives in another pid namespace.
    """
    directory = Path(environ.get(PIPE_DIRECTORY) or _DEFAULT)
    try:
        pid = int((directory / _PID_FILE).read_text())
    except (OSError, ValueError):
        return None
    return directory if pid > 0 and _lives(pid) else None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # it is the operator's, as it should be
    except (OSError, OverflowError):
        return False
    return True
