"""GPU lanes: many jobs share one device's memory, and take turns iteration by iteration."""

from penstock_events import MemoryNeed
from penstock_policies.lanes.board import Board, LaneView
from penstock_policies.lanes.changes import (
    Change,
    Closed,
    Entered,
    Evicted,
    Granted,
    Moved,
    Opened,
    Parked,
    Refused,
    Resized,
    Unparked,
    Waits,
)
from penstock_policies.lanes.gangs import Complete, Gangs, On, Told, Turn
from penstock_policies.lanes.need import Estimate, Sample, differs
from penstock_policies.lanes.packing import Load, best_fit
from penstock_policies.lanes.rules import Rules
from penstock_policies.lanes.turns import POLICIES, Ahead, quantum

__all__ = [
    "POLICIES",
    "Ahead",
    "Board",
    "Change",
    "Closed",
    "Complete",
    "Entered",
    "Estimate",
    "Evicted",
    "Gangs",
    "Granted",
    "LaneView",
    "Load",
    "MemoryNeed",
    "Moved",
    "On",
    "Opened",
    "Parked",
    "Refused",
    "Resized",
    "Rules",
    "Sample",
    "Told",
    "Turn",
    "Unparked",
    "Waits",
    "best_fit",
    "differs",
    "quantum",
]
