"""
Support for PyTorch: the memory that a process holds, the limit of its allocator, and a gang's process group.

The first two parts look for PyTorch among the modules that are loaded, and never load it. They open no device either,
because a script may fork before it opens one. :func:`measure` returns what the process holds; without PyTorch, that is
its resident memory on the host. :class:`AllocatorLimit` holds PyTorch's allocator to what this process may have of its
devices, so that it refuses what would be a neighbour's.

:func:`distributed` makes a :class:`ProcessGroup` by NCCL on GPUs and by Gloo on everything else. The executor says
where a gang's processes meet (``MASTER_ADDR``, ``MASTER_PORT``). A gang of one meets nobody, so the same script runs at
any width. PyTorch is imported here, when a script asks for this, and nowhere else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module, util
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

from penstock.sessions.setup import ProcessSetup, SessionError
from penstock_log.agent_protocol import MemoryReport

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = b"5"


def works_on() -> bool:
    """Whether the device may be at work for this process after a step has returned."""
    return _cuda() is not None


def settle() -> None:
    """Wait until the device has finished its work, and give back the memory that the allocator keeps in reserve."""
    cuda = _cuda()
    if cuda is None:
        return
    for index in range(cuda.device_count()):
        cuda.synchronize(index)
    cuda.empty_cache()


def measure() -> MemoryReport | None:
    """
    Return what the process holds now, and the most that it has held since the last call.

    It returns None where that is not known. Over several devices, it is the most of each part: the need of one device.
    """
    cuda = _cuda()
    if cuda is not None:
        return _allocated(cuda)
    memory = resident()
    return memory if memory is not None and _reset_peak() else None


def _cuda() -> Any:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _allocated(cuda: Any) -> MemoryReport:
    devices = range(cuda.device_count())
    memory = MemoryReport(
        allocated_bytes=max(cuda.memory_allocated(index) for index in devices),
        peak_bytes=max(cuda.max_memory_allocated(index) for index in devices),
        reserved_bytes=max(cuda.memory_reserved(index) for index in devices),
        on_device=True,
    )
    for index in devices:
        cuda.reset_peak_memory_stats(index)
    return memory


def resident() -> MemoryReport | None:
    """Return the process's resident memory on the host, and its peak; None where the host has no such figures."""
    try:
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines() if line.startswith("Vm"))
        return MemoryReport(allocated_bytes=_bytes(lines["VmRSS"]), peak_bytes=_bytes(lines["VmHWM"]))
    except (OSError, KeyError, ValueError):  # not Linux
        return None


def _bytes(text: str) -> int:
    return int(text.removesuffix("kB")) * 1024


def _reset_peak() -> bool:
    """Let the peak begin anew; return False where the kernel does not, and the next one would be the whole life's."""
    try:
        with _CLEAR.open("wb", buffering=0) as file:
            file.write(_RESET_PEAK)
    except OSError:
        return False
    return True


class AllocatorLimit:
    """
    A limit of PyTorch's allocator, set at once where PyTorch has a device open, else when it opens one.

    Parameters
    ----------
    fraction : float
        The part of each visible device's memory; 0 for no limit.
    """

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction
        self._is_set = not fraction

    def change(self, fraction: float) -> None:
        """Set another limit at the next boundary; from any thread."""
        self.fraction = fraction
        self._is_set = False

    def apply(self) -> None:
        """Give PyTorch the limit if it is loaded by now."""
        if self._is_set:
            return
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None:
            self._is_set = True
            cuda._lazy_call(lambda: self._set(cuda))  # public functions would open the devices

    def _set(self, cuda: Any) -> None:
        for index in range(cuda.device_count()):
            cuda.set_per_process_memory_fraction(self.fraction, index)


Backend = Literal["gloo", "nccl"]


def distributed(setup: ProcessSetup, timeout_s: float, environ: Mapping[str, str] = os.environ) -> ProcessGroup:
    """
    Return the process group of a session.

    Raises
    ------
    SessionError
        If there is no torch, or none that can use the job's devices, or the place where the processes meet is not set.
    """
    if util.find_spec("torch") is None:
        raise SessionError("session.distributed() needs PyTorch, which this Python has not; pip install torch")
    torch: Any = import_module("torch")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if setup.world_size > 1 and missing:
        raise SessionError(
            f"{' and '.join(missing)} not set: {setup.world_size} processes do not know where to meet; "
            "the executor says so, and who starts them by hand has to"
        )
    return ProcessGroup(torch, setup, _backend(torch, setup), timeout_s)


