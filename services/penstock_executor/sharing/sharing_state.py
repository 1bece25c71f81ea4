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
from penstock_executor.sharing.shared_run import DesiredTurn, IdleLooks, NodeLane, SharedRun, SharingCommands
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
    Runs, boards, and what has to be done.

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
        By job.
    orders : SharingCommands
        What nobody has taken yet.
    awaited : set of LaneClientId
        Processes of an earlier executor that have not come back: nobody else asks for a turn on their devices.
    now_s : float
        Of what is being taken in.
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
        """Return the run of a process; None if it is not here."""
        party = self.parties.get(who.job_id) if who is not None else None
        return party if party is not None and who is not None and party.sharer.epoch == who.epoch else None

    def view(self, place: NodeLane) -> LaneView | None:
        """Return a lane as its board has it; None if it has closed."""
        return next((view for view in self.boards[place.device].lanes if view.lane == place.lane), None)

    def holder(self, place: NodeLane) -> SharedRun | None:
        """Return the run that has the turn in a lane, as its board has it."""
        view = self.view(place)
        return self.parties.get(view.holder) if view is not None and view.holder is not None else None

    def touch(self, party: SharedRun) -> None:
        """Have a look at the lanes of a run: what their pages should say may have changed."""
        self.orders.touched.update(party.places)

    def touch_devices(self, devices: Iterable[int]) -> None:
        """Have a look at all lanes of some devices."""
        self.orders.touched.update(NodeLane(i, view.lane) for i in devices for view in self.boards[i].lanes)

    def in_turn(self, party: SharedRun) -> bool:
        """Whether it is a run's turn on all of its devices."""
        return party.job_id in self.gangs and self.gangs.has_turn(party.job_id)

    def let(self, party: SharedRun, ranks: set[int]) -> None:
        """Let processes of a run have their tokens, in the turn that it has."""
        party.let |= ranks
        party.asking -= ranks
        self.touch(party)

    def begin(self, party: SharedRun) -> None:
        """A run's turn begins."""
        party.turn_s, party.reach, party.seen = self.now_s, 0, IdleLooks()
        party.let.clear()
        self.touch(party)

    def end(self, party: SharedRun) -> None:
        """A run's turn is over on all of its devices: whatever waited for this boundary happens."""
        party.let.clear()
        self.touch(party)
        needs, party.pending = party.pending_needs(), None
        wants = party.all_ask and not self.is_blocked(party)
        self.digest(self.gangs.boundary(party.job_id, self.now_s, needs=needs, wants=wants))

    def ends(self, party: SharedRun) -> bool:
        """Whether a gang that has its turn is to give it back: something waits for it to be over."""
        if party.is_gang and party.hurried_s is not None and self.now_s < party.hurried_s + LEAVING_S:
            return False
        return party.pending is not None or any(self.is_due(place) for place in party.places)

    def is_due(self, place: NodeLane) -> bool:
        """Whether something waits for the end of the turn in a lane."""
        view = self.view(place)
        return view is not None and view.due

    def want(self, party: SharedRun) -> None:
        """Ask for a run's turn, if all of its processes wait for one, and nobody is to come back first."""
        if party.all_ask and not self.in_turn(party) and party.job_id in self.gangs and not self.is_blocked(party):
            self.touch(party)
            self.digest(self.gangs.want(party.job_id, self.now_s))

    def is_blocked(self, party: SharedRun) -> bool:
        """Whether processes of other runs, which may be in an iteration there, are to come back to its devices."""
        others = (other for who in self.awaited if (other := self.party(who)) is not None and other is not party)
        return any(not set(other.sharer.devices).isdisjoint(party.sharer.devices) for other in others)

    def returned(self, who: LaneClientId) -> None:
        """Wait no longer for a process: those who were kept from asking ask now, first those who have some inside."""
        if who not in self.awaited:
            return
        self.awaited.discard(who)
        for party in sorted(self.parties.values(), key=lambda party: not party.outside):
            self.want(party)

    def rest(self, party: SharedRun) -> None:
        """Nobody is here who would take a run's turn: others do not wait for it."""
        if not party.joined and party.job_id in self.gangs and not self.in_turn(party):
            self.touch(party)
            self.digest(self.gangs.rest(party.job_id, self.now_s))
            self.touch_devices(party.lanes)

    def evict(self, party: SharedRun, reason: str, *, at_once: bool) -> None:
        """A run has to leave: it is to be saved and stopped, or ended at once."""
        if party.seat.at != "leaving":
            self.warn(party, f"{reason}; it has to leave the device")
        self._seat(party.job_id, SharingProgress("leaving", reason))
        if at_once:
            self.orders.ended[party.sharer.key] = f"{reason}, and was ended"

    def drop(self, party: SharedRun) -> None:
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

    def warn(self, party: SharedRun, warning: str) -> None:
        """Have something in the log that deserves attention."""
        sharer = party.sharer
        fact = RunWarned(
            job_id=sharer.job_id, epoch=sharer.epoch, node_id=self.node_id, warning=warning, at_s=self.now_s
        )
        self.orders.facts.append(fact)

    def _turn(self, party: SharedRun) -> None:
        self.begin(party)
        self.let(party, set(party.asking))
        if not party.let:  # whoever asked is gone
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
        """A run is in a lane, or in another one than before."""
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
        Return what a run may hold of a device; where that can be made less later, its part of what nobody needs too.

        So who turns out to need more is measured and gets another place, if others do not need it: it does not end.
        """
        board = self.boards[device]
        spare_bytes = max(0, board.free_bytes) // max(1, len(board.lanes)) if device in self._on_host else 0
        return board.cap_bytes(job_id) + spare_bytes


GANG_TURN_S: Final = 0.015
"""The shortest turn of a gang: its turns go through the executor, which takes some 300 microseconds, 2 % of this."""


def wish(table: SharingState, place: NodeLane, least_turn_s: float) -> DesiredTurn:
    """
    Return what a lane's page should say now, by its board and the runs in it.

    A run of one process on one device hands its turn on by itself, to whoever its board says is next. All else comes
    home first: the turns of gangs, turns after which a lane changes, and those of runs that have turned out to need
    something else.

    Parameters
    ----------
    least_turn_s : float
        The shortest turn, such that handing over costs little of it.
    """
    party = table.holder(place)
    if party is None or not table.in_turn(party):
        return DesiredTurn()
    holder = next((who for who in party.whos_on(place.device) if who.rank in party.let), None)
    if holder is None:
        return DesiredTurn()
    if party.pending is not None:
        return DesiredTurn(holder, recall=party.alone or table.ends(party))
    if not party.known:  # nobody else has a turn before it is known what it needs
        return DesiredTurn(holder)
    if not party.alone:
        return DesiredTurn(holder, recall=table.ends(party), not_before_s=party.turn_s + max(GANG_TURN_S, least_turn_s))
    return _handed_on(table, place, party, holder, least_turn_s)


def _handed_on(
    table: SharingState, place: NodeLane, party: SharedRun, holder: LaneClientId, least_turn_s: float
) -> DesiredTurn:
    ahead = table.boards[place.device].ahead(party.job_id, party.turn_s)
    if ahead is None:
        return DesiredTurn(holder, recall=table.is_due(place))
    heir = table.parties[ahead.job_id]
    if not heir.alone or not heir.known or heir.pending is not None:
        return DesiredTurn(holder, recall=True)
    (after,) = heir.whos_on(place.device)
    return DesiredTurn(holder, after, turn_s=max(ahead.lead_s, least_turn_s))


@dataclass(frozen=True, slots=True)
class UnexpectedHolder:
    """
    Somebody who has the token in another's place.

    Attributes
    ----------
    who : LaneClientId
    of : SharedRun or None
        Whose turn goes on, by the board, until it comes back: that one had the token before. None: nobody's.
    """

    who: LaneClientId
    of: SharedRun | None


class TokenTracker:
    """
    The tokens of a node's lanes.

    Attributes
    ----------
    tokens : dict of NodeLane to LaneClientId
        Who has the token of a lane; without those that the keeper has.
    strays : dict of NodeLane to UnexpectedHolder
    """

    def __init__(self, table: SharingState) -> None:
        self.tokens: dict[NodeLane, LaneClientId] = {}
        self.strays: dict[NodeLane, UnexpectedHolder] = {}
        self._table = table

    def passed(self, place: NodeLane, giver: LaneClientId | None, taker: LaneClientId | None) -> None:
        """The token of a lane went from one to another; None is the keeper."""
        self._table.orders.touched.add(place)
        self.tokens.pop(place, None)
        if taker is not None:
            self.tokens[place] = taker
        stray = self.strays.get(place)
        if giver is not None and stray is not None and stray.who == giver:
            self._stray_home(place, stray)
            giver = None
        if giver is not None and taker is not None:
            if not self._hands_on(place, giver, taker):
                self._stray(place, giver, taker)
        elif giver is not None:
            self._gave(place, giver)
        elif taker is not None:
            self._has(place, taker)

    def held(self, party: SharedRun, rank: int) -> list[NodeLane]:
        """Return the lanes whose token a process has: one on several devices takes and gives them one by one."""
        who = party.who(rank)
        return [place for place in party.seats_of(rank) if self.tokens.get(place) == who]

    def is_taking(self, party: SharedRun, rank: int) -> bool:
        """
        Whether a process asks for the lanes of its devices one after the other, for the turn that it has.

        Not so if it has given that of its first device back: that it has given the others will be heard after this.
        """
        if rank not in party.let or len(party.sharer.ranks[rank]) == 1:
            return False
        held = self.held(party, rank)
        return not held or min(place.device for place in held) == min(party.sharer.ranks[rank])

    def is_clear(self, party: SharedRun) -> bool:
        """Whether a run can begin its turn on all of its devices, or has: no stray has the token of one of them."""
        return not any(place in self.strays for place in party.places) or any(
            self.held(party, rank) for rank in party.let
        )

    def home(self, giver: LaneClientId) -> None:
        """A process has given a token back, or is gone: when the last of its run has none, the turn is over."""
        party = self._table.party(giver)
        if party is None or giver.rank not in party.let or self.held(party, giver.rank):
            return
        party.let.discard(giver.rank)
        if not party.let and self._table.in_turn(party):
            self._table.end(party)

    def forget(self, job_id: str) -> None:
        """A run is over: what it had in another's place has come home, though the page may tell so only later."""
        for place, stray in list(self.strays.items()):
            if stray.who.job_id == job_id:
                self._stray_home(place, stray)

    def _gave(self, place: NodeLane, giver: LaneClientId) -> None:
        party = self._table.party(giver)
        if party is not None and place in party.seats_of(giver.rank):  # else it is named elsewhere by now
            self.home(giver)

    def _hands_on(self, place: NodeLane, giver: LaneClientId, taker: LaneClientId) -> bool:
        """Take in that a turn was handed straight on; False where the board would not have it."""
        table = self._table
        party, heir = table.holder(place), table.party(taker)
        if party is None or heir is None or party is not table.party(giver) or party.pending is not None:
            return False
        if not (party.alone and heir.alone and heir.lanes.get(place.device) == place.lane):
            return False
        party.let.clear()
        told = table.gangs.passed(giver.job_id, taker.job_id, table.now_s)
        table.begin(heir)
        table.let(heir, {taker.rank})
        table.digest(told)
        return True

    def _stray(self, place: NodeLane, giver: LaneClientId, taker: LaneClientId) -> None:
        """A turn was handed to somebody whom the board would not have; or to whom it is giving it just now."""
        holder = self._table.holder(place)
        if holder is None or holder is not self._table.party(taker) or taker.rank not in holder.let:
            self.strays[place] = UnexpectedHolder(taker, of=holder if holder is self._table.party(giver) else None)

    def _has(self, place: NodeLane, taker: LaneClientId) -> None:
        """A process has the token: as it should; or in place of whoever should, since it was named before."""
        party = self._table.party(taker)
        if party is not None and taker.rank in party.let:
            return
        holder = self._table.holder(place)
        if holder is not None and holder.alone and self._hands_on(place, holder.whos_on(place.device)[0], taker):
            holder.asking |= holder.joined
            self._table.want(holder)
        else:
            self.strays[place] = UnexpectedHolder(taker, of=None)

    def _stray_home(self, place: NodeLane, stray: UnexpectedHolder) -> None:
        """
        Whoever had the token in somebody's place has given it back: now that one's turn is over, or begins.

        Only if it is that one's still: it may have left meanwhile, and another's, who has not had the token yet, begun.
        """
        del self.strays[place]
        party = self._table.holder(place)
        if party is not None and party is stray.of and party.alone and self._table.in_turn(party):
            self._table.end(party)
