"""
Train the network of ``digits_mlp.py`` by local SGD: each process by itself, and averaged once in ``every`` steps.

The averages are computed by aggregators that jobs share, so nothing meets anywhere and no port is opened. A job of one
process trains as ``digits_mlp.py`` does. Parameters: ``lr``, ``width``, ``steps``, ``seed``, ``every``, and ``rule`` of
the outer optimizer (``mean``, or ``momentum`` as DiLoCo has it).
"""

from __future__ import annotations

from digits import Momentum, accuracy, crash_once, jittered, lessons, load  # isort: skip  # before numpy
from pathlib import Path

import numpy as np

import penstock
from digits_mlp import build


def main() -> None:
    """Train, and say how well the held-out digits are read."""
    with penstock.session() as session:
        training, held_out = load()
        params = session.params
        sampler = session.sampler(len(training.y), batch_size=128, seed=int(params.get("seed", 0)))
        model = build(session)
        local = Momentum(model, lr=session.lr(float(params.get("lr", 0.1))), seed=session.rank)
        every = int(params.get("every", 8))
        if params.get("rule") == "momentum":
            shared = session.aggregate(model.weights, "momentum", every=every, lr=0.7, momentum=0.9)
        else:
            shared = session.aggregate(model.weights, every=every)

        def save(folder: Path) -> None:
            local.save(folder)
            shared.save(folder)

        def load_state(folder: Path) -> None:
            local.load(folder)
            shared.load(folder)

        session.on_checkpoint(save, load_state)
        loss = 0.0
        for rows in lessons(session, sampler, steps=400):
            loss, gradients = model.gradients(jittered(training.x[rows], local.rng), training.y[rows])
            share = np.float32(1 / max(1, len(rows)))
            local.step({name: gradient * share for name, gradient in gradients.items()})
            if shared.step():
                session.report(loss=loss / max(1, len(rows)), accuracy=accuracy(model, held_out))
            crash_once(session)
        print(f"accuracy {accuracy(model, held_out):.4f} after {session.step} steps", flush=True)


if __name__ == "__main__":
    main()
