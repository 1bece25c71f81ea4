"""
Eight small trainings and two models in one process: ``python -m penstock_packed packed_digits.py``.

The trainings differ in their learning rate. The models answer which digit an image shows, one from the pixels and one
from products of neighbours too; trainings fill the time between requests, and threads ask, as a server's clients would.
One learning rate is infinite, on purpose: its trial fails, and no other does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread

import numpy as np

from digits import CLASSES, Batches, Floats, Momentum, Split, accuracy, jittered, load, softmax_loss
from penstock_packed import Endpoint, Host, Turn

STEPS = 150
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, float("inf"))


class Softmax:
    """A softmax regression on pixels, or on pixels and the products of neighbours."""

    def __init__(self, *, products: bool) -> None:
        self._products = products
        self.weights = {"w": np.zeros((64 + 63 * products, CLASSES), np.float32)}

    def features(self, x: Floats) -> Floats:
        """Return the features of images, of shape (N, 64) or (N, 127)."""
        return np.concatenate([x, x[:, 1:] * x[:, :-1]], axis=1) if self._products else x

    def scores(self, x: Floats) -> Floats:
        """Return scores of shape (N, 10)."""
        return self.features(x) @ self.weights["w"]

    def gradients(self, x: Floats, y: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[float, dict[str, Floats]]:
        """Return the mean loss and its gradient."""
        features = self.features(x)
        loss, by_scores = softmax_loss(features @ self.weights["w"], y)
        return loss / len(y), {"w": features.T @ by_scores / np.float32(len(y))}


class Training:
    """A trial: one learning rate."""

    def __init__(self, rate: float, data: tuple[Split, Split]) -> None:
        self._rate = rate
        self._training, self._held_out = data

    def setup(self) -> None:
        """Build the model; nothing large is made before this is called."""
        self._model = Softmax(products=True)
        self._momentum = Momentum(self._model, self._rate)
        self._batches = Batches(len(self._training.y), 128, STEPS, seed=0)

    def step(self, turn: Turn) -> None:
        """Do one step."""
        rows = self._batches[turn.step]
        loss, gradients = self._model.gradients(
            jittered(self._training.x[rows], self._momentum.rng), self._training.y[rows]
        )
        if not np.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at a learning rate of {self._rate}")
        self._momentum.step(gradients)
        turn.report(loss=loss)
        if turn.step == STEPS - 1:
            turn.report(accuracy=accuracy(self._model, self._held_out))

    def teardown(self) -> None:
        """Nothing is left to do."""

    def save(self, folder: Path) -> None:
        """Write weights, velocities and the random generator."""
        self._momentum.save(folder)

    def load(self, folder: Path) -> None:
        """Read them back."""
        self._momentum.load(folder)


class Reader:
    """A model: which digit is it?"""

    def __init__(self, data: Split, *, products: bool) -> None:
        self._data, self._products = data, products

    def setup(self) -> None:
        """Fit it; a real one would read its weights from a file."""
        self._model = Softmax(products=self._products)
        momentum = Momentum(self._model, 0.1)
        for rows in Batches(len(self._data.y), 256, 60, seed=1):
            momentum.step(self._model.gradients(self._data.x[rows], self._data.y[rows])[1])

    def step(self, requests: Sequence[list[float]], /) -> Sequence[int]:
        """Answer all requests at once."""
        return [int(digit) for digit in self._model.scores(np.array(requests, np.float32)).argmax(axis=1)]

    def teardown(self) -> None:
        """Nothing is left to do."""


def ask(endpoint: Endpoint[list[float], int], images: Floats) -> None:
    """Ask for one image every 10 ms, and close."""
    pause = Event()
    for image in images:
        endpoint.ask(image.tolist())
        pause.wait(0.01)
    endpoint.close()


def members(host: Host) -> None:
    """Say who is in the process."""
    training, held_out = data = load()
    for rate in RATES:
        host.train(f"rate-{rate:g}", Training(rate, data), steps=STEPS)
    for name, products in (("pixels", False), ("products", True)):
        endpoint = host.serve(name, Reader(training, products=products), target_s=0.05, batch=8)
        Thread(target=ask, args=(endpoint, held_out.x[:100]), daemon=True).start()
