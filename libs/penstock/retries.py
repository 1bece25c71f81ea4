"""
When a request to the gateway is asked again, and when it is given up.

Asking twice must be as good as asking once: submissions carry their id from the first try, and the other commands and
all queries say what is to be, not what is to change. So a try whose answer is late is not waited for in silence, since
the gateway that had it may be gone: the same request goes out again beside it, and the first answer counts.

:class:`Retries` decides, and neither asks nor waits: :mod:`penstock.request` does that on an event loop,
:mod:`penstock.blocking` without one.
"""

from __future__ import annotations

import os
from typing import Final, Optional

import msgspec

from penstock_bus.errors import BusError, NoResponders, ServiceError, Unavailable

_BACKOFF_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 4.0
_NOT_NOW: Final = 503
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"  # of base 32
_TOO_MANY: Final = 429


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """
    How patiently something is asked; all in seconds but for ``tries``.

    Attributes
    ----------
    timeout_s : float
        How long an answer may take over all tries.
    again_s : float
        After so long without an answer the same is asked again; twice as long after each further try.
    nobody_s : float
        How long no gateway may be there, as while it restarts, if none ever was.
    tries : int
        So often it is asked at least, however late the first refusal comes: a gateway that was cut off says so once the
        time is over, and its next answer would be the good one.
    not_now : bool
        Whether to ask again where the gateway says that it could not do it just now.
    """

    timeout_s: float
    again_s: float = 1.0
    nobody_s: float = 5.0
    tries: int = 3
    not_now: bool = True


class RetriedAnswer(msgspec.Struct, frozen=True):
    """What was answered, and after how many tries."""

    body: bytes
    tries: int


def new_id() -> str:
    """Return 8 letters and digits that are easy to read out: the id of a job or a sweep, chosen before it is asked."""
    number = int.from_bytes(os.urandom(5), "big")
    return "".join(_LETTERS[number >> shift & 31] for shift in range(0, 40, 5))


def is_open(error: BusError) -> bool:
    """Return whether it is unknown after an error whether the command was carried out."""
    if isinstance(error, ServiceError):
        return error.code == _NOT_NOW and not error.body  # a body says what has surely not happened
    return isinstance(error, Unavailable) and not isinstance(error, NoResponders)


class Retries:
    """
    The tries of one request; all times are of a clock that only goes on, in seconds.

    Parameters
    ----------
    now_s : float
        When the request begins.
    """

    def __init__(self, policy: RetryPolicy, now_s: float) -> None:
        self.policy = policy
        self._began_s = self._next_s = now_s
        self.end_s = now_s + policy.timeout_s
        """When no answer is waited for any more."""
        self.tries = 0
        self._pause_s, self._backoff_s = policy.again_s, _BACKOFF_S
        self._last: Optional[BusError] = None
        self._reached = False

    def is_due(self, now_s: float) -> bool:
        """Return whether to ask now."""
        return now_s >= self._next_s and self._may_ask(now_s)

    def begin_try(self, now_s: float) -> float:
        """Note that it is asked now; return how long this try may take."""
        self.tries += 1
        self._next_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return max(self.end_s - now_s, self.policy.again_s)

    def wait_s(self, now_s: float, *, under_way: bool) -> Optional[float]:
        """
        Return how long to wait for an answer, or for the next try; None: until the tries under way are over.

        Raises
        ------
        BusError
            What the last try met, where none is under way and none will be made.
        """
        may_ask = self._may_ask(now_s)
        if self._last is not None and not under_way and not may_ask:
            raise self._last
        if under_way and not may_ask:
            return None
        return max((self._next_s if may_ask else self.end_s) - now_s, 0.0)

    def refuse(self, error: BusError, now_s: float, *, under_way: bool) -> None:
        """
        Note how a try ended that was not answered.

        Parameters
        ----------
        under_way : bool
            Whether there are other tries that may be answered.

        Raises
        ------
        BusError
            The error, where it is the answer.
        """
        soon = not under_way  # nobody is left who may answer
        if isinstance(error, NoResponders):
            self._reached |= under_way  # somebody had those, and is gone
            self._last, soon = self._last if self._reached else error, True
        elif isinstance(error, ServiceError):
            if error.code == _TOO_MANY and under_way:
                self._last = error  # one try too many is no answer to those before it
                self._next_s = max(self._next_s, now_s + _LONGEST_PAUSE_S)
                return
            if not (self.policy.not_now and is_open(error)):
                raise error
            self._last, self._reached = error, True
        elif isinstance(error, Unavailable):
            if not isinstance(self._last, ServiceError):  # what the gateway said tells more than its silence afterwards
                self._last = error
            self._reached = True
        else:
            raise error
        if soon:
            self._next_s = min(self._next_s, now_s + self._backoff_s)
            self._backoff_s = min(2 * self._backoff_s, self.policy.again_s)

    def _may_ask(self, now_s: float) -> bool:
        if isinstance(self._last, NoResponders) and not self._reached:
            return now_s < min(self._began_s + self.policy.nobody_s, self.end_s)
        late = isinstance(self._last, ServiceError) and self.tries < self.policy.tries
        return not self.tries or late or now_s < self.end_s
