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
    NodeChange,
    TurnGranted,
)
from penstock_sharing.token.protocol import LaneClientId

LEAVING_S: Final = 10.0
"""For how long a gang that is to stop keeps the turn in which it was asked to, if it does not leave."""


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
    lanes_of : dict of int to DeviceLanes
    gangs : LaneGangs
    shared_runs : dict of str to SharedRun
        Job → its run.
    commands : SharingCommands
        Commands that nobody has taken yet.
    awaited : set of LaneClientId
        Processes of an earlier executor that have not come back: no other run asks for a turn on their devices.
    now_s : float
        Time of the event that is being handled.
    """

    def __init__(self, node_id: str, devices: Sequence[Device], rules: LaneRules, reserve: float) -> None:
        self.node_id = node_id
        self.lanes_of = {}
        for device in devices:
            self.lanes_of[device.index] = DeviceLanes(device.memory_bytes, int(reserve * device.memory_bytes), rules)
        self._on_host = {device.index for device in devices if CAPABILITIES[device.backend].host_memory}
        self.gangs = LaneGangs(self.lanes_of)
        self.shared_runs: dict[str, SharedRun] = {}
        self.commands = SharingCommands()
        self.awaited: set[LaneClientId] = set()
        self.now_s = 0.0
        self._caps: dict[Key, dict[int, int]] = {}

    def shared_run(self, who: LaneClientId | None) -> SharedRun | None:
        """Return the run of a process; None if the run is not here."""
        run = self.shared_runs.get(who.job_id) if who is not None else None
        return run if run is not None and who is not None and run.request.epoch == who.epoch else None

    def view(self, place: NodeLane) -> LaneView | None:
        """Return a lane as its device's lanes have it; None if it has closed."""
        return next((view for view in self.lanes_of[place.device].lanes if view.lane == place.lane), None)

    def holder(self, place: NodeLane) -> SharedRun | None:
        """Return the run that has the turn in a lane, as its device's lanes have it."""
        view = self.view(place)
        return self.shared_runs.get(view.holder) if view is not None and view.holder is not None else None

    def touch(self, run: SharedRun) -> None:
        """Mark the lanes of a run: what their pages should say may have changed."""
        self.commands.touched.update(run.places)

    def touch_devices(self, devices: Iterable[int]) -> None:
        """Mark all lanes of some devices."""
        self.commands.touched.update(NodeLane(i, view.lane) for i in devices for view in self.lanes_of[i].lanes)

    def in_turn(self, run: SharedRun) -> bool:
        """Return whether a run has its turn on all of its devices."""
        return run.job_id in self.gangs and self.gangs.has_turn(run.job_id)

    def let(self, run: SharedRun, ranks: set[int]) -> None:
        """Let processes of a run have their tokens, in the run's present turn."""
        run.turn.let |= ranks
        run.asking -= ranks
        self.touch(run)

    def begin(self, run: SharedRun) -> None:
        """Begin a run's turn."""
        run.turn = RunTurn(self.now_s)
        self.touch(run)

    def end(self, run: SharedRun) -> None:
        """End a run's turn on all of its devices: whatever waited for this boundary happens."""
        run.turn = RunTurn()
        self.touch(run)
        needs, run.pending = run.pending_needs(), None
        wants = run.all_ask and not self.is_blocked(run)
        self.carry_out(self.gangs.boundary(run.job_id, self.now_s, needs=needs, wants=wants))

    def ends(self, run: SharedRun) -> bool:
        """Return whether a gang has to give its turn back because something waits for the turn's end."""
        if run.is_gang and run.hurried_s is not None and self.now_s < run.hurried_s + LEAVING_S:
            return False
        return run.pending is not None or any(self.is_due(place) for place in run.places)

    def is_due(self, place: NodeLane) -> bool:
        """Return whether something waits for the end of the turn in a lane."""
        view = self.view(place)
        return view is not None and view.due

    def want(self, run: SharedRun) -> None:
        """Ask for a run's turn, if all of its processes wait for one and no process has to come back first."""
        if run.all_ask and not self.in_turn(run) and run.job_id in self.gangs and not self.is_blocked(run):
            self.touch(run)
            self.carry_out(self.gangs.want(run.job_id, self.now_s))

    def is_blocked(self, run: SharedRun) -> bool:
        """Return whether processes of other runs, perhaps in an iteration, have to come back to a run's devices."""
        others = (other for who in self.awaited if (other := self.shared_run(who)) is not None and other is not run)
        return any(not set(other.request.devices).isdisjoint(run.request.devices) for other in others)

    def returned(self, who: LaneClientId) -> None:
        """Wait no longer for a process: runs that it blocked ask now, first those with processes in an iteration."""
        if who not in self.awaited:
            return
        self.awaited.discard(who)
        for run in sorted(self.shared_runs.values(), key=lambda run: not run.outside):
            self.want(run)

    def rest(self, run: SharedRun) -> None:
        """Withdraw a run's request for a turn: no process is here to take it, and others do not wait for it."""
        if not run.joined and run.job_id in self.gangs and not self.in_turn(run):
            self.touch(run)
            self.carry_out(self.gangs.rest(run.job_id, self.now_s))
            self.touch_devices(run.lanes)

    def evict(self, run: SharedRun, reason: str, *, at_once: bool) -> None:
        """Make a run leave: it is saved and stopped, or ended at once."""
        if run.progress.at != "leaving":
            self.warn(run, f"{reason}; it has to leave the device")
        self._set_progress(run.job_id, SharingProgress("leaving", reason))
        if at_once:
            self.commands.ended[run.request.key] = f"{reason}, and was ended"

    def drop(self, run: SharedRun) -> None:
        """Drop a run that holds nothing any more."""
        self.touch(run)
        changes = self.gangs.finish(run.job_id, self.now_s) if run.job_id in self.gangs else []
        del self.shared_runs[run.job_id]
        self._caps.pop(run.request.key, None)
        self.commands.caps.pop(run.request.key, None)
        self.carry_out(changes)

    def carry_out(self, changes: list[NodeChange]) -> None:
        """Carry out, in order, what the lanes of the devices say."""
        for one in changes:
            match one:
                case DeviceChange(device, change):
                    self._on(device, change)
                case GangComplete(job_id):
                    self._set_progress(job_id, SharingProgress("in"))
                case GangTurn(job_id):
                    self._turn(self.shared_runs[job_id])
                case _:
                    assert_never(one)
        if any(isinstance(one, DeviceChange) and not isinstance(one.change, TurnGranted) for one in changes):
            self._note_caps()

    def report_lane(
        self, run: SharedRun, place: NodeLane, change: Literal["entered", "moved", "parked", "left"], reason: str
    ) -> None:
        """Report to the log that a run's lane has changed; lane -1 means none."""
        fact = LaneChanged(
            job_id=run.request.job_id,
            epoch=run.request.epoch,
            node_id=self.node_id,
            device=place.device,
            lane=place.lane,
            change=change,
            reason=reason,
            at_s=self.now_s,
        )
        self.commands.facts.append(fact)

    def warn(self, run: SharedRun, warning: str) -> None:
        """Report a warning about a run to the log."""
        request = run.request
        fact = RunWarned(
            job_id=request.job_id, epoch=request.epoch, node_id=self.node_id, warning=warning, at_s=self.now_s
        )
        self.commands.facts.append(fact)

    def _turn(self, run: SharedRun) -> None:
        self.begin(run)
        self.let(run, set(run.asking))
        if not run.turn.let:  # whoever asked is gone
            self.end(run)

    def _on(self, device: int, change: Change) -> None:
        match change:
            case LaneOpened(lane):
                self.commands.opened.append(NodeLane(device, lane))
            case LaneClosed(lane):
                self.commands.closed.append(NodeLane(device, lane))
            case TurnGranted(_, lane) | LaneResized(lane):
                self.commands.touched.add(NodeLane(device, lane))
            case LaneEntered() | MemberMoved() | MemberUnparked():
                self._come(device, change)
            case MemberParked(job_id, reason):
                self._take_out(self.shared_runs[job_id], device, "parked", reason)
            case MemberEvicted(job_id, reason):
                self._take_out(self.shared_runs[job_id], device, "left", reason)
                self._set_progress(job_id, SharingProgress("leaving", reason))
            case MemberWaits(job_id, reason):
                self._set_progress(job_id, SharingProgress("waits", reason))
            case LaneRefused(job_id, reason):
                self._set_progress(job_id, SharingProgress("refused", reason))
            case _:
                assert_never(change)

    def _come(self, device: int, change: LaneEntered | MemberMoved | MemberUnparked) -> None:
        """Note that a run is in a lane, or in another one than before."""
        run, place = self.shared_runs[change.job_id], NodeLane(device, change.lane)
        self.touch(run)
        run.lanes[device] = run.slot_lanes[device] = change.lane
        self.touch(run)
        match change:
            case LaneEntered():
                self.report_lane(run, place, "entered", "the executor was restarted" * run.request.adopted)
            case MemberMoved():
                self.report_lane(run, place, "moved", "")
            case MemberUnparked():
                self.report_lane(run, place, "entered", "there is memory for its iterations again")
        for who in run.whos_on(device):
            if who.rank in run.joined:
                self.commands.slot_assignments[who] = run.slots_of(who.rank)

    def _take_out(self, run: SharedRun, device: int, change: Literal["parked", "left"], reason: str) -> None:
        self.touch(run)
        run.lanes.pop(device, None)
        self.report_lane(run, NodeLane(device, -1), change, reason)

    def _set_progress(self, job_id: str, progress: SharingProgress) -> None:
        if job_id in self.shared_runs and self.shared_runs[job_id].progress.at != "leaving":
            self.shared_runs[job_id].progress = progress
            self.commands.woken = True

    def _note_caps(self) -> None:
        for run in self.shared_runs.values():
            caps = {
                device: self._cap_bytes(run.job_id, device)
                for device in run.slot_lanes
                if run.job_id in self.lanes_of[device]
            }
            if caps and caps != self._caps.get(run.request.key):
                self._caps[run.request.key] = self.commands.caps[run.request.key] = caps

    def _cap_bytes(self, job_id: str, device: int) -> int:
        """
        Return what a run may hold of a device; if the cap can shrink later, with a part of what nobody needs.

        So a run that turns out to need more does not end: it is measured, and gets another lane if there is room.
        """
        on_device = self.lanes_of[device]
        spare_bytes = max(0, on_device.free_bytes) // max(1, len(on_device.lanes)) if device in self._on_host else 0
        return on_device.cap_bytes(job_id) + spare_bytes


