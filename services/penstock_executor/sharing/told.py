"""What is told of lanes while a device is shared: who has the turn, what everyone holds, how the time is divided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock_events import Device
from penstock_events.views import LanesView, SharedDeviceView, SharedLaneView, SharerView
from penstock_executor.sharing.party import Party, Place
from penstock_executor.sharing.table import Table
from penstock_lanes import View, Who
from penstock_policies.lanes import LaneView


class Shares:
    """
    How the time of each lane was divided since it was looked at last.

    Attributes
    ----------
    held : dict of Who to float
        Process → for how much of the time it had the turn, 0 to 1; of one on several devices, the most.
    switches_per_s : dict of Place to float
    """

    def __init__(self) -> None:
        self.held: dict[Who, float] = {}
        self.switches_per_s: dict[Place, float] = {}
        self._at_ns = 0
        self._held_ns: dict[tuple[Place, Who], int] = {}
        self._turns: dict[Place, int] = {}

    def measure(self, views: Mapping[Place, View], now_ns: int) -> None:
        """Take in what the pages count; ``now_ns`` by the same clock as theirs, ``CLOCK_MONOTONIC``."""
        span_ns, self._at_ns = max(1, now_ns - self._at_ns), now_ns
        held_ns = {(place, who): ns for place, view in views.items() for who, ns in _held(view, now_ns)}
        self.held = {}
        for (place, who), ns in held_ns.items():
            gone_by_ns = ns - self._held_ns.get((place, who), ns)
            self.held[who] = max(self.held.get(who, 0.0), min(1.0, max(0.0, gone_by_ns / span_ns)))
        turns = {place: view.turn for place, view in views.items()}
        self.switches_per_s = {
            place: 1e9 * (turn - self._turns.get(place, turn)) / span_ns for place, turn in turns.items()
        }
        self._held_ns, self._turns = held_ns, turns


def _held(view: View, now_ns: int) -> Iterable[tuple[Who, int]]:
    for member in view.members:
        running_ns = max(0, now_ns - view.since_ns) if member.who == view.holder else 0
        yield member.who, member.held_ns + running_ns


def lanes_view(
    table: Table, devices: Iterable[Device], shares: Shares, fractions: Mapping[int, list[SharerView]], at_s: float
) -> LanesView | None:
    """
    Return what there is to tell; None where no device is shared.

    Parameters
    ----------
    fractions : mapping of int to list of SharerView
        Device → runs that have a part of its memory.
    """
    told = tuple(_device(table, device, shares, fractions.get(device.index, [])) for device in devices)
    shared = tuple(view for view in told if view.lanes or view.outside)
    return LanesView(node_id=table.node_id, at_s=at_s, devices=shared) if shared else None


def _device(table: Table, device: Device, shares: Shares, fractions: list[SharerView]) -> SharedDeviceView:
    board = table.boards[device.index]
    outside = [
        _sharer(table, party, device.index, _outside(party, device.index), shares)
        for party in table.parties.values()
        if device.index in party.sharer.devices and device.index not in party.lanes and party.job_id in board
    ]
    parts_bytes = sum(part.cap_bytes for part in fractions)
    return SharedDeviceView(
        device=device.index,
        kind=device.kind,
        memory_bytes=device.memory_bytes,
        used_bytes=board.used_bytes + parts_bytes,
        lanes=tuple(_lane(table, device.index, lane, shares) for lane in board.lanes),
        outside=(*outside, *fractions),
    )


def _lane(table: Table, device: int, lane: LaneView, shares: Shares) -> SharedLaneView:
    parties = [table.parties[job_id] for job_id in lane.members]
    return SharedLaneView(
        lane=lane.lane,
        size_bytes=lane.size_bytes,
        holder=lane.holder or "",
        switches_per_s=shares.switches_per_s.get(Place(device, lane.lane), 0.0),
        members=tuple(
            _sharer(table, party, device, "turn" if party.job_id == lane.holder else "idle", shares)
            for party in parties
        ),
    )


def _sharer(table: Table, party: Party, device: int, state: str, shares: Shares) -> SharerView:
    board = table.boards[device]
    return SharerView(
        job_id=party.job_id,
        epoch=party.sharer.epoch,
        state=state,
        need=board.need(party.job_id) if party.known else None,
        cap_bytes=board.cap_bytes(party.job_id),
        share=max((shares.held.get(who, 0.0) for who in party.whos_on(device)), default=0.0),
        reason=board.why(party.job_id),
    )


def _outside(party: Party, device: int) -> str:
    if party.seat.at == "leaving":
        return "leaving"
    return "parked" if device in party.sits else "waits"
