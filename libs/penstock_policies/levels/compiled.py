"""Compile kernels with numba, once for all processes that can read the same directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

from penstock_policies.levels.keeping import DIRECTORY, KernelCache

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """Return the function compiled for the machine at its first call, or loaded from where kernels are kept."""
    compiled = numba.njit(function)
    if DIRECTORY is not None:
        compiled._cache = KernelCache(function)  # type: ignore[no-untyped-call]
    return cast("Kernel", compiled)
