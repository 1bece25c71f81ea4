"""What is told of lanes while a device is shared: who has the turn, what everyone holds, how the time is divided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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
        self._running: dict[tuple[Place, Who], int] = {}  # who was in a turn, and what had been counted before it
        self._turns: dict[Place, int] = {}

    def measure(self, views: Mapping[Place, View], now_ns: int) -> None:
        """Take in what the pages count; ``now_ns`` by the same clock as theirs, ``CLOCK_MONOTONIC``."""
        span_ns, self._at_ns = max(1, now_ns - self._at_ns), now_ns
        held_ns = {key: ns for place, view in views.items() for key, ns in self._count(place, view, now_ns)}
        news = {key: max(0, ns - self._held_ns.get(key, ns)) for key, ns in held_ns.items()}
        whole_ns = dict.fromkeys(views, 0)
        for (place, _), ns in news.items():
            whole_ns[place] += ns
        self.held = {}
        for (place, who), ns in news.items():
            self.held[who] = max(
                self.held.get(who, 0.0), ns / max(span_ns, whole_ns[place])
            )  # not all is read at the same moment
        turns = {place: view.turn for place, view in views.items()}
        self.switches_per_s = {
            place: 1e9 * (turn - self._turns.get(place, turn)) / span_ns for place, turn in turns.items()
        }
        self._held_ns, self._turns = held_ns, turns
        self._running = {key: ns for key, ns in self._running.items() if key in held_ns}

    def _count(self, place: Place, view: View, now_ns: int) -> Iterator[tuple[tuple[Place, Who], int]]:
        """Yield for how long each member has had the turn by now; one that has it and has not woken up has it not."""
        for member in view.members:
            key = (place, member.who)
            in_turn = member.who == view.holder and (member.busy or self._running.get(key) == member.held_ns)
            self._running.pop(key, None)
            if in_turn:
                self._running[key] = member.held_ns
            yield key, member.held_ns + (max(0, now_ns - view.since_ns) if in_turn else 0)


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
