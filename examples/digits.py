"""
What the two examples share: the handwritten digits, batches of them, momentum, and the loop.

Import this before numpy: it keeps the numeric library to one thread, since a job has as many devices as it was given.
"""

# ruff: noqa: E402 - the number of threads is read once, when numpy is imported

from __future__ import annotations

import json
import math
import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

import penstock
from allreduce import AllReduce

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

CLASSES = 10
PIXELS = 64
CRASHED = "crashed-once"


class Split(NamedTuple):
    """Images ``x`` of shape (N, 64), scaled to 0..1, and their digits ``y`` of shape (N,)."""

    x: Floats
    y: Ints


def load(held_out: float = 0.2) -> tuple[Split, Split]:
    """
    Return the training and the held-out digits, shuffled the same way every time.

    Reads the file that scikit-learn brings along without importing scikit-learn, which takes ten times as long.
    """
    table = np.loadtxt(_digits_file(), delimiter=",", dtype=np.float32)
    table = table[np.random.default_rng(0).permutation(len(table))]
    digits = Split(table[:, :PIXELS] / np.float32(16), table[:, PIXELS].astype(np.int64))
    cut = round(len(table) * (1 - held_out))
    return Split(digits.x[:cut], digits.y[:cut]), Split(digits.x[cut:], digits.y[cut:])


def _digits_file() -> Path:
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise SystemExit("the digits come with scikit-learn, which is not installed: pip install 'penstock[examples]'")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.exists():
        raise SystemExit(f"scikit-learn has no {path}: its layout has changed, try scikit-learn 1.5")
    return path


