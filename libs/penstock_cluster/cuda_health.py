"""
Health of CUDA devices, as NVML reports it: XIDs by an event set, ECC errors and replaced memory by counters.

Where the driver offers no events, as in some containers, there are only the counters. What is said of a GPU holds for
all of its MIG instances: it is the GPU that is reset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

import pynvml

from penstock_cluster.device_backend import DeviceError
from penstock_cluster.device_health import HealthReading
from penstock_cluster.nvml import Handle, NvmlLibrary, answer, text
from penstock_log import Device

_LOST: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_MOST_EVENTS: Final = 1000
"""Of one reading: a device that reports without end must not keep the executor."""

EventSet = object


class HealthEvent(Protocol):
    """``nvmlEventData_t``."""

    device: Handle
    eventData: int  # noqa: N815 -- the library's name


class HealthLibrary(NvmlLibrary, Protocol):
    """The functions that are used beside those of the backend."""

    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, errorType: int, counterType: int) -> int: ...  # noqa: N802, N803, D102
    def nvmlDeviceGetRemappedRows(self, device: Handle) -> tuple[int, int, int, int]: ...  # noqa: N802, D102
    def nvmlDeviceGetRetiredPagesPendingStatus(self, device: Handle) -> int: ...  # noqa: N802, D102
    def nvmlEventSetCreate(self) -> EventSet: ...  # noqa: N802, D102
    def nvmlEventSetFree(self, eventSet: EventSet) -> None: ...  # noqa: N802, N803, D102
    def nvmlDeviceRegisterEvents(self, handle: Handle, eventTypes: int, eventSet: EventSet) -> None: ...  # noqa: N802, N803, D102
    def nvmlEventSetWait_v2(self, eventSet: EventSet, timeoutms: int) -> HealthEvent: ...  # noqa: N802, N803, D102


class CudaHealth:
    """
    Reads the health of a node's CUDA devices; the driver stays open until it is closed.

    Parameters
    ----------
    devices : tuple of Device
        Those of the node that are CUDA's.
    library : HealthLibrary
        The driver's library, or one that answers in its place.
    """

    def __init__(self, devices: tuple[Device, ...], library: HealthLibrary = pynvml) -> None:
        self._devices, self._library = devices, library
        self._events: EventSet | None = None
        self._open = False
        self._watched: set[str] = set()

    def read(self) -> Mapping[int, HealthReading]:
        """Return a reading of each device; one whose driver errs in a way that is not known is left out."""
        try:
            if not self._open:
                self._library.nvmlInit()
                self._open = True
                self._events = answer(self._library.nvmlEventSetCreate, None)
            self._watch()
            xids = self._xids()
        except pynvml.NVMLError as error:
            raise DeviceError(f"the health of NVIDIA devices cannot be read: {error}; does nvidia-smi work?") from error
        gpus = {device.parent or device.uuid for device in self._devices}
        readings = {gpu: self._reading(gpu, tuple(xids[gpu])) for gpu in gpus}
        found = ((device.index, readings[device.parent or device.uuid]) for device in self._devices)
        return {index: reading for index, reading in found if reading is not None}

    def close(self) -> None:
        """Let go of the driver."""
        if not self._open:
            return
        if self._events is not None:
            self._library.nvmlEventSetFree(self._events)
        self._library.nvmlShutdown()
        self._open, self._events = False, None
        self._watched.clear()

    def _watch(self) -> None:
        """Have the driver note the XIDs of GPUs that it does not note yet."""
        if self._events is None:
            return
        for gpu in sorted({device.parent or device.uuid for device in self._devices} - self._watched):
            try:
                handle = self._library.nvmlDeviceGetHandleByUUID(gpu)
                self._library.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
            except pynvml.NVMLError as error:
                if error.value not in (*_LOST, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NOT_FOUND):
                    raise
                if error.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
                    continue  # it may come back
            self._watched.add(gpu)

    def _xids(self) -> Mapping[str, list[int]]:
        found: defaultdict[str, list[int]] = defaultdict(list)
        for event in self._new_events():
            for gpu in self._gpus_of(event):
                found[gpu].append(int(event.eventData))
        return found

    def _new_events(self) -> Iterator[HealthEvent]:
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            try:
                yield self._library.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_TIMEOUT:
                    return
                if error.value not in _LOST:
                    raise
                return  # a GPU is lost: its own reading says which

    def _gpus_of(self, event: HealthEvent) -> set[str]:
        """Return whom an event is about: every GPU where the driver does not say."""
        gpus = {device.parent or device.uuid for device in self._devices}
        if not event.device:
            return gpus
        try:
            uuid = text(self._library.nvmlDeviceGetUUID(event.device))
        except pynvml.NVMLError as error:
            if error.value not in _LOST:
                raise
            return set()  # its reading says so
        return {uuid} & gpus

    def _reading(self, gpu: str, xids: tuple[int, ...]) -> HealthReading | None:
        try:
            handle = self._library.nvmlDeviceGetHandleByUUID(gpu)
            return self._counters(handle, xids)
        except pynvml.NVMLError as error:
            if error.value in _LOST:
                return HealthReading(lost=str(error))
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return HealthReading(lost="it lists it no more")
            return HealthReading(xids=xids) if xids else None

    def _counters(self, handle: Handle, xids: tuple[int, ...]) -> HealthReading:
        library, uncorrected = self._library, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        rows = answer(lambda: library.nvmlDeviceGetRemappedRows(handle), (0, 0, 0, 0))
        retired = answer(lambda: library.nvmlDeviceGetRetiredPagesPendingStatus(handle), 0)
        errors = answer(lambda: library.nvmlDeviceGetTotalEccErrors(handle, uncorrected, pynvml.NVML_VOLATILE_ECC), 0)
        return HealthReading(
            xids=xids, uncorrected=int(errors), pending=bool(rows[2]) or bool(retired), failure=bool(rows[3])
        )
