"""
Record learning curves of the digits network over a grid: what `penstock sim --sweep` plays sweeps over.

    python record_curves.py > sweeps/digits-curves.csv

20 learning rates times 5 widths, each trained once, in about a minute of one core: its accuracy after each epoch and at
the budgets of the sweeps in this folder, and the CPU seconds of one step.
"""

from __future__ import annotations

from digits import Batches, Momentum, accuracy, jittered, load  # isort: skip  # before numpy

import time
from collections.abc import Sequence

import numpy as np

from digits_mlp import Mlp

BATCH = 128
RUNGS = (10, 30, 90, 270)
RATES = [float(f"{rate:.3g}") for rate in np.geomspace(0.0005, 0.5, 20)]
WIDTHS = (32, 64, 128, 256, 512)


def main() -> None:
    """Write a line for each trial: its point, seconds for one step, and its accuracy after so many steps."""
    epoch = len(load()[0].y) // BATCH
    budgets = sorted({*RUNGS, *range(epoch, RUNGS[-1], epoch)})
    print("lr", "width", "unit_s", *budgets, sep=",")
    for lr in RATES:
        for width in WIDTHS:
            unit_s, values = train(lr, width, budgets)
            print(lr, width, f"{unit_s:.6f}", *(f"{value:.3f}" for value in values), sep=",", flush=True)


def train(lr: float, width: int, budgets: Sequence[int]) -> tuple[float, list[float]]:
    """Return the CPU seconds of one step, and the accuracy at each budget."""
    training, held_out = load()
    model = Mlp(width)
    momentum = Momentum(model, lr)
    values, spent_s = [], 0.0
    for step, rows in enumerate(Batches(len(training.y), BATCH, budgets[-1], seed=0), 1):
        began_s = time.process_time()
        _, gradients = model.gradients(jittered(training.x[rows], momentum.rng), training.y[rows])
        momentum.step({name: gradient / np.float32(len(rows)) for name, gradient in gradients.items()})
        spent_s += time.process_time() - began_s
        if step in budgets:
            values.append(accuracy(model, held_out))
    return spent_s / budgets[-1], values


if __name__ == "__main__":
    main()
