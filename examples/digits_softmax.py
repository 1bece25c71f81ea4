"""
Train a softmax regression on handwritten digits and the products of their pixels.

Parameters: ``lr``, ``steps``, ``seed``, ``crash_at``. Runs by hand as well: ``python digits_softmax.py``.
"""

from __future__ import annotations

from digits import CLASSES, PIXELS, Floats, Ints, initial, softmax_loss, train  # isort: skip  # before numpy

import numpy as np

import penstock

_PAIRS = np.triu_indices(PIXELS)


class Softmax:
    """One layer over all pixels and all products of two: 2,144 features."""

    def __init__(self) -> None:
        self.weights = initial({"w": (PIXELS + len(_PAIRS[0]), CLASSES), "b": (CLASSES,)})

    def scores(self, x: Floats) -> Floats:
        """Return scores of shape (N, 10)."""
        return features(x) @ self.weights["w"] + self.weights["b"]

    def gradients(self, x: Floats, y: Ints) -> tuple[float, dict[str, Floats]]:
        """Return the loss and its gradients, summed over the rows."""
        seen = features(x)
        loss, above = softmax_loss(seen @ self.weights["w"] + self.weights["b"], y)
        return loss, {"w": seen.T @ above, "b": above.sum(axis=0)}


def features(x: Floats) -> Floats:
    """Return the pixels and their products, of shape (N, 2144)."""
    first, second = _PAIRS
    return np.concatenate([x, x[:, first] * x[:, second]], axis=1)


def build(_: penstock.Session) -> Softmax:
    """Make the regression."""
    return Softmax()


if __name__ == "__main__":
    train(build, lr=0.02, steps=300)
