"""
Compile the kernels before they are needed, and keep them: ``python -m penstock_policies.matching.matching_warmup``.
"""

from __future__ import annotations

import numpy as np

from penstock_policies.matching.flow import KERNELS
from penstock_policies.matching.solver import KeptMatching


def compile_kernels() -> None:
    """
    Go once through everything that is compiled, on two jobs, so that no later call waits for the compiler.

    Loads what is kept, in half a second; else compiles for some twenty seconds and keeps the result where it can.
    """
    with KERNELS.compiling():
        kept = KeptMatching(np.array([[1, 2], [2, 3]]), [np.array([0]), np.array([1])])
        kept.remove(kept.add(np.array([1, 1])))
        kept.set_ready(0, 0, 1)
        kept.assignment()


if __name__ == "__main__":
    KERNELS.keep_all(compile_kernels)
    KERNELS.forget_older()
