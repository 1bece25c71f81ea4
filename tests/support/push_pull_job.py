"""What the tests of preemption run: a gang whose optimizer is on the aggregators, and whose end is a digest."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import numpy as np

import penstock

STEPS = 60

with penstock.session() as session:
    weights = np.linspace(-1, 1, 1000, dtype=np.float32)
    shared = session.aggregate(weights, "adamw", lr=0.01)

    def save(folder: Path) -> None:
        np.save(folder / "weights.npy", weights)
        shared.save(folder)

    def load(folder: Path) -> None:
        weights[:] = np.load(folder / "weights.npy")
        shared.load(folder)

    session.on_checkpoint(save, load)
    for step in session.iterations(range(STEPS)):
        shared.push(np.sin(weights * (session.rank + 1) + step).astype(np.float32))
        time.sleep(0.01)  # so that there is time for a stop
        shared.pull()
    sys.stdout.write(f"learnt: {hashlib.sha256(weights.tobytes()).hexdigest()}\n")
