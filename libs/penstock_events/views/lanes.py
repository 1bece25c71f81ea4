"""What a node tells of its shared devices on ``subjects.lanes``, once a second while there are any."""

from __future__ import annotations

from penstock_events.spec import MemoryNeed
from penstock_events.views.base import View


class SharerView(View, frozen=True, kw_only=True):
    """
    One run on a shared device.

    Attributes
    ----------
    state : {"turn", "idle", "parked", "waits", "leaving", "fraction"}
        ``turn``: it has its lane's token; ``idle``: it is in a lane and has not; ``waits``: it has not started;
        ``fraction``: it has a part of the device's memory and takes no turns.
    need : MemoryNeed or None
        As far as it is known.
    cap_bytes : int
        The most that it may hold of the device; 0 where nothing caps it.
    share : float
        Of the last second, for how long it had the turn: 0 to 1.
    reason : str
        Why it waits, is parked or has to leave.
    """

    job_id: str
    epoch: int
    state: str
    need: MemoryNeed | None = None
    cap_bytes: int = 0
    share: float = 0.0
    reason: str = ""


class SharedLaneView(View, frozen=True, kw_only=True):
    """
    One lane.

    Attributes
    ----------
    holder : str
        The job that has the turn; empty where nobody has.
    switches_per_s : float
        How often the turn changed hands in the last second.
    """

    lane: int
    size_bytes: int
    holder: str
    switches_per_s: float
    members: tuple[SharerView, ...]


class SharedDeviceView(View, frozen=True, kw_only=True):
    """
    One shared device.

    Attributes
    ----------
    used_bytes : int
        What counts as used: what everybody keeps, and the lanes.
    outside : tuple of SharerView
        Those that share it and are in no lane.
    """

    device: int
    kind: str
    memory_bytes: int
    used_bytes: int
    lanes: tuple[SharedLaneView, ...]
    outside: tuple[SharerView, ...] = ()


class LanesView(View, frozen=True, kw_only=True):
    """The shared devices of one node at one moment."""

    node_id: str
    at_s: float
    devices: tuple[SharedDeviceView, ...]
