"""
What devices a node has: one port, and backends for CUDA, the host's CPU, and emulated devices.

In reading order:

* ``nodes``: Nodes and their hosts as the log has them, and which of them a gang is spread over.
* ``device_backend``: The port of device backends, by capability, and the table of all.
* ``inventory``: From a ``devices`` setting to numbered devices.
* ``host_backends``: The host as a device, and emulated devices.
* ``cuda_visibility``: Which of a host's GPUs this process may use.
* ``nvml``: The functions of NVIDIA's management library that are used.
* ``cuda_backend``: CUDA devices by NVML.
* ``device_monitor``: The port of monitors, and the estimate from processes.
* ``cuda_monitor``: What NVIDIA's driver tells of devices while they work.
* ``device_health``: Which measurements make a device unfit for jobs.
* ``cuda_health``: XIDs and ECC errors of CUDA devices by NVML.
* ``accounting``: How much of the host's memory each process holds.
* ``host_limits``: What a host has for jobs, and how runs are held to it.
* ``device_guard``: A control group that may open some GPUs and no other.
"""

from penstock_cluster.device_backend import Accounting, DeviceBackend, DeviceError
from penstock_cluster.inventory import DeviceSurvey, backends_of, environment, survey

__all__ = ["Accounting", "DeviceBackend", "DeviceError", "DeviceSurvey", "backends_of", "environment", "survey"]
