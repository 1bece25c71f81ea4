"""What devices a node has: one port, and backends for CUDA, the host's CPU, and emulated devices."""

from penstock_devices.inventory import Survey, backends_of, environment, survey
from penstock_devices.port import Accounting, Backend, DeviceError

__all__ = ["Accounting", "Backend", "DeviceError", "Survey", "backends_of", "environment", "survey"]