class Batches(Sequence[Ints]):
    """
    The rows of each step's batch, epoch after epoch, each in an order of its own.

    A sequence rather than a generator, so that a resumed job finds its place at once.
    """

    def __init__(self, rows: int, batch: int, steps: int, seed: int) -> None:
        self._rows, self._batch, self._steps, self._seed = rows, min(batch, rows), steps, seed
        self._epoch, self._order = -1, np.arange(rows)

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> Ints:  # type: ignore[override]  # one batch at a time, slices are of no use
        if not 0 <= step < self._steps:
            raise IndexError(step)
        epoch, place = divmod(step, self._rows // self._batch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng((self._seed, epoch)).permutation(self._rows)
        return self._order[place * self._batch : (place + 1) * self._batch]


class Model(Protocol):
    """What :func:`train` needs of a model."""

    weights: dict[str, Floats]

    def gradients(self, x: Floats, y: Ints) -> tuple[float, dict[str, Floats]]:
        """Return the loss and the gradients, summed over the rows."""

    def scores(self, x: Floats) -> Floats:
        """Return scores of shape (N, 10), the greatest one being the guess."""


class Momentum:
    """Stochastic gradient descent with momentum over a model's weights, and everything that a resumed job needs."""

    def __init__(self, model: Model, lr: float, momentum: float = 0.9, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self._weights, self._lr, self._momentum = model.weights, np.float32(lr), np.float32(momentum)
        self._velocity = {name: np.zeros_like(value) for name, value in self._weights.items()}

    def step(self, gradients: dict[str, Floats]) -> None:
        """Move the weights."""
        for name, gradient in gradients.items():
            self._velocity[name] = self._momentum * self._velocity[name] - self._lr * gradient
            self._weights[name] += self._velocity[name]

    def save(self, folder: Path) -> None:
        """Write weights, velocities and the state of the random generator."""
        random = np.array(json.dumps(self.rng.bit_generator.state))
        arrays = {f"w_{name}": value for name, value in self._weights.items()}
        arrays |= {f"v_{name}": value for name, value in self._velocity.items()}
        np.savez(folder / "state.npz", allow_pickle=False, random=random, **arrays)

    def load(self, folder: Path) -> None:
        """Read them back."""
        with np.load(folder / "state.npz") as arrays:
            for name in self._weights:
                self._weights[name][...] = arrays[f"w_{name}"]
                self._velocity[name] = arrays[f"v_{name}"]
            self.rng.bit_generator.state = json.loads(str(arrays["random"]))


def train(build: Callable[[penstock.Session], Model], *, lr: float, steps: int) -> None:
    """
    Train a model as the job's parameters say; ``lr`` and ``steps`` are their defaults.

    The job may be resized: ``session.sampler`` gives each process its rows of each step, and ``session.lr`` the rate.
    """
    with penstock.session() as session, AllReduce.of(session) as peers:
        training, held_out = load()
        sampler = session.sampler(len(training.y), batch_size=128, seed=int(session.params.get("seed", 0)))
        model = build(session)
        momentum = Momentum(model, lr=session.lr(float(session.params.get("lr", lr))))
        session.on_checkpoint(momentum.save, momentum.load)

        for rows in lessons(session, sampler, steps):
            noise = jitter(momentum.rng, sampler.batch_size)[session.rank :: session.world_size]
            loss, gradients = model.gradients(training.x[rows] + noise[: len(rows)], training.y[rows])
            loss, gradients = peers.mean(loss, gradients, rows=len(rows))
            momentum.step(gradients)
            session.report(loss=loss)
            if session.step % 100 == 99:
                session.report(accuracy=accuracy(model, held_out))
                print(f"step {session.step + 1}, loss {loss:.4f}", flush=True)
            crash_once(session)
        session.report(accuracy=accuracy(model, held_out))
        done = f"{session.step} steps, {session.samples} samples"
        print(f"accuracy {accuracy(model, held_out):.4f} after {done}", flush=True)


def lessons(session: penstock.Session, sampler: Iterable[Ints], steps: int) -> Iterator[Ints]:
    """
    Yield this process's rows of each step: for the job's ``epochs``, or else for its ``steps``, in epochs too.

    A job whose batch size may change trains for epochs: as many steps would be more or fewer samples.
    """
    epochs = int(session.params.get("epochs", 0))
    last = math.inf if epochs else int(session.params.get("steps", steps))
    for _ in session.epochs(epochs) if epochs else count():
        if session.step >= last:
            break
        for rows in session.iterations(sampler):
            yield rows
            if session.step + 1 >= last:
                break


def jittered(x: Floats, rng: np.random.Generator) -> Floats:
    """Return images with a little noise."""
    return x + jitter(rng, len(x))


def jitter(rng: np.random.Generator, rows: int) -> Floats:
    """Return noise for so many images: the same on every rank, if all draw it for the whole batch."""
    return np.float32(0.05) * rng.standard_normal((rows, PIXELS), dtype=np.float32)


def accuracy(model: Model, split: Split) -> float:
    """Return the share of digits that the model reads right."""
    return float((model.scores(split.x).argmax(axis=1) == split.y).mean())


def softmax_loss(scores: Floats, y: Ints) -> tuple[float, Floats]:
    """Return the cross-entropy, summed over the rows, and its gradient by the scores, of their shape (N, 10)."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    exp = np.exp(shifted)
    total = exp.sum(axis=1, keepdims=True)
    picked = np.arange(len(y)), y
    gradient = exp / total
    gradient[picked] -= 1
    return float((np.log(total[:, 0]) - shifted[picked]).sum()), gradient


def crash_once(session: penstock.Session) -> None:
    """Crash in the step after ``crash_at`` steps, on the first attempt to do it; to see a retry at work."""
    crash_at = int(session.params.get("crash_at", -1))
    if session.step != crash_at or session.sampling:
        return
    folder = session.checkpoint_dir
    if folder is not None:
        if (folder / CRASHED).exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CRASHED).touch()
    raise RuntimeError(f"crashed at step {crash_at}, as crash_at asks")


def initial(shapes: dict[str, tuple[int, ...]], seed: int = 1) -> dict[str, Floats]:
    """Return first weights of the given shapes: He-normal matrices, zero vectors."""
    rng = np.random.default_rng(seed)
    scales = {name: np.float32(np.sqrt(2 / shape[0]) if len(shape) > 1 else 0) for name, shape in shapes.items()}
    return {name: scales[name] * rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
