"""A program that compiles the kernels before they are needed: ``python -m penstock_simulator.fast.fast_warmup``."""

from __future__ import annotations

from penstock_simulator.fast.fast_path import warm
from penstock_simulator.fast.kernel_state import KERNELS

if __name__ == "__main__":
    KERNELS.keep_all(warm)
    KERNELS.forget_older()
