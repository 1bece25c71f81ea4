"""
CUDA devices, as NVIDIA's management library (NVML) reports them.

:class:`CudaBackend` has the host's devices, their labels and their processes. Penstock changes nothing on a device:
MIG, MPS and modes are the operator's. A GPU in MIG mode is not a device; each of its instances is one. Compute
instances of one GPU instance share its memory, which nothing divides between them. Each gets an equal part of it here,
so that together they get no more. GPUs that this process may not use are left out, see
:mod:`penstock_cluster.cuda_visibility`.

:func:`running` says whether the operator runs NVIDIA's multi-process service. Penstock never starts, stops or sets it.
A CUDA program uses it by itself where its daemon listens in the pipe directory.

:func:`links` says how CUDA devices are connected: by NVLink, or how far up the PCIe tree they meet.

References
----------
NVIDIA, Multi-Process Service: the control daemon notes its pid in the pipe directory; ``CUDA_MPS_PIPE_DIRECTORY``,
by default ``/tmp/nvidia-mps``.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import msgspec
import pynvml

from penstock_cluster.cuda_health import CudaHealth
from penstock_cluster.cuda_monitor import CudaMonitor
from penstock_cluster.cuda_visibility import VARIABLE, ListedGpu, ListedInstance, may_open, named
from penstock_cluster.device_backend import DeviceBackend, DeviceError
from penstock_cluster.device_health import HealthReader
from penstock_cluster.device_monitor import DeviceMonitor
from penstock_cluster.nvml import Handle, NvmlLibrary, answer, text
from penstock_log import Device

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
PIPE_DIRECTORY: Final = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT: Final = "/tmp/nvidia-mps"  # noqa: S108 -- the driver's default, not ours
_PID_FILE: Final = "nvidia-cuda-mps-control.pid"
LEVELS: Final = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "board",
    pynvml.NVML_TOPOLOGY_SINGLE: "pix",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "pxb",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "phb",
    pynvml.NVML_TOPOLOGY_NODE: "node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "sys",
}
"""Where two devices' roads meet, from near to far, under the names of ``nvidia-smi topo``."""
SWITCH: Final = "switch"


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
        """The devices of this GPU: itself, or its instances in MIG mode."""
        return self.instances if self.mig else [(self.handle, 1)]


class _Found(msgspec.Struct, frozen=True):
    """
    What was read once: devices; of the whole GPUs among them (W) their numbers, modes and links (W, W).

    ``hidden`` says which others the driver lists that are not for this process.
    """

    devices: tuple[Device, ...] = ()
    whole: list[int] = []
    modes: list[int] = []
    links: list[list[str]] = []
    mig: dict[str, str] = {}
    hidden: str = ""


def running(environ: Mapping[str, str]) -> Path | None:
    """
    Return the pipe directory of the daemon that programs with this environment would find; None if none lives.

    A directory that a dead daemon left behind does not count, nor does one whose daemon lives in another pid namespace.
    """
    directory = Path(environ.get(PIPE_DIRECTORY) or _DEFAULT)
    try:
        pid = int((directory / _PID_FILE).read_text())
    except (OSError, ValueError):
        return None
    return directory if pid > 0 and _lives(pid) else None


def links(library: NvmlLibrary, handles: Sequence[Handle]) -> list[list[str]]:
    """
    Return how each two of the devices are connected.

    Returns
    -------
    (D, D) strings, symmetric: ``nv12`` for so many NVLinks, a level of the PCIe tree, ``?`` where the driver does not
    know, empty from a device to itself.

    Notes
    -----
    Links into an NVSwitch reach every device that has such links; the fewer of two devices' are counted.
    """
    ends = [_ends(library, handle) for handle in handles]
    buses = [_bus(library, handle) for handle in handles]
    table = [["" for _ in handles] for _ in handles]
    for i, one in enumerate(handles):
        for j in range(i):
            lanes = max(ends[i][buses[j]], ends[j][buses[i]]) + min(ends[i][SWITCH], ends[j][SWITCH])
            table[i][j] = table[j][i] = f"nv{lanes}" if lanes else _level(library, one, handles[j])
    return table


def labels(numbers: Sequence[int], table: Sequence[Sequence[str]]) -> dict[str, str]:
    """
    Return a node's labels of its devices' connections: one for each device that has any.

    Examples
    --------
    >>> labels([0, 1, 2], [["", "nv18", "sys"], ["nv18", "", "sys"], ["sys", "sys", ""]])
    {'links.0': '1:nv18 2:sys', 'links.1': '0:nv18 2:sys', 'links.2': '0:sys 1:sys'}
    """
    rows = {
        f"links.{number}": " ".join(f"{numbers[j]}:{link}" for j, link in enumerate(row) if link)
        for number, row in zip(numbers, table, strict=True)
    }
    return {name: row for name, row in rows.items() if row}


