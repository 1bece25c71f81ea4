"""
A gang's process group for PyTorch: met, used and left, by NCCL on GPUs and by Gloo on everything else.

The executor says where a gang's processes meet (``MASTER_ADDR``, ``MASTER_PORT``); a gang of one meets nobody, so that
the same script runs at any width. PyTorch is imported here, when a script asks for this, and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module, util
from types import TracebackType
from typing import Any, Literal

from penstock.sessions.setup import SessionError, Setup

Backend = Literal["gloo", "nccl"]


def distributed(setup: Setup, timeout_s: float, environ: Mapping[str, str] = os.environ) -> Distributed:
    """
    Return the process group of a session.

    Raises
    ------
    SessionError
        If there is no torch, none that can use the job's devices, or nobody has said where the processes meet.
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
    return Distributed(torch, setup, _backend(torch, setup), timeout_s)


def _backend(torch: Any, setup: Setup) -> Backend:
    """Choose by the devices that the job was given; by hand, by those that torch finds."""
    cuda = bool(torch.cuda.is_available())
    if setup.backend == "cuda" and not cuda:
        raise SessionError(
            f"the job has CUDA devices, and this PyTorch ({torch.__version__}) cannot use them; "
            "install a build with CUDA, or ask for devices of another kind"
        )
    return "nccl" if cuda and setup.backend in {"", "cuda"} else "gloo"


class Distributed:
    """
    The processes of a gang, as one.

    Attributes
    ----------
    backend : {"gloo", "nccl"}
    device : torch.device
        This process's own.
    """

    def __init__(self, torch: Any, setup: Setup, backend: Backend, timeout_s: float) -> None:
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

    def __enter__(self) -> Distributed:
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
            self._meet()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Leave; who leaves because of an error does not wait for operations that the others will not end."""
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
        Return the mean of a tensor over the gang, without gradients; of what :meth:`mean` returned, the batch's loss.

        All processes have to call this, and in the same order.
        """
        mean = value.detach().clone()
        if self.world_size > 1:
            self._torch.distributed.all_reduce(mean)
            mean /= self.world_size
        return mean

    def _meet(self) -> None:
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
