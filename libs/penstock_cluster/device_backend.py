"""
Port of device backends: what every one offers, and what some can do and others cannot.

``tests/penstock_cluster/test_inventory.py`` holds all backends to it. A new backend is a module of its own and a row of
:data:`BACKENDS`. The log may name backends that this version does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Final, Literal, NamedTuple, Protocol, Self

import msgspec

from penstock_cluster.device_health import HealthReader
from penstock_cluster.device_monitor import DeviceMonitor, HostMonitor
from penstock_log import Device


class DeviceCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the devices of a backend can do.

    Attributes
    ----------
    host_memory : bool
        Their memory is the host's: the host's caps hold processes to it, and can be lowered while a process runs.
    tells_allocators : bool
        A process's own allocator keeps to a fraction of them that is set, also while it runs.
    unnamed : bool
        They go to jobs that name no kind.
    declared_speed : bool
        A declared speed stretches the iterations on them: a process computes with one thread, so that the speeds of
        processes beside each other compare.
    """

    host_memory: bool = False
    tells_allocators: bool = False
    unnamed: bool = False
    declared_speed: bool = False


class BackendEntry(NamedTuple):
    """
    One backend's row of :data:`BACKENDS`.

    Attributes
    ----------
    place : str
        ``module:class``; loaded where its devices are looked for or used, and by nobody who only reads the log.
    form : str
        How a part of a ``devices`` setting names it.
    """

    place: str
    form: str
    capabilities: DeviceCapabilities

    def load(self) -> type[DeviceBackend]:
        """Return the backend's class."""
        module, _, name = self.place.partition(":")
        found: type[DeviceBackend] = getattr(import_module(module), name)
        return found


BACKENDS: Final[Mapping[str, BackendEntry]] = {
    "cuda": BackendEntry(
        "penstock_cluster.cuda_backend:CudaBackend", "cuda", DeviceCapabilities(tells_allocators=True, unnamed=True)
    ),
    "cpu": BackendEntry(
        "penstock_cluster.host_backends:CpuBackend", "cpu, cpu:MEMORY", DeviceCapabilities(host_memory=True)
    ),
    "emulated": BackendEntry(
        "penstock_cluster.host_backends:EmulatedBackend",
        "kind:count@speed:memory",
        DeviceCapabilities(host_memory=True, unnamed=True, declared_speed=True),
    ),
}
"""All backends, in the order in which they are asked whether a part of a ``devices`` setting is theirs.

``emulated`` comes last: it takes every part that no other does.
"""


class _Capabilities(dict[str, DeviceCapabilities]):
    def __missing__(self, name: str) -> DeviceCapabilities:
        return _UNKNOWN


_UNKNOWN: Final = DeviceCapabilities()
CAPABILITIES: Final = _Capabilities({name: entry.capabilities for name, entry in BACKENDS.items()})
"""Backend → what its devices can do; of one that this version does not know, nothing: jobs have to name their kind."""


class DeviceBackend(Protocol):
    """
    One way of having devices.

    A backend finds its devices once and gives the same answer for as long as it lives: what the matcher grants by
    number must not change under it.
    """

    @property
    def name(self) -> str:
        """What :attr:`penstock_log.Device.backend` says of its devices."""

    @classmethod
    def parse(cls, part: str, column: int) -> Self | None:
        """
        Return the backend that a part of a ``devices`` setting names; None where that is another.

        Raises
        ------
        DeviceError
            If the part cannot be understood, or names devices that the host has not got.
        """

    @classmethod
    def found(cls) -> Self | None:
        """Return the devices that the host has without a description, for ``auto``; None where there are none."""

    @classmethod
    def conflict(cls, backends: Sequence[Self]) -> str:
        """Return what is wrong with having several: what exists once would be granted twice; empty where nothing is."""

    def devices(self) -> tuple[Device, ...]:
        """
        Return the devices, numbered from 0; empty where the host has none.

        Raises
        ------
        DeviceError
            If there are devices and they cannot be read.
        """

    def labels(self, first: int = 0) -> dict[str, str]:
        """Return what is to be known of them beside, as labels of a node that numbers them from ``first``."""

    @staticmethod
    def environment(devices: Sequence[Device]) -> dict[str, str]:
        """Return the variables that let a process see exactly these devices, or hide all others from it."""

    @classmethod
    def accounting(cls) -> Accounting:
        """Return who tells what processes hold of such devices, as the log has them."""

    @classmethod
    def monitor(cls, clock: Callable[[], float]) -> DeviceMonitor:
        """Return who tells how busy such devices are, by a clock that never jumps; by default the host estimates it."""
        return HostMonitor(clock)

    @classmethod
    def is_used(cls, device: Device) -> bool:
        """
        Say whether a device has worked lately, or may have; False, the default, where only its processes show it.

        Raises
        ------
        DeviceError
            If its driver cannot be asked.
        """
        del device
        return False

    @classmethod
    def health(cls, devices: tuple[Device, ...]) -> HealthReader | None:
        """Return who tells how these devices are; None, which is the default, where nobody does."""
        del devices
        return None


class Accounting(Protocol):
    """Tells what processes hold of a device."""

    def held(self, device: Device, pids: Iterable[int]) -> dict[int, int]:
        """
        Return the bytes that each process holds on the device; those who hold none there are left out.

        Raises
        ------
        DeviceError
            If its driver cannot be asked.
        """


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

    def group(self, key: str) -> str:
        """Return the control group that ``argv`` has to be in for its cap, after :meth:`command`; empty for none."""

    def bound(self, key: str, *, tasks: int = 0, gpus: Collection[int] | None = None) -> None:
        """
        Bound what else those under a cap may have, after :meth:`command` and where that is possible.

        Parameters
        ----------
        tasks : int
            The most processes and threads; 0: no limit.
        gpus : collection of int, optional
            Minor numbers of the only GPUs that they may open; None: any.

        Raises
        ------
        DeviceError
            If the kernel refuses.
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
