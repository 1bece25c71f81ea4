"""
The runs, whose turn it is, who holds the tokens: one state.

:class:`SharingState` has the runs that share this node's devices and the lanes of each device
(:class:`penstock_sharing.lanes.DeviceLanes`), and carries out what a change of lanes means for the runs. :func:`wish`
says what a lane's page should say: who has the token, who has it next, and when. :class:`TokenTracker` knows who really
has each token, as the pages tell it. All of it is pure.

The tokens are ahead of this state, because processes of single runs hand a token straight on to the next. So a process
may take the token that was next a moment ago and no longer is. Such an *unexpected holder* gives the token back after
one iteration. Until then the device's lanes go on as if the run that gave the token still had its turn. Tokens of gangs
come from the token broker and return to it, so no process of a gang is ever an unexpected holder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from penstock_cluster.device_backend import CAPABILITIES
from penstock_executor.run_state import Key, SharingProgress
from penstock_executor.sharing.shared_run import DesiredTurn, NodeLane, RunTurn, SharedRun, SharingCommands
from penstock_log import Device, LaneChanged, RunWarned
from penstock_sharing.lanes import (
    Change,
    DeviceChange,
    DeviceLanes,
    GangComplete,
    GangTurn,
    LaneClosed,
    LaneEntered,
    LaneGangs,
    LaneOpened,
    LaneRefused,
    LaneResized,
    LaneRules,
    LaneView,
    MemberEvicted,
    MemberMoved,
    MemberParked,
    MemberUnparked,
    MemberWaits,
    Told,
    TurnGranted,
)
from penstock_sharing.token.protocol import LaneClientId

LEAVING_S: Final = 10.0
"""For how long a gang that is to stop keeps the turn in which it was told so, if it does not leave."""


class SharingState:
    """
    Runs, lanes of devices, and what has to be done.

    Parameters
    ----------
    node_id : str
    devices : sequence of Device
    rules : LaneRules
    reserve : float
        Share of each device's memory that is left alone.

    Attributes
    ----------
    boards : dict of int to DeviceLanes
    gangs : LaneGangs
    parties : dict of str to SharedRun
        Job → its run.
    orders : SharingCommands
        Commands that nobody has taken yet.
    awaited : set of LaneClientId
        Processes of an earlier executor that have not come back: no other run asks for a turn on their devices.
    now_s : float
        Time of the event that is being handled.
    """

    def __init__(self, node_id: str, devices: Sequence[Device], rules: LaneRules, reserve: float) -> None:
        self.node_id = node_id
        self.boards = {}
        for device in devices:
            self.boards[device.index] = DeviceLanes(device.memory_bytes, int(reserve * device.memory_bytes), rules)
        self._on_host = {device.index for device in devices if CAPABILITIES[device.backend].host_memory}
        self.gangs = LaneGangs(self.boards)
        self.parties: dict[str, SharedRun] = {}
        self.orders = SharingCommands()
        self.awaited: set[LaneClientId] = set()
        self.now_s = 0.0
        self._caps: dict[Key, dict[int, int]] = {}

    def party(self, who: LaneClientId | None) -> SharedRun | None:
        """Return the run of a process; None if the run is not here."""
        party = self.parties.get(who.job_id) if who is not None else None
        return party if party is not None and who is not None and party.sharer.epoch == who.epoch else None

    def view(self, place: NodeLane) -> LaneView | None:
        """Return a lane as its device's lanes have it; None if it has closed."""
        return next((view for view in self.boards[place.device].lanes if view.lane == place.lane), None)

    def holder(self, place: NodeLane) -> SharedRun | None:
        """Return the run that has the turn in a lane, as its device's lanes have it."""
        view = self.view(place)
        return self.parties.get(view.holder) if view is not None and view.holder is not None else None

    def touch(self, party: SharedRun) -> None:
        """Mark the lanes of a run: what their pages should say may have changed."""
        self.orders.touched.update(party.places)

    def touch_devices(self, devices: Iterable[int]) -> None:
        """Mark all lanes of some devices."""
        self.orders.touched.update(NodeLane(i, view.lane) for i in devices for view in self.boards[i].lanes)

    def in_turn(self, party: SharedRun) -> bool:
        """Return whether a run has its turn on all of its devices."""
        return party.job_id in self.gangs and self.gangs.has_turn(party.job_id)

    def let(self, party: SharedRun, ranks: set[int]) -> None:
        """Let processes of a run have their tokens, in the run's present turn."""
        party.turn.let |= ranks
        party.asking -= ranks
        self.touch(party)

    def begin(self, party: SharedRun) -> None:
        """Begin a run's turn."""
        party.turn = RunTurn(self.now_s)
        self.touch(party)

    def end(self, party: SharedRun) -> None:
        """End a run's turn on all of its devices: whatever waited for this boundary happens."""
        party.turn = RunTurn()
        self.touch(party)
        needs, party.pending = party.pending_needs(), None
        wants = party.all_ask and not self.is_blocked(party)
        self.digest(self.gangs.boundary(party.job_id, self.now_s, needs=needs, wants=wants))

    def ends(self, party: SharedRun) -> bool:
        """Return whether a gang has to give its turn back because something waits for the turn's end."""
        if party.is_gang and party.hurried_s is not None and self.now_s < party.hurried_s + LEAVING_S:
            return False
        return party.pending is not None or any(self.is_due(place) for place in party.places)

    def is_due(self, place: NodeLane) -> bool:
        """Return whether something waits for the end of the turn in a lane."""
        view = self.view(place)
        return view is not None and view.due

    def want(self, party: SharedRun) -> None:
        """Ask for a run's turn, if all of its processes wait for one and no process has to come back first."""
        if party.all_ask and not self.in_turn(party) and party.job_id in self.gangs and not self.is_blocked(party):
            self.touch(party)
            self.digest(self.gangs.want(party.job_id, self.now_s))

    def is_blocked(self, party: SharedRun) -> bool:
        """Return whether processes of other runs, perhaps in an iteration, have to come back to a run's devices."""
        others = (other for who in self.awaited if (other := self.party(who)) is not None and other is not party)
        return any(not set(other.sharer.devices).isdisjoint(party.sharer.devices) for other in others)

    def returned(self, who: LaneClientId) -> None:
        """Wait no longer for a process: runs that it blocked ask now, first those with processes in an iteration."""
        if who not in self.awaited:
            return
        self.awaited.discard(who)
        for party in sorted(self.parties.values(), key=lambda party: not party.outside):
            self.want(party)

    def rest(self, party: SharedRun) -> None:
        """Withdraw a run's request for a turn: no process is here to take it, and others do not wait for it."""
        if not party.joined and party.job_id in self.gangs and not self.in_turn(party):
            self.touch(party)
            self.digest(self.gangs.rest(party.job_id, self.now_s))
            self.touch_devices(party.lanes)

    def evict(self, party: SharedRun, reason: str, *, at_once: bool) -> None:
        """Make a run leave: it is saved and stopped, or ended at once."""
        if party.seat.at != "leaving":
            self.warn(party, f"{reason}; it has to leave the device")
        self._seat(party.job_id, SharingProgress("leaving", reason))
        if at_once:
            self.orders.ended[party.sharer.key] = f"{reason}, and was ended"

    def drop(self, party: SharedRun) -> None:
        """Drop a run that holds nothing any more."""
        self.touch(party)
        told = self.gangs.finish(party.job_id, self.now_s) if party.job_id in self.gangs else []
        del self.parties[party.job_id]
        self._caps.pop(party.sharer.key, None)
        self.orders.caps.pop(party.sharer.key, None)
        self.digest(told)

    def digest(self, told: list[Told]) -> None:
        """Carry out, in order, what the lanes of the devices say."""
        for one in told:
            match one:
                case DeviceChange(device, change):
                    self._on(device, change)
                case GangComplete(job_id):
                    self._seat(job_id, SharingProgress("in"))
                case GangTurn(job_id):
                    self._turn(self.parties[job_id])
                case _:
                    assert_never(one)
        if any(isinstance(one, DeviceChange) and not isinstance(one.change, TurnGranted) for one in told):
            self._note_caps()

    def say(
        self, party: SharedRun, place: NodeLane, change: Literal["entered", "moved", "parked", "left"], reason: str
    ) -> None:
        """Report to the log that a run's lane has changed; lane -1 means none."""
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

    def warn(self, party: SharedRun, warning: str) -> None:
        """Report a warning about a run to the log."""
        sharer = party.sharer
        fact = RunWarned(
            job_id=sharer.job_id, epoch=sharer.epoch, node_id=self.node_id, warning=warning, at_s=self.now_s
        )
        self.orders.facts.append(fact)

    def _turn(self, party: SharedRun) -> None:
        self.begin(party)
        self.let(party, set(party.asking))
        if not party.turn.let:  # whoever asked is gone
            self.end(party)

    def _on(self, device: int, change: Change) -> None:
        match change:
            case LaneOpened(lane):
                self.orders.opened.append(NodeLane(device, lane))
            case LaneClosed(lane):
                self.orders.closed.append(NodeLane(device, lane))
            case TurnGranted(_, lane) | LaneResized(lane):
                self.orders.touched.add(NodeLane(device, lane))
            case LaneEntered() | MemberMoved() | MemberUnparked():
                self._come(device, change)
            case MemberParked(job_id, reason):
                self._take_out(self.parties[job_id], device, "parked", reason)
            case MemberEvicted(job_id, reason):
                self._take_out(self.parties[job_id], device, "left", reason)
                self._seat(job_id, SharingProgress("leaving", reason))
            case MemberWaits(job_id, reason):
                self._seat(job_id, SharingProgress("waits", reason))
            case LaneRefused(job_id, reason):
                self._seat(job_id, SharingProgress("refused", reason))
            case _:
                assert_never(change)

    def _come(self, device: int, change: LaneEntered | MemberMoved | MemberUnparked) -> None:
        """Note that a run is in a lane, or in another one than before."""
        party, place = self.parties[change.job_id], NodeLane(device, change.lane)
        self.touch(party)
        party.lanes[device] = party.sits[device] = change.lane
        self.touch(party)
        match change:
            case LaneEntered():
                self.say(party, place, "entered", "the executor was restarted" * party.sharer.adopted)
            case MemberMoved():
                self.say(party, place, "moved", "")
            case MemberUnparked():
                self.say(party, place, "entered", "there is memory for its iterations again")
        for who in party.whos_on(device):
            if who.rank in party.joined:
                self.orders.seatings[who] = party.seats_of(who.rank)

    def _take_out(self, party: SharedRun, device: int, change: Literal["parked", "left"], reason: str) -> None:
        self.touch(party)
        party.lanes.pop(device, None)
        self.say(party, NodeLane(device, -1), change, reason)

    def _seat(self, job_id: str, seat: SharingProgress) -> None:
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
        Return what a run may hold of a device; if the cap can shrink later, with a part of what nobody needs.

        So a run that turns out to need more does not end: it is measured, and gets another lane if there is room.
        """
        board = self.boards[device]
        spare_bytes = max(0, board.free_bytes) // max(1, len(board.lanes)) if device in self._on_host else 0
        return board.cap_bytes(job_id) + spare_bytes


GANG_TURN_S: Final = 0.015
"""The shortest turn of a gang: its turns go through the executor, which takes some 300 microseconds, 2 % of this."""


def wish(table: SharingState, place: NodeLane, least_turn_s: float) -> DesiredTurn:
    """
    Return what a lane's page should say now, by the lanes of its device and the runs in it.

    A run of one process on one device hands its turn straight on to the next run. All other turns return to the token
    broker first: those of gangs, those after which a lane changes, and those of runs that need something else now.

    Parameters
    ----------
    least_turn_s : float
        The shortest turn, such that handing over costs little of it.
    """
    party = table.holder(place)
    if party is None or not table.in_turn(party):
        return DesiredTurn()
    holder = next((who for who in party.whos_on(place.device) if who.rank in party.turn.let), None)
    if holder is None:
        return DesiredTurn()
    if party.pending is not None:
        return DesiredTurn(holder, recall=party.alone or table.ends(party))
    if not party.known:  # nobody else has a turn before it is known what it needs
        return DesiredTurn(holder)
    if not party.alone:
        not_before_s = party.turn.begun_s + max(GANG_TURN_S, least_turn_s)
        return DesiredTurn(holder, recall=table.ends(party), not_before_s=not_before_s)
    return _handed_on(table, place, party, holder, least_turn_s)


def _handed_on(
    table: SharingState, place: NodeLane, party: SharedRun, holder: LaneClientId, least_turn_s: float
) -> DesiredTurn:
    ahead = table.boards[place.device].ahead(party.job_id, party.turn.begun_s)
    if ahead is None:
        return DesiredTurn(holder, recall=table.is_due(place))
    heir = table.parties[ahead.job_id]
    if not heir.alone or not heir.known or heir.pending is not None:
        return DesiredTurn(holder, recall=True)
    (after,) = heir.whos_on(place.device)
    return DesiredTurn(holder, after, turn_s=max(ahead.lead_s, least_turn_s))


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """
    A process that has the token of a lane.

    Attributes
    ----------
    who : LaneClientId
    unexpected : bool
        Whether it has the token in another's place: it is to give it back.
    turn_of : SharedRun or None
        The run whose turn goes on until an unexpected holder gives the token back: it had the token before.
    """

    who: LaneClientId
    unexpected: bool = False
    turn_of: SharedRun | None = None


class TokenTracker:
    """
    Who has the tokens of a node's lanes, as the pages have told it.

    Attributes
    ----------
    holders : dict of NodeLane to TokenHolder
        Without lanes whose token the broker has.
    """

    def __init__(self, table: SharingState) -> None:
        self.holders: dict[NodeLane, TokenHolder] = {}
        self._table = table

    def unexpected(self, place: NodeLane) -> LaneClientId | None:
        """Return the process that has a lane's token in another's place."""
        holder = self.holders.get(place)
        return holder.who if holder is not None and holder.unexpected else None

    def passed(self, place: NodeLane, giver: LaneClientId | None, taker: LaneClientId | None) -> None:
        """Note that the token of a lane went from one process to another; None is the broker."""
        self._table.orders.touched.add(place)
        before = self.holders.pop(place, None)
        if taker is not None:
            self.holders[place] = TokenHolder(taker)
        if before is not None and before.unexpected and before.who == giver:
            self._end_in_place_of(place, before)
            giver = None
        if giver is not None and taker is not None:
            if not self._hands_on(place, giver, taker):
                self._expect(place, giver, taker)
        elif giver is not None:
            self._gave(place, giver)
        elif taker is not None:
            self._has(place, taker)

    def held(self, party: SharedRun, rank: int) -> list[NodeLane]:
        """Return the lanes whose token a process has; with several devices it takes and gives them one by one."""
        who, slots = party.who(rank), party.seats_of(rank)
        return [place for place in slots if (holder := self.holders.get(place)) is not None and holder.who == who]

    def is_taking(self, party: SharedRun, rank: int) -> bool:
        """
        Return whether a process is taking the tokens of its devices, one after the other, for its present turn.

        It is not if it has given the token of its first device back: the others follow.
        """
        if rank not in party.turn.let or len(party.sharer.ranks[rank]) == 1:
            return False
        held = self.held(party, rank)
        return not held or min(place.device for place in held) == min(party.sharer.ranks[rank])

    def is_clear(self, party: SharedRun) -> bool:
        """Return whether no unexpected holder has a token of the run's devices, so that its turn can begin."""
        return not any(self.unexpected(place) for place in party.places) or any(
            self.held(party, rank) for rank in party.turn.let
        )

    def home(self, giver: LaneClientId) -> None:
        """Note that a process gave a token back or is gone; the turn ends when no process of its run has one."""
        party = self._table.party(giver)
        if party is None or giver.rank not in party.turn.let or self.held(party, giver.rank):
            return
        party.turn.let.discard(giver.rank)
        if not party.turn.let and self._table.in_turn(party):
            self._table.end(party)

    def forget(self, job_id: str) -> None:
        """Drop a run that is over: tokens that it had in another's place are back, even if the page says so later."""
        for place, holder in list(self.holders.items()):
            if holder.unexpected and holder.who.job_id == job_id:
                self.holders[place] = TokenHolder(holder.who)
                self._end_in_place_of(place, holder)

    def _gave(self, place: NodeLane, giver: LaneClientId) -> None:
        party = self._table.party(giver)
        if party is not None and place in party.seats_of(giver.rank):  # else it is named elsewhere by now
            self.home(giver)

    def _hands_on(self, place: NodeLane, giver: LaneClientId, taker: LaneClientId) -> bool:
        """Note that a turn was handed straight on; return False if the device's lanes do not allow it."""
        table = self._table
        party, heir = table.holder(place), table.party(taker)
        if party is None or heir is None or party is not table.party(giver) or party.pending is not None:
            return False
        if not (party.alone and heir.alone and heir.lanes.get(place.device) == place.lane):
            return False
        party.turn = RunTurn()
        told = table.gangs.passed(giver.job_id, taker.job_id, table.now_s)
        table.begin(heir)
        table.let(heir, {taker.rank})
        table.digest(told)
        return True

    def _expect(self, place: NodeLane, giver: LaneClientId, taker: LaneClientId) -> None:
        """Note whether the process that a turn was handed to is one that the device's lanes are just choosing."""
        run = self._table.holder(place)
        if run is None or run is not self._table.party(taker) or taker.rank not in run.turn.let:
            turn_of = run if run is self._table.party(giver) else None
            self.holders[place] = TokenHolder(taker, unexpected=True, turn_of=turn_of)

    def _has(self, place: NodeLane, taker: LaneClientId) -> None:
        """Note that a process has the token: as expected, or in another's place because a page named it before."""
        party = self._table.party(taker)
        if party is not None and taker.rank in party.turn.let:
            return
        holder = self._table.holder(place)
        if holder is not None and holder.alone and self._hands_on(place, holder.whos_on(place.device)[0], taker):
            holder.asking |= holder.joined
            self._table.want(holder)
        else:
            self.holders[place] = TokenHolder(taker, unexpected=True)

    def _end_in_place_of(self, place: NodeLane, holder: TokenHolder) -> None:
        """
        End the turn in whose place an unexpected holder had the token, which it has given back.

        The turn ends only if it is still the same run's: that run may have left meanwhile, and another's turn, whose
        process has not had the token yet, may have begun.
        """
        party = self._table.holder(place)
        if party is not None and party is holder.turn_of and party.alone and self._table.in_turn(party):
            self._table.end(party)