GANG_TURN_S: Final = 0.015
"""The shortest turn of a gang: its turns go through the executor, which takes some 300 microseconds, 2 % of this."""


def desired_turn(state: SharingState, place: NodeLane, least_turn_s: float) -> DesiredTurn:
    """
    Return what a lane's page should say now, by the lanes of its device and the runs in it.

    A run of one process on one device hands its turn straight on to the next run. All other turns return to the token
    broker first: those of gangs, those after which a lane changes, and those of runs that need something else now.

    Parameters
    ----------
    least_turn_s : float
        The shortest turn, such that handing over costs little of it.
    """
    run = state.holder(place)
    if run is None or not state.in_turn(run):
        return DesiredTurn()
    holder = next((who for who in run.whos_on(place.device) if who.rank in run.turn.let), None)
    if holder is None:
        return DesiredTurn()
    if run.pending is not None:
        return DesiredTurn(holder, recall=run.alone or state.ends(run))
    if not run.known:  # nobody else has a turn before it is known what it needs
        return DesiredTurn(holder)
    if not run.alone:
        not_before_s = run.turn.begun_s + max(GANG_TURN_S, least_turn_s)
        return DesiredTurn(holder, recall=state.ends(run), not_before_s=not_before_s)
    return _handed_on(state, place, run, holder, least_turn_s)


