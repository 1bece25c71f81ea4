"""What aggregators do in each step, done by a job's only process itself: the same arithmetic, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from penstock.aggregation.rules import mean_of, state_size, update
from penstock_log.aggregation_messages import UpdateRule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]


class LocalUpdate:
    """
    The step of one process, with the methods of :class:`~penstock.aggregation.exchange.VectorExchange`.

    Parameters
    ----------
    rule : UpdateRule
    """

    def __init__(self, rule: UpdateRule) -> None:
        self._rule, self.step = rule, 0
        self._params = self._pushed = np.zeros(0, np.float32)
        self._state = np.zeros((0, 0), np.float32)

    def begin(self, values: Vector, state: Optional[Vector] = None, step: int = 0) -> None:
        """Begin with these parameters and this state of the optimizer, which have had so many steps."""
        self._params, self.step = values.copy(), step
        self._state = np.zeros((state_size(self._rule), len(values)), values.dtype) if state is None else state.copy()

    def push(self, values: Vector) -> None:
        """Give the values of the next step."""
        self._pushed = values.copy()
        self.step += 1

    def pull(self, into: Vector) -> None:
        """Write the step's result."""
        if self._rule.name == "mean":
            mean_of([self._pushed], into)
        else:
            update(self._rule, self.step, [self._pushed], self._params, list(self._state))
            np.copyto(into, self._params)

    def exchange(self, values: Vector) -> None:
        """Push and pull in place."""
        self.push(values)
        self.pull(values)

    def state(self) -> Vector:
        """Return the optimizer's state, of shape (vectors of the rule, elements)."""
        return self._state.copy()

    def leave(self) -> None:
        """Nobody else waits."""

    def close(self) -> None:
        """Nothing is held."""
