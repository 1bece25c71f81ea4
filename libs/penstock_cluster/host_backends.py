"""
Backends without devices of their own: the host as a device, and emulated devices.

:class:`CpuBackend` has one device, the host itself, for jobs that name it in ``kinds``. :class:`EmulatedBackend` has
devices that do not exist: the real process runs on the host, and each iteration is stretched by a declared speed.
:func:`penstock.session` stretches it at iteration boundaries; here is only the description of the devices.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Final, Self

import msgspec

from penstock_cluster.accounting import HostAccounting
from penstock_cluster.device_backend import DeviceBackend, DeviceError
from penstock_cluster.device_monitor import HostMonitor
from penstock_log import Device
from penstock_log.agent_protocol import AgentEnv

KIND: Final = "cpu"


class CpuBackend(DeviceBackend):
    """
    One device with the host's memory, or with ``memory_bytes`` of it.

    Examples
    --------
    >>> CpuBackend(memory_bytes=1024).devices()[0].kind
    'cpu'
    """

    name = "cpu"

    def __init__(self, memory_bytes: int = 0) -> None:
        memory_bytes = memory_bytes or host_memory_bytes()
        self._devices = (Device(index=0, kind=KIND, memory_bytes=memory_bytes, backend=self.name),)

    @classmethod
    def parse(cls, part: str, column: int) -> Self | None:
        """Return the host for ``cpu``, or so much of it as ``cpu:MEMORY`` says; ``cpu:2`` is an emulated kind."""
        name, _, memory = part.partition(":")
        if name != KIND or ":" in memory or memory.isdigit():
            return None
        return cls(parse_bytes(memory, column + 4) if memory else 0)

    @classmethod
    def found(cls) -> Self:
        """Return the whole host."""
        return cls()

    @classmethod
    def conflict(cls, backends: Sequence[Self]) -> str:
        """Return what is wrong with parts of the host that are more than it has."""
        memory_bytes = sum(device.memory_bytes for backend in backends for device in backend.devices())
        more = memory_bytes > host_memory_bytes()
        return ": the parts of the host are more than it has; expected less of each" if more else ""

    def devices(self) -> tuple[Device, ...]:
        """Return the one device."""
        return self._devices

    def labels(self, first: int = 0) -> dict[str, str]:
        """Return none: the host is not connected to itself."""
        del first
        return {}

    @staticmethod
    def environment(devices: Sequence[Device]) -> dict[str, str]:
        """Hide all CUDA devices from the process."""
        del devices
        return {"CUDA_VISIBLE_DEVICES": ""}

    @classmethod
    def accounting(cls) -> HostAccounting:
        """Return the accounting by the kernel."""
        return HostAccounting()

    @classmethod
    def monitor(cls, clock: Callable[[], float]) -> HostMonitor:
        """Return an estimate, for which all processors that the executor may use are the device."""
        return HostMonitor(clock, len(os.sched_getaffinity(0)))


def host_memory_bytes() -> int:
    """Return the host's physical memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


MOST: Final = 100_000
"""Devices of one group."""
MOST_BYTES: Final = 2**53
"""Of one device: whole numbers beyond that are not safe in JSON."""
EXPECTED: Final = "expected kind:count@speed:memory, such as fast:2@1.0:16GiB"
_UNITS: Final = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_KIND: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


class EmulatedGroup(msgspec.Struct, frozen=True):
    """Equal emulated devices."""

    kind: str
    count: int
    speed: float
    memory_bytes: int


class EmulatedBackend(DeviceBackend):
    """
    The devices of a description such as ``fast:2@1.0:16GiB,slow:2@0.4:8GiB``.

    Examples
    --------
    >>> [device.kind for device in EmulatedBackend("fast:2@1.0:16GiB,slow:1@0.4:8GiB").devices()]
    ['fast', 'fast', 'slow']
    """

    name = "emulated"

    def __init__(self, description: str, column: int = 1) -> None:
        each = [group for group in parse(description, column) for _ in range(group.count)]
        self._devices = tuple(
            Device(
                index=i,
                kind=group.kind,
                memory_bytes=group.memory_bytes,
                backend=self.name,
                speed=group.speed,
            )
            for i, group in enumerate(each)
        )

    @classmethod
    def parse(cls, part: str, column: int) -> Self:
        """Return the described devices: what no other backend takes for its own is a description."""
        return cls(part, column)

    @classmethod
    def found(cls) -> None:
        """Return none: no host has emulated devices of itself."""

    @classmethod
    def conflict(cls, backends: Sequence[Self]) -> str:
        """Return nothing: there may be any number of them."""
        del backends
        return ""

    def devices(self) -> tuple[Device, ...]:
        """Return the described devices in the order of the description."""
        return self._devices

    def labels(self, first: int = 0) -> dict[str, str]:
        """Return none: emulated devices are not connected."""
        del first
        return {}

    @staticmethod
    def environment(devices: Sequence[Device]) -> dict[str, str]:
        """Hide all CUDA devices, and tell the session at what speed its iterations go: the slowest device's."""
        speed = min((device.speed for device in devices), default=1.0)
        return {"CUDA_VISIBLE_DEVICES": "", AgentEnv.EMULATED_SPEED: repr(speed)}

    @classmethod
    def accounting(cls) -> HostAccounting:
        """Return the accounting by the kernel: what an emulated device lends is the host's."""
        return HostAccounting()


def parse(description: str, column: int = 1) -> list[EmulatedGroup]:
    """
    Return the groups of a description: ``kind:count@speed:memory``, separated by commas.

    ``@speed`` may be left out (1.0), and so may ``:memory`` (8GiB). ``column`` is where the description starts in a
    longer text.

    Raises
    ------
    DeviceError
        Says which part at which column is wrong, and what was expected there.
    """
    groups = []
    for part in description.split(","):
        groups.append(_group(part.strip(), column + len(part) - len(part.lstrip())))
        column += len(part) + 1
    return groups


def _group(part: str, column: int) -> EmulatedGroup:
    fields = part.split(":")
    if not 2 <= len(fields) <= 3:
        raise DeviceError(f"{part!r} at column {column} is no group of devices; {EXPECTED}")
    kind, (count, at, speed) = fields[0], fields[1].partition("@")
    if not _KIND.fullmatch(kind):
        raise DeviceError(f"kind {kind!r} at column {column}: expected letters, digits, - and _; {EXPECTED}")
    column += len(kind) + 1
    if not (count.isascii() and count.isdigit() and len(count) < 10) or not 1 <= int(count) <= MOST:
        raise DeviceError(f"count {count[:20]!r} at column {column}: expected a whole number, 1 to {MOST}; {EXPECTED}")
    speed_x = _speed(speed, column + len(count) + 1) if at else 1.0
    size = fields[2] if len(fields) == 3 else "8GiB"
    return EmulatedGroup(kind, int(count), speed_x, parse_bytes(size, column + len(fields[1]) + 1))


def _speed(text: str, column: int) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < 1e6:
        raise DeviceError(f"speed {text!r} at column {column}: expected a number above 0; {EXPECTED}")
    return speed


def parse_bytes(text: str, column: int = 1) -> int:
    """
    Return a size in bytes.

    Raises
    ------
    DeviceError
        If it is not a positive number with a known unit.

    Examples
    --------
    >>> parse_bytes("1.5KiB")
    1536
    """
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else 0.0
    if not 1 <= size < MOST_BYTES:
        units = ", ".join(unit for unit in _UNITS if unit)
        raise DeviceError(
            f"memory {text[:40]!r} at column {column}: expected a positive number below 8192 TiB with one of {units}"
        )
    return int(size)
