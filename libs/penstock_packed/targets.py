"""
Requests and the times by which they are to be answered. Pure.

Earliest deadline first among the models that have requests. It is optimal for one server that is not interrupted in the
sense that matters here: if all requests that are there can be answered in time in some order, this order does it
(for requests that are all there already; none that comes later is known).

References
----------
Jackson, Scheduling a production line to minimize maximum tardiness, 1955.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")


@dataclass(slots=True)
class Asked(Generic[R]):
    """A request, when it came and by when it should be answered, in seconds."""

    request: R
    came_s: float
    due_s: float


class Targets(Generic[R]):
    """
    What has been asked of models and is not answered yet.

    Parameters
    ----------
    quiet_s : float
        A model that nobody has asked for so long is idle: its target keeps no trial from a turn.

    Examples
    --------
    >>> targets = Targets[str](quiet_s=1.0)
    >>> targets.add("slow", target_s=0.5), targets.add("quick", target_s=0.1)
    (None, None)
    >>> targets.ask("slow", "hello", 10.0), targets.ask("quick", "hi", 10.3)
    (None, None)
    >>> targets.first(["slow", "quick"])
    ('quick', 10.4)
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._target_s: dict[str, float] = {}
        self._asked: dict[str, deque[Asked[R]]] = {}  # only where something is asked
        self._last_s: dict[str, float] = {}

    def add(self, name: str, target_s: float) -> None:
        """A model is there."""
        self._target_s[name] = target_s

    def remove(self, name: str) -> list[Asked[R]]:
        """A model is gone; return what nobody will answer."""
        self._target_s.pop(name, None)
        self._last_s.pop(name, None)
        return list(self._asked.pop(name, ()))

    def ask(self, name: str, request: R, now_s: float) -> None:
        """Take in a request."""
        self._last_s[name] = now_s
        self._asked.setdefault(name, deque()).append(Asked(request, now_s, now_s + self._target_s[name]))

    def pending(self, name: str) -> int:
        """Return how many requests a model has."""
        return len(self._asked.get(name, ()))

    def first(self, among: Container[str]) -> tuple[str, float] | None:
        """Return the model with the earliest deadline, and this deadline; O(models with requests)."""
        due = [(asked[0].due_s, name) for name, asked in self._asked.items() if name in among]
        if not due:
            return None
        due_s, name = min(due)
        return name, due_s

    def take(self, name: str, most: int) -> list[Asked[R]]:
        """Return a model's oldest requests, which then count as taken."""
        asked = self._asked[name]
        taken = [asked.popleft() for _ in range(min(most, len(asked)))]
        if not asked:
            del self._asked[name]
        return taken

    def slack_s(self, now_s: float, answer_s: Callable[[str], float]) -> tuple[float, str]:
        """
        Return how long a step may take so that a request that comes right after its start is answered in time.

        Parameters
        ----------
        answer_s : callable
            How long a model takes for an answer, in seconds.

        Returns
        -------
        float, str
            The least over all models that are not idle, and whose it is; infinite and empty where all are.
        """
        awake = [name for name, last_s in self._last_s.items() if now_s - last_s < self._quiet_s]
        return min(((self._target_s[name] - answer_s(name), name) for name in awake), default=(float("inf"), ""))
