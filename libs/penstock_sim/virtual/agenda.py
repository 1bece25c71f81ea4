"""What is to happen at which virtual time."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any


class Agenda:
    """
    Things to do by their time, those of one time in the order in which they were noted.

    Examples
    --------
    >>> agenda, done = Agenda(), []
    >>> agenda.at(2.0, done.append, "late")
    >>> agenda.at(1.0, done.append, "early")
    >>> agenda.next_s
    1.0
    >>> agenda.do_until(1.0)
    1
    >>> done
    ['early']
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_s(self) -> float:
        """The time of the next thing; infinite where there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def at(self, at_s: float, what: Callable[..., Any], *arguments: Any) -> None:
        """Note that ``what`` is to be called at a time; what is never to be is not kept."""
        if at_s == math.inf:
            return
        self._count += 1
        heapq.heappush(self._heap, (at_s, self._count, what, arguments))

    def do_until(self, now_s: float) -> int:
        """Do what is due, also what comes to be due by it; return how many things that were."""
        done, heap = 0, self._heap
        while heap and heap[0][0] <= now_s:
            _, _, what, arguments = heapq.heappop(heap)
            what(*arguments)
            done += 1
        return done
