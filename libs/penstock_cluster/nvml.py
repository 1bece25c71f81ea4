"""
NVIDIA's management library (NVML), as far as Penstock asks it.

:class:`NvmlLibrary` has the functions of ``pynvml`` that are used, under their own names; tests put a library of their
own in its place. Every function may raise ``pynvml.NVMLError``. A function for which a device has no answer raises it
with ``NVML_ERROR_NOT_SUPPORTED``, which :func:`answer` turns into a default.

References
----------
NVIDIA, NVML API Reference Guide. Signatures and return types as in nvidia-ml-py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

import pynvml

Handle = object
T = TypeVar("T")
D = TypeVar("D")

_NO_ANSWER: Final = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,  # an older driver
    pynvml.NVML_ERROR_INVALID_ARGUMENT,  # a link or an instance beyond those that there are
    pynvml.NVML_ERROR_NO_PERMISSION,
)


class NvmlMemory(Protocol):
    """``nvmlMemory_t``."""

    total: int


class NvmlPci(Protocol):
    """``nvmlPciInfo_t``."""

    busId: str | bytes  # noqa: N815 -- the library's name


class NvmlUtilization(Protocol):
    """``nvmlUtilization_t``, in percent."""

    gpu: int


class NvmlProcess(Protocol):
    """``nvmlProcessInfo_t``; memory is None where the driver does not know it."""

    pid: int
    usedGpuMemory: int | None  # noqa: N815 -- the library's name


class NvmlLibrary(Protocol):
    """The functions that are used."""

    def nvmlInit(self) -> None: ...  # noqa: N802, D102
    def nvmlShutdown(self) -> None: ...  # noqa: N802, D102
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle: ...  # noqa: N802, D102
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Handle: ...  # noqa: N802, D102
    def nvmlDeviceGetName(self, handle: Handle) -> str | bytes: ...  # noqa: N802, D102
    def nvmlDeviceGetUUID(self, handle: Handle) -> str | bytes: ...  # noqa: N802, D102
    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> NvmlMemory: ...  # noqa: N802, D102
    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> NvmlUtilization: ...  # noqa: N802, D102
    def nvmlDeviceGetMinorNumber(self, handle: Handle) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetComputeMode(self, handle: Handle) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetMigMode(self, device: Handle) -> Sequence[int]: ...  # noqa: N802, D102
    def nvmlDeviceGetMaxMigDeviceCount(self, device: Handle) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Handle, index: int) -> Handle: ...  # noqa: N802, D102
    def nvmlDeviceGetGpuInstanceId(self, device: Handle) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetComputeInstanceId(self, device: Handle) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetPciInfo(self, handle: Handle) -> NvmlPci: ...  # noqa: N802, D102
    def nvmlDeviceGetTopologyCommonAncestor(self, device1: Handle, device2: Handle) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetNvLinkState(self, device: Handle, link: int) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Handle, link: int) -> int: ...  # noqa: N802, D102
    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: Handle, link: int) -> NvmlPci: ...  # noqa: N802, D102
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> Sequence[NvmlProcess]: ...  # noqa: N802, D102
    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Handle) -> Sequence[NvmlProcess]: ...  # noqa: N802, D102


def answer(ask: Callable[[], T], default: D) -> T | D:
    """Return the library's answer, or the default where the device, the driver or our rights give none."""
    try:
        return ask()
    except pynvml.NVMLError as error:
        if error.value in _NO_ANSWER:
            return default
        raise


def text(value: str | bytes) -> str:
    """Return a string; versions of ``pynvml`` differ in what they give."""
    return value.decode() if isinstance(value, bytes) else value
