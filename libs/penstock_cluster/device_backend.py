"""
Port of device backends: what every one offers, and what some can do and others cannot.

``tests/penstock_cluster/test_inventory.py`` holds all backends to it. A new backend is a class of its own, a row of
:data:`CAPABILITIES`, and a row of :data:`penstock_cluster.inventory.BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, Protocol

import msgspec

from penstock_log import Device

BackendName = Literal["cuda", "cpu", "emulated"]


class DeviceCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the devices of a backend can do.

    Attributes
    ----------
    host_memory : bool
        Their memory is the host's: the host's caps hold processes to it, and can be lowered while a process runs.
    tells_allocators : bool
        A process's own allocator keeps to the fraction of them that it is told, also while it runs.
    unnamed : bool
        They go to jobs that name no kind.
    declared_speed : bool
        A declared speed stretches the iterations on them: a process computes with one thread, so that the speeds of
        processes beside each other compare.
    """

    host_memory: bool
    tells_allocators: bool
    unnamed: bool
    declared_speed: bool


CAPABILITIES: Final[dict[BackendName, DeviceCapabilities]] = {
    "cuda": DeviceCapabilities(host_memory=False, tells_allocators=True, unnamed=True, declared_speed=False),
    "cpu": DeviceCapabilities(host_memory=True, tells_allocators=False, unnamed=False, declared_speed=False),
    "emulated": DeviceCapabilities(host_memory=True, tells_allocators=False, unnamed=True, declared_speed=True),
}


class DeviceBackend(Protocol):
    """
    One way of having devices.

    A backend finds its devices once and gives the same answer for as long as it lives: what the matcher leases by
    number must not change under it.
    """

    @property
    def name(self) -> BackendName:
        """What :attr:`penstock_log.Device.backend` says of its devices."""

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

    def labels(self, first: int = 0) -> dict[str, str]:
        """Return what is to be known of them beside, as labels of a node that numbers them from ``first``."""

    def accounting(self) -> Accounting:
        """Return who tells what processes hold of them."""


class Accounting(Protocol):
    """Tells what processes hold of a device."""

    def held(self, device: Device, pids: Iterable[int]) -> dict[int, int]:
        """Return the bytes that each process holds on the device; those who hold none there are left out."""


class DeviceError(Exception):
    """Devices cannot be read, or their description cannot be understood; says what to do."""


class MemoryUsage(msgspec.Struct, frozen=True, kw_only=True):
    """
    What processes under one cap hold of the host's memory.

    Attributes
    ----------
    current_bytes, peak_bytes : int
        As the enforcer counts it; a peak of 0 is unknown.
    killed : int
        Processes that the kernel has killed for want of memory; always 0 where it refuses instead.
    """

    current_bytes: int = 0
    peak_bytes: int = 0
    killed: int = 0


class MemoryCaps(Protocol):
    """
    A way of capping what processes hold of the host's memory.

    ``key`` names the processes under one cap: letters, digits, ``-`` and ``_``.
    """

    @property
    def name(self) -> Literal["cgroup", "rlimit"]:
        """For logs and ``penstock nodes -o wide``."""

    @property
    def reason(self) -> str:
        """Where it is, or why it is no better one."""

    def command(self, key: str, argv: Sequence[str], cap_bytes: int, most_bytes: int = 0) -> list[str]:
        """
        Return the command line that starts ``argv`` under its cap.

        Parameters
        ----------
        most_bytes : int
            Up to where :meth:`change` may raise the cap later; 0: never above ``cap_bytes``.

        Raises
        ------
        DeviceError
            If the cap cannot be set.
        """

    def set_cpus(self, key: str, cpus: float) -> None:
        """
        Bound the processors that those under a cap may use, after :meth:`command` and where that is possible.

        Raises
        ------
        DeviceError
            If the kernel refuses.
        """

    def change(self, key: str, leader: int, cap_bytes: int) -> None:
        """
        Set another cap for processes that run; never so low that what they hold already would kill them.

        Parameters
        ----------
        leader : int
            The session they are of.

        Raises
        ------
        DeviceError
            If the kernel refuses.
        """

    def usage(self, key: str, leader: int) -> MemoryUsage:
        """Return what they hold; zeros where nobody is left."""

    def end(self, key: str) -> None:
        """End those that are left of them, where that can be known."""

    def forget(self, key: str) -> None:
        """Clean up after the last of them has ended."""
