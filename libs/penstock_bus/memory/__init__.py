"""
The bus in one process: the same contract without a server, for tests and simulation.

In reading order:

* ``bus``: One client.
* ``server``: What all clients share.
"""

from penstock_bus.memory.bus import MemoryBus
from penstock_bus.memory.server import MemoryServer

__all__ = ["MemoryBus", "MemoryServer"]
