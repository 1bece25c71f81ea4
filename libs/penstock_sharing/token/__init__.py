"""
The token of a lane: processes that share a device take turns on it, iteration by iteration.

:class:`LaneClient` is a process's side, :class:`TokenBroker` that of whoever decides whose turn it is. They share a
page of memory for each lane (:mod:`penstock_sharing.token.shared_page`), so that the token goes from one process
straight to the next, and a socket for what is rare (:mod:`penstock_sharing.token.protocol`). Standard library only: a
training script imports it, without the broker's side.

In reading order:

* ``protocol``: Messages over the socket and events of the broker.
* ``shared_page``: The page that a lane's clients and broker share.
* ``lane_client``: A process's side of its lanes.
* ``token_slot``: One lane of it: take the token, give it on.
* ``slot_wait``: How a slot sleeps or spins until it is next.
* ``token_broker``: The node's side: connections, who is next, tokens of those who left.
* ``lane_token``: The broker's side of one page.
* ``slot_table``: Who has which slot, and whether he still runs.
* ``fifo_owner``: The simplest owner of a broker.
"""

from importlib import import_module

from penstock_sharing.token.lane_client import LaneClient, LaneError, NoTokenSlot
from penstock_sharing.token.protocol import (
    ClientGone,
    JoinRequested,
    LaneClientId,
    LaneTokenView,
    PageCorrupted,
    SlotCounters,
    TokenEvent,
    TokenPassed,
    TokenRevoked,
    TurnRequested,
)
from penstock_sharing.token.shared_page import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from penstock_sharing.token.fifo_owner import FifoOwner
    from penstock_sharing.token.token_broker import TokenBroker

__all__ = [
    "VERSION",
    "ClientGone",
    "FifoOwner",
    "JoinRequested",
    "LaneClient",
    "LaneClientId",
    "LaneError",
    "LaneTokenView",
    "NoTokenSlot",
    "PageCorrupted",
    "SlotCounters",
    "TokenBroker",
    "TokenEvent",
    "TokenPassed",
    "TokenRevoked",
    "TurnRequested",
]

_BROKER_SIDE = {"FifoOwner": "fifo_owner", "TokenBroker": "token_broker"}


def __getattr__(name: str) -> object:
    if name not in _BROKER_SIDE:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_BROKER_SIDE[name]}"), name)
