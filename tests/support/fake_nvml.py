"""A driver's library that answers from tables, in the words and with the errors of ``pynvml``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pynvml

GIB = 2**30


@dataclass
class FakePci:
    busId: bytes  # noqa: N815


@dataclass
class FakeMemory:
    total: int
    used: int = 0
    reserved: int = 0

    @property
    def free(self) -> int:
        return self.total - self.used - self.reserved


@dataclass
class FakeUtilisation:
    gpu: int


@dataclass
class FakeEvent:
    device: FakeGpu
    eventData: int  # noqa: N815


@dataclass
class FakeProcess:
    pid: int
    usedGpuMemory: int | None  # noqa: N815


@dataclass
class FakeGpu:
    """``links``: where each link ends: at a bus id, at ``switch``, or nowhere (empty: not active)."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int = 80 * GIB
    bus: bytes = b"00000000:01:00.0"
    numa: int = 0
    mode: int = pynvml.NVML_COMPUTEMODE_DEFAULT
    mig: tuple[int, int] | None = None
    instances: Sequence[FakeGpu | None] = ()
    gpu_instance: int = 0
    compute_instance: int = 0
    links: Sequence[str] = ()
    processes: Sequence[FakeProcess] = ()
    mps_processes: Sequence[FakeProcess] | None = None
    used_bytes: int = 0
    reserved_bytes: int | None = 0
    minor: int | None = 0
    percent: int | None = 0
    celsius: int | None = 40
    milliwatts: int | None = 70_000
    clock_mhz: int | None = 1_980
    double_bit: int | None = 0
    remapped: tuple[int, int, int, int] | None = None
    retiring: int | None = None
    lost: bool = False
    forbidden: bool = False


@dataclass
class FakeNvml:
    gpus: list[FakeGpu] = field(default_factory=list)
    absent: int = 0
    opened: int = 0
    tells_events: bool = True
    events: list[FakeEvent] = field(default_factory=list)
    watched: list[str] = field(default_factory=list)

    def nvmlInit(self) -> None:  # noqa: N802
        if self.absent:
            raise pynvml.NVMLError(self.absent)
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._ready()
        self.opened -= 1

    def _ready(self) -> None:
        if not self.opened:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._ready()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        self._ready()
        return _given(None if self.gpus[index].forbidden else self.gpus[index], pynvml.NVML_ERROR_NO_PERMISSION)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:  # noqa: N802
        self._ready()
        every = [*self.gpus, *(part for gpu in self.gpus for part in gpu.instances if part)]
        found = next((gpu for gpu in every if gpu.uuid == uuid), None)
        found = _given(found, pynvml.NVML_ERROR_NOT_FOUND)
        return _given(None if found.lost else found, pynvml.NVML_ERROR_GPU_IS_LOST)

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:  # noqa: N802
        return handle.name

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int | None = None) -> FakeMemory:  # noqa: N802
        if version is None:
            return FakeMemory(handle.memory_bytes, handle.used_bytes + (handle.reserved_bytes or 0))
        reserved_bytes = _given(handle.reserved_bytes, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return FakeMemory(handle.memory_bytes, handle.used_bytes, reserved_bytes)

    def nvmlDeviceGetComputeMode(self, handle: FakeGpu) -> int:  # noqa: N802
        return handle.mode

    def nvmlDeviceGetMigMode(self, device: FakeGpu) -> list[int]:  # noqa: N802
        return list(_given(device.mig))

    def nvmlDeviceGetMaxMigDeviceCount(self, device: FakeGpu) -> int:  # noqa: N802
        return len(device.instances)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeGpu, index: int) -> FakeGpu:  # noqa: N802
        return _given(device.instances[index], pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetGpuInstanceId(self, device: FakeGpu) -> int:  # noqa: N802
        self._ready()
        return device.gpu_instance

    def nvmlDeviceGetComputeInstanceId(self, device: FakeGpu) -> int:  # noqa: N802
        return device.compute_instance

    def nvmlDeviceGetPciInfo(self, handle: FakeGpu) -> FakePci:  # noqa: N802
        return FakePci(handle.bus)

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: FakeGpu, device2: FakeGpu) -> int:  # noqa: N802
        near = device1.numa == device2.numa
        return int(pynvml.NVML_TOPOLOGY_HOSTBRIDGE if near else pynvml.NVML_TOPOLOGY_SYSTEM)

    def nvmlDeviceGetNvLinkState(self, device: FakeGpu, link: int) -> int:  # noqa: N802
        if not device.links:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if link >= len(device.links):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(bool(device.links[link]))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: FakeGpu, link: int) -> int:  # noqa: N802
        switch = handle.links[link] == "switch"
        return int(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if switch else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: FakeGpu, link: int) -> FakePci:  # noqa: N802
        return FakePci(device.links[link].encode())

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> Sequence[FakeProcess]:  # noqa: N802
        self._ready()
        return handle.processes

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: FakeGpu) -> Sequence[FakeProcess]:  # noqa: N802
        return _given(handle.mps_processes)

    def nvmlDeviceGetMinorNumber(self, handle: FakeGpu) -> int:  # noqa: N802
        return _given(handle.minor)

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> FakeUtilisation:  # noqa: N802
        return FakeUtilisation(_given(handle.percent))

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:  # noqa: ARG002, N802
        return _given(handle.celsius)

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:  # noqa: N802
        return _given(handle.milliwatts)

    def nvmlDeviceGetClockInfo(self, handle: FakeGpu, type: int) -> int:  # noqa: A002, N802
        return _given(handle.clock_mhz if type == pynvml.NVML_CLOCK_SM else 0)

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeGpu, errorType: int, counterType: int) -> int:  # noqa: N802, N803
        volatile = (errorType, counterType) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        return _given(handle.double_bit) if volatile else 77

    def nvmlDeviceGetRemappedRows(self, device: FakeGpu) -> tuple[int, int, int, int]:  # noqa: N802
        return _given(device.remapped)

    def nvmlDeviceGetRetiredPagesPendingStatus(self, device: FakeGpu) -> int:  # noqa: N802
        return _given(device.retiring)

    def nvmlEventSetCreate(self) -> list[FakeEvent]:  # noqa: N802
        self._ready()
        return _given(self.events if self.tells_events else None)

    def nvmlEventSetFree(self, eventSet: object) -> None:  # noqa: ARG002, N802, N803
        self.watched.clear()

    def nvmlDeviceRegisterEvents(self, handle: FakeGpu, eventTypes: int, eventSet: object) -> None:  # noqa: ARG002, N802, N803
        assert eventTypes == pynvml.nvmlEventTypeXidCriticalError
        self.watched.append(handle.uuid)

    def nvmlEventSetWait_v2(self, eventSet: object, timeoutms: int) -> FakeEvent:  # noqa: ARG002, N802, N803
        self._ready()
        told = [event for event in self.events if event.device.uuid in self.watched]
        if not told:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        self.events.remove(told[0])
        return told[0]


T = TypeVar("T")


def _given(value: T | None, error: int = pynvml.NVML_ERROR_NOT_SUPPORTED) -> T:
    if value is None:
        raise pynvml.NVMLError(error)
    return value


def four_gpus() -> list[FakeGpu]:
    """Return two pairs on two sockets, each pair with two links of its own."""
    buses = [f"00000000:0{i}:00.0" for i in range(4)]
    return [FakeGpu(uuid=f"GPU-{i}", bus=buses[i].encode(), numa=i // 2, links=[buses[i ^ 1]] * 2) for i in range(4)]
