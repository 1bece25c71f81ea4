"""
Processes and pages as a broker shows them, played by a test: what they do is seen late, as on a real node.

A page here is who has the token, who is named, and whether the token is recalled; the rules are those of
``docs/lane-protocol.md``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from penstock_executor.sharing.node_lanes import NodeLanes
from penstock_executor.sharing.shared_run import NodeLane, ShareRequest
from penstock_log import Device, LaneChanged, MemoryNeed
from penstock_sharing.lanes import LaneRules
from penstock_sharing.token.protocol import (
    ClientGone,
    JoinRequested,
    LaneClientId,
    TokenEvent,
    TokenPassed,
    TokenRevoked,
    TurnRequested,
)


def name(place: NodeLane) -> str:
    return f"{place.device}/{place.lane}"


def placed(lane: str) -> NodeLane:
    device, _, number = lane.partition("/")
    return NodeLane(int(device), int(number))


@dataclass
class Page:
    token: LaneClientId | None = None
    successor: LaneClientId | None = None
    recalled: bool = False
    asking: set[LaneClientId] = field(default_factory=set)


@dataclass
class Process:
    """One process: between iterations, waiting, or in one."""

    who: LaneClientId
    need: MemoryNeed
    left: int
    slots: tuple[str, ...] = ()
    moving: tuple[str, ...] | None = None
    busy: bool = False
    stopped: bool = False
    done: int = 0


class Play:
    """A node of equal devices; time is counted in events."""

    def __init__(self, capacity_bytes: int = 1000, devices: int = 1, rules: LaneRules | None = None) -> None:
        kinds = [Device(index=i, kind="fast", memory_bytes=capacity_bytes, backend="emulated") for i in range(devices)]
        self.capacity_bytes = capacity_bytes
        self.lanes = NodeLanes("n1", kinds, rules or LaneRules(patience_s=None))
        self.pages: dict[str, Page] = {}
        self.processes: dict[LaneClientId, Process] = {}
        self.needs: dict[str, MemoryNeed] = {}
        self.events: deque[TokenEvent] = deque()
        self.facts: list[object] = []
        self.turns: list[str] = []
        self.now_s = 0.0

    # --- what happens
    def arrive(
        self, job_id: str, need: MemoryNeed, iterations: int = 3, devices: tuple[int, ...] = (0,), *, known: bool = True
    ) -> None:
        """A job arrives, one process for each device, and its processes start as soon as they may."""
        self.needs[job_id] = need
        ranks = {rank: (device,) for rank, device in enumerate(devices)}
        request = ShareRequest(job_id=job_id, epoch=1, ranks=ranks, need=need if known else None)
        for rank in ranks:
            who = LaneClientId(job_id, 1, rank)
            self.processes[who] = Process(who, need, iterations)
        self.lanes.arrive(request, self.tick())
        self.carry_out()

    def start(self) -> None:
        """Start all that may start and has not: they knock."""
        for key, progress in self.lanes.progress.items():
            for who, process in self.processes.items():
                if (who.job_id, who.epoch) == key and progress.at == "in" and not process.slots:
                    process.slots = ("",)
                    self.events.append(JoinRequested(who, 1))

    def ask(self, who: LaneClientId) -> None:
        """A process that is between iterations begins the next one, or waits for its turn."""
        process = self.processes[who]
        self._sit_elsewhere(process)
        if process.busy or not process.slots or not all(process.slots):
            return
        missing = [slot for slot in process.slots if self.pages[slot].token != who]
        if not missing:
            process.busy = True
            self.turns.append(who.job_id)
        elif who not in self.pages[missing[0]].asking:
            self.pages[missing[0]].asking.add(who)
            self.events.append(TurnRequested(missing[0], who))
            self._serve(missing[0])

    def finish(self, who: LaneClientId) -> None:
        """A process ends its iteration: here the token goes on, or not."""
        process = self.processes[who]
        process.busy, process.done, process.left = False, process.done + 1, process.left - 1
        pages = [self.pages[slot] for slot in process.slots if self.pages[slot].token == who]
        if any(page.recalled or page.successor in page.asking for page in pages):
            for slot in reversed(process.slots):
                if self.pages[slot].token == who:
                    self._pass_on(slot)
        self._sit_elsewhere(process)

    def end(self, who: LaneClientId) -> None:
        """A process is gone, whatever it was doing; with the last one, its run."""
        process = self.processes.pop(who)
        for slot in filter(None, (*process.slots, *(process.moving or ()))):
            page = self.pages[slot]
            page.asking.discard(who)
            page.successor = None if page.successor == who else page.successor
            if page.token == who:
                self._move(slot, None)
        if process.slots:
            self.events.append(ClientGone(who))

    def bury(self) -> None:
        """What the executor does when the last process of a run has ended."""
        for job_id in [job for job in self.needs if not any(who.job_id == job for who in self.processes)]:
            del self.needs[job_id]
            self.deliver_all()
            self.lanes.leave(job_id, self.tick(), "its run has ended")
            self.carry_out()

    def stop(self, who: LaneClientId) -> None:
        """A process is stopped in its iteration, and the broker takes its token."""
        process = self.processes[who]
        process.stopped = True
        for slot in process.slots:
            if self.pages[slot].token == who:
                self.events.append(TokenRevoked(slot, who))
                self.pages[slot].successor = None
                self._move(slot, None)

    # --- what is seen of it
    def deliver(self) -> None:
        """Take in the oldest news, and do what is to be done."""
        self._hear(self.events.popleft())
        self.carry_out()

    def deliver_all(self) -> None:
        """Take in all news that there are, and do what is to be done, until there are none."""
        while self.events:
            while self.events:
                self._hear(self.events.popleft())
            self.carry_out()

    def _hear(self, one: TokenEvent) -> None:
        now_s = self.tick()
        match one:
            case JoinRequested(who, _):
                if who in self.processes:
                    assert self.lanes.join(who, now_s)
            case TurnRequested(_, who):
                begun = {w.rank: p.done + p.busy for w, p in self.processes.items() if w.job_id == who.job_id}
                self.lanes.asks(who, now_s, begun)
            case TokenPassed(lane, giver, taker):
                self.lanes.passed(placed(lane), giver, taker, now_s)
            case TokenRevoked(_, who):
                self.lanes.stopped(who, now_s)
            case ClientGone(who):
                self.lanes.gone(who, now_s)

    def carry_out(self) -> None:
        commands = self.lanes.take()
        self.facts += commands.facts
        for place in commands.opened:
            self.pages[name(place)] = Page()
        for who, slots in commands.slot_assignments.items():
            if who in self.processes:
                self.processes[who].moving = tuple(map(name, slots))
                if not self.processes[who].busy:
                    self._sit_elsewhere(self.processes[who])
        for place in commands.touched:
            if name(place) in self.pages:
                self._write(place)
        self.start()

    def tick(self) -> float:
        self.now_s += 1.0
        return self.now_s

    # --- pages
    def _write(self, place: NodeLane) -> None:
        """Make a page say what it should; that turns last a while before they are recalled plays no part here."""
        desired, page = self.lanes.desired_turn(place), self.pages[name(place)]
        assert desired.after is None or desired.after != desired.holder
        if desired.holder is not None and page.token != desired.holder:
            page.successor, page.recalled = desired.holder, page.token is not None
        else:
            page.successor, page.recalled = desired.after, desired.recall or desired.holder is None
        self._press(name(place))

    def _press(self, slot: str) -> None:
        """A recalled token is taken from a holder that is between two iterations, or given to the one named."""
        page = self.pages[slot]
        holder = self.processes.get(page.token) if page.token else None
        if holder is not None and page.recalled and not holder.busy:
            self._move(slot, None)
        self._serve(slot)

    def _serve(self, slot: str) -> None:
        page = self.pages[slot]
        if page.token is None and page.successor is not None and page.successor in page.asking:
            self._move(slot, page.successor)

    def _pass_on(self, slot: str) -> None:
        page = self.pages[slot]
        self._move(slot, None if page.recalled or page.successor not in page.asking else page.successor)

    def _move(self, slot: str, to: LaneClientId | None) -> None:
        page = self.pages[slot]
        self.events.append(TokenPassed(slot, page.token, to))
        page.token, page.recalled = to, False
        if to is not None:
            page.asking.discard(to)
            page.successor = None
            self.ask(to)
        else:
            self._serve(slot)

    def _sit_elsewhere(self, process: Process) -> None:
        if process.moving is None or process.busy:
            return
        old, process.slots, process.moving = process.slots, process.moving, None
        for slot in old:
            if slot and slot not in process.slots:
                page = self.pages[slot]
                page.asking.discard(process.who)
                page.successor = None if page.successor == process.who else page.successor
                if page.token == process.who:
                    self._move(slot, None)

    # --- what must hold
    @property
    def running(self) -> list[Process]:
        """Processes that are in an iteration."""
        return [process for process in self.processes.values() if process.busy]

    def used_bytes(self) -> int:
        """What all processes of one device hold at this moment, each as much as it needs."""
        started = {who.job_id for who, process in self.processes.items() if process.slots}
        return sum(self.needs[job].resident_bytes for job in started) + sum(
            process.need.ephemeral_bytes for process in self.running
        )

    def lane_changes(self, job_id: str) -> list[tuple[str, int]]:
        """Return what the log says about a job's lanes."""
        return [
            (fact.change, fact.lane) for fact in self.facts if isinstance(fact, LaneChanged) and fact.job_id == job_id
        ]
