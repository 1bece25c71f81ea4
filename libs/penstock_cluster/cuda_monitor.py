"""
What NVIDIA's driver tells of its devices while they work.

:class:`CudaMonitor` keeps the driver's library open: errors are told as events, to whom has asked for them before. A
MIG instance has memory of its own; temperature, power, clocks and errors are those of its GPU, and of its utilisation
the driver tells nothing.

References
----------
NVIDIA, NVML API Reference Guide; and, for what the figures are called elsewhere, NVIDIA's dcgm-exporter,
``etc/default-counters.csv``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Protocol

import pynvml

from penstock_cluster.device_monitor import DeviceMonitor
from penstock_cluster.nvml import Handle, answer, text
from penstock_log import Device
from penstock_log.device_samples import DeviceReading

_MOST_EVENTS: Final = 1000
"""So many are taken at a time; the rest comes with the next reading."""


_OF_ONE_DEVICE: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_FOUND)
"""Errors that say nothing of the driver: it is not opened anew for them, which would lose what it has to tell."""


class NvmlUtilisation(Protocol):
    """``nvmlUtilization_t``, in percent."""

    gpu: int


class NvmlUsedMemory(Protocol):
    """``nvmlMemory_t``, in bytes."""

    total: int
    used: int
    free: int


class NvmlEvent(Protocol):
    """``nvmlEventData_t``."""

    device: Handle
    eventData: int  # noqa: N815 -- the library's name


class NvmlMonitoring(Protocol):
    """The functions that are used."""

    def nvmlInit(self) -> None: ...  # noqa: N802, D102
    def nvmlShutdown(self) -> None: ...  # noqa: N802, D102
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle: ...  # noqa: N802, D102
    def nvmlDeviceGetName(self, handle: Handle) -> str | bytes: ...  # noqa: N802, D102
    def nvmlDeviceGetUUID(self, handle: Handle) -> str | bytes: ...  # noqa: N802, D102
    def nvmlDeviceGetMinorNumber(self, handle: Handle) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None) -> NvmlUsedMemory: ...  # noqa: N802, D102
    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> NvmlUtilisation: ...  # noqa: N802, D102
    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetClockInfo(self, handle: Handle, type: int) -> int: ...  # noqa: A002, N802, D102
    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, errorType: int, counterType: int) -> int: ...  # noqa: N802, N803, D102
    def nvmlEventSetCreate(self) -> object: ...  # noqa: N802, D102
    def nvmlEventSetFree(self, eventSet: object) -> None: ...  # noqa: N802, N803, D102
    def nvmlDeviceRegisterEvents(self, handle: Handle, eventTypes: int, eventSet: object) -> None: ...  # noqa: N802, N803, D102
    def nvmlEventSetWait_v2(self, eventSet: object, timeoutms: int) -> NvmlEvent: ...  # noqa: N802, N803, D102


class CudaMonitor(DeviceMonitor):
    """
    The readings of NVIDIA's driver.

    Parameters
    ----------
    library : NvmlMonitoring
        The driver's library, or one that answers in its place.
    """

    def __init__(self, library: NvmlMonitoring = pynvml) -> None:
        self._library = library
        self._events: object | None = None
        self._is_open = False
        self._watched: set[str] = set()
        self._xids: dict[str, int] = {}

    def read(self, device: Device, parts: Mapping[int, float]) -> DeviceReading:
        """Return what the driver tells; a driver that does not answer is opened anew at the next reading."""
        del parts
        try:
            self._open()
            return self._read(device)
        except pynvml.NVMLError as error:
            if error.value not in _OF_ONE_DEVICE:
                self.close()
            gpu = device.parent or device.uuid
            return DeviceReading(source="driver", xid=self._xids.get(gpu), error=f"it cannot be read: {error}")

    def close(self) -> None:
        """Let go of the driver; errors that it told before stay known."""
        if not self._is_open:
            return
        with suppress(pynvml.NVMLError):  # a driver that is gone
            if self._events is not None:
                self._library.nvmlEventSetFree(self._events)
        with suppress(pynvml.NVMLError):
            self._library.nvmlShutdown()
        self._events, self._is_open = None, False
        self._watched.clear()

    def _open(self) -> None:
        if not self._is_open:
            self._library.nvmlInit()
            self._is_open = True
            self._events = answer(self._library.nvmlEventSetCreate, None)

    def _read(self, device: Device) -> DeviceReading:
        library = self._library
        own = library.nvmlDeviceGetHandleByUUID(device.uuid)
        gpu = library.nvmlDeviceGetHandleByUUID(device.parent) if device.parent else own
        self._watch(gpu, device.parent or device.uuid)
        memory = answer(lambda: library.nvmlDeviceGetMemoryInfo(own, pynvml.nvmlMemory_v2), None)
        if memory is None:  # an older driver: what it keeps for itself is in what is used
            memory = library.nvmlDeviceGetMemoryInfo(own)
        milliwatts = _told(lambda: library.nvmlDeviceGetPowerUsage(gpu))
        percent = None if device.parent else _told(lambda: library.nvmlDeviceGetUtilizationRates(own).gpu)
        return DeviceReading(
            source="driver",
            model=text(library.nvmlDeviceGetName(gpu)),
            minor=_told(lambda: library.nvmlDeviceGetMinorNumber(gpu)),
            utilisation=None if percent is None else percent / 100,
            memory_used_bytes=int(memory.used),
            memory_free_bytes=int(memory.free),
            memory_total_bytes=int(memory.total),
            temperature_c=_told(lambda: library.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)),
            power_w=None if milliwatts is None else milliwatts / 1000,
            sm_clock_mhz=_told(lambda: library.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
            xid=self._xids.get(device.parent or device.uuid),
            ecc_double_bit=_told(
                lambda: library.nvmlDeviceGetTotalEccErrors(
                    gpu, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
                )
            ),
        )

    def _watch(self, gpu: Handle, uuid: str) -> None:
        """Ask for the errors of a GPU, once, and take those that were told of any."""
        if self._events is None:
            return
        events = self._events
        if uuid not in self._watched:
            self._watched.add(uuid)
            kinds = pynvml.nvmlEventTypeXidCriticalError

            def register() -> bool:
                self._library.nvmlDeviceRegisterEvents(gpu, kinds, events)
                return True

            if answer(register, False):
                self._xids.setdefault(uuid, 0)
        for _ in range(_MOST_EVENTS):
            try:
                event = self._library.nvmlEventSetWait_v2(events, 0)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    return
                raise
            self._xids[text(self._library.nvmlDeviceGetUUID(event.device))] = int(event.eventData)


def _told(ask: Callable[[], int]) -> int | None:
    """Return the driver's answer; None where this device has none."""
    return answer(ask, None)
