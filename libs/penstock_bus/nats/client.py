"""What the parts of the bus over NATS share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from penstock_bus.nats.link import Link
from penstock_bus.reading import Dropped


class NatsClient:
    """
    One connected client; made by :func:`penstock_bus.nats.connect`.

    Parameters
    ----------
    ack_wait_s : float
        How long a worker may keep a message before another gets it.
    max_deliver : int
        How often a message of the work queue is delivered before it goes to REJECTED.
    as_client : bool
        Whether it may read by direct gets alone.
    """

    def __init__(self, link: Link, *, ack_wait_s: float, max_deliver: int, as_client: bool = False) -> None:
        """Use an open connection."""
        self.link = link
        self.as_client = as_client
        self.ack_wait_s = ack_wait_s
        self.max_deliver = max_deliver
        self.dropped = Dropped()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def max_body_bytes(self) -> int:
        """The largest body that the server takes beside our headers."""
        return self.link.max_body_bytes

    def new_id(self) -> str:
        """Return an id for a message that has none of its own."""
        return self.link.client.new_inbox().rpartition(".")[2]

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that its caller does not wait for; :meth:`close` does."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Flush and disconnect."""
        if self._background and self.link.is_online:
            await asyncio.wait(self._background, timeout=1.0)
        for task in self._background:
            task.cancel()
        await self.link.close()