def _handed_on(
    state: SharingState, place: NodeLane, run: SharedRun, holder: LaneClientId, least_turn_s: float
) -> DesiredTurn:
    ahead = state.lanes_of[place.device].ahead(run.job_id, run.turn.begun_s)
    if ahead is None:
        return DesiredTurn(holder, recall=state.is_due(place))
    successor = state.shared_runs[ahead.job_id]
    if not successor.alone or not successor.known or successor.pending is not None:
        return DesiredTurn(holder, recall=True)
    (after,) = successor.whos_on(place.device)
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
    Who has the tokens of a node's lanes, by the events of their pages.

    Attributes
    ----------
    holders : dict of NodeLane to TokenHolder
        Without lanes whose token the broker has.
    """

    def __init__(self, state: SharingState) -> None:
        self.holders: dict[NodeLane, TokenHolder] = {}
        self._state = state

    def unexpected(self, place: NodeLane) -> LaneClientId | None:
        """Return the process that has a lane's token in another's place."""
        holder = self.holders.get(place)
        return holder.who if holder is not None and holder.unexpected else None

    def passed(self, place: NodeLane, giver: LaneClientId | None, taker: LaneClientId | None) -> None:
        """Note that the token of a lane went from one process to another; None is the broker."""
        self._state.commands.touched.add(place)
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

    def held(self, run: SharedRun, rank: int) -> list[NodeLane]:
        """Return the lanes whose token a process has; with several devices it takes and gives them one by one."""
        who, slots = run.who(rank), run.slots_of(rank)
        return [place for place in slots if (holder := self.holders.get(place)) is not None and holder.who == who]

    def is_taking(self, run: SharedRun, rank: int) -> bool:
        """
        Return whether a process is taking the tokens of its devices, one after the other, for its present turn.

        It is not if it has given the token of its first device back: the others follow.
        """
        if rank not in run.turn.let or len(run.request.ranks[rank]) == 1:
            return False
        held = self.held(run, rank)
        return not held or min(place.device for place in held) == min(run.request.ranks[rank])

    def is_clear(self, run: SharedRun) -> bool:
        """Return whether no unexpected holder has a token of the run's devices, so that its turn can begin."""
        return not any(self.unexpected(place) for place in run.places) or any(
            self.held(run, rank) for rank in run.turn.let
        )

    def note_return(self, giver: LaneClientId) -> None:
        """Note that a process gave a token back or is gone; the turn ends when no process of its run has one."""
        run = self._state.shared_run(giver)
        if run is None or giver.rank not in run.turn.let or self.held(run, giver.rank):
            return
        run.turn.let.discard(giver.rank)
        if not run.turn.let and self._state.in_turn(run):
            self._state.end(run)

    def forget(self, job_id: str) -> None:
        """Drop a run that is over: tokens that it had in another's place are back, even if the page says so later."""
        for place, holder in list(self.holders.items()):
            if holder.unexpected and holder.who.job_id == job_id:
                self.holders[place] = TokenHolder(holder.who)
                self._end_in_place_of(place, holder)

    def _gave(self, place: NodeLane, giver: LaneClientId) -> None:
        run = self._state.shared_run(giver)
        if run is not None and place in run.slots_of(giver.rank):  # else it is named elsewhere by now
            self.note_return(giver)

    def _hands_on(self, place: NodeLane, giver: LaneClientId, taker: LaneClientId) -> bool:
        """Note that a turn was handed straight on; return False if the device's lanes do not allow it."""
        state = self._state
        run, successor = state.holder(place), state.shared_run(taker)
        if run is None or successor is None or run is not state.shared_run(giver) or run.pending is not None:
            return False
        if not (run.alone and successor.alone and successor.lanes.get(place.device) == place.lane):
            return False
        run.turn = RunTurn()
        changes = state.gangs.passed(giver.job_id, taker.job_id, state.now_s)
        state.begin(successor)
        state.let(successor, {taker.rank})
        state.carry_out(changes)
        return True

    def _expect(self, place: NodeLane, giver: LaneClientId, taker: LaneClientId) -> None:
        """Note whether the process that a turn was handed to is one that the device's lanes are just choosing."""
        run = self._state.holder(place)
        if run is None or run is not self._state.shared_run(taker) or taker.rank not in run.turn.let:
            turn_of = run if run is self._state.shared_run(giver) else None
            self.holders[place] = TokenHolder(taker, unexpected=True, turn_of=turn_of)

    def _has(self, place: NodeLane, taker: LaneClientId) -> None:
        """Note that a process has the token: as expected, or in another's place because a page named it before."""
        run = self._state.shared_run(taker)
        if run is not None and taker.rank in run.turn.let:
            return
        holder = self._state.holder(place)
        if holder is not None and holder.alone and self._hands_on(place, holder.whos_on(place.device)[0], taker):
            holder.asking |= holder.joined
            self._state.want(holder)
        else:
            self.holders[place] = TokenHolder(taker, unexpected=True)

    def _end_in_place_of(self, place: NodeLane, holder: TokenHolder) -> None:
        """
        End the turn in whose place an unexpected holder had the token, which it has given back.

        The turn ends only if it is still the same run's: that run may have left meanwhile, and another's turn, whose
        process has not had the token yet, may have begun.
        """
        run = self._state.holder(place)
        if run is not None and run is holder.turn_of and run.alone and self._state.in_turn(run):
            self._state.end(run)
