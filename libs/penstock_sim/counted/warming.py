"""Compile the kernels before they are needed, and keep them: ``python -m penstock_sim.counted.warming``."""

from __future__ import annotations

from penstock_sim.counted.engine import warm
from penstock_sim.counted.kernels.compiled import KERNELS

if __name__ == "__main__":
    KERNELS.keep_all(warm)
    KERNELS.forget_older()
