"""
Record learning curves of the digits network at random points: what `penstock sweep sim` plays sweeps over.

    python record_curves.py > sweeps/digits-curves.csv
"""

from __future__ import annotations

from digits import Batches, Momentum, accuracy, jittered, load  # isort: skip  # before numpy

import time

import numpy as np

from digits_mlp import Mlp

TRIALS = 100
BUDGETS = (10, 30, 90, 270)
WIDTHS = (32, 64, 128, 256, 512)


def main() -> None:
    """Write a line for each trial: its point, seconds for one step, and its accuracy after so many steps."""
    rng = np.random.default_rng(0)
    print("lr", "width", "unit_s", *BUDGETS, sep=",")
    for _ in range(TRIALS):
        lr = float(f"{10 ** rng.uniform(-3.3, -0.3):.4g}")
        width = int(rng.choice(WIDTHS))
        unit_s, values = train(lr, width)
        print(lr, width, f"{unit_s:.6f}", *(f"{value:.4f}" for value in values), sep=",", flush=True)


def train(lr: float, width: int) -> tuple[float, list[float]]:
    """Return the CPU seconds of one step, and the accuracy at each budget."""
    training, held_out = load()
    model = Mlp(width)
    momentum = Momentum(model, lr)
    values, spent_s = [], 0.0
    for step, rows in enumerate(Batches(len(training.y), 128, BUDGETS[-1], seed=0), 1):
        began_s = time.process_time()
        _, gradients = model.gradients(jittered(training.x[rows], momentum.rng), training.y[rows])
        momentum.step({name: gradient / np.float32(len(rows)) for name, gradient in gradients.items()})
        spent_s += time.process_time() - began_s
        if step in BUDGETS:
            values.append(accuracy(model, held_out))
    return spent_s / BUDGETS[-1], values


if __name__ == "__main__":
    main()
