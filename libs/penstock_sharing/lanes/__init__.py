"""
GPU lanes: many jobs share one device's memory, and take turns iteration by iteration.

In reading order:

* ``turn_policy``: Lane policies by name, and the queue of those who ask for a turn.
* ``lane``: One lane, what changes about it, and which one fits a job.
* ``lane_allocator``: The lanes of a device and the memory they take.
* ``device_lanes``: One device: members, who waits, who is parked, whose turn it is.
* ``lane_gangs``: Jobs on several devices of a node.
* ``memory_need``: What a job needs, and which jobs fit beside each other.
"""

from penstock_log import MemoryNeed
from penstock_sharing.lanes.device_lanes import DeviceLanes, LaneView
from penstock_sharing.lanes.lane import (
    Change,
    LaneClosed,
    LaneEntered,
    LaneOpened,
    LaneRefused,
    LaneResized,
    MemberEvicted,
    MemberMoved,
    MemberParked,
    MemberUnparked,
    MemberWaits,
    TurnGranted,
)
from penstock_sharing.lanes.lane_gangs import DeviceChange, GangComplete, GangTurn, LaneGangs, NodeChange
from penstock_sharing.lanes.memory_need import DeviceLoad, MemoryEstimate, MemoryReading, differs
from penstock_sharing.lanes.turn_policy import TURN_POLICIES, LaneRules, TurnForecast, quantum

__all__ = [
    "TURN_POLICIES",
    "Change",
    "DeviceChange",
    "DeviceLanes",
    "DeviceLoad",
    "GangComplete",
    "GangTurn",
    "LaneClosed",
    "LaneEntered",
    "LaneGangs",
    "LaneOpened",
    "LaneRefused",
    "LaneResized",
    "LaneRules",
    "LaneView",
    "MemberEvicted",
    "MemberMoved",
    "MemberParked",
    "MemberUnparked",
    "MemberWaits",
    "MemoryEstimate",
    "MemoryNeed",
    "MemoryReading",
    "NodeChange",
    "TurnForecast",
    "TurnGranted",
    "differs",
    "quantum",
]
