"""
How many devices each trial of a group gets: filled like water, after Fluid (MLSys 2021).

:mod:`.model` says how long a trial takes on a width, :mod:`.fill` which width each gets, :mod:`.listing` whether there
is room for it, and :mod:`.resize` when a running one is worth being moved. :class:`Mechanisms` switches each off alone.
"""

from penstock_policies.waterfill.fill import Mechanisms, allot, fill, hand_out
from penstock_policies.waterfill.listing import Room
from penstock_policies.waterfill.model import packing_c, run_time_s, widest
from penstock_policies.waterfill.resize import resized, worth_resizing

__all__ = [
    "Mechanisms",
    "Room",
    "allot",
    "fill",
    "hand_out",
    "packing_c",
    "resized",
    "run_time_s",
    "widest",
    "worth_resizing",
]
