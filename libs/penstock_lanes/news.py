"""What a keeper tells whoever decides whose turn it is."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from penstock_lanes.wire import Who


class Knocked(NamedTuple):
    """A process asks for its seats; it is to be seated or refused, now or later. Its user has been checked."""

    who: Who
    pid: int


class Asks(NamedTuple):
    """A member waits for its turn; it is told of once, until it has had one."""

    lane: str
    who: Who


class Passed(NamedTuple):
    """The token went from one to another; ``None`` is the keeper. From then on nobody is named."""

    lane: str
    giver: Who | None
    taker: Who | None


class Overruled(NamedTuple):
    """
    The token was taken from a process in its turn; a ``Passed`` follows.

    It is stopped (SIGSTOP), or ends and is long in giving back its memory: whatever it may hold, it holds still. Of its
    end ``Gone`` tells.
    """

    lane: str
    who: Who


class Gone(NamedTuple):
    """A process has left, or is dead; if it had a token, a ``Passed`` came before."""

    who: Who


class Spoilt(NamedTuple):
    """
    On a lane's page stands what no turn can have left there: it is to be closed, and its members seated elsewhere.

    If somebody had the token, a ``Passed`` came before; nothing else is told of this lane any more.

    Attributes
    ----------
    who : Who or None
        In whose word it stands; None where it cannot be said.
    """

    lane: str
    who: Who | None


News: TypeAlias = Knocked | Asks | Passed | Overruled | Gone | Spoilt


class Counters(NamedTuple):
    """
    What a member has counted since it took its seat.

    Attributes
    ----------
    who : Who
    iterations : int
        That its process has done, in other seats too.
    busy : bool
        Whether it is in another one.
    held_ns : int
        In turns that have ended.
    turns : int
    """

    who: Who
    iterations: int
    busy: bool
    held_ns: int
    turns: int


class View(NamedTuple):
    """
    What a lane looks like at this moment.

    Attributes
    ----------
    holder : Who or None
    since_ns : int
        By ``CLOCK_MONOTONIC``, when its turn began.
    busy : bool
        Whether the holder is in an iteration.
    turn : int
        How many times the token has changed hands.
    members : tuple of Counters
    """

    holder: Who | None
    since_ns: int
    busy: bool
    turn: int
    members: tuple[Counters, ...]
