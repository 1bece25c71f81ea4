"""
Estimate of what a torch job needs of a device's memory, before it runs: nothing of its size is allocated or computed.

The job's first iterations run on *fake* tensors, which have a shape and a type and no content, while every storage
that they would have is added up from its making to its end::

    from penstock.estimate import need_of, training

    need = need_of(training(model=make_model, optimizer=torch.optim.Adam, batch=make_batch, loss=loss_of))
    need.persistent_bytes, need.framework_bytes, need.ephemeral_bytes

What is not seen: workspaces that kernels take inside (cuDNN, cuBLAS), the allocator's fragments, and whatever is no
tensor. ``torch`` is needed, a GPU is not.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from importlib import import_module, util
from typing import Any, Final

from penstock.sessions.torch_support import resident
from penstock_log import MemoryNeed

Step = Callable[[], object]
"""One iteration: what it makes and does not keep is ephemeral."""
Make = Callable[[], Step]
"""Builds model and optimizer, and returns the iteration; what that keeps is persistent."""

BLOCK_BYTES: Final = 512
"""The CUDA allocator's smallest block: every tensor takes a multiple of it."""
ITERATIONS: Final = 3


class EstimateError(Exception):
    """An estimate cannot be made; the message says why, and what to do."""


def need_of(make: Make, *, iterations: int = ITERATIONS, framework_bytes: int | None = None) -> MemoryNeed:
    """
    Return what a job would need, without making any of its tensors.

    Parameters
    ----------
    make : callable
        Called once; the iteration that it returns is called ``iterations`` times.
    iterations : int
        At least 2: an optimizer's state appears during the first one, which therefore does not count.
    framework_bytes : int, optional
        F, which is the node's and not the model's, so that the caller gives it; by default what this process holds of
        the host's memory with torch loaded, which is right for a job on the CPU.

    Returns
    -------
    MemoryNeed
        P: the most that is left between two iterations. E: the most that an iteration adds to it.

    Raises
    ------
    EstimateError
        If there is no torch, or an iteration does what cannot be done without content.

    Notes
    -----
    Numbers that are read out of tensors (``loss.item()``) are 1 where their value is not known, so that an iteration
    whose shapes depend on its data is not estimated rightly.
    """
    if iterations < 2:
        raise EstimateError(f"{iterations} iterations do not show what an iteration keeps; expected at least 2")
    tracking = _tracking()
    if framework_bytes is None:
        held = resident()
        framework_bytes = held.allocated_bytes if held is not None else 0
    with tracking.fake(BLOCK_BYTES) as storages:
        try:
            persistent, ephemeral = _run(make, iterations, storages)
        except EstimateError:
            raise
        except Exception as error:
            raise EstimateError(
                f"the job does not run on tensors without content: {type(error).__name__}: {error}; "
                "keep loading, saving and logging out of the iteration, or give JobSpec.memory by hand"
            ) from error
    return MemoryNeed(persistent, framework_bytes, ephemeral)


def measured(make: Make, *, iterations: int = ITERATIONS, framework_bytes: int = 0) -> MemoryNeed:
    """
    Return what the job's tensors do take when it runs, added up in the same way; for comparing with :func:`need_of`.

    Raises
    ------
    EstimateError
        If there is no torch.
    """
    with _tracking().real(BLOCK_BYTES) as storages:
        persistent, ephemeral = _run(make, iterations, storages)
    return MemoryNeed(persistent, framework_bytes, ephemeral)


def training(
    *,
    model: Callable[[], Any],
    optimizer: Callable[[Iterable[Any]], Any],
    batch: Callable[[], tuple[Any, ...]],
    loss: Callable[..., Any],
) -> Make:
    """
    Return a job that trains a model as most scripts do.

    Parameters
    ----------
    model : callable
        Makes the module.
    optimizer : callable
        Makes the optimizer from the module's parameters.
    batch : callable
        Makes the inputs of one iteration: the module's first, then what the loss takes beside the module's output.
    loss : callable
        From the module's output, and the rest of the batch, to a scalar.
    """

    def make() -> Step:
        module = model()
        descent = optimizer(module.parameters())

        def step() -> None:
            inputs, *rest = batch()
            descent.zero_grad()
            loss(module(inputs), *rest).backward()
            descent.step()

        return step

    return make


def _run(make: Make, iterations: int, storages: Any) -> tuple[int, int]:
    step = make()
    if not callable(step):
        raise EstimateError(f"make() returned {type(step).__name__}; expected a function that does one iteration")
    peaks, left = [], []
    for _ in range(iterations):
        storages.reset_peak()
        step()
        gc.collect()  # what only a cycle keeps does not last, but when it goes is chance
        peaks.append(storages.peak_bytes)
        left.append(storages.live_bytes)
    persistent = max(left[1:])
    return persistent, max(max(peaks[1:]) - persistent, 0)


def insist_on_torch() -> None:
    """
    Find torch, without loading it.

    Raises
    ------
    EstimateError
        If it is not installed here.
    """
    if util.find_spec("torch") is None:
        raise EstimateError("there is no torch in this environment; run it where the job's own packages are")


def _tracking() -> Any:
    insist_on_torch()
    return import_module("penstock.estimate_torch")
