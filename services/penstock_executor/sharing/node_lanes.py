"""
The lanes of the node's devices: who shares what, whose turn it is, and what has to be done about it.

Pure: no page, no process, no clock. What happens goes in (a run arrives, a process asks, a token passes). What has to
be done comes out as :class:`~penstock_executor.sharing.shared_run.SharingCommands`, and as a
:class:`~penstock_executor.sharing.shared_run.DesiredTurn` for each lane. Each thing is known in one place: who has a
token, by the pages (:class:`~penstock_executor.sharing.sharing_state.TokenTracker`); whose turn it is, by
:class:`penstock_sharing.lanes.LaneGangs`; who waits, by what the processes said
(:class:`~penstock_executor.sharing.shared_run.SharedRun`). :class:`NodeNeeds` says when the lanes of a device hear what
a run turned out to need.

A gang's turn::

              all ask who are not outside, and              the devices' lanes give it
              nobody else is to come back                   all of its devices
    +------+ ---------------------------------> +--------+ -------------------> +----------------------------+
    | idle |                                    | wanted |                      | on: who asks has its token |
    +------+ <--------------------------------- +--------+                      +----------------------------+
       ^           nobody is here any more                                 something is due |      ^ nothing is
       |                                                                                    v      | any more
       |    the last token has come home    +------------------------------------------------------------+
       +----------------------------------- | ending: tokens are recalled; who asks has one only if it is |
                                            | behind one that is in an iteration, and may wait for it     |
                                            +------------------------------------------------------------+

*Outside* is a process that may be in an iteration without a turn here: the iteration began under an earlier executor,
or the token was taken from the process in it. If the process waits there for others of its gang, it comes back only
when these have a turn. So the others do not wait for it; and while it may come back, no other run asks for a turn on
its device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from penstock_executor.run_state import Key, SharingProgress
from penstock_executor.sharing import sharing_state
from penstock_executor.sharing.shared_run import (
    DesiredTurn,
    MemoryMeter,
    NodeLane,
    SharedRun,
    ShareRequest,
    SharingCommands,
)
from penstock_executor.sharing.sharing_state import SharingState, TokenTracker
from penstock_log import Device, MemoryNeed, RunMeasured
from penstock_sharing.lanes import LaneRules, MemoryReading, differs
from penstock_sharing.token.protocol import LaneClientId

MOST_CORRUPTIONS: Final = 3
"""How often a lane's page may be spoilt before whoever does it is not asked any more, but ended."""


