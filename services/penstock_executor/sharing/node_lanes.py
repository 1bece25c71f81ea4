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

FORGIVEN: Final = 3
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
    table : SharingState
    passing : TokenTracker
    needs : NodeNeeds
    spoilt : Counter of NodeLane
        Lane → how often a process has written on its page what it must not.
    """

    def __init__(
        self, node_id: str, devices: Sequence[Device], rules: LaneRules, reserve: float = 0.0, least_turn_s: float = 0.0
    ) -> None:
        self.table = SharingState(node_id, devices, rules, reserve)
        self._least_turn_s = least_turn_s
        self.passing = TokenTracker(self.table)
        self.needs = NodeNeeds(self.table)
        self.spoilt: Counter[NodeLane] = Counter()

    # --- runs
    @property
    def seats(self) -> dict[Key, SharingProgress]:
        """Run → how far it has come."""
        return {party.sharer.key: party.seat for party in self.table.parties.values()}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.table.parties

    def arrive(self, sharer: ShareRequest, now_s: float) -> None:
        """Add a run that shares its devices; an unknown need counts as all the memory that is left."""
        table = self._at(now_s)
        table.parties[sharer.job_id] = SharedRun(
            sharer,
            MemoryMeter(sharer.need),
            known=sharer.need is not None,
            outside=set(sharer.ranks) if sharer.adopted else set(),
        )
        needs = {device: sharer.need or self.needs.rest_of(device) for device in sharer.devices}
        told = table.gangs.arrive(
            sharer.job_id,
            needs,
            now_s,
            service_s=sharer.service_s,
            remaining_s=sharer.remaining_s,
            priority=sharer.priority,
        )
        table.digest(told)

    def leave(self, job_id: str, now_s: float, reason: str) -> None:
        """Remove a run whose processes are all gone, or that will never have any."""
        table = self._at(now_s)
        party = table.parties[job_id]
        for device in party.lanes:
            table.say(party, NodeLane(device, -1), "left", reason)
        self.passing.forget(job_id)
        for who in [who for who in table.awaited if table.party(who) is party]:
            table.returned(who)
        table.drop(party)

    def see(self, who: LaneClientId, sample: MemoryReading, iterations: int, now_s: float) -> None:
        """A process says what it holds after so many iterations."""
        party = self._at(now_s).party(who)
        if party is not None and party.seat.at == "in":
            self.needs.see(party, who.rank, sample, iterations)

    def hurry(self, job_id: str) -> None:
        """Let a run stop at its next boundary: it gets the turns that this takes before all other runs."""
        party = self.table.parties.get(job_id)
        if party is not None and job_id in self.table.gangs:
            self.table.gangs.hurry(job_id)
            party.hurried_s = self.table.now_s
            self.table.touch(party)

    # --- processes and their tokens
    def join(self, who: LaneClientId, now_s: float) -> bool:
        """Note that a process is here and asks for its slots; return False if there are none for it."""
        table = self._at(now_s)
        party = table.party(who)
        if party is None or who.rank not in party.sharer.ranks or not party.sits:
            return False
        party.joined.add(who.rank)
        table.orders.seatings[who] = party.seats_of(who.rank)
        return True

    def await_return(self, whos: Sequence[LaneClientId]) -> None:
        """Let no other run ask for turns on the devices of an earlier executor's processes before these are back."""
        self.table.awaited.update(whos)

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
        table = self._at(now_s)
        party = table.party(who)
        if party is None:
            return
        party.outside.discard(who.rank)
        if not self.passing.is_taking(party, who.rank):
            party.asking.add(who.rank)
        table.returned(who)
        self.needs.go_on(party)
        if table.in_turn(party):
            self._catch_up(party, begun or {})
        else:
            table.want(party)

    def look_after(self, job_id: str, begun: Mapping[int, int], now_s: float) -> None:
        """Check whether a process of a gang waits in an iteration for one that waits for its token."""
        table, party = self._at(now_s), self.table.parties[job_id]
        table.touch(party)
        if not table.in_turn(party):
            table.want(party)
            return
        self._catch_up(party, begun)
        let, waiting = party.turn.let, party.asking - party.turn.let
        if waiting and party.turn.idle.again((dict(begun), waiting, set(let))):  # counts tell nothing, nobody gets on
            table.let(party, waiting)

    def passed(self, place: NodeLane, giver: LaneClientId | None, taker: LaneClientId | None, now_s: float) -> None:
        """Note that the token of a lane went from one process to another; None is the broker."""
        self._at(now_s)
        self.passing.passed(place, giver, taker)

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
        table = self._at(now_s)
        self.spoilt[place] += 1
        often = self.spoilt[place] > FORGIVEN
        parties = [party for party in table.parties.values() if party.sits.get(place.device) == place.lane]
        for party in parties:
            if table.party(by) is party or (by is None and often):
                table.evict(party, "it has written what it must not on the page of its lane", at_once=often)
        whos = [who for party in parties for who in party.whos_on(place.device) if who.rank in party.joined]
        for who in whos:
            party = table.parties[who.job_id]
            party.outside.add(who.rank)
            party.asking.discard(who.rank)
            table.orders.seatings[who] = party.seats_of(who.rank)
        table.orders.touched.add(place)
        return whos

    def stopped(self, who: LaneClientId, now_s: float) -> None:
        """Note that a process lost the token in the middle of a turn: all that it may hold counts as kept."""
        party = self._at(now_s).party(who)
        if party is not None:
            party.outside.add(who.rank)
            self.needs.stop(party)

    def gone(self, who: LaneClientId, now_s: float) -> None:
        """Note that a process takes part no more; what it holds counts until its run leaves."""
        table = self._at(now_s)
        party = table.party(who)
        if party is None:
            return
        for ranks in (party.joined, party.asking, party.outside):
            ranks.discard(who.rank)
        table.returned(who)
        self.passing.home(who)
        table.want(party)
        table.rest(party)

    def gained(self, device: int, lanes: int, ratio: float, now_s: float) -> None:
        """Note that ``lanes`` lanes of a device side by side have ``ratio`` times the throughput of one fewer."""
        table = self._at(now_s)
        table.digest(table.gangs.gained(device, lanes, ratio, now_s))
        table.touch_devices([device])

    # --- what is to be done
    def waiting(self, place: NodeLane) -> int:
        """Return how many runs of a lane wait for their turn."""
        members = [party for party in self.table.parties.values() if party.lanes.get(place.device) == place.lane]
        return sum(bool(party.asking) and not self.table.in_turn(party) for party in members)

    def wish(self, place: NodeLane) -> DesiredTurn:
        """Return what the page of a lane should say now."""
        unexpected, holder = self.passing.unexpected(place), self.table.holder(place)
        if unexpected is not None:
            return DesiredTurn(unexpected, recall=True)
        if holder is not None and not holder.alone and not self.passing.is_clear(holder):
            return DesiredTurn()  # its turn begins on all of its devices together
        return sharing_state.wish(self.table, place, self._least_turn_s)

    def take(self) -> SharingCommands:
        """Return the commands, once; a command to a gang on one device counts for all of its devices."""
        orders, self.table.orders = self.table.orders, SharingCommands()
        for place in orders.closed:
            self.spoilt.pop(place, None)
        holders = [holder for place in orders.touched if (holder := self.table.holder(place)) is not None]
        orders.touched.update(place for holder in holders for place in holder.places)
        return orders

    def _catch_up(self, party: SharedRun, begun: Mapping[int, int]) -> None:
        """
        Let the processes of a gang that ask in its turn have their tokens: all, or while the turn ends, those behind.

        A process is behind if it has begun fewer iterations than one that is still in its turn and may wait for it. A
        process that goes on begins another iteration, and those that had done as many as it had wait for that one.
        """
        waiting, turn = party.asking - party.turn.let, party.turn
        if not self.table.ends(party):
            self.table.let(party, waiting)
            return
        for rank in sorted(waiting, key=lambda rank: begun.get(rank, 0)):
            if begun.get(rank, 0) < max(turn.reach, *(begun.get(other, 0) for other in turn.let), 0):
                turn.reach = max(turn.reach, begun.get(rank, 0) + 1)
                self.table.let(party, {rank})

    def _at(self, now_s: float) -> SharingState:
        self.table.now_s = now_s
        return self.table


