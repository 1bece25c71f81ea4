"""The kernels of matching, compiled once for all processes that can read the same directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock_policies.kernels import Kernel, Kernels

KERNELS: Final = Kernels("matching", Path(__file__).parent)


def kernel(function: Kernel) -> Kernel:
    """Return the function compiled for the machine at its first call, or loaded from where kernels are kept."""
    return KERNELS.compiled(function)