class NodeLanes:
    """
    The lanes of one node.

    Parameters
    ----------
    node_id : str
    devices : sequence of Device
    rules : LaneRules
    reserve : float
        Share of each device's memory that is left alone.
    least_turn_s : float
        The shortest turn, such that handing over costs little of it.

    Attributes
    ----------
    state : SharingState
    tokens : TokenTracker
    needs : NodeNeeds
    corruptions : Counter of NodeLane
        Lane → how often a process has written on its page what it must not.
    """

    def __init__(
        self, node_id: str, devices: Sequence[Device], rules: LaneRules, reserve: float = 0.0, least_turn_s: float = 0.0
    ) -> None:
        self.state = SharingState(node_id, devices, rules, reserve)
        self._least_turn_s = least_turn_s
        self.tokens = TokenTracker(self.state)
        self.needs = NodeNeeds(self.state)
        self.corruptions: Counter[NodeLane] = Counter()

    # --- runs
    @property
    def progress(self) -> dict[Key, SharingProgress]:
        """Run → how far it has come."""
        return {run.request.key: run.progress for run in self.state.shared_runs.values()}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.state.shared_runs

    def arrive(self, request: ShareRequest, now_s: float) -> None:
        """Add a run that shares its devices; an unknown need counts as all the memory that is left."""
        state = self._at(now_s)
        state.shared_runs[request.job_id] = SharedRun(
            request,
            MemoryMeter(request.need),
            known=request.need is not None,
            outside=set(request.ranks) if request.adopted else set(),
        )
        needs = {device: request.need or self.needs.rest_of(device) for device in request.devices}
        changes = state.gangs.arrive(
            request.job_id,
            needs,
            now_s,
            service_s=request.service_s,
            remaining_s=request.remaining_s,
            priority=request.priority,
        )
        state.carry_out(changes)

    def leave(self, job_id: str, now_s: float, reason: str) -> None:
        """Remove a run whose processes are all gone, or that will never have any."""
        state = self._at(now_s)
        run = state.shared_runs[job_id]
        for device in run.lanes:
            state.report_lane(run, NodeLane(device, -1), "left", reason)
        self.tokens.forget(job_id)
        for who in [who for who in state.awaited if state.shared_run(who) is run]:
            state.returned(who)
        state.drop(run)

    def see(self, who: LaneClientId, sample: MemoryReading, iterations: int, now_s: float) -> None:
        """A process says what it holds after so many iterations."""
        run = self._at(now_s).shared_run(who)
        if run is not None and run.progress.at == "in":
            self.needs.see(run, who.rank, sample, iterations)

    def hurry(self, job_id: str) -> None:
        """Let a run stop at its next boundary: it gets the turns that this takes before all other runs."""
        run = self.state.shared_runs.get(job_id)
        if run is not None and job_id in self.state.gangs:
            self.state.gangs.hurry(job_id)
            run.hurried_s = self.state.now_s
            self.state.touch(run)

    # --- processes and their tokens
    def join(self, who: LaneClientId, now_s: float) -> bool:
        """Note that a process is here and asks for its slots; return False if there are none for it."""
        state = self._at(now_s)
        run = state.shared_run(who)
        if run is None or who.rank not in run.request.ranks or not run.slot_lanes:
            return False
        run.joined.add(who.rank)
        state.commands.slot_assignments[who] = run.slots_of(who.rank)
        return True

    def await_return(self, whos: Sequence[LaneClientId]) -> None:
        """Let no other run ask for turns on the devices of an earlier executor's processes before these are back."""
        self.state.awaited.update(whos)

    def give_up(self, who: LaneClientId, now_s: float) -> None:
        """Wait no longer for a process to come back."""
        self._at(now_s).returned(who)

    def asks(self, who: LaneClientId, now_s: float, begun: Mapping[int, int] | None = None) -> None:
        """
        Note that a process waits for a turn.

        Parameters
        ----------
        begun : mapping of int to int
            Rank → iterations that it has begun, of a gang's processes here.
        """
        state = self._at(now_s)
        run = state.shared_run(who)
        if run is None:
            return
        run.outside.discard(who.rank)
        if not self.tokens.is_taking(run, who.rank):
            run.asking.add(who.rank)
        state.returned(who)
        self.needs.go_on(run)
        if state.in_turn(run):
            self._catch_up(run, begun or {})
        else:
            state.want(run)

    def look_after(self, job_id: str, begun: Mapping[int, int], now_s: float) -> None:
        """Check whether a process of a gang waits in an iteration for one that waits for its token."""
        state, run = self._at(now_s), self.state.shared_runs[job_id]
        state.touch(run)
        if not state.in_turn(run):
            state.want(run)
            return
        self._catch_up(run, begun)
        let, waiting = run.turn.let, run.asking - run.turn.let
        if waiting and run.turn.idle.again((dict(begun), waiting, set(let))):  # counts tell nothing, nobody gets on
            state.let(run, waiting)

    def passed(self, place: NodeLane, giver: LaneClientId | None, taker: LaneClientId | None, now_s: float) -> None:
        """Note that the token of a lane went from one process to another; None is the broker."""
        self._at(now_s)
        self.tokens.passed(place, giver, taker)

    def renew(self, place: NodeLane, by: LaneClientId | None, now_s: float) -> list[LaneClientId]:
        """
        Note that a lane has another page, because a process has written what it must not on the old one.

        The run that did it has to leave. If it is not known, all members of the lane leave once it has happened often:
        then at once.

        Returns
        -------
        list of LaneClientId
            The members of the lane: they may be in an iteration, and others wait for them.
        """
        state = self._at(now_s)
        self.corruptions[place] += 1
        often = self.corruptions[place] > MOST_CORRUPTIONS
        shared_runs = [run for run in state.shared_runs.values() if run.slot_lanes.get(place.device) == place.lane]
        for run in shared_runs:
            if state.shared_run(by) is run or (by is None and often):
                state.evict(run, "it has written what it must not on the page of its lane", at_once=often)
        whos = [who for run in shared_runs for who in run.whos_on(place.device) if who.rank in run.joined]
        for who in whos:
            run = state.shared_runs[who.job_id]
            run.outside.add(who.rank)
            run.asking.discard(who.rank)
            state.commands.slot_assignments[who] = run.slots_of(who.rank)
        state.commands.touched.add(place)
        return whos

    def stopped(self, who: LaneClientId, now_s: float) -> None:
        """Note that a process lost the token in the middle of a turn: all that it may hold counts as kept."""
        run = self._at(now_s).shared_run(who)
        if run is not None:
            run.outside.add(who.rank)
            self.needs.stop(run)

    def gone(self, who: LaneClientId, now_s: float) -> None:
        """Note that a process takes part no more; what it holds counts until its run leaves."""
        state = self._at(now_s)
        run = state.shared_run(who)
        if run is None:
            return
        for ranks in (run.joined, run.asking, run.outside):
            ranks.discard(who.rank)
        state.returned(who)
        self.tokens.note_return(who)
        state.want(run)
        state.rest(run)

    def gained(self, device: int, lanes: int, ratio: float, now_s: float) -> None:
        """Note that ``lanes`` lanes of a device side by side have ``ratio`` times the throughput of one fewer."""
        state = self._at(now_s)
        state.carry_out(state.gangs.gained(device, lanes, ratio, now_s))
        state.touch_devices([device])

    # --- what is to be done
    def waiting(self, place: NodeLane) -> int:
        """Return how many runs of a lane wait for their turn."""
        members = [run for run in self.state.shared_runs.values() if run.lanes.get(place.device) == place.lane]
        return sum(bool(run.asking) and not self.state.in_turn(run) for run in members)

    def desired_turn(self, place: NodeLane) -> DesiredTurn:
        """Return what the page of a lane should say now."""
        unexpected, holder = self.tokens.unexpected(place), self.state.holder(place)
        if unexpected is not None:
            return DesiredTurn(unexpected, recall=True)
        if holder is not None and not holder.alone and not self.tokens.is_clear(holder):
            return DesiredTurn()  # its turn begins on all of its devices together
        return sharing_state.desired_turn(self.state, place, self._least_turn_s)

    def take(self) -> SharingCommands:
        """Return the commands, once; a command to a gang on one device counts for all of its devices."""
        commands, self.state.commands = self.state.commands, SharingCommands()
        for place in commands.closed:
            self.corruptions.pop(place, None)
        holders = [holder for place in commands.touched if (holder := self.state.holder(place)) is not None]
        commands.touched.update(place for holder in holders for place in holder.places)
        return commands

    def _catch_up(self, run: SharedRun, begun: Mapping[int, int]) -> None:
        """
        Let the processes of a gang that ask in its turn have their tokens: all, or while the turn ends, those behind.

        A process is behind if it has begun fewer iterations than one that is still in its turn and may wait for it. A
        process that goes on begins another iteration, and those that had done as many as it had wait for that one.
        """
        waiting, turn = run.asking - run.turn.let, run.turn
        if not self.state.ends(run):
            self.state.let(run, waiting)
            return
        for rank in sorted(waiting, key=lambda rank: begun.get(rank, 0)):
            if begun.get(rank, 0) < max(turn.reach, *(begun.get(other, 0) for other in turn.let), 0):
                turn.reach = max(turn.reach, begun.get(rank, 0) + 1)
                self.state.let(run, {rank})

    def _at(self, now_s: float) -> SharingState:
        self.state.now_s = now_s
        return self.state