class NodeNeeds:
    """The needs of the runs that share."""

    def __init__(self, table: SharingState) -> None:
        self._table = table

    def see(self, party: SharedRun, rank: int, sample: MemoryReading, iterations: int) -> None:
        """A process says what it holds after so many iterations."""
        party.meter.see(rank, sample, iterations)
        self._tell(party)
        need = party.meter.need
        if need is None or party.stopped is not None:
            return
        known = party.pending or self._table.boards[party.sharer.devices[0]].need(party.job_id)
        if not party.known or differs(known, need):
            self._take(party, need)

    def stop(self, party: SharedRun) -> None:
        """Note that a process was stopped in the middle of a turn: all that it may hold counts as kept."""
        if party.stopped is not None:
            return
        board = self._table.boards[party.sharer.devices[0]]
        party.stopped = need = board.need(party.job_id)
        kept_bytes = board.cap_bytes(party.job_id) - need.framework_bytes
        self._table.warn(party, "it did not give its turn back, so that was taken; all that it may hold counts as kept")
        self._take(party, MemoryNeed(kept_bytes, need.framework_bytes, need.ephemeral_bytes))

    def go_on(self, party: SharedRun) -> None:
        """Note that a stopped run is between two iterations: it needs what it needed before."""
        if party.stopped is not None:
            need, party.stopped = party.stopped, None
            self._take(party, need)

    def framework_bytes(self, party: SharedRun) -> int:
        """Return the memory of a run that no allocator sees, as far as it is known: the most on any of its devices."""
        boards = (self._table.boards[device] for device in party.sharer.devices)
        return max((board.need(party.job_id).framework_bytes for board in boards if party.job_id in board), default=0)

    def rest_of(self, device: int) -> MemoryNeed:
        """Return the largest need that fits on a device beside what others keep."""
        board = self._table.boards[device]
        lanes_bytes = sum(view.size_bytes for view in board.lanes)
        return MemoryNeed(0, 0, max(0, board.free_bytes + lanes_bytes))

    def _tell(self, party: SharedRun) -> None:
        need = party.meter.news()
        if need is None:
            return
        fact = RunMeasured(
            job_id=party.sharer.job_id,
            epoch=party.sharer.epoch,
            node_id=self._table.node_id,
            need=need,
            iterations=party.meter.iterations,
            at_s=self._table.now_s,
        )
        self._table.orders.facts.append(fact)

    def _take(self, party: SharedRun, need: MemoryNeed) -> None:
        """Count a need now, or at the end of a turn that is under way or has begun on some devices."""
        party.pending = need
        if self._table.gangs.holds(party.job_id):
            self._table.touch(party)
            return
        needs, party.pending = party.pending_needs() or {}, None
        self._table.digest(self._table.gangs.measured(party.job_id, needs, self._table.now_s))
