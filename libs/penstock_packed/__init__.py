"""
The packed host: many small trusted jobs of one user in one process, on one device.

In reading order:

* ``host``: One process with many small jobs.
* ``member_supervisor``: Members at work: turns, checkpoints, crash attribution.
* ``device_queue``: Whose turn it is.
* ``member``: One member, and what is kept of it.
* ``member_turn``: What a user writes, and how one turn is carried out.
* ``request_queue``: Requests of a model.
* ``request_server``: Requests of other processes.
* ``device``: Where turns are taken: the host or a GPU.
* ``__main__``: ``python -m penstock_packed``.

Users' programs import the short names (``Host``, ``Trial``, ``Turn``, ``Endpoint``, ``Device``, ``Outcome``,
``Reading``, ``Rules``); in the code each class carries its domain.
"""

from penstock_log import MemoryNeed
from penstock_packed.device import CpuDevice, CudaDevice, TurnDevice, TurnMemory
from penstock_packed.host import MemberOutcome, PackedHost
from penstock_packed.member_turn import DeviceLost, Model, TrialProgram, TrialTurn
from penstock_packed.request_queue import MemberEnded, ModelEndpoint, Overloaded
from penstock_sharing.lanes import LaneRules

Device = TurnDevice
Endpoint = ModelEndpoint
Host = PackedHost
Outcome = MemberOutcome
Reading = TurnMemory
Rules = LaneRules
Trial = TrialProgram
Turn = TrialTurn

__all__ = [
    "CpuDevice",
    "CudaDevice",
    "Device",
    "DeviceLost",
    "Endpoint",
    "Host",
    "LaneRules",
    "MemberEnded",
    "MemberOutcome",
    "MemoryNeed",
    "Model",
    "ModelEndpoint",
    "Outcome",
    "Overloaded",
    "PackedHost",
    "Reading",
    "Rules",
    "Trial",
    "TrialProgram",
    "TrialTurn",
    "Turn",
    "TurnDevice",
    "TurnMemory",
]
