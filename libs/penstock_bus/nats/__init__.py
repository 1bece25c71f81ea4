"""The bus over NATS JetStream: the one place that imports ``nats``."""

from penstock_bus.nats.bus import NatsBus, connect
from penstock_bus.nats.streams import Limits

__all__ = ["Limits", "NatsBus", "connect"]
