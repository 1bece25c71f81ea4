"""
A training job of ``bench_device.py``: ``device_job.py NOTES WIDTH BATCH STEPS``.

It trains the digits network of the examples, and notes at its end when each of its iterations began and ended. A batch
is made between iterations, as an input pipeline would, and then the device is not needed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from digits import Batches, Floats, Ints, Momentum, jittered, load  # isort: skip  # before numpy

import penstock
from digits_mlp import Mlp


def main(notes: str, width: int, batch: int, steps: int) -> None:
    """Train, and append a line of nanoseconds for each iteration."""
    lines = []
    with penstock.session() as session:
        training, _ = load()
        model = Mlp(width)
        momentum = Momentum(model, lr=0.05)
        session.on_checkpoint(momentum.save, momentum.load)

        def batches() -> Iterator[tuple[Floats, Ints]]:
            for rows in Batches(len(training.y), batch, steps, seed=0):
                yield jittered(training.x[rows], momentum.rng), training.y[rows]

        for x, y in session.iterations(batches()):
            begun_ns = time.monotonic_ns()
            _, gradients = model.gradients(x, y)
            momentum.step({name: gradient / len(y) for name, gradient in gradients.items()})
            lines.append(f"{begun_ns} {time.monotonic_ns()}\n")
    with open(notes, "a", encoding="ascii") as file:
        file.write("".join(lines))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
