"""What every device backend offers; ``tests/penstock_devices`` holds all of them to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from penstock_events import Device


class Backend(Protocol):
    """
    One way of having devices.

    A backend finds its devices once and gives the same answer for as long as it lives: what the matcher leases by
    number must not change under it.
    """

    @property
    def name(self) -> Literal["cuda", "cpu", "emulated"]:
        """What :attr:`penstock_events.Device.backend` says of its devices."""

    def devices(self) -> tuple[Device, ...]:
        """
        Return the devices, numbered from 0; empty where the host has none.

        Raises
        ------
        DeviceError
            If there are devices and they cannot be read.
        """

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """Return the variables that let a process see exactly these devices, or hide all others from it."""


class DeviceError(Exception):
    """Devices cannot be read, or their description cannot be understood; says what to do."""
