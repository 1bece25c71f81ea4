"""
What the session asks of the device's framework, where the script has loaded one: PyTorch with CUDA.

It is looked for among the modules that are there, and never loaded. Without it, a process's memory is what it has
resident on the host.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from penstock_events.agent import Memory

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"


def works_on() -> bool:
    """Whether the device may be at work for this process after a step has returned."""
    return _cuda() is not None


def settle() -> None:
    """Wait until the device has done all that it was told, and give back what the allocator only keeps in reserve."""
    cuda = _cuda()
    if cuda is None:
        return
    for index in range(cuda.device_count()):
        cuda.synchronize(index)
    cuda.empty_cache()


def measure() -> Memory | None:
    """
    Return what the process holds now, and the most that it has held since it was asked last.

    None where nobody knows. Over several devices, the most of each part: what is needed of one of them.
    """
    cuda = _cuda()
    return _resident() if cuda is None else _allocated(cuda)


def _cuda() -> Any:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _allocated(cuda: Any) -> Memory:
    devices = range(cuda.device_count())
    memory = Memory(
        allocated_bytes=max(cuda.memory_allocated(index) for index in devices),
        peak_bytes=max(cuda.max_memory_allocated(index) for index in devices),
        reserved_bytes=max(cuda.memory_reserved(index) for index in devices),
        on_device=True,
    )
    for index in devices:
        cuda.reset_peak_memory_stats(index)
    return memory


def _resident() -> Memory | None:
    """Return the resident memory, and its peak, which is then counted anew: some 50 microseconds."""
    try:
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if line.startswith("Vm"))
        memory = Memory(allocated_bytes=_bytes(lines["VmRSS"]), peak_bytes=_bytes(lines["VmHWM"]))
        _reset_peak()
    except (OSError, KeyError, ValueError):  # not Linux
        return None
    return memory


def _bytes(text: str) -> int:
    return int(text.removesuffix("kB")) * 1024


def _reset_peak() -> None:
    handle = os.open(_CLEAR, os.O_WRONLY)
    try:
        os.write(handle, _RESET_PEAK.encode())
    finally:
        os.close(handle)
