"""
The client without an event loop: it asks one thing after another, and each method returns when it is answered.

A command line that asks once and ends loads neither ``asyncio`` nor ``nats``, which takes longer than the asking.
:func:`connected` gives the methods of :class:`penstock.gateway_client.GatewayClient`; they are coroutines that never
wait for anybody else, and :func:`result` runs one to its end.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, Optional, TypeVar

from penstock.gateway_client import GatewayClient, is_signed
from penstock.retries import RetriedAnswer, Retries, RetryPolicy
from penstock_bus.errors import BusError, Timeout
from penstock_bus.identity import logins
from penstock_bus.nats.plain_connection import PlainConnection, is_plain
from penstock_bus.settings import BusAddress, load

T = TypeVar("T")
CONNECT_S: Final = 2.0
_POLICY: Final = RetryPolicy(timeout_s=30.0)


def result(coroutine: Coroutine[Any, Any, T]) -> T:
    """
    Return what a coroutine returns that never waits, such as a method of a client of :func:`connected`.

    Raises
    ------
    RuntimeError
        If it waits for something: that needs an event loop.

    Examples
    --------
    >>> async def answer() -> int:
    ...     return 42
    >>> result(answer())
    42
    """
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise RuntimeError("this waits for an event loop; use `async with penstock.Client()`")


def search(url: str) -> Optional[logins.LoginSearch]:
    """Return the logins for a server; None where it takes an event loop: a WebSocket, or a token that is renewed."""
    found = load(BusAddress, "").logins("client", url)
    by_token = any(login.token or login.token_file for login in found.logins)
    return None if by_token or not is_plain(url) else found


@contextmanager
def connected(url: str, found: logins.LoginSearch) -> Iterator[GatewayClient]:
    """
    Give a client over a connection of its own, which is closed at the end.

    Parameters
    ----------
    found : LoginSearch
        What :func:`search` has found.

    Raises
    ------
    Unavailable, Unauthorized
        As :class:`penstock.Client` does.
    """

    async def connect(login: Optional[logins.Login]) -> GatewayClient:
        connection = PlainConnection(url, login, name="penstock client", connect_timeout_s=CONNECT_S)
        client = GatewayClient(_BlockingAsker(connection), _POLICY)
        client.user = (login.user or "?") if login is not None and is_signed(login) else ""
        opened.append(connection)
        return client

    opened: list[PlainConnection] = []
    try:
        yield result(logins.first_accepted(connect, found, "client"))
    finally:
        for connection in opened:
            connection.close()


class _BlockingAsker:
    """Asks over a connection, and asks again where :class:`Retries` says so."""

    def __init__(self, connection: PlainConnection) -> None:
        self._connection = connection

    @property
    def max_body_bytes(self) -> int:
        return self._connection.max_body_bytes

    async def answered(self, subject: str, body: bytes, policy: RetryPolicy) -> RetriedAnswer:
        clock = time.monotonic  # noqa: TID251 - this is I/O
        retries, under_way = Retries(policy, clock()), set[int]()
        try:
            while True:
                if retries.is_due(clock()):
                    left_s = retries.begin_try(clock())
                    try:
                        under_way.add(self._connection.send(subject, body, left_s))
                    except BusError as error:
                        under_way.clear()
                        retries.refuse(error, clock(), under_way=False)
                wait_s = retries.wait_s(clock(), under_way=bool(under_way))
                if not under_way:
                    _pause(wait_s)
                elif (answer := self._next(retries, under_way, wait_s)) is not None:
                    return RetriedAnswer(answer, retries.tries)
        finally:
            for token in under_way:
                self._connection.forget(token)

    def _next(self, retries: Retries, under_way: set[int], wait_s: Optional[float]) -> Optional[bytes]:
        """Return the answer to one of the tries under way; None if it is to be asked again, or the time is over."""
        clock = time.monotonic  # noqa: TID251 - this is I/O
        left_s = max(retries.end_s - clock(), 0.0)
        try:
            answer = self._connection.receive(left_s if wait_s is None else wait_s)
        except BusError as error:  # the connection is lost, and all of them with it
            under_way.clear()
            retries.refuse(error, clock(), under_way=False)
            return None
        if answer is None:
            if clock() >= retries.end_s:
                under_way.clear()
                late = f"no answer within {retries.policy.timeout_s:.1f} s; ask again or wait longer"
                retries.refuse(Timeout(late), clock(), under_way=False)
            return None
        if answer.token not in under_way:
            return None
        under_way.discard(answer.token)
        if answer.error is None:
            return answer.body
        retries.refuse(answer.error, clock(), under_way=bool(under_way))
        return None


def _pause(wait_s: Optional[float]) -> None:
    """Block: nobody else waits here."""
    time.sleep(wait_s or 0.0)
