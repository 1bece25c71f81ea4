"""The packed host: many small trusted jobs of one user in one process, on one device."""

from penstock_events import MemoryNeed
from penstock_packed.cuda import CudaDevice
from penstock_packed.device import CpuDevice, Device, Reading
from penstock_packed.endpoint import Endpoint, MemberEnded, Overloaded
from penstock_packed.host import Host, Outcome
from penstock_packed.roles import Model, Trial, Turn
from penstock_packed.work import DeviceLost
from penstock_policies.lanes import Rules

__all__ = [
    "CpuDevice",
    "CudaDevice",
    "Device",
    "DeviceLost",
    "Endpoint",
    "Host",
    "MemberEnded",
    "MemoryNeed",
    "Model",
    "Outcome",
    "Overloaded",
    "Reading",
    "Rules",
    "Trial",
    "Turn",
]
