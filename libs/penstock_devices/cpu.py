"""The host itself as one device: for jobs that name it in ``kinds``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, Literal

from penstock_devices.accounting import HostAccounting
from penstock_events import Device

KIND: Final = "cpu"


class Cpu:
    """
    One device with the host's memory, or with ``memory_bytes`` of it.

    Examples
    --------
    >>> Cpu(memory_bytes=1024).devices()[0].kind
    'cpu'
    """

    name: Literal["cpu"] = "cpu"

    def __init__(self, memory_bytes: int = 0) -> None:
        memory_bytes = memory_bytes or host_memory_bytes()
        self._devices = (Device(index=0, kind=KIND, memory_bytes=memory_bytes, backend="cpu"),)

    def devices(self) -> tuple[Device, ...]:
        """Return the one device."""
        return self._devices

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """Hide all CUDA devices, whosever they are."""
        return environment(devices)

    def labels(self, first: int = 0) -> dict[str, str]:
        """Return none: the host is not connected to itself."""
        del first
        return {}

    def accounting(self) -> HostAccounting:
        """Return the kernel's word."""
        return HostAccounting()


def environment(devices: Sequence[Device]) -> dict[str, str]:
    """Hide all CUDA devices, whosever they are."""
    del devices
    return {"CUDA_VISIBLE_DEVICES": ""}


def host_memory_bytes() -> int:
    """Return the host's physical memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
