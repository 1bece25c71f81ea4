"""
Holds PyTorch's allocator to what this process may have of its devices, so that it refuses what would be a neighbour's.

PyTorch is looked for among the modules that are there, and never loaded; nor is a device opened for this, since a
script may fork before it opens one.
"""

from __future__ import annotations

import sys
from typing import Any


class Limit:
    """
    A limit that is told once, and when it changes: at once where PyTorch has a device open, else when it opens one.

    Parameters
    ----------
    fraction : float
        Of each visible device's memory; 0 for no limit.
    """

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction
        self._told = not fraction

    def change(self, fraction: float) -> None:
        """Let another limit be told at the next boundary; from any thread."""
        self.fraction = fraction
        self._told = False

    def tell(self) -> None:
        """Tell PyTorch if it is there by now."""
        if self._told:
            return
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is not None:
            self._told = True
            cuda._lazy_call(lambda: self._set(cuda))  # public functions would open the devices

    def _set(self, cuda: Any) -> None:
        for index in range(cuda.device_count()):
            cuda.set_per_process_memory_fraction(self.fraction, index)
