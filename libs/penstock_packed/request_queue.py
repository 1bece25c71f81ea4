"""
Queue of the requests to a model, by the times by which they are to be answered.

:class:`RequestQueue` is pure. Among the requests that can still be answered in time, the earliest deadline goes first:
if all that are there can be in time in some order, they are in this one. Late requests fill the time that this leaves,
the shortest first: one goes first if all others are then still in time. If they kept their place and more is asked than
can be answered, each late request would make the next one late, and soon all would be late.

:class:`ModelEndpoint` takes requests from any thread. :class:`Latency` has percentiles of how long the last answers
took; it is pure.

References
----------
Jackson, Scheduling a production line to minimize maximum tardiness, 1955.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from math import ceil
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

R = TypeVar("R")


@dataclass(slots=True)
class QueuedRequest(Generic[R]):
    """A request, when it came and by when it should be answered, in seconds."""

    request: R
    came_s: float
    due_s: float


class OldestRequest(NamedTuple):
    """A model's oldest request: by when it is due, and how long its answer takes, in seconds."""

    due_s: float
    answer_s: float
    name: str


class RequestQueue(Generic[R]):
    """
    What has been asked of models and is not answered yet.

    Parameters
    ----------
    quiet_s : float
        A model that nobody has asked for so long is idle: its target keeps no trial from a turn.
    patience_s : float or None
        A request that is late by so much goes before all that are in time.

    Examples
    --------
    >>> targets = RequestQueue[str](quiet_s=1.0, patience_s=30.0)
    >>> targets.add("slow", target_s=0.5), targets.add("quick", target_s=0.1)
    (None, None)
    >>> targets.ask("slow", "hello", 10.0), targets.ask("quick", "hi", 10.3)
    (None, None)
    >>> targets.first(lambda name: True, 10.3, lambda name: 0.01)
    ('quick', 10.4)
    >>> targets.first(lambda name: True, 10.485, lambda name: 0.01)  # too late for the quick one, just in time for this
    ('slow', 10.5)
    """

    def __init__(self, quiet_s: float, patience_s: float | None) -> None:
        self._quiet_s, self._patience_s = quiet_s, math.inf if patience_s is None else patience_s
        self._target_s: dict[str, float] = {}
        self._asked: dict[str, deque[QueuedRequest[R]]] = {}  # only where something is asked
        self._last_s: dict[str, float] = {}

    def add(self, name: str, target_s: float) -> None:
        """A model is there."""
        self._target_s[name] = target_s

    def remove(self, name: str) -> list[QueuedRequest[R]]:
        """A model is gone; return what nobody will answer."""
        self._target_s.pop(name, None)
        self._last_s.pop(name, None)
        return list(self._asked.pop(name, ()))

    def ask(self, name: str, request: R, now_s: float) -> None:
        """Take in a request."""
        self._last_s[name] = now_s
        self._asked.setdefault(name, deque()).append(QueuedRequest(request, now_s, now_s + self._target_s[name]))

    def pending(self, name: str) -> int:
        """Return how many requests a model has."""
        return len(self._asked.get(name, ()))

    def first(
        self, may: Callable[[str], bool], now_s: float, answer_s: Callable[[str], float]
    ) -> tuple[str, float] | None:
        """
        Return the model whose oldest request is next, and its deadline; O(m log m) in the models with requests.

        Parameters
        ----------
        may : callable
            Whether a model may be chosen.
        answer_s : callable
            How long a model takes for an answer, in seconds.
        """
        heads = [
            OldestRequest(asked[0].due_s, answer_s(name), name) for name, asked in self._asked.items() if may(name)
        ]
        if not heads:
            return None
        head = min(heads)
        if now_s - head.due_s < self._patience_s:
            head = _next(heads, now_s)
        return head.name, head.due_s

    def take(self, name: str, most: int) -> list[QueuedRequest[R]]:
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
        return min(((self._target_s[name] - answer_s(name), name) for name in awake), default=(math.inf, ""))


