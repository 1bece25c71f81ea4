"""Where requests to a model are handed in, from any thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


class MemberEnded(Exception):
    """The model has ended, and answers no more; the message says why."""


class Request(NamedTuple):
    """What was asked, and where the answer goes."""

    content: Any
    answer: Future[Any]


class Endpoint(Generic[Q, A]):
    """
    A model's requests; made by :meth:`penstock_packed.Host.serve`.

    Parameters
    ----------
    name : str
    ask, close : callable
        How the host is told.
    """

    def __init__(self, name: str, ask: Callable[[str, Request], None], close: Callable[[str], None]) -> None:
        self.name = name
        self._ask, self._close = ask, close

    def ask(self, content: Q) -> Future[A]:
        """
        Hand in a request; may be called before the host runs.

        Returns
        -------
        Future
            Its callbacks run on a thread of the host, and keep it from its work: they should be short. It fails with
            :class:`MemberEnded` where the model has ended.
        """
        answer: Future[A] = Future()
        self._ask(self.name, Request(content, answer))
        return answer

    def close(self) -> None:
        """Take no more requests; those that are there are answered, and the model is finished."""
        self._close(self.name)
