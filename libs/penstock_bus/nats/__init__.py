"""
The bus over NATS JetStream: the one place that imports ``nats``.

In reading order:

* ``bus``: The port put together, and how the server is found.
* ``handshake``: Addresses of servers, and why there is no connection.
* ``plain_connection``: Requests alone, over a socket, without an event loop and without ``nats``.
* ``link``: One connection with its answers and errors.
* ``streams``: The streams, their limits and their use.
* ``replication``: On which servers the streams are kept.
* ``log``: Appends, followers, output.
* ``atomic_batch``: Commits that are appended as one.
* ``consumer``: One consumer being read.
* ``direct_get``: Reading without a consumer.
* ``code``: Files of folders in which jobs run.
* ``snapshots_and_leases``: Snapshots and leases.
* ``requests``: Requests and telemetry.
* ``work``: The work queue.
* ``callout``: The server's question who somebody is that shows no login of its own.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; importing it from typing costs more than all the rest
if TYPE_CHECKING:
    from penstock_bus.nats.bus import NatsBus, connect
    from penstock_bus.nats.streams import StreamLimits
else:

    def __getattr__(name: str) -> object:  # ``plain_connection`` does without all that ``bus`` loads
        if name not in __all__:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module("penstock_bus.nats.bus"), name)


__all__ = ["NatsBus", "StreamLimits", "connect"]
