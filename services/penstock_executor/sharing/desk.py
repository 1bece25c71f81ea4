"""Where the lanes' decisions meet the keeper's pages: news in, names out. Synchronous; owns no loop and no clock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, assert_never

import structlog

from penstock_events import AnyEvent
from penstock_executor.local import Key
from penstock_executor.sharing.lanes import Lanes
from penstock_executor.sharing.orders import Orders, Wish
from penstock_executor.sharing.party import Party, Place
from penstock_lanes import Asks, Gone, Keeper, Knocked, News, Overruled, Passed, View, Who

RETURN_S: Final = 5.0
"""How long processes that an earlier executor has started may take to sit down here before others get turns."""
TRY_S: Final = 0.001
WAKING_S: Final = 0.1
"""How long somebody may take to wake up for its turn before that is recalled all the same: it may be stopped."""
_LONGEST_S: Final = 1e6
_log = structlog.get_logger("penstock.executor")


class Desk:
    """
    The keeper's owner on a node.

    Parameters
    ----------
    keeper : Keeper
    lanes : Lanes
    life : str
        Names this start of the executor.
    clock : callable
        Seconds since the epoch.
    is_of : callable
        ``is_of(who, pid)``: whether a process is of the run that it says.
    report : callable
        ``report(fact)``: append a fact to the log.
    limit : callable
        ``limit(key, caps)``: have a run keep to caps, by device.
    wake : callable
        Some run may start now, or has to leave.
    again : callable
        ``again(wait_s)``: call :meth:`turn` after so many seconds at the latest.
    """

    def __init__(
        self,
        keeper: Keeper,
        lanes: Lanes,
        *,
        life: str,
        clock: Callable[[], float],
        is_of: Callable[[Who, int], bool],
        report: Callable[[AnyEvent], None],
        limit: Callable[[Key, dict[int, int]], None],
        wake: Callable[[], None],
        again: Callable[[float], None],
    ) -> None:
        self._life, self._again = life, again
        self.keeper, self.lanes = keeper, lanes
        self._clock, self._is_of, self._report, self._limit, self._wake = clock, is_of, report, limit, wake
        self._present: set[Who] = set()
        self._awaited: dict[Who, float] = {}
        self._closing: set[str] = set()
        self._later: dict[Place, float] = {}
        self._turns: dict[Place, tuple[Who, int]] = {}
        self._before: dict[tuple[Place, Who], tuple[float, int]] = {}  # when a turn began, and the iterations before it

    def views(self) -> dict[Place, View]:
        """Return what the pages of all lanes say at this moment."""
        found = ((self._place(lane), lane) for lane in self.keeper.lanes)
        return {place: self.keeper.view(lane) for place, lane in found if place is not None}

    def overrule(self, place: Place) -> None:
        """Take the token of a lane from whoever has it."""
        self.keeper.overrule(self._lane(place))

    def turn(self) -> None:
        """Take in what has happened on the pages, and write what follows from it."""
        for one in self.keeper.poll():
            self._hear(one)
        self.lanes.table.orders.touched.update(self._later)
        self.carry_out()

    def carry_out(self) -> None:
        """Do what the lanes want done."""
        orders = self.lanes.take()
        for place in orders.opened:
            self.keeper.open(self._lane(place))
        for who, seats in orders.seatings.items():
            if who in self._present and seats:
                self._seat(who, seats)
        for fact in orders.facts:
            self._report(fact)
        for key, caps in orders.caps.items():
            self._limit(key, caps)
        for place in sorted(orders.touched):
            self._write(place)
        self._close(orders)
        if orders.woken:
            self._wake()
        wait_s = TRY_S if self._later else self.keeper.wait_s
        if wait_s is not None:
            self._again(wait_s)

    def await_return(self, whos: list[Who]) -> None:
        """Give nobody a turn beside processes of an earlier executor before they have sat down here."""
        until_s = self._clock() + RETURN_S
        self._awaited.update(dict.fromkeys(whos, until_s))

    def look_again(self) -> None:
        """Stop waiting for processes that have not come in time, and let nobody of a gang wait for another for ever."""
        for party in list(self.lanes.table.parties.values()):
            if party.asking and len(party.sharer.ranks) > 1:
                self.lanes.look_after(party.job_id, self._begun(party), self._clock())
        late = [who for who, until_s in self._awaited.items() if self._clock() >= until_s]
        for who in late:
            self._arrived(who)
        if late:
            _log.warning("lane_members_not_returned", members=[f"{who.job_id}/{who.rank}" for who in late])
            self.carry_out()

    def forget(self, key: Key) -> None:
        """A run is over: nobody waits for its processes."""
        for who in [who for who in self._awaited if (who.job_id, who.epoch) == key]:
            self._arrived(who)

    def _hear(self, one: News) -> None:
        now_s = self._clock()
        match one:
            case Knocked(who, pid):
                self._greet(who, pid, now_s)
            case Asks(lane, who):
                if self._place(lane) is not None:
                    self._arrived(who)
                    party = self.lanes.table.party(who)
                    self.lanes.asks(who, now_s, self._begun(party) if party is not None else None)
            case Passed(lane, giver, taker):
                if (place := self._place(lane)) is not None:
                    self.lanes.passed(place, giver, taker, now_s)
            case Overruled(_, who):
                self.lanes.stopped(who, now_s)
            case Gone(who):
                self._present.discard(who)
                self._before = {key: before for key, before in self._before.items() if key[1] != who}
                self._arrived(who)
                self.lanes.gone(who, now_s)
            case _:
                assert_never(one)

    def _greet(self, who: Who, pid: int, now_s: float) -> None:
        if not self._is_of(who, pid):
            _log.warning("lane_seat_refused", job_id=who.job_id, epoch=who.epoch, rank=who.rank, pid=pid)
            self._refuse(who, "it is no process of that run")
        elif not self.lanes.join(who, now_s):
            self._refuse(who, "its run takes no turns on this node")
        else:
            self._present.add(who)

    def _seat(self, who: Who, seats: tuple[Place, ...]) -> None:
        """Seat a process; one that is parked and comes back sits where it sat, though that lane may be gone by now."""
        for place in seats:
            lane = self._lane(place)
            if lane not in self.keeper.lanes:
                self.keeper.open(lane)
                self._closing.add(lane)
        with suppress(ValueError):  # it has gone, of which the keeper tells next
            self.keeper.seat(who, [self._lane(place) for place in seats])

    def _refuse(self, who: Who, reason: str) -> None:
        with suppress(ValueError):  # it has gone meanwhile: what else has happened must not be lost over this
            self.keeper.refuse(who, reason)

    def _begun(self, party: Party) -> dict[int, int]:
        """Return the iterations that each process of a run has begun in the run's turn."""
        begun: dict[int, int] = {}
        for place in party.places if len(party.sharer.ranks) > 1 else ():
            for member in self.keeper.view(self._lane(place)).members:
                turn_s, before = self._before.get((place, member.who), (0.0, 0))
                if member.who.job_id == party.job_id and turn_s == party.turn_s:
                    begun[member.who.rank] = member.iterations + member.busy - before
        return begun

    def _write(self, place: Place) -> None:
        """Make a page say what it should; where somebody else has the token still, it comes home first."""
        lane, now_s = self._lane(place), self._clock()
        since_s = self._later.pop(place, now_s)
        if lane not in self.keeper.lanes:
            return
        wish = Wish() if self._is_awaited(place) else self.lanes.wish(place)
        view = self.keeper.view(lane)
        if view.holder is not None and view.holder != wish.holder:
            self.keeper.recall(lane)
        elif wish.recall and view.holder is not None:
            if now_s < since_s + WAKING_S and (now_s < wish.not_before_s or not self._has_begun(place, view)):
                self._later[place] = since_s
            else:
                self.keeper.recall(lane)
        else:
            heir = wish.holder if view.holder is None else wish.after
            self._note_turns(place, view, heir)
            self.keeper.name(lane, heir, int(min(wish.turn_s, _LONGEST_S) * 1e9))

    def _note_turns(self, place: Place, view: View, heir: Who | None) -> None:
        """Note how many turns and iterations somebody has had who is about to get another turn."""
        self._turns.pop(place, None)
        party = self.lanes.table.party(heir)
        for member in view.members:
            if member.who == heir:
                self._turns[place] = (member.who, member.turns)
                if party is not None and self._before.get((place, member.who), (0.0, 0))[0] != party.turn_s:
                    self._before[place, member.who] = (party.turn_s, member.iterations)

    def _has_begun(self, place: Place, view: View) -> bool:
        """Say whether whoever was given the token has woken up: before that, it would give it back unused."""
        who, turns = self._turns.get(place, (None, 0))
        return who != view.holder or any(member.turns > turns for member in view.members if member.who == who)

    def _lane(self, place: Place) -> str:
        """Return what a lane is called on pages: never as an earlier executor called one of its own."""
        return f"{self._life}/{place.device}/{place.lane}"

    def _place(self, lane: str) -> Place | None:
        """Return the lane of a name; None for one of an earlier executor, whose members all sit elsewhere by now."""
        life, _, place = lane.partition("/")
        if life != self._life:
            return None
        device, _, number = place.partition("/")
        return Place(int(device), int(number))

    def _is_awaited(self, place: Place) -> bool:
        holder = self.lanes.table.holder(place)  # a gang does not wait for its own
        parties = (self.lanes.table.party(who) for who in self._awaited)
        return any(
            party is not None and party is not holder and place.device in party.sharer.devices for party in parties
        )

    def _arrived(self, who: Who) -> None:
        if self._awaited.pop(who, None) is not None:
            party = self.lanes.table.party(who)
            devices = party.sharer.devices if party is not None else self.lanes.table.boards
            self.lanes.table.touch_devices(devices)

    def _close(self, orders: Orders) -> None:
        """Close the pages of lanes that are gone, each when its last member has left its seat."""
        self._closing.update(self._lane(place) for place in orders.closed)
        self._closing.update(lane for lane in self.keeper.lanes if self._place(lane) is None)
        for lane in [lane for lane in self._closing if not self.keeper.view(lane).members]:
            self.keeper.close_lane(lane)
            self._closing.discard(lane)
