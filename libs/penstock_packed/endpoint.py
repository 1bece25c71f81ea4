"""Where requests to a model are handed in, from any thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, TypeVar

from penstock_packed.targets import Asked

Q = TypeVar("Q")
A = TypeVar("A")


class MemberEnded(Exception):
    """The model has ended, and answers no more; the message says why."""


class Overloaded(Exception):
    """So many requests wait for the model already that one more would wait for nothing; the message says how many."""


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
            :class:`MemberEnded` where the model has ended or the host has stopped, and with :class:`Overloaded` where
            too many requests wait. One that is cancelled before its turn is not computed.
        """
        answer: Future[A] = Future()
        self._ask(self.name, Request(content, answer))
        return answer

    def close(self) -> None:
        """Take no more requests; those that are there are answered, and the model is finished."""
        self._close(self.name)


def wanted(asked: Asked[Request]) -> bool:
    """Say whether a request has not been given up; from now on it cannot be."""
    return asked.request.answer.set_running_or_notify_cancel()


def refuse(requests: list[Asked[Request]], error: MemberEnded) -> None:
    """Answer requests that have waited with an error."""
    fail([asked for asked in requests if wanted(asked)], error)


def fail(requests: list[Asked[Request]], error: MemberEnded) -> None:
    """Answer requests that were being answered with an error."""
    for asked in requests:
        if not asked.request.answer.done():
            asked.request.answer.set_exception(error)