def _backend(torch: Any, setup: ProcessSetup) -> Backend:
    """Choose by the devices that the job was given; by hand, by those that torch finds."""
    cuda = bool(torch.cuda.is_available())
    if setup.backend == "cuda" and not cuda:
        raise SessionError(
            f"the job has CUDA devices, and this PyTorch ({torch.__version__}) cannot use them; "
            "install a build with CUDA, or ask for devices of another kind"
        )
    return "nccl" if cuda and setup.backend in {"", "cuda"} else "gloo"


class ProcessGroup:
    """
    The processes of a gang, as one.

    Attributes
    ----------
    device : torch.device
        This process's own.
    """

    def __init__(self, torch: Any, setup: ProcessSetup, backend: Backend, timeout_s: float) -> None:
        self.backend = backend
        self.device = torch.device("cpu")
        if backend == "nccl":  # where the executor shows each process its own device only, that one is number 0
            self.device = torch.device("cuda", setup.local_rank % torch.cuda.device_count())
        self._torch, self._setup, self._timeout_s = torch, setup, timeout_s

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        return self._setup.rank

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self._setup.world_size

    def __enter__(self) -> ProcessGroup:
        """
        Meet the others.

        Raises
        ------
        SessionError
            If they do not meet: the port is taken, or a process did not come in time.
        """
        if self.backend == "nccl":
            self._torch.cuda.set_device(self.device)
        if self.world_size > 1:
            self._init_group()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Leave; after an error, do not wait for operations that the others will not end."""
        failed = error is not None and not isinstance(error, SystemExit)
        if self.world_size > 1 and not (failed and self.backend == "nccl"):
            self._torch.distributed.destroy_process_group()

    def wrap(self, module: Any, **options: Any) -> Any:
        """
        Return a module whose gradients are averaged over the gang in each backward pass; of a gang of one, itself.

        Save and load the module that was given: both have the same parameters. Every process begins with rank 0's.

        Parameters
        ----------
        module : torch.nn.Module
            On :attr:`device`.
        options
            Of ``torch.nn.parallel.DistributedDataParallel``.
        """
        if self.world_size == 1:
            return module
        devices = [self.device] if self.backend == "nccl" else None
        return self._torch.nn.parallel.DistributedDataParallel(module, device_ids=devices, **options)

    def mean(self, total: Any, rows: int) -> Any:
        """
        Return a loss whose gradients, averaged over the gang, are those of the mean over the whole batch.

        Processes may have unequally many rows, as of an epoch's last batch, or none; so the mean of their means would
        not be that of all rows.

        Parameters
        ----------
        total : scalar tensor
            The loss, summed over this process's rows (``reduction="sum"``).
        rows : int
            How many those are.
        """
        if self.world_size == 1:
            return total / rows
        count = self._torch.tensor(float(rows), dtype=total.dtype, device=total.device)
        self._torch.distributed.all_reduce(count)
        return total * (self.world_size / count)

    def average(self, value: Any) -> Any:
        """
        Return the mean of a tensor over the gang, without gradients; for a loss of :meth:`mean`, the batch's loss.

        All processes have to call this in the same order.
        """
        mean = value.detach().clone()
        if self.world_size > 1:
            self._torch.distributed.all_reduce(mean)
            mean /= self.world_size
        return mean

    def _init_group(self) -> None:
        group = self._torch.distributed
        if not group.is_available():
            raise SessionError(f"this PyTorch ({self._torch.__version__}) was built without torch.distributed")
        try:
            group.init_process_group(
                self.backend,
                init_method="env://",
                rank=self.rank,
                world_size=self.world_size,
                timeout=timedelta(seconds=self._timeout_s),
            )
        except (RuntimeError, ValueError) as error:  # of which torch's DistError is one
            where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            raise SessionError(
                f"rank {self.rank} of {self.world_size} could not meet the others at {where}: {error}"
            ) from error
