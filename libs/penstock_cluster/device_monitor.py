"""
Monitors of devices: how busy each is, and how well.

:class:`DeviceMonitor` is the port; a backend has one by :meth:`~penstock_cluster.device_backend.DeviceBackend.monitor`.
:class:`HostMonitor` serves devices of which no driver tells: it estimates from the processor time of their processes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from penstock_cluster.accounting import PROC, total
from penstock_log import Device
from penstock_log.device_samples import DeviceReading

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_UTIME: Final = 11
"""Field of ``/proc/PID/stat``, counted behind the name: then come system time, and both of children that have ended."""


class DeviceMonitor(Protocol):
    """Reads devices again and again; it may keep the driver open meanwhile."""

    def read(self, device: Device, parts: Mapping[int, float]) -> DeviceReading:
        """
        Return what is known of a device by now; what is wrong is in its ``error``.

        Parameters
        ----------
        parts : mapping of int to float
            Process that has the device → which part of its work is on it: 1 but for one that has several devices.
        """

    def close(self) -> None:
        """Let go of the driver."""


class HostMonitor(DeviceMonitor):
    """
    The estimate from processes: processor time by time passed, and what is resident.

    Parameters
    ----------
    clock : callable
        Seconds that never jump.
    processors : float
        As many are a whole device: 1 for an emulated one, whose process computes with one thread.
    """

    def __init__(self, clock: Callable[[], float], processors: float = 1.0, proc: Path = PROC) -> None:
        self._clock, self._processors, self._proc = clock, processors, proc
        self._before: dict[int, tuple[float, dict[int, float]]] = {}

    def read(self, device: Device, parts: Mapping[int, float]) -> DeviceReading:
        """Return the estimate; no utilisation at a device's first reading, before which nothing is known."""
        now_s = self._clock()
        used_s = {pid: seconds for pid in parts if (seconds := processor_s(pid, self._proc)) is not None}
        before_s, before = self._before.get(device.index, (now_s, {}))
        self._before[device.index] = now_s, used_s
        utilisation = None
        if now_s > before_s:
            busy_s = sum(parts[pid] * max(0.0, seconds - before.get(pid, 0.0)) for pid, seconds in used_s.items())
            utilisation = min(1.0, busy_s / (now_s - before_s) / self._processors)
        held_bytes = round(sum(parts[pid] * total([pid], self._proc).resident_bytes for pid in used_s))
        return DeviceReading(
            source="processes",
            utilisation=utilisation,
            memory_used_bytes=held_bytes,
            memory_free_bytes=max(0, device.memory_bytes - held_bytes),
            memory_total_bytes=device.memory_bytes,
        )

    def close(self) -> None:
        """Do nothing: nothing is open."""


def processor_s(pid: int, proc: Path = PROC) -> float | None:
    """Return the processor time of a process and of its children that have ended; None where it is not there."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
        fields = stat[stat.rfind(")") + 2 :].split()
        return sum(map(int, fields[_UTIME : _UTIME + 4])) / _TICKS_PER_S
    except (OSError, ValueError):
        return None
