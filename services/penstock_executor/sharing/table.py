"""The runs that share this node's devices, over the boards of the devices; and what a board's answers mean for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, assert_never

from penstock_events import Device, LaneChanged, RunWarned
from penstock_executor.local import Key, Seat
from penstock_executor.sharing.orders import Orders
from penstock_executor.sharing.party import Party, Place, Seen
from penstock_lanes.wire import Who
from penstock_policies.lanes import (
    Board,
    Change,
    Closed,
    Complete,
    Entered,
    Evicted,
    Gangs,
    Granted,
    LaneView,
    Moved,
    On,
    Opened,
    Parked,
    Refused,
    Resized,
    Rules,
    Told,
    Turn,
    Unparked,
    Waits,
)

LEAVING_S: Final = 10.0
"""For how long a gang that is to stop keeps the turn in which it was told so, if it does not leave."""


class Table:
    """
    Runs, boards, and what has to be done.

    Parameters
    ----------
    node_id : str
    devices : sequence of Device
    rules : Rules
    reserve : float
        Share of each device's memory that is left alone.

    Attributes
    ----------
    boards : dict of int to Board
    gangs : Gangs
    parties : dict of str to Party
        By job.
    orders : Orders
        What nobody has taken yet.
    awaited : set of Who
        Processes of an earlier executor that have not come back: nobody else asks for a turn on their devices.
    now_s : float
        Of what is being taken in.
    """

    def __init__(self, node_id: str, devices: Sequence[Device], rules: Rules, reserve: float) -> None:
        self.node_id = node_id
        self.boards = {}
        for device in devices:
            self.boards[device.index] = Board(device.memory_bytes, int(reserve * device.memory_bytes), rules)
        self._on_host = {device.index for device in devices if device.backend != "cuda"}
        self.gangs = Gangs(self.boards)
        self.parties: dict[str, Party] = {}
        self.orders = Orders()
        self.awaited: set[Who] = set()
        self.now_s = 0.0
        self._caps: dict[Key, dict[int, int]] = {}

    def party(self, who: Who | None) -> Party | None:
        """Return the run of a process; None if it is not here."""
        party = self.parties.get(who.job_id) if who is not None else None
        return party if party is not None and who is not None and party.sharer.epoch == who.epoch else None

    def view(self, place: Place) -> LaneView | None:
        """Return a lane as its board has it; None if it has closed."""
        return next((view for view in self.boards[place.device].lanes if view.lane == place.lane), None)

    def holder(self, place: Place) -> Party | None:
        """Return the run that has the turn in a lane, as its board has it."""
        view = self.view(place)
        return self.parties.get(view.holder) if view is not None and view.holder is not None else None

    def touch(self, party: Party) -> None:
        """Have a look at the lanes of a run: what their pages should say may have changed."""
        self.orders.touched.update(party.places)

    def touch_devices(self, devices: Iterable[int]) -> None:
        """Have a look at all lanes of some devices."""
        self.orders.touched.update(Place(i, view.lane) for i in devices for view in self.boards[i].lanes)

    def in_turn(self, party: Party) -> bool:
        """Whether it is a run's turn on all of its devices."""
        return party.job_id in self.gangs and self.gangs.has_turn(party.job_id)

    def let(self, party: Party, ranks: set[int]) -> None:
        """Let processes of a run have their tokens, in the turn that it has."""
        party.let |= ranks
        party.asking -= ranks
        self.touch(party)

    def begin(self, party: Party) -> None:
        """A run's turn begins."""
        party.turn_s, party.reach, party.seen = self.now_s, 0, Seen()
        party.let.clear()
        self.touch(party)

    def end(self, party: Party) -> None:
        """A run's turn is over on all of its devices: whatever waited for this boundary happens."""
        party.let.clear()
        self.touch(party)
        needs, party.pending = party.pending_needs(), None
        wants = party.all_ask and not self.is_blocked(party)
        self.digest(self.gangs.boundary(party.job_id, self.now_s, needs=needs, wants=wants))

    def ends(self, party: Party) -> bool:
        """Whether a gang that has its turn is to give it back: something waits for it to be over."""
        if party.is_gang and party.hurried_s is not None and self.now_s < party.hurried_s + LEAVING_S:
            return False
        return party.pending is not None or any(self.is_due(place) for place in party.places)

    def is_due(self, place: Place) -> bool:
        """Whether something waits for the end of the turn in a lane."""
        view = self.view(place)
        return view is not None and view.due

    def want(self, party: Party) -> None:
        """Ask for a run's turn, if all of its processes wait for one, and nobody is to come back first."""
        if party.all_ask and not self.in_turn(party) and party.job_id in self.gangs and not self.is_blocked(party):
            self.touch(party)
            self.digest(self.gangs.want(party.job_id, self.now_s))

    def is_blocked(self, party: Party) -> bool:
        """Whether processes of other runs, which may be in an iteration there, are to come back to its devices."""
        others = (other for who in self.awaited if (other := self.party(who)) is not None and other is not party)
        return any(not set(other.sharer.devices).isdisjoint(party.sharer.devices) for other in others)

    def returned(self, who: Who) -> None:
        """Wait no longer for a process: those who were kept from asking ask now, first those who have some inside."""
        if who not in self.awaited:
            return
        self.awaited.discard(who)
        for party in sorted(self.parties.values(), key=lambda party: not party.outside):
            self.want(party)

    def rest(self, party: Party) -> None:
        """Nobody is here who would take a run's turn: others do not wait for it."""
        if not party.joined and party.job_id in self.gangs and not self.in_turn(party):
            self.touch(party)
            self.digest(self.gangs.rest(party.job_id, self.now_s))
            self.touch_devices(party.lanes)

    def evict(self, party: Party, reason: str, *, at_once: bool) -> None:
        """A run has to leave: it is to be saved and stopped, or ended at once."""
        if party.seat.at != "leaving":
            self.warn(party, f"{reason}; it has to leave the device")
        self._seat(party.job_id, Seat("leaving", reason))
        if at_once:
            self.orders.ended[party.sharer.key] = f"{reason}, and was ended"

    def drop(self, party: Party) -> None:
        """Forget a run that holds nothing any more."""
        self.touch(party)
        told = self.gangs.finish(party.job_id, self.now_s) if party.job_id in self.gangs else []
        del self.parties[party.job_id]
        self._caps.pop(party.sharer.key, None)
        self.orders.caps.pop(party.sharer.key, None)
        self.digest(told)

    def digest(self, told: list[Told]) -> None:
        """Take in what the boards say, in order."""
        for one in told:
            match one:
                case On(device, change):
                    self._on(device, change)
                case Complete(job_id):
                    self._seat(job_id, Seat("in"))
                case Turn(job_id):
                    self._turn(self.parties[job_id])
                case _:
                    assert_never(one)
        if any(isinstance(one, On) and not isinstance(one.change, Granted) for one in told):
            self._note_caps()

    def say(
        self, party: Party, place: Place, change: Literal["entered", "moved", "parked", "left"], reason: str
    ) -> None:
        """Have it in the log that a run's lane has changed; lane -1 is none."""
        fact = LaneChanged(
            job_id=party.sharer.job_id,
            epoch=party.sharer.epoch,
            node_id=self.node_id,
            device=place.device,
            lane=place.lane,
            change=change,
            reason=reason,
            at_s=self.now_s,
        )
        self.orders.facts.append(fact)

    def warn(self, party: Party, warning: str) -> None:
        """Have something in the log that deserves attention."""
        sharer = party.sharer
        fact = RunWarned(
            job_id=sharer.job_id, epoch=sharer.epoch, node_id=self.node_id, warning=warning, at_s=self.now_s
        )
        self.orders.facts.append(fact)

    def _turn(self, party: Party) -> None:
        self.begin(party)
        self.let(party, set(party.asking))
        if not party.let:  # whoever asked is gone
            self.end(party)

    def _on(self, device: int, change: Change) -> None:
        match change:
            case Opened(lane):
                self.orders.opened.append(Place(device, lane))
            case Closed(lane):
                self.orders.closed.append(Place(device, lane))
            case Granted(_, lane) | Resized(lane):
                self.orders.touched.add(Place(device, lane))
            case Entered() | Moved() | Unparked():
                self._come(device, change)
            case Parked(job_id, reason):
                self._take_out(self.parties[job_id], device, "parked", reason)
            case Evicted(job_id, reason):
                self._take_out(self.parties[job_id], device, "left", reason)
                self._seat(job_id, Seat("leaving", reason))
            case Waits(job_id, reason):
                self._seat(job_id, Seat("waits", reason))
            case Refused(job_id, reason):
                self._seat(job_id, Seat("refused", reason))
            case _:
                assert_never(change)

    def _come(self, device: int, change: Entered | Moved | Unparked) -> None:
        """A run is in a lane, or in another one than before."""
        party, place = self.parties[change.job_id], Place(device, change.lane)
        self.touch(party)
        party.lanes[device] = party.sits[device] = change.lane
        self.touch(party)
        match change:
            case Entered():
                self.say(party, place, "entered", "the executor was restarted" * party.sharer.adopted)
            case Moved():
                self.say(party, place, "moved", "")
            case Unparked():
                self.say(party, place, "entered", "there is memory for its iterations again")
        for who in party.whos_on(device):
            if who.rank in party.joined:
                self.orders.seatings[who] = party.seats_of(who.rank)

    def _take_out(self, party: Party, device: int, change: Literal["parked", "left"], reason: str) -> None:
        self.touch(party)
        party.lanes.pop(device, None)
        self.say(party, Place(device, -1), change, reason)

    def _seat(self, job_id: str, seat: Seat) -> None:
        if job_id in self.parties and self.parties[job_id].seat.at != "leaving":
            self.parties[job_id].seat = seat
            self.orders.woken = True

    def _note_caps(self) -> None:
        for party in self.parties.values():
            caps = {
                device: self._cap_bytes(party.job_id, device)
                for device in party.sits
                if party.job_id in self.boards[device]
            }
            if caps and caps != self._caps.get(party.sharer.key):
                self._caps[party.sharer.key] = self.orders.caps[party.sharer.key] = caps

    def _cap_bytes(self, job_id: str, device: int) -> int:
        """
        Return what a run may hold of a device; where that can be made less later, its part of what nobody needs too.

        So who turns out to need more is measured and gets another place, if others do not need it: it does not end.
        """
        board = self.boards[device]
        spare_bytes = max(0, board.free_bytes) // max(1, len(board.lanes)) if device in self._on_host else 0
        return board.cap_bytes(job_id) + spare_bytes
