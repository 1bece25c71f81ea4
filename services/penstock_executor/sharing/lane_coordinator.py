"""
Decisions brought to the pages, and turn limits.

:class:`LaneCoordinator` stands between :class:`penstock_executor.sharing.node_lanes.NodeLanes`, which decides, and the
token broker, which has the pages: events of the pages go in, names of holders go out. Synchronous; owns no loop and no
clock. :class:`TurnClock` says when a run that does not give its turn back is warned, and when the turn is taken from
it; it is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Literal, TypeVar, assert_never

import msgspec
import structlog

from penstock_executor.run_state import Key
from penstock_executor.sharing.node_lanes import NodeLanes
from penstock_executor.sharing.shared_run import NodeLane, SharedRun, SharingCommands
from penstock_log import AnyEvent
from penstock_sharing.token import (
    ClientGone,
    JoinRequested,
    LaneClientId,
    LaneTokenView,
    PageCorrupted,
    TokenBroker,
    TokenEvent,
    TokenPassed,
    TokenRevoked,
    TurnRequested,
)

RETURN_S: Final = 5.0
"""How long processes that an earlier executor has started may take to join here before others get turns."""
TRY_S: Final = 0.001
WAKING_S: Final = 0.1
"""How long a process may take to wake up for its turn before the turn is recalled: the process may be stopped."""
_LONGEST_S: Final = 1e6
_log = structlog.get_logger("penstock.executor")
H = TypeVar("H")


class LaneCoordinator:
    """
    The owner of a node's token broker.

    Parameters
    ----------
    broker : TokenBroker
    lanes : NodeLanes
    life : str
        Names this start of the executor.
    clock : callable
        Seconds since the epoch.
    is_of : callable
        ``is_of(who, pid)``: whether a process belongs to the run that it names.
    report : callable
        ``report(fact)``: append a fact to the log.
    limit : callable
        ``limit(key, caps)``: hold a run to its caps, by device.
    end : callable
        ``end(key, reason)``: end a run at once.
    wake : callable
        Called when some run may start now, or has to leave.
    again : callable
        ``again(wait_s)``: call :meth:`turn` after so many seconds at the latest.
    """

    def __init__(
        self,
        broker: TokenBroker,
        lanes: NodeLanes,
        *,
        life: str,
        clock: Callable[[], float],
        is_of: Callable[[LaneClientId, int], bool],
        report: Callable[[AnyEvent], None],
        limit: Callable[[Key, dict[int, int]], None],
        end: Callable[[Key, str], None],
        wake: Callable[[], None],
        again: Callable[[float], None],
    ) -> None:
        self._life, self._again, self._end = life, again, end
        self.broker, self.lanes = broker, lanes
        self._clock, self._is_of, self._report, self._limit, self._wake = clock, is_of, report, limit, wake
        self._present: set[LaneClientId] = set()
        self._until_s: dict[LaneClientId, float] = {}
        self._closing: set[str] = set()
        self._pages: dict[NodeLane, int] = {}  # how many pages a lane has had, if more than one
        self._later: dict[NodeLane, float] = {}

    def views(self) -> dict[NodeLane, LaneTokenView]:
        """Return what the page of each lane says at this moment."""
        found = ((self._place(lane), lane) for lane in self.broker.lanes)
        return {place: self.broker.view(lane) for place, lane in found if place is not None}

    def revoke(self, place: NodeLane) -> None:
        """Take the token of a lane from its holder."""
        self.broker.revoke(self._lane(place))

    def turn(self) -> None:
        """
        Handle what has happened on the pages, and write what follows from it.

        Pages are written only after all events that the broker has seen on them. Otherwise a page could name a process
        that has just given its turn back, and the process would have another turn that nobody gave it.
        """
        touched = set(self._later)
        while True:
            for one in self.broker.poll():
                self._handle_event(one)
            commands = self.lanes.take()
            touched |= commands.touched
            self._prepare(commands)
            if not commands.slot_assignments:  # of these processes the broker may have seen something more
                break
        for place in sorted(touched):
            self._write(place)
        self._close()
        wait_s = TRY_S if self._later else self.broker.wait_s
        if wait_s is not None:
            self._again(wait_s)

    def await_return(self, whos: list[LaneClientId]) -> None:
        """Give no run a turn beside processes of an earlier executor before these have their slots here."""
        self.lanes.await_return(whos)
        self._until_s.update(dict.fromkeys(whos, self._clock() + RETURN_S))

    def look_again(self) -> None:
        """Stop waiting for processes that are late, and resolve waits within a gang that would last for ever."""
        now_s = self._clock()
        for run in list(self.lanes.state.shared_runs.values()):
            if run.is_gang:
                self.lanes.look_after(run.job_id, self._begun(run), now_s)
        self._until_s = {who: until_s for who, until_s in self._until_s.items() if who in self.lanes.state.awaited}
        late = [who for who, until_s in self._until_s.items() if now_s >= until_s]
        for who in late:
            self.lanes.give_up(who, now_s)
        if late:
            _log.warning("lane_members_not_returned", members=[f"{who.job_id}/{who.rank}" for who in late])
        self.turn()

    def _prepare(self, commands: SharingCommands) -> None:
        """Carry out all commands of the lanes, except for what their pages should say."""
        for place in commands.opened:
            self.broker.open(self._lane(place))
        for who, slots in commands.slot_assignments.items():
            if who in self._present and slots:
                self._assign_slots(who, slots)
        for fact in commands.facts:
            self._report(fact)
        for key, caps in commands.caps.items():
            self._limit(key, caps)
        for key, reason in commands.ended.items():
            self._end(key, reason)
        for place in commands.closed:
            self._closing.add(self._lane(place))
            self._pages.pop(place, None)
        if commands.woken:
            self._wake()

    def _handle_event(self, one: TokenEvent) -> None:
        now_s = self._clock()
        match one:
            case JoinRequested(who, pid):
                self._admit(who, pid, now_s)
            case TurnRequested(lane, who):
                if self._place(lane) is not None:
                    run = self.lanes.state.shared_run(who)
                    self.lanes.asks(who, now_s, self._begun(run) if run is not None else None)
            case TokenPassed(lane, giver, taker):
                if (place := self._place(lane)) is not None:
                    self.lanes.passed(place, giver, taker, now_s)
            case TokenRevoked(_, who):
                self.lanes.stopped(who, now_s)
            case PageCorrupted(lane, who):
                if (place := self._place(lane)) is not None:
                    self._renew(place, who)
            case ClientGone(who):
                self._present.discard(who)
                self.lanes.gone(who, now_s)
            case _:
                assert_never(one)

    def _renew(self, place: NodeLane, by: LaneClientId | None) -> None:
        """Replace the page of a lane that a process has spoilt."""
        _log.warning("lane_page_spoilt", device=place.device, lane=place.lane, by=by and f"{by.job_id}/{by.rank}")
        self._closing.add(self._lane(place))
        self._pages[place] = self._pages.get(place, 1) + 1
        self.broker.open(self._lane(place))
        self.await_return([who for who in self.lanes.renew(place, by, self._clock()) if who in self._present])

    def _admit(self, who: LaneClientId, pid: int, now_s: float) -> None:
        if not self._is_of(who, pid):
            _log.warning("lane_seat_refused", job_id=who.job_id, epoch=who.epoch, rank=who.rank, pid=pid)
            self._refuse(who, "it is no process of that run")
        elif not self.lanes.join(who, now_s):
            self._refuse(who, "its run takes no turns on this node")
        else:
            self._present.add(who)

    def _assign_slots(self, who: LaneClientId, slots: tuple[NodeLane, ...]) -> None:
        """Give a process its slots; a parked one that comes back has its old slots, even if the lane is gone."""
        for place in slots:
            lane = self._lane(place)
            if lane not in self.broker.lanes:
                self.broker.open(lane)
                self._closing.add(lane)
        with suppress(ValueError):  # it has gone, as the broker's next event says
            self.broker.assign_slots(who, [self._lane(place) for place in slots])

    def _refuse(self, who: LaneClientId, reason: str) -> None:
        with suppress(ValueError):  # it has gone meanwhile: what else has happened must not be lost over this
            self.broker.refuse(who, reason)

    def _begun(self, run: SharedRun) -> dict[int, int]:
        """Return the iterations that each process of a gang has begun, of processes that have their present slots."""
        lanes = [self._lane(place) for place in run.places if run.is_gang]
        opened = [lane for lane in lanes if lane in self.broker.lanes]  # one that was found just now is opened next
        members = (m for lane in opened for m in self.broker.view(lane).members)
        return {m.who.rank: m.iterations + m.busy for m in members if m.who.job_id == run.job_id}

    def _write(self, place: NodeLane) -> None:
        """Write what a page should say; if another process still has the token, the token returns first."""
        lane, now_s = self._lane(place), self._clock()
        since_s = self._later.pop(place, now_s)
        if lane not in self.broker.lanes:
            return
        desired = self.lanes.desired_turn(place)
        view = self.broker.view(lane)
        if view.holder is not None and view.holder != desired.holder:
            self.broker.recall(lane)
        elif desired.recall and view.holder is not None:
            unused = not view.begun  # a holder that has not woken up yet would give the token back unused
            if now_s < since_s + WAKING_S and (now_s < desired.not_before_s or unused):
                self._later[place] = since_s
            else:
                self.broker.recall(lane)
        else:
            successor = desired.holder if view.holder is None else desired.after
            self.broker.name_next(lane, successor, int(min(desired.turn_s, _LONGEST_S) * 1e9))

    def _lane(self, place: NodeLane) -> str:
        """Return the name of a lane's page: never that of an earlier page, or of an earlier executor's."""
        return f"{self._life}/{place.device}/{place.lane}/{self._pages.get(place, 1)}"

    def _place(self, lane: str) -> NodeLane | None:
        """Return the lane of a page; None for an earlier page, whose members all have slots elsewhere by now."""
        life, _, rest = lane.partition("/")
        if life != self._life:
            return None
        place = NodeLane(*map(int, rest.split("/")[:2]))
        return place if self._lane(place) == lane else None

    def _close(self) -> None:
        """Close the pages of lanes that are gone, each after its last member has left its slot."""
        self._closing.update(lane for lane in self.broker.lanes if self._place(lane) is None)
        for lane in [lane for lane in self._closing if not self.broker.view(lane).members]:
            self.broker.close_lane(lane)
            self._closing.discard(lane)


Verdict = Literal["go", "warn", "take"]


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """
    Limits of an iteration's time while others wait for its end.

    Attributes
    ----------
    warn_s : float
        Time after which the run gets a warning.
    take_s : float
        Time after which its turn is taken from it.
    """

    warn_s: float = 10.0
    take_s: float = 60.0


class TurnClock:
    """
    A clock of how long each holder of a turn has been in the same iteration while others wait.

    The clock is read now and then: an iteration is the same if its number is. No run is warned twice in one iteration,
    and no turn is taken without a warning at the reading before, however late that reading was. Who has no turn at a
    reading is not remembered.

    Examples
    --------
    >>> turns = TurnClock(TurnLimits(warn_s=10.0, take_s=60.0))
    >>> [turns.look({"j1": (7, 1)}, now_s)["j1"] for now_s in (0.0, 9.0, 11.0, 12.0, 61.0)]
    ['go', 'go', 'warn', 'go', 'take']
    >>> turns.look({"j1": (8, 1)}, now_s=62.0)
    {'j1': 'go'}
    """

    def __init__(self, rules: TurnLimits) -> None:
        self.rules = rules
        self._iterations: dict[object, tuple[int, float, bool]] = {}  # number, since when it is the same, warned

    def look(self, holders: Mapping[H, tuple[int, int]], now_s: float) -> dict[H, Verdict]:
        """Return what to do about each holder, by the number of its iteration and how many runs wait for its end."""
        before, self._iterations = self._iterations, {}
        return {holder: self._judge(holder, before.get(holder), *of, now_s) for holder, of in holders.items()}

    def _judge(
        self, holder: object, before: tuple[int, float, bool] | None, iteration: int, waiting: int, now_s: float
    ) -> Verdict:
        if before is None or before[0] != iteration or not waiting:
            before = (iteration, now_s, False)
        _, since_s, warned = before
        self._iterations[holder] = before
        held_s = now_s - since_s
        if not warned and self.rules.warn_s <= held_s and self.rules.warn_s < self.rules.take_s:
            self._iterations[holder] = (iteration, since_s, True)
            return "warn"
        if held_s >= self.rules.take_s:
            del self._iterations[holder]
            return "take"
        return "go"


TURN_MESSAGES: Final = {
    "warn": "has been in one iteration for {s:.3g} s while {waiting} wait for its turn",
    "take": "was in one iteration for {s:.3g} s while {waiting} waited for its turn",
}
