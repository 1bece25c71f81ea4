"""Reading the live log from its beginning to where it ends now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock_bus import Delivery


async def read(client: Client, add: Callable[[Delivery], None]) -> None:
    """Give every commit of the log so far to ``add``, in its order."""
    last = await client.bus.last_seq()
    if not last:
        return
    async for delivery in client.bus.follow():
        add(delivery)
        if delivery.seq >= last or not delivery.pending:
            return
