"""
The token of a lane: processes that share a device take turns on it, iteration by iteration.

:class:`Member` is a process's side, :class:`Keeper` that of whoever decides whose turn it is. They share a page of
memory for each lane (:mod:`penstock_lanes.page`), so that the token goes from one process straight to the next, and a
socket for what is rare (:mod:`penstock_lanes.wire`). Standard library only: a training script imports it.
"""

from penstock_lanes.keeper import Keeper
from penstock_lanes.member import LaneError, Member, NoSeat
from penstock_lanes.news import Asks, Counters, Gone, Knocked, News, Overruled, Passed, Spoilt, View
from penstock_lanes.page import VERSION
from penstock_lanes.rota import Rota
from penstock_lanes.wire import Who

__all__ = [
    "VERSION",
    "Asks",
    "Counters",
    "Gone",
    "Keeper",
    "Knocked",
    "LaneError",
    "Member",
    "News",
    "NoSeat",
    "Overruled",
    "Passed",
    "Rota",
    "Spoilt",
    "View",
    "Who",
]
