"""What a user writes: trials, which train step by step, and models, which answer requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, SupportsFloat, TypeVar

Q_contra = TypeVar("Q_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class Turn:
    """
    One step of a trial, from the trial's side.

    Attributes
    ----------
    step : int
        Number of this step, from 0 at the trial's very beginning, whatever restarts there were.
    lane : int
        Whose stream and memory pool are current on this thread, where the device is a GPU.
    pool : tuple of int or None
        The lane's memory pool, for ``torch.cuda.graph(graph, pool=turn.pool)``; None where there is none.
    """

    def __init__(self, step: int, lane: int, pool: tuple[int, int] | None) -> None:
        self.step, self.lane, self.pool = step, lane, pool
        self.metrics: dict[str, float] = {}
        self.last = False

    def report(self, **metrics: SupportsFloat) -> None:
        """Keep the latest value of each metric; sent under the member's name."""
        self.metrics.update({name: float(value) for name, value in metrics.items()})

    def finish(self) -> None:
        """Say that this is the trial's last step."""
        self.last = True


class Trial(Protocol):
    """A training, one step at a time. Its ``__init__`` should take no device memory: it may have to wait for room."""

    def setup(self) -> None:
        """Build the model; called once in a process, before ``load`` and the first step."""

    def step(self, turn: Turn) -> None:
        """Do one step, and nothing that outlasts it but what belongs to the trial itself."""

    def teardown(self) -> None:
        """Called after the last step, and after an error; whatever it raises is logged only."""

    def save(self, folder: Path) -> None:
        """Write everything that the next step needs into an empty folder."""

    def load(self, folder: Path) -> None:
        """Read it back, after ``setup``."""


class Model(Protocol[Q_contra, A_co]):
    """A model that answers requests. It keeps nothing from one to the next that a restart may not lose."""

    def setup(self) -> None:
        """Load the weights; called once in a process, before the first request."""

    def step(self, requests: Sequence[Q_contra], /) -> Sequence[A_co | Exception]:
        """
        Answer up to ``batch`` requests, in order.

        An exception among the answers is the answer to that request alone; one that is raised ends the model.
        """
        ...

    def teardown(self) -> None:
        """Called after the last request, and after an error; whatever it raises is logged only."""
