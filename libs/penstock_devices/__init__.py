"""What devices a node has: one port, and backends for CUDA, the host's CPU, and emulated devices."""

from penstock_devices.inventory import backends_of, environment, inventory
from penstock_devices.port import Backend, DeviceError

__all__ = ["Backend", "DeviceError", "backends_of", "environment", "inventory"]
