"""CUDA devices as NVIDIA's management library reports them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import pynvml

from penstock_devices.port import DeviceError
from penstock_events import Device

_VENDOR: Final = {"nvidia", "tesla", "geforce", "quadro", "graphics", "device", "gpu"}
_ABSENT: Final = (
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_NO_PERMISSION,
)


class Nvml:
    """The host's NVIDIA devices; none where there is no driver, which ``reason`` then says."""

    name: Literal["cuda"] = "cuda"

    def __init__(self) -> None:
        self.reason = ""
        self._devices = self._find()

    def devices(self) -> tuple[Device, ...]:
        """Return the devices in the driver's order."""
        return self._devices

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """Show exactly these devices."""
        return environment(devices)

    def _find(self) -> tuple[Device, ...]:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value in _ABSENT:
                self.reason = f"no NVIDIA driver: {error}"
                return ()
            raise DeviceError(f"the NVIDIA driver answers with an error: {error}; does nvidia-smi work?") from error
        try:
            return tuple(_device(i) for i in range(pynvml.nvmlDeviceGetCount()))
        except pynvml.NVMLError as error:
            raise DeviceError(f"an NVIDIA device cannot be read: {error}; does nvidia-smi list it?") from error
        finally:
            pynvml.nvmlShutdown()


def environment(devices: Sequence[Device]) -> dict[str, str]:
    """Name the devices by UUID: numbers change with ``CUDA_DEVICE_ORDER``, UUIDs do not."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(device.uuid or str(device.index) for device in devices)}


def _device(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Device(
        index=index,
        kind=kind_of(_text(pynvml.nvmlDeviceGetName(handle))),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        backend="cuda",
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def kind_of(product: str) -> str:
    """
    Return what people call a product: its model's name, without the vendor, the form and the memory size.

    Examples
    --------
    >>> [kind_of(name) for name in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla V100-PCIE-16GB")]
    ['h200', 'a100', 'v100']
    >>> kind_of("NVIDIA GeForce RTX 4090"), kind_of("NVIDIA RTX A6000"), kind_of("Quadro RTX 8000")
    ('rtx4090', 'rtxa6000', 'rtx8000')
    """
    words = [word for word in re.split(r"[^a-z0-9]+", product.lower()) if word and word not in _VENDOR]
    if not words:
        return "gpu"
    return words[0] + words[1] if words[0] in {"rtx", "gtx"} and len(words) > 1 else words[0]
