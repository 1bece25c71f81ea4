"""From a node's ``devices`` setting to its numbered devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock_cluster import cuda_backend, host_backends
from penstock_cluster.accounting import EmulatedAccounting, HostAccounting, Ledger
from penstock_cluster.cuda_backend import CudaBackend
from penstock_cluster.device_backend import Accounting, BackendName, DeviceBackend, DeviceError
from penstock_cluster.host_backends import CpuBackend, EmulatedBackend, parse_bytes
from penstock_log import Device

EXPECTED: Final = "expected auto, cuda, cpu, cpu:MEMORY or kind:count@speed:memory, separated by commas"


def backends_of(description: str) -> tuple[DeviceBackend, ...]:
    """
    Return the backends that a description names, in its order.

    ``auto`` is CUDA where there is a driver and the CPU otherwise; ``cuda`` insists on a driver; ``cpu`` or
    ``cpu:8GiB`` is the host; everything else describes emulated devices.

    Raises
    ------
    DeviceError
        If the description cannot be understood, names devices that the host has not got, or names them twice.
    """
    backends: list[DeviceBackend] = []
    column = 1
    for part in description.split(","):
        start = column + len(part) - len(part.lstrip())
        backends.append(_backend(part.strip(), start))
        _refuse_twice(backends, part.strip(), start)
        column += len(part) + 1
    return tuple(backends)


def _refuse_twice(backends: Sequence[DeviceBackend], part: str, column: int) -> None:
    """Refuse a backend whose devices are there already: what exists once would be leased twice."""
    same = [backend for backend in backends if backend.name == backends[-1].name]
    if len(same) == 1:
        return
    if same[-1].name == "cuda":
        raise DeviceError(f"{part!r} at column {column} names the CUDA devices a second time; expected them once")
    memory_bytes = sum(device.memory_bytes for backend in same for device in backend.devices())
    if same[-1].name == "cpu" and memory_bytes > host_backends.host_memory_bytes():
        raise DeviceError(
            f"{part!r} at column {column}: the parts of the host are more than it has; expected less of each"
        )


def _backend(part: str, column: int) -> DeviceBackend:
    if not part:
        raise DeviceError(f"nothing at column {column} of the devices; {EXPECTED}")
    if part == "auto":
        cuda = CudaBackend()
        return cuda if cuda.devices() else CpuBackend()
    if part == "cuda":
        return _insist(CudaBackend())
    if part == "cpu" or (part.startswith("cpu:") and part.count(":") == 1 and not part[4:].isdigit()):
        return CpuBackend(parse_bytes(part[4:], column + 4) if part[4:] else 0)
    return EmulatedBackend(part, column)


class DeviceSurvey:
    """
    What a node has: the devices of all backends, numbered through.

    Attributes
    ----------
    devices : tuple of Device
    labels : dict of str to str
        How they are connected, and the modes that they are in: for :attr:`penstock_log.NodeJoined.labels`.
    """

    def __init__(self, backends: Sequence[DeviceBackend]) -> None:
        self.devices: tuple[Device, ...] = ()
        self.labels: dict[str, str] = {}
        self._accounting: dict[int, tuple[Accounting, Device]] = {}
        for backend in backends:
            self._add(backend)

    def _add(self, backend: DeviceBackend) -> None:
        first, accounting = len(self.devices), backend.accounting()
        self.labels |= backend.labels(first)
        for device in backend.devices():
            self.devices += (msgspec.structs.replace(device, index=first + device.index),)
            self._accounting[first + device.index] = accounting, device

    def held(self, index: int, pids: Iterable[int]) -> dict[int, int]:
        """
        Return the bytes that each process holds on a device of this node; those who hold none there are left out.

        Raises
        ------
        DeviceError
            If its driver cannot be asked.
        """
        accounting, device = self._accounting[index]
        return accounting.held(device, pids)

    def ledger(self, index: int) -> Ledger | None:
        """Return the ledger of an emulated device; None for one that has real memory."""
        accounting, device = self._accounting[index]
        return accounting.ledgers[device.index] if isinstance(accounting, EmulatedAccounting) else None


def survey(description: str) -> DeviceSurvey:
    """
    Return what a node's ``devices`` setting stands for on this host.

    Raises
    ------
    DeviceError
        If the description cannot be understood, or names devices that the host has not got.
    """
    return DeviceSurvey(backends_of(description))


class BackendEntry(NamedTuple):
    """
    What is asked of a backend where its devices are known from the log.

    Attributes
    ----------
    environment : callable
        The variables under which a process sees exactly some devices.
    accounting : callable
        Who counts the memory that processes really hold; what an emulated device lends is the host's.
    """

    environment: Callable[[Sequence[Device]], dict[str, str]]
    accounting: Callable[[], Accounting]


def _cuda_accounting() -> Accounting:
    return CudaBackend().accounting()


BACKENDS: Final[Mapping[BackendName, BackendEntry]] = {
    "cuda": BackendEntry(cuda_backend.environment, _cuda_accounting),
    "cpu": BackendEntry(host_backends.cpu_environment, HostAccounting),
    "emulated": BackendEntry(host_backends.emulated_environment, HostAccounting),
}


def environment(devices: Sequence[Device]) -> dict[str, str]:
    """Return the variables under which a process sees exactly these devices of one backend."""
    return BACKENDS[devices[0].backend if devices else "cpu"].environment(devices)


def _insist(cuda: CudaBackend) -> CudaBackend:
    if not cuda.devices():
        why = cuda.reason or "the driver lists none"
        raise DeviceError(f"devices = cuda, and there is no CUDA device ({why}); use auto, cpu or an emulated kind")
    return cuda
