"""
CUDA devices as NVIDIA's management library reports them. Nothing is changed: MIG, MPS and modes are the operator's.

A GPU in MIG mode is not a device; each of its instances is one. Compute instances of one GPU instance share its memory,
which nothing divides between them: each is given an equal part of it here, so that together they are given no more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal

import msgspec
import pynvml

from penstock_devices import mps, topology
from penstock_devices.accounting import CudaAccounting
from penstock_devices.nvml_port import Handle, Library, answer, text
from penstock_devices.port import DeviceError
from penstock_events import Device

_VENDOR: Final = {"nvidia", "tesla", "geforce", "quadro", "graphics", "device", "gpu"}
_ABSENT: Final = (
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_NO_PERMISSION,
)
_MODES: Final = {
    pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive",
    pynvml.NVML_COMPUTEMODE_PROHIBITED: "prohibited",
}


class _Gpu(msgspec.Struct, frozen=True):
    """
    One GPU as the driver lists it; its instances, where it is in MIG mode.

    An instance has beside it how many compute instances, with itself, have the memory of one GPU instance together.
    """

    handle: object
    uuid: str
    mig: bool
    pending: bool
    instances: list[tuple[Handle, int]]

    @property
    def parts(self) -> list[tuple[Handle, int]]:
        """What of it is a device."""
        return self.instances if self.mig else [(self.handle, 1)]


class _Found(msgspec.Struct, frozen=True):
    """What was read once: devices; of the whole GPUs among them (W) their numbers, modes and links (W, W)."""

    devices: tuple[Device, ...] = ()
    whole: list[int] = []
    modes: list[int] = []
    links: list[list[str]] = []
    mig: dict[str, str] = {}


class Nvml:
    """
    The host's NVIDIA devices; none where there is no driver, which ``reason`` then says.

    Parameters
    ----------
    library : Library
        The driver's library, or one that answers in its place.
    """

    name: Literal["cuda"] = "cuda"

    def __init__(self, library: Library = pynvml) -> None:
        self.reason = ""
        self._library = library
        self._pipe = mps.running(os.environ)
        self._found = self._find()

    def devices(self) -> tuple[Device, ...]:
        """Return the devices in the driver's order, MIG instances in the place of their GPU."""
        return self._found.devices

    def labels(self, first: int = 0) -> dict[str, str]:
        """
        Return what the node is labelled with: connections, MIG and compute modes, MPS.

        ``links.N``: to each other device, see :func:`penstock_devices.topology.links`. ``compute_mode.N``: where it is
        not the default. ``mig.UUID``: of each GPU in MIG mode, or about to change it. ``mps``: the pipe directory.
        """
        numbers = [first + number for number in self._found.whole]
        modes = zip(numbers, self._found.modes, strict=True)
        return {
            **topology.labels(numbers, self._found.links),
            **{f"compute_mode.{number}": _MODES[mode] for number, mode in modes if mode in _MODES},
            **{f"mig.{uuid}": state for uuid, state in self._found.mig.items()},
            **({"mps": str(self._pipe)} if self._pipe and self._found.devices else {}),
        }

    def environment(self, devices: Sequence[Device]) -> dict[str, str]:
        """Show exactly these devices."""
        return environment(devices)

    def accounting(self) -> CudaAccounting:
        """Return the driver's word."""
        return CudaAccounting(self.processes)

    def processes(self, device: Device) -> dict[int, int]:
        """
        Return the bytes that each process holds on a device, as the driver counts them: its context among them.

        A process whose memory the driver does not tell is left out. Pids are those of the driver's namespace: an
        executor in a container needs the host's.

        Raises
        ------
        DeviceError
            If the device cannot be read.
        """
        with self._reading():
            handle = self._library.nvmlDeviceGetHandleByUUID(device.uuid)
            known = [
                *self._library.nvmlDeviceGetComputeRunningProcesses(handle),
                *answer(lambda: self._library.nvmlDeviceGetMPSComputeRunningProcesses(handle), ()),
            ]
        held: dict[int, int] = {}
        for process in known:
            if process.usedGpuMemory is not None:
                held[process.pid] = max(held.get(process.pid, 0), process.usedGpuMemory)
        return held

    def _find(self) -> _Found:
        try:
            self._library.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value in _ABSENT:
                self.reason = f"no NVIDIA driver: {error}"
                return _Found()
            raise DeviceError(f"the NVIDIA driver answers with an error: {error}; does nvidia-smi work?") from error
        try:
            with self._reading():
                return self._read()
        finally:
            self._library.nvmlShutdown()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            self._library.nvmlInit()
            try:
                yield
            finally:
                self._library.nvmlShutdown()
        except pynvml.NVMLError as error:
            raise DeviceError(f"an NVIDIA device cannot be read: {error}; does nvidia-smi list it?") from error

    def _read(self) -> _Found:
        gpus = [self._gpu(i) for i in range(self._library.nvmlDeviceGetCount())]
        parts = [(part, among, gpu) for gpu in gpus for part, among in gpu.parts]
        whole = [(number, gpu.handle) for number, (_, _, gpu) in enumerate(parts) if not gpu.mig]
        handles = [handle for _, handle in whole]
        return _Found(
            devices=tuple(self._device(number, *part) for number, part in enumerate(parts)),
            whole=[number for number, _ in whole],
            modes=[self._mode(handle) for handle in handles],
            links=topology.links(self._library, handles),
            mig={gpu.uuid: _mig_state(gpu) for gpu in gpus if gpu.mig or gpu.pending},
        )

    def _gpu(self, index: int) -> _Gpu:
        handle = self._library.nvmlDeviceGetHandleByIndex(index)
        now, pending = answer(lambda: self._library.nvmlDeviceGetMigMode(handle), (0, 0))
        uuid = text(self._library.nvmlDeviceGetUUID(handle))
        return _Gpu(handle, uuid, bool(now), bool(pending), self._instances(handle) if now else [])

    def _instances(self, gpu: Handle) -> list[tuple[Handle, int]]:
        most = answer(lambda: self._library.nvmlDeviceGetMaxMigDeviceCount(gpu), 0)
        every = [self._instance(gpu, i) for i in range(most)]  # there are gaps where instances were destroyed
        found = [handle for handle in every if handle is not None]
        homes = [self._library.nvmlDeviceGetGpuInstanceId(handle) for handle in found]
        return [(handle, homes.count(home)) for handle, home in zip(found, homes, strict=True)]

    def _instance(self, gpu: Handle, index: int) -> Handle | None:
        return answer(lambda: self._library.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index), None)

    def _mode(self, gpu: Handle) -> int:
        return answer(lambda: self._library.nvmlDeviceGetComputeMode(gpu), 0)  # the default mode

    def _device(self, index: int, handle: Handle, among: int, gpu: _Gpu) -> Device:
        product, _, profile = text(self._library.nvmlDeviceGetName(handle)).partition(" MIG ")
        return Device(
            index=index,
            kind=f"{kind_of(product)}-{_word(profile or 'mig')}" if gpu.mig else kind_of(product),
            memory_bytes=int(self._library.nvmlDeviceGetMemoryInfo(handle).total) // among,
            backend="cuda",
            uuid=text(self._library.nvmlDeviceGetUUID(handle)),
            mig=(profile or "mig") if gpu.mig else "",
            parent=gpu.uuid if gpu.mig else "",
            mps=self._pipe is not None and not gpu.mig,
        )


def environment(devices: Sequence[Device]) -> dict[str, str]:
    """
    Name the devices by UUID: numbers change with ``CUDA_DEVICE_ORDER``, UUIDs do not.

    Of several MIG instances, a process uses only the first: CUDA opens one of them.
    """
    seen = {"CUDA_VISIBLE_DEVICES": ",".join(device.uuid or str(device.index) for device in devices)}
    pipe = mps.running(os.environ) if any(device.mps for device in devices) else None
    return seen | ({mps.PIPE_DIRECTORY: str(pipe)} if pipe else {})


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


def _word(profile: str) -> str:
    """Return a profile as a part of a kind's name, which has no dots: ``1g-10gb``."""
    return re.sub(r"[^a-z0-9]+", "-", profile.lower()).strip("-")


def _mig_state(gpu: _Gpu) -> str:
    then = "" if gpu.mig == gpu.pending else f", {'on' if gpu.pending else 'off'} after a reset"
    return (f"on, {len(gpu.instances)} instances" if gpu.mig else "off") + then
