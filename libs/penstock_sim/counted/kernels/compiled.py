"""The kernels of counting, compiled once for all processes that can read the same directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock_policies.kernels import Kernel, Kernels

KERNELS: Final = Kernels("counting", Path(__file__).parent)


def kernel(function: Kernel) -> Kernel:
    """
    Return the function compiled for the machine at its first call, or loaded from where kernels are kept.

    Without numba's run time: no kernel makes an array, and counting the references to those that are handed from one to
    the next took two thirds of the time.
    """
    return KERNELS.compiled(function, _nrt=False)