class NodeNeeds:
    """The needs of the runs that share."""

    def __init__(self, state: SharingState) -> None:
        self._state = state

    def see(self, run: SharedRun, rank: int, sample: MemoryReading, iterations: int) -> None:
        """A process says what it holds after so many iterations."""
        run.meter.see(rank, sample, iterations)
        self._tell(run)
        need = run.meter.need
        if need is None or run.stopped is not None:
            return
        known = run.pending or self._state.lanes_of[run.request.devices[0]].need(run.job_id)
        if not run.known or differs(known, need):
            self._take(run, need)

    def stop(self, run: SharedRun) -> None:
        """Note that a process was stopped in the middle of a turn: all that it may hold counts as kept."""
        if run.stopped is not None:
            return
        on_device = self._state.lanes_of[run.request.devices[0]]
        run.stopped = need = on_device.need(run.job_id)
        kept_bytes = on_device.cap_bytes(run.job_id) - need.framework_bytes
        self._state.warn(run, "it did not give its turn back, so that was taken; all that it may hold counts as kept")
        self._take(run, MemoryNeed(kept_bytes, need.framework_bytes, need.ephemeral_bytes))

    def go_on(self, run: SharedRun) -> None:
        """Note that a stopped run is between two iterations: it needs what it needed before."""
        if run.stopped is not None:
            need, run.stopped = run.stopped, None
            self._take(run, need)

    def framework_bytes(self, run: SharedRun) -> int:
        """Return the memory of a run that no allocator sees, as far as it is known: the most on any of its devices."""
        lanes_of = (self._state.lanes_of[device] for device in run.request.devices)
        return max(
            (on_device.need(run.job_id).framework_bytes for on_device in lanes_of if run.job_id in on_device), default=0
        )

    def rest_of(self, device: int) -> MemoryNeed:
        """Return the largest need that fits on a device beside what others keep."""
        on_device = self._state.lanes_of[device]
        lanes_bytes = sum(view.size_bytes for view in on_device.lanes)
        return MemoryNeed(0, 0, max(0, on_device.free_bytes + lanes_bytes))

    def _tell(self, run: SharedRun) -> None:
        need = run.meter.take_unreported()
        if need is None:
            return
        fact = RunMeasured(
            job_id=run.request.job_id,
            epoch=run.request.epoch,
            node_id=self._state.node_id,
            need=need,
            iterations=run.meter.iterations,
            at_s=self._state.now_s,
        )
        self._state.commands.facts.append(fact)

    def _take(self, run: SharedRun, need: MemoryNeed) -> None:
        """Count a need now, or at the end of a turn that is under way or has begun on some devices."""
        run.pending = need
        if self._state.gangs.holds(run.job_id):
            self._state.touch(run)
            return
        needs, run.pending = run.pending_needs() or {}, None
        self._state.carry_out(self._state.gangs.measured(run.job_id, needs, self._state.now_s))
