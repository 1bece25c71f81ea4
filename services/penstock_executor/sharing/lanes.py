"""
The lanes of a node's devices: who shares what, whose turn it is, and what has to be done about it.

Pure: no page, no process, no clock. What happens goes in (a run arrives, a process asks, the token has passed); what is
to be done comes out as :class:`~penstock_executor.sharing.orders.Orders`, and as a wish for each lane. Decisions are
those of :class:`penstock_policies.lanes.Gangs`; here is what lies between them and processes that hand the token on by
themselves. Those can be ahead of what is known here by one hand-over, never by more: then somebody has a turn who was
next a moment ago and is not any more. Such a *stray* gives the token back after one iteration, and until then the board
is left in the belief that it is the turn of whoever gave it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock_events import Device, MemoryNeed, RunMeasured
from penstock_executor.local import Key, Seat
from penstock_executor.sharing import wishes
from penstock_executor.sharing.meter import Meter
from penstock_executor.sharing.orders import Orders, Wish
from penstock_executor.sharing.party import Party, Place, Sharer
from penstock_executor.sharing.table import Table
from penstock_lanes.wire import Who
from penstock_policies.lanes import Rules, Sample, differs


@dataclass(frozen=True, slots=True)
class _Stray:
    """Somebody who has the token in another's place, and whether that one has had it before."""

    who: Who
    in_turn: bool


