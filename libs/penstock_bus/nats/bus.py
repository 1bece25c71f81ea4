"""The bus over NATS, put together from its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from penstock_bus.nats.connection import linked
from penstock_bus.nats.lease import LeaseClient
from penstock_bus.nats.state import StateClient
from penstock_bus.nats.streams import Limits, ensure
from penstock_bus.nats.talk import TalkClient
from penstock_bus.nats.work import WorkClient

if TYPE_CHECKING:
    from penstock_bus.port import Bus


class NatsBus(WorkClient, StateClient, LeaseClient, TalkClient):
    """The whole port; made by :func:`connect`."""


@asynccontextmanager
async def connect(
    url: str,
    *,
    user: str = "",
    password: str = "",
    name: str = "penstock",
    timeout_s: float = 10.0,
    connect_timeout_s: float = 4.0,
    ack_wait_s: float = 30.0,
    max_deliver: int = 10,
    limits: Limits | None = None,
    as_client: bool = False,
) -> AsyncIterator[NatsBus]:
    """
    Connect to a server and make the streams that are missing.

    Parameters
    ----------
    url : str
        ``nats://HOST:PORT``; several of a cluster with commas between them.
    name : str
        Shown by the server's monitoring.
    timeout_s : float
        How long a call goes on trying over disconnects and elections.
    connect_timeout_s : float
        How long to look for the server.
    ack_wait_s, max_deliver
        Of the work queue: how long a worker may keep a message, and how often it is delivered at most.
    limits : Limits, optional
        Of streams that are made; those that are there stay as they are.
    as_client : bool
        Make no streams and no consumers: read by direct gets alone, as people may.

    Raises
    ------
    Unavailable
        If no server answers at the address.
    Unauthorized
        If it refuses the user.
    """
    async with linked(
        url, user=user, password=password, name=name, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s
    ) as link:
        if not as_client:
            await ensure(link, limits or Limits())
        bus = NatsBus(link, ack_wait_s=ack_wait_s, max_deliver=max_deliver, as_client=as_client)
        try:
            yield bus
        finally:
            await bus.close()


if TYPE_CHECKING:

    def _keeps_the_contract(bus: NatsBus) -> Bus:
        return bus
