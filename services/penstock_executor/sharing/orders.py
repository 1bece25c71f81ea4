"""What the node's lanes want done, by whoever has the pages, the processes and the log."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from penstock_events import LaneChanged, RunMeasured, RunWarned
from penstock_executor.local import Key
from penstock_executor.sharing.party import Place
from penstock_lanes.wire import Who


class Wish(msgspec.Struct, frozen=True):
    """
    What one lane's page should say.

    Attributes
    ----------
    holder : Who or None
        Who is to have the token; None: nobody, it stays with or comes home to the keeper.
    after : Who or None
        Who has it next; None: the holder keeps it.
    recall : bool
        The holder is to give it back at its next boundary, since something is to be done before the next turn.
    turn_s : float, seconds
        How long the holder's turn is at least, if somebody is named.
    not_before_s : float
        Until then the holder is not to be asked for the token.
    """

    holder: Who | None = None
    after: Who | None = None
    recall: bool = False
    turn_s: float = 0.0
    not_before_s: float = 0.0


@dataclass(slots=True)
class Orders:
    """
    What has to be done.

    Attributes
    ----------
    facts : list
        To be appended to the log, in order.
    seatings : dict of Who to tuple of Place
        Processes → the lanes in which they sit from now on.
    caps : dict of Key to dict of int to int
        Runs → device → the most bytes that it may hold there.
    ended : dict of Key to str
        Runs that are to be ended at once, and why.
    opened, closed : list of Place
        Lanes that are new, and lanes that are gone.
    touched : set of Place
        Lanes whose wish may have changed.
    woken : bool
        Whether some run may start now, or has to leave.
    """

    facts: list[RunMeasured | LaneChanged | RunWarned] = field(default_factory=list)
    seatings: dict[Who, tuple[Place, ...]] = field(default_factory=dict)
    caps: dict[Key, dict[int, int]] = field(default_factory=dict)
    ended: dict[Key, str] = field(default_factory=dict)
    opened: list[Place] = field(default_factory=list)
    closed: list[Place] = field(default_factory=list)
    touched: set[Place] = field(default_factory=set)
    woken: bool = False
