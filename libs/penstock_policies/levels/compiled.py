"""The kernels of matching, compiled once for all processes that can read the same directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock_policies.kernels import Kernel, Kernels

KERNELS: Final = Kernels("matching", Path(__file__).parent)


def kernel(function: Kernel) -> Kernel:
    """Return the function as a kernel: compiled, or interpreted while ``KERNELS`` say so."""
    return KERNELS.switched(function)
