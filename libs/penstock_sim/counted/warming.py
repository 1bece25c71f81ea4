"""Compile the kernels before they are needed: ``python -m penstock_sim.counted.warming``."""

from __future__ import annotations

from penstock_sim.counted.engine import warm
from penstock_sim.counted.kernels.compiled import KERNELS

if __name__ == "__main__":
    warm()
    KERNELS.forget_older()
