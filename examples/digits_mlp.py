"""
Train a small neural network on handwritten digits; every step costs a few milliseconds on one core.

Parameters: ``lr``, ``width``, ``steps``, ``seed``, ``crash_at``. Runs by hand as well: ``python digits_mlp.py``.
"""

from __future__ import annotations

from digits import CLASSES, PIXELS, Floats, Ints, initial, softmax_loss, train  # isort: skip  # before numpy

import numpy as np

import penstock


class Mlp:
    """Two hidden layers of ``width`` rectified units."""

    def __init__(self, width: int) -> None:
        self.weights = initial(
            {
                "w1": (PIXELS, width),
                "b1": (width,),
                "w2": (width, width),
                "b2": (width,),
                "w3": (width, CLASSES),
                "b3": (CLASSES,),
            }
        )

    def scores(self, x: Floats) -> Floats:
        """Return scores of shape (N, 10)."""
        return self._layers(x)[-1]

    def gradients(self, x: Floats, y: Ints) -> tuple[float, dict[str, Floats]]:
        """Return the loss and its gradients, summed over the rows."""
        w = self.weights
        h1, h2, scores = self._layers(x)
        loss, d3 = softmax_loss(scores, y)
        d2 = (d3 @ w["w3"].T) * (h2 > 0)
        d1 = (d2 @ w["w2"].T) * (h1 > 0)
        layers = ((x, d1), (h1, d2), (h2, d3))
        gradients = {f"w{i}": below.T @ above for i, (below, above) in enumerate(layers, start=1)}
        return loss, gradients | {f"b{i}": above.sum(axis=0) for i, (_, above) in enumerate(layers, start=1)}

    def _layers(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        w = self.weights
        h1 = np.maximum(x @ w["w1"] + w["b1"], 0)
        h2 = np.maximum(h1 @ w["w2"] + w["b2"], 0)
        return h1, h2, h2 @ w["w3"] + w["b3"]


def build(session: penstock.Session) -> Mlp:
    """Make the network that the job asks for."""
    return Mlp(width=int(session.params.get("width", 512)))


if __name__ == "__main__":
    train(build, lr=0.1, steps=400)