def _next(heads: list[OldestRequest], now_s: float) -> OldestRequest:
    in_time = sorted(head for head in heads if now_s + head.answer_s <= head.due_s)
    late = [head for head in heads if now_s + head.answer_s > head.due_s]
    if not late:
        return in_time[0]
    shortest = min(late, key=attrgetter("answer_s", "due_s"))
    return shortest if shortest.answer_s <= _slack_s(in_time, now_s) else in_time[0]


def _slack_s(in_time: list[OldestRequest], now_s: float) -> float:
    """Return how long requests that are answered in this order can all be put off without one becoming late."""
    slack_s, end_s = math.inf, now_s
    for head in in_time:
        end_s += head.answer_s
        slack_s = min(slack_s, head.due_s - end_s)
    return slack_s


Q = TypeVar("Q")
A = TypeVar("A")


class MemberEnded(Exception):
    """The model has ended, and answers no more; the message says why."""


class Overloaded(Exception):
    """So many requests wait for the model already that one more would wait for nothing; the message says how many."""


class ModelRequest(NamedTuple):
    """What was asked, and where the answer goes."""

    content: Any
    answer: Future[Any]


class ModelEndpoint(Generic[Q, A]):
    """
    A model's requests; made by :meth:`penstock_packed.Host.serve`.

    Parameters
    ----------
    name : str
    ask, close : callable
        How the host is told.
    """

    def __init__(self, name: str, ask: Callable[[str, ModelRequest], None], close: Callable[[str], None]) -> None:
        self.name = name
        self._ask, self._close = ask, close

    def ask(self, content: Q) -> Future[A]:
        """
        Hand in a request; may be called before the host runs.

        Returns
        -------
        Future
            Its callbacks run on a thread of the host, and keep it from its work: they should be short. It fails with
            :class:`MemberEnded` where the model has ended or the host has stopped, and with :class:`Overloaded` where
            too many requests wait. One that is cancelled before its turn is not computed.
        """
        answer: Future[A] = Future()
        self._ask(self.name, ModelRequest(content, answer))
        return answer

    def close(self) -> None:
        """Take no more requests; those that are there are answered, and the model is finished."""
        self._close(self.name)


def wanted(asked: QueuedRequest[ModelRequest]) -> bool:
    """Say whether a request has not been given up; from now on it cannot be."""
    return asked.request.answer.set_running_or_notify_cancel()


def refuse(requests: list[QueuedRequest[ModelRequest]], error: MemberEnded) -> None:
    """Answer requests that have waited with an error."""
    fail([asked for asked in requests if wanted(asked)], error)


def fail(requests: list[QueuedRequest[ModelRequest]], error: MemberEnded) -> None:
    """Answer requests that were being answered with an error."""
    for asked in requests:
        if not asked.request.answer.done():
            asked.request.answer.set_exception(error)


KEPT: Final = 512
"""They are sorted to be reported; 42 times 512 take a millisecond."""


class Latency:
    """
    The last latencies of one model, in seconds, and how many of all were late, or refused because too many waited.

    Examples
    --------
    >>> latency = Latency(target_s=0.010)
    >>> for took_s in (0.002, 0.004, 0.012):
    ...     latency.see(took_s)
    >>> latency.metrics() == {"answers": 3.0, "late": 1.0, "p50_ms": 4.0, "p99_ms": 12.0}
    True
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._last_s: deque[float] = deque(maxlen=KEPT)
        self.answers = 0
        self.late = 0
        self.refused = 0

    def see(self, took_s: float) -> None:
        """Take in one answer, counted from when its request came."""
        self.answers += 1
        self.late += took_s > self._target_s
        self._last_s.append(took_s)

    def metrics(self) -> dict[str, float]:
        """Return what is reported of a model, latencies in milliseconds; O(n log n) in those that are kept."""
        counts = {"answers": float(self.answers), "late": float(self.late)}
        if self.refused:
            counts["refused"] = float(self.refused)
        if not self._last_s:
            return counts
        ordered = sorted(self._last_s)
        return counts | {"p50_ms": 1e3 * _percentile(ordered, 0.50), "p99_ms": 1e3 * _percentile(ordered, 0.99)}


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[max(0, ceil(share * len(ordered)) - 1)]