class CudaBackend(DeviceBackend):
    """
    The host's NVIDIA devices; none where there is no driver, which ``reason`` then says.

    Parameters
    ----------
    library : NvmlLibrary
        The driver's library, or one that answers in its place.
    environ : mapping of str to str, optional
        Whose ``CUDA_VISIBLE_DEVICES`` says which they are; this process's.
    may_use : callable
        ``may_use(minor)``: says whether this process may open a GPU.
    """

    name = "cuda"

    def __init__(
        self,
        library: NvmlLibrary = pynvml,
        *,
        environ: Mapping[str, str] | None = None,
        may_use: Callable[[int], bool] = may_open,
    ) -> None:
        self.reason = ""
        self._library, self._may_use = library, may_use
        self._environ = os.environ if environ is None else environ
        self._pipe = running(os.environ)
        self._found = self._find()

    @classmethod
    def parse(cls, part: str, column: int) -> Self | None:
        """Return the host's CUDA devices for ``cuda``, which insists on there being some."""
        del column
        if part != cls.name:
            return None
        cuda = cls()
        if not cuda.devices():
            why = cuda.reason or "the driver lists none"
            raise DeviceError(f"devices = cuda, and there is no CUDA device ({why}); use auto, cpu or an emulated kind")
        return cuda

    @classmethod
    def found(cls) -> Self | None:
        """Return the host's CUDA devices, if it has any."""
        cuda = cls()
        return cuda if cuda.devices() else None

    @classmethod
    def conflict(cls, backends: Sequence[Self]) -> str:
        """Return what is wrong with naming the same devices twice."""
        del backends
        return " names the CUDA devices a second time; expected them once"

    def devices(self) -> tuple[Device, ...]:
        """Return the devices in the driver's order, MIG instances in the place of their GPU, that are not hidden."""
        return self._found.devices

    def labels(self, first: int = 0) -> dict[str, str]:
        """
        Return the node's labels: connections, MIG and compute modes, MPS.

        ``links.N``: to each other device, see :func:`penstock_cluster.cuda_backend.links`. ``compute_mode.N``: where it
        is not the default. ``mig.UUID``: of each GPU in MIG mode, or about to change it. ``mps``: the pipe
        directory. ``hidden``: which GPUs of the host are not this node's.
        """
        numbers = [first + number for number in self._found.whole]
        modes = zip(numbers, self._found.modes, strict=True)
        return {
            **labels(numbers, self._found.links),
            **{f"compute_mode.{number}": _MODES[mode] for number, mode in modes if mode in _MODES},
            **{f"mig.{uuid}": state for uuid, state in self._found.mig.items()},
            **({"mps": str(self._pipe)} if self._pipe and self._found.devices else {}),
            **({"hidden": self._found.hidden} if self._found.hidden and self._found.devices else {}),
        }

    @staticmethod
    def environment(devices: Sequence[Device]) -> dict[str, str]:
        """
        Name the devices by UUID: numbers change with ``CUDA_DEVICE_ORDER``, UUIDs do not.

        Of several MIG instances, a process uses only the first: CUDA opens one of them.
        """
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(device.uuid or str(device.index) for device in devices)}
        pipe = running(os.environ) if any(device.mps for device in devices) else None
        return seen | ({PIPE_DIRECTORY: str(pipe)} if pipe else {})

    @classmethod
    def accounting(cls) -> Self:
        """Return the accounting by the driver: the backend itself."""
        return cls()

    @classmethod
    def monitor(cls, clock: Callable[[], float]) -> DeviceMonitor:
        """Return the monitor by the driver."""
        del clock
        return CudaMonitor()

    @classmethod
    def is_used(cls, device: Device, library: NvmlLibrary = pynvml) -> bool:
        """Say whether a kernel has run within the last second, or the driver does not tell, as it does not of MIG."""
        try:
            library.nvmlInit()
            try:
                handle = library.nvmlDeviceGetHandleByUUID(device.uuid)
                rates = answer(lambda: library.nvmlDeviceGetUtilizationRates(handle), None)
            finally:
                library.nvmlShutdown()
        except pynvml.NVMLError as error:
            raise DeviceError(f"an NVIDIA device cannot be read: {error}; does nvidia-smi list it?") from error
        return rates is None or rates.gpu > 0

    @classmethod
    def health(cls, devices: tuple[Device, ...]) -> HealthReader:
        """Return the reader of XIDs and ECC errors."""
        return CudaHealth(devices)

    def held(self, device: Device, pids: Iterable[int]) -> dict[int, int]:
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
        return {pid: held[pid] for pid in pids if pid in held}

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
        count = self._library.nvmlDeviceGetCount()
        gpus = [gpu for gpu in map(self._gpu, range(count)) if gpu is not None]
        every = [(part, among, gpu) for gpu in gpus for part, among in gpu.parts]
        visible = named([self._listed(gpu) for gpu in gpus], self._environ)
        parts = [part for part in every if visible is None or self._uuid(part[0]) in visible]
        seen = gpus if visible is None else [gpu for gpu in gpus if any(part[2] is gpu for part in parts)]
        whole = [(number, gpu.handle) for number, (_, _, gpu) in enumerate(parts) if not gpu.mig]
        handles = [handle for _, handle in whole]
        hidden = self._hidden(count - len(gpus), len(every) - len(parts))
        if count and not parts:
            self.reason = hidden or "all GPUs are in MIG mode and have no instances"
        return _Found(
            devices=tuple(self._device(number, *part) for number, part in enumerate(parts)),
            whole=[number for number, _ in whole],
            modes=[self._mode(handle) for handle in handles],
            links=links(self._library, handles),
            mig={gpu.uuid: _mig_state(gpu) for gpu in seen if gpu.mig or gpu.pending},
            hidden=hidden,
        )

    def _hidden(self, closed: int, unnamed: int) -> str:
        """Say which devices the driver lists that are not for this process."""
        said = [f"{closed} that this process may not open"] if closed else []
        if unnamed:
            said.append(f"{unnamed} by {VARIABLE}={self._environ.get(VARIABLE, '')!r}")
        return ", ".join(said)

    def _gpu(self, index: int) -> _Gpu | None:
        """Return a GPU; None where this process may not open it."""
        handle = answer(lambda: self._library.nvmlDeviceGetHandleByIndex(index), None)
        if handle is None:
            return None
        minor = answer(lambda: self._library.nvmlDeviceGetMinorNumber(handle), None)
        if minor is not None and not self._may_use(minor):
            return None
        now, pending = answer(lambda: self._library.nvmlDeviceGetMigMode(handle), (0, 0))
        return _Gpu(handle, self._uuid(handle), bool(now), bool(pending), self._instances(handle) if now else [])

    def _uuid(self, handle: Handle) -> str:
        return text(self._library.nvmlDeviceGetUUID(handle))

    def _listed(self, gpu: _Gpu) -> ListedGpu:
        instances = tuple(ListedInstance(self._uuid(handle), self._ids(handle)) for handle, _ in gpu.instances)
        return ListedGpu(gpu.uuid, text(self._library.nvmlDeviceGetName(gpu.handle)), gpu.mig, instances)

    def _ids(self, instance: Handle) -> str:
        compute = answer(lambda: self._library.nvmlDeviceGetComputeInstanceId(instance), 0)
        return f"{self._library.nvmlDeviceGetGpuInstanceId(instance)}/{compute}"

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
            kind=f"{kind_of(product)}-{_kind_part(profile or 'mig')}" if gpu.mig else kind_of(product),
            memory_bytes=int(self._library.nvmlDeviceGetMemoryInfo(handle).total) // among,
            backend=self.name,
            uuid=self._uuid(handle),
            mig=(profile or "mig") if gpu.mig else "",
            parent=gpu.uuid if gpu.mig else "",
            mps=self._pipe is not None and not gpu.mig,
        )