class Lanes:
    """
    The lanes of one node.

    Parameters
    ----------
    node_id : str
    devices : sequence of Device
    rules : Rules
    reserve : float
        Share of each device's memory that is left alone.
    least_turn_s : float
        The shortest turn, such that handing over costs little of it.

    Attributes
    ----------
    table : Table
    """

    def __init__(
        self, node_id: str, devices: Sequence[Device], rules: Rules, reserve: float = 0.0, least_turn_s: float = 0.0
    ) -> None:
        self.table = Table(node_id, devices, rules, reserve)
        self._least_turn_s = least_turn_s
        self._strays: dict[Place, _Stray] = {}

    # --- runs
    @property
    def seats(self) -> dict[Key, Seat]:
        """How far each run has come."""
        return {party.sharer.key: party.seat for party in self.table.parties.values()}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.table.parties

    def arrive(self, sharer: Sharer, now_s: float) -> None:
        """A run is to share its devices; of one whose need nobody knows, it is taken to be all that is left."""
        table = self._at(now_s)
        table.parties[sharer.job_id] = Party(
            sharer, Meter(sharer.need), known=sharer.need is not None, level=not sharer.adopted
        )
        needs = {device: sharer.need or self._rest_of(device) for device in sharer.devices}
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
        """All processes of a run are gone, or it will never have any."""
        table = self._at(now_s)
        party = table.parties[job_id]
        for device in party.lanes:
            table.say(party, Place(device, -1), "left", reason)
        self._strays = {place: stray for place, stray in self._strays.items() if stray.who.job_id != job_id}
        table.drop(party)

    def see(self, who: Who, sample: Sample, iterations: int, now_s: float) -> None:
        """A process says what it holds after so many iterations."""
        table = self._at(now_s)
        party = table.party(who)
        if party is None or party.seat.at != "in":
            return
        party.meter.see(who.rank, sample, iterations)
        self._tell_need(party)
        need = party.meter.need
        if need is None or party.stopped is not None:
            return
        known = party.pending or table.boards[party.sharer.devices[0]].need(party.job_id)
        if not party.known or differs(known, need):
            self._take_need(party, need)

    def hurry(self, job_id: str) -> None:
        """A run is to stop at its next boundary: it gets the turns that this takes before all others."""
        party = self.table.parties.get(job_id)
        if party is not None and job_id in self.table.gangs:
            self.table.gangs.hurry(job_id)
            self.table.touch(party)

    # --- processes and their tokens
    def join(self, who: Who, now_s: float) -> bool:
        """A process is here and wants its seats; False where there are none for it."""
        table = self._at(now_s)
        party = table.party(who)
        if party is None or who.rank not in party.sharer.ranks or not party.sits:
            return False
        party.joined.add(who.rank)
        table.orders.seatings[who] = party.seats_of(who.rank)
        return True

    def asks(self, who: Who, now_s: float, begun: Mapping[int, int] | None = None) -> None:
        """
        A process waits for a turn.

        Parameters
        ----------
        begun : mapping of int to int
            Rank → iterations that it has begun in this turn, of a gang's processes here. While some of them are still
            in their turn, one that is behind another goes on with it: they may wait for each other inside an iteration.
        """
        table = self._at(now_s)
        party = table.party(who)
        if party is None:
            return
        if party.turn and who.rank in party.holding and len(party.sharer.ranks[who.rank]) > 1:
            if party.has_begun_to_give(who.rank):  # that it has given the others will be heard after this
                party.asking.add(who.rank)
            return  # else it takes the lanes of its devices one after the other, for the turn that it has
        party.asking.add(who.rank)
        if party.stopped is not None:
            need, party.stopped = party.stopped, None
            self._take_need(party, need)
        if not party.turn:
            table.want(party)
        else:
            self._catch_up(party, begun or {})

    def look_after(self, job_id: str, begun: Mapping[int, int], now_s: float) -> None:
        """
        See whether somebody of a gang waits inside an iteration for one that waits for its turn.

        So it may be under an earlier executor's turn: then those who ask have one here, and the others come to it.
        """
        table, party = self._at(now_s), self.table.parties[job_id]
        if party.turn:
            self._catch_up(party, begun)
            if not party.level and party.looked == begun:  # counts tell nothing, but nobody gets on
                table.begin(party, party.asking - party.holding)
            party.looked = dict(begun)
        elif party.sharer.adopted and not party.turn_s:
            table.ask(party)

    def passed(self, place: Place, giver: Who | None, taker: Who | None, now_s: float) -> None:
        """The token of a lane went from one to another; None is the keeper."""
        self._at(now_s).orders.touched.add(place)
        self._note_tokens(place, giver, taker)
        stray = self._strays.get(place)
        if giver is not None and stray is not None and stray.who == giver:
            self._stray_home(place, stray)
            giver = None
        if giver is not None and taker is not None:
            if not self._hands_on(place, giver, taker):
                self._stray(place, giver, taker)
        elif giver is not None:
            self._home(giver)
        elif taker is not None:
            self._has(place, taker)

    def stopped(self, who: Who, now_s: float) -> None:
        """The token was taken from a process in the middle of a turn: all that it may hold counts as kept."""
        table = self._at(now_s)
        party = table.party(who)
        if party is None or party.stopped is not None:
            return
        board = table.boards[party.sharer.devices[0]]
        party.stopped = need = board.need(party.job_id)
        kept_bytes = board.cap_bytes(party.job_id) - need.framework_bytes
        table.warn(party, "it did not give its turn back, so that was taken; all that it may hold counts as kept")
        self._take_need(party, MemoryNeed(kept_bytes, need.framework_bytes, need.ephemeral_bytes))

    def gone(self, who: Who, now_s: float) -> None:
        """A process takes part no more; what it holds counts until its run leaves."""
        table = self._at(now_s)
        party = table.party(who)
        if party is None:
            return
        party.joined.discard(who.rank)
        party.asking.discard(who.rank)
        party.tokens.pop(who.rank, None)
        self._home(who)
        table.want(party)
        table.rest(party)

    def gained(self, device: int, lanes: int, ratio: float, now_s: float) -> None:
        """So many lanes of a device, side by side, have the throughput of one fewer times ``ratio``."""
        table = self._at(now_s)
        table.digest(table.gangs.gained(device, lanes, ratio, now_s))
        table.touch_devices([device])

    # --- what is to be done
    def waiting(self, place: Place) -> int:
        """Return how many runs of a lane wait for their turn."""
        members = [party for party in self.table.parties.values() if party.lanes.get(place.device) == place.lane]
        return sum(bool(party.asking) and not party.turn for party in members)

    def wish(self, place: Place) -> Wish:
        """Return what the page of a lane should say now."""
        stray = self._strays.get(place)
        if stray is not None:
            return Wish(stray.who, recall=True)
        return wishes.wish(self.table, place, self._least_turn_s)

    def take(self) -> Orders:
        """Return what is to be done, once; what a gang is to do on one device, it is to do on all."""
        orders, self.table.orders = self.table.orders, Orders()
        holders = [holder for place in orders.touched if (holder := self.table.holder(place)) is not None]
        orders.touched.update(place for holder in holders for place in holder.places)
        return orders

    # --- turns
    def _catch_up(self, party: Party, begun: Mapping[int, int]) -> None:
        """
        Let those of a gang go on who are behind somebody that has the turn still.

        Who goes on is going to begin another iteration, for which those wait that have done as many as it had.
        """
        for rank in sorted(party.asking - party.holding, key=lambda rank: begun.get(rank, 0)):
            if begun.get(rank, 0) < max(party.reach, *(begun.get(other, 0) for other in party.holding), 0):
                party.reach = max(party.reach, begun.get(rank, 0) + 1)
                self.table.begin(party, {rank})

    def _hands_on(self, place: Place, giver: Who, taker: Who) -> bool:
        """Take in that a turn was handed straight on; False where the board would not have it."""
        table = self.table
        party, heir = table.holder(place), table.party(taker)
        if party is None or heir is None or party is not table.party(giver) or party.pending is not None:
            return False
        if not (party.alone and heir.alone and heir.lanes.get(place.device) == place.lane):
            return False
        party.turn = False
        party.holding.clear()
        told = table.gangs.passed(giver.job_id, taker.job_id, table.now_s)
        table.begin(heir, {taker.rank})
        table.digest(told)
        return True

    def _note_tokens(self, place: Place, giver: Who | None, taker: Who | None) -> None:
        for who, has in ((giver, False), (taker, True)):
            party = self.table.party(who)
            if party is not None and who is not None:
                party.note_token(who.rank, place, has=has)

    def _stray(self, place: Place, giver: Who, taker: Who) -> None:
        """A turn was handed to somebody whom the board would not have; or to whom it is giving it just now."""
        holder = self.table.holder(place)
        if holder is None or holder is not self.table.party(taker) or taker.rank not in holder.holding:
            self._strays[place] = _Stray(taker, in_turn=holder is not None and holder is self.table.party(giver))

    def _home(self, giver: Who) -> None:
        """A process has no token any more: with a gang's last one, its turn is over."""
        party = self.table.party(giver)
        if party is not None and party.turn and not party.tokens.get(giver.rank):
            party.holding.discard(giver.rank)
            if not party.holding:
                self.table.end(party)

    def _has(self, place: Place, taker: Who) -> None:
        """A process has the token: as it should; or in place of whoever should, since it was named before."""
        party = self.table.party(taker)
        if party is not None and party.turn and taker.rank in party.holding:
            return
        holder = self.table.holder(place)
        if holder is not None and holder.alone and self._hands_on(place, holder.whos_on(place.device)[0], taker):
            holder.asking |= holder.joined
            self.table.want(holder)
        else:
            self._strays[place] = _Stray(taker, in_turn=False)

    def _stray_home(self, place: Place, stray: _Stray) -> None:
        """Whoever had the token in somebody's place has given it back: now that one's turn is over, or begins."""
        del self._strays[place]
        party = self.table.holder(place)
        if stray.in_turn and party is not None and party.turn and party.alone:
            party.holding.clear()
            self.table.end(party)

    # --- needs
    def _tell_need(self, party: Party) -> None:
        need = party.meter.news()
        if need is None:
            return
        fact = RunMeasured(
            job_id=party.sharer.job_id,
            epoch=party.sharer.epoch,
            node_id=self.table.node_id,
            need=need,
            iterations=party.meter.iterations,
            at_s=self.table.now_s,
        )
        self.table.orders.facts.append(fact)

    def _take_need(self, party: Party, need: MemoryNeed) -> None:
        """Take a need into account: now, or at the end of the turn that is under way, or has begun on some devices."""
        party.pending = need
        if party.turn or self.table.gangs.holds(party.job_id):
            self.table.touch(party)
            return
        needs, party.pending = party.pending_needs() or {}, None
        self.table.digest(self.table.gangs.measured(party.job_id, needs, self.table.now_s))

    def _rest_of(self, device: int) -> MemoryNeed:
        """Return the largest need that the device has room for beside what others keep."""
        board = self.table.boards[device]
        lanes_bytes = sum(view.size_bytes for view in board.lanes)
        return MemoryNeed(0, 0, max(0, board.free_bytes + lanes_bytes))

    def _at(self, now_s: float) -> Table:
        self.table.now_s = now_s
        return self.table
