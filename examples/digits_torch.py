"""
Train a small PyTorch network on handwritten digits, on one device or data-parallel over several: the same script, also
where the job is resized while it runs.

Parameters: ``lr``, ``width``, ``epochs``, ``seed``, ``pause_ms`` (a longer step), ``crash_at`` and ``crash_rank``. With
``PENSTOCK_CHECKPOINT_DIR`` set it keeps its losses there, so that runs can be compared. Runs by hand as well:
``python digits_torch.py``.
"""

from __future__ import annotations

from digits import CLASSES, PIXELS, crash_once, load  # isort: skip  # before numpy

import time
from importlib.util import find_spec
from pathlib import Path

import penstock

if find_spec("torch") is None:
    raise SystemExit("this example trains with PyTorch, which is not installed here: pip install 'penstock[torch]'")

import torch
from torch import nn
from torch.nn import functional


class Training:
    """A network, its optimizer, and everything that a resumed job needs."""

    def __init__(self, width: int, lr: float, device: torch.device) -> None:
        torch.manual_seed(1)
        self.network = nn.Sequential(
            nn.Linear(PIXELS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
        ).to(device)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=lr, momentum=0.9)
        self.losses: list[float] = []
        self._device = device

    def save(self, folder: Path) -> None:
        """Write weights, the optimizer's state and the losses so far."""
        state = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict(), "losses": self.losses}
        torch.save(state, folder / "state.pt")

    def load(self, folder: Path) -> None:
        """Read them back, on every rank."""
        state = torch.load(folder / "state.pt", map_location=self._device, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.losses = state["losses"]


def train() -> None:
    """Train as the job's parameters say."""
    with penstock.session() as session, session.distributed() as gang:
        params = session.params
        rate = float(params.get("lr", 0.1))
        training = Training(int(params.get("width", 64)), rate, gang.device)
        session.on_checkpoint(training.save, training.load)
        for group in training.optimizer.param_groups:  # a checkpoint brings the rate of the batch that it had
            group["lr"] = session.lr(rate)
        network = gang.wrap(training.network)  # averages gradients over the gang

        digits, held_out = load()
        x, y = torch.from_numpy(digits.x).to(gang.device), torch.from_numpy(digits.y).to(gang.device)
        sampler = session.sampler(len(y), batch_size=128, seed=int(params.get("seed", 0)))
        for _ in session.epochs(int(params.get("epochs", 10))):
            for rows in session.iterations(sampler):
                if session.rank == int(params.get("crash_rank", 0)):
                    crash_once(session)
                training.optimizer.zero_grad()
                scores = network(x[rows])
                loss = gang.mean(functional.cross_entropy(scores, y[rows], reduction="sum"), len(rows))
                loss.backward()
                training.optimizer.step()
                training.losses.append(float(gang.average(loss)))
                session.report(loss=training.losses[-1])
                time.sleep(float(params.get("pause_ms", 0)) / 1000)

        guesses = training.network(torch.from_numpy(held_out.x).to(gang.device)).argmax(dim=1).cpu()
        accuracy = float((guesses == torch.from_numpy(held_out.y)).float().mean())
        session.report(accuracy=accuracy)
        if session.rank == 0:
            done = f"{session.step} steps, {session.samples} samples"
            print(f"accuracy {accuracy:.4f} after {done} on {gang.world_size} devices by {gang.backend}")


if __name__ == "__main__":
    train()
