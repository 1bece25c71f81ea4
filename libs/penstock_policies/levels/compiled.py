"""Compile kernels with numba, into its cache where one can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """
    Return the function compiled for the machine at its first call.

    The result is kept beside the module, in ``NUMBA_CACHE_DIR`` or in the user's cache directory, whichever can be
    written first. Where none can (a read-only image without a home) every process compiles for itself.
    """
    try:
        return cast("Kernel", numba.njit(cache=True)(function))
    except RuntimeError:
        return cast("Kernel", numba.njit(function))
