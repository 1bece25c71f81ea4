"""The bus in memory, put together from its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_bus.memory.log import LogClient
from penstock_bus.memory.state import StateClient
from penstock_bus.memory.talk import TalkClient
from penstock_bus.memory.work import WorkClient

if TYPE_CHECKING:
    from penstock_bus.port import Bus


class MemoryBus(LogClient, StateClient, WorkClient, TalkClient):
    """The whole port; see :class:`penstock_bus.memory.client.Client` for the parameters."""


if TYPE_CHECKING:

    def _keeps_the_contract(bus: MemoryBus) -> Bus:
        return bus
