"""The bus over NATS JetStream: the one place that imports ``nats``."""

from penstock_bus.nats.bus import NatsBus, connect

__all__ = ["NatsBus", "connect"]
