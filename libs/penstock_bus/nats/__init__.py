"""
The bus over NATS JetStream: the one place that imports ``nats``.

In reading order:

* ``bus``: The port put together, and how the server is found.
* ``link``: One connection with its answers and errors.
* ``streams``: The streams, their limits and their use.
* ``replication``: On which servers the streams are kept.
* ``log``: Appends, followers, output.
* ``consumer``: One consumer being read.
* ``direct_get``: Reading without a consumer.
* ``snapshots_and_leases``: Snapshots and leases.
* ``requests``: Requests and telemetry.
* ``work``: The work queue.
* ``callout``: The server's question who somebody is that shows no login of its own.
"""

from penstock_bus.nats.bus import NatsBus, connect
from penstock_bus.nats.streams import StreamLimits

__all__ = ["NatsBus", "StreamLimits", "connect"]