def kind_of(product: str) -> str:
    """
    Return a product's kind: the name of its model without the vendor, the form and the memory size.

    Examples
    --------
    >>> [kind_of(name) for name in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla V100-PCIE-16GB")]
    ['h200', 'a100', 'v100']
    >>> kind_of("NVIDIA GeForce RTX 4090"), kind_of("NVIDIA RTX A6000"), kind_of("Quadro RTX 8000")
    ('rtx4090', 'rtxa6000', 'rtx8000')
    """
    parts = [part for part in re.split(r"[^a-z0-9]+", product.lower()) if part and part not in _VENDOR]
    if not parts:
        return "gpu"
    return parts[0] + parts[1] if parts[0] in {"rtx", "gtx"} and len(parts) > 1 else parts[0]


def _kind_part(profile: str) -> str:
    """Return a profile as a part of a kind's name, which has no dots: ``1g-10gb``."""
    return re.sub(r"[^a-z0-9]+", "-", profile.lower()).strip("-")


def _mig_state(gpu: _Gpu) -> str:
    then = "" if gpu.mig == gpu.pending else f", {'on' if gpu.pending else 'off'} after a reset"
    return (f"on, {len(gpu.instances)} instances" if gpu.mig else "off") + then


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # it is the operator's, as it should be
    except (OSError, OverflowError):
        return False
    return True


def _ends(library: NvmlLibrary, handle: Handle) -> Counter[str]:
    """Return where a device's active links end: at which bus id, or at a switch."""
    every = range(pynvml.NVML_NVLINK_MAX_LINKS)
    return Counter(_end(library, handle, link) for link in every if _active(library, handle, link))


def _active(library: NvmlLibrary, handle: Handle, link: int) -> bool:
    return bool(answer(lambda: library.nvmlDeviceGetNvLinkState(handle, link), 0))


def _end(library: NvmlLibrary, handle: Handle, link: int) -> str:
    unknown = pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN
    kind = answer(lambda: library.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link), unknown)
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return SWITCH
    return answer(lambda: text(library.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId), "?")


def _bus(library: NvmlLibrary, handle: Handle) -> str:
    return answer(lambda: text(library.nvmlDeviceGetPciInfo(handle).busId), "")


def _level(library: NvmlLibrary, one: Handle, other: Handle) -> str:
    return LEVELS.get(answer(lambda: library.nvmlDeviceGetTopologyCommonAncestor(one, other), -1), "?")
