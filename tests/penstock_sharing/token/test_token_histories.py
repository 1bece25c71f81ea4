"""Whatever order members and broker act in, one member at most believes with reason that it has the token."""

from __future__ import annotations

import os
from time import monotonic_ns

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock_sharing.token.lane_token import open_lane
from penstock_sharing.token.protocol import LaneClientId, TokenEvent, TokenPassed, TurnRequested
from penstock_sharing.token.shared_page import BUSY, NOBODY, STATE, SharedPage, slot_of
from penstock_sharing.token.token_slot import TokenSlot
from sweeps import examples

NAMES = "abcd"
TICK_NS = 10_000_000


class Histories(RuleBasedStateMachine):
    """Members are ``out`` of an iteration, ``in`` one, or ``ask``; one that was revoked is a ghost until it looks."""

    def __init__(self) -> None:
        super().__init__()
        self.lane = open_lane("0/0", slots=64)
        self.slots: dict[str, TokenSlot] = {}
        self.at: dict[str, str] = {}
        self.ghosts: set[str] = set()
        self.asking: list[str] = []
        self.now_ns = monotonic_ns()
        self.holder: str | None = None
        for name in NAMES:
            self.sit(name)

    def sit(self, name: str) -> None:
        number = self.lane.slot_for(LaneClientId(name, 1, 0), os.getpid())
        self.slots[name] = TokenSlot("0/0", SharedPage(os.dup(self.lane.page.fd)), number, os.dup(self.lane.call_fd))
        self.at[name] = "out"

    def hear(self, events: list[TokenEvent]) -> None:
        for each in events:
            match each:
                case TurnRequested(_, who):
                    assert who.job_id not in self.asking
                    self.asking.append(who.job_id)
                case TokenPassed(_, giver, taker):
                    assert self.holder == (giver.job_id if giver else None)
                    self.holder = taker.job_id if taker else None
                    if self.holder in self.asking:
                        self.asking.remove(self.holder)
                case _:
                    raise AssertionError(each)

    def pick(self, data: st.DataObject, *where: str) -> str:
        return data.draw(st.sampled_from([name for name in NAMES if self.at[name] in where]))

    def any_at(self, *where: str) -> bool:
        return any(self.at[name] in where for name in NAMES)

    # --- members
    @precondition(lambda self: self.any_at("out", "ask"))
    @rule(data=st.data())
    def enter(self, data: st.DataObject) -> None:
        self.try_to_enter(self.pick(data, "out", "ask"))

    @precondition(lambda self: self.holder is not None and self.at[self.holder] != "in")
    @rule()
    def whoever_has_the_token_enters(self) -> None:
        self.try_to_enter(self.holder or "")

    def try_to_enter(self, name: str) -> None:
        self.ghosts.discard(name)
        got = self.at[name] == "out" and self.slots[name].enter()
        self.at[name] = "in" if got or self.slots[name].wait(0.0) else "ask"

    @precondition(lambda self: self.any_at("in"))
    @rule(data=st.data(), rests=st.booleans())
    def leave_an_iteration(self, data: st.DataObject, rests: bool) -> None:
        name = self.pick(data, "in")
        if self.slots[name].rest() if rests else self.slots[name].exit():
            self.slots[name].give()
        self.at[name] = "out"
        self.ghosts.discard(name)

    # --- the broker
    @rule(data=st.data(), ticks=st.integers(1, 3))
    def serve(self, data: st.DataObject, ticks: int) -> None:
        for _ in range(ticks):
            self.now_ns += TICK_NS
            self.hear(self.lane.look(self.now_ns))
        if self.asking:
            self.hear(self.lane.name_next(LaneClientId(data.draw(st.sampled_from(self.asking)), 1, 0)))

    # --- what else may happen
    @rule(data=st.data(), what=st.sampled_from(["recalled", "revoked", "held up", "dead", "nobody is named"]))
    def mishap(self, data: st.DataObject, what: str) -> None:
        name = data.draw(st.sampled_from(NAMES))
        match what:
            case "recalled":
                self.hear(self.lane.recall())
            case "revoked":
                self.revoke()
            case "held up" if self.at[name] == "out":  # after it has said that it is busy, and before it has looked
                self.lane.page.words[self.lane.page.first_word(self.slots[name].number) + STATE] = BUSY
            case "dead":
                self.die(name)
            case _:
                self.hear(self.lane.name_next(None))

    def revoke(self) -> None:
        self.hear(self.lane.look(0))
        if self.holder is not None and self.at[self.holder] == "in":
            self.ghosts.add(self.holder)
        self.hear(self.lane.revoke())

    def die(self, name: str) -> None:
        """Another process comes in its place."""
        self.slots[name].close()
        self.hear(self.lane.leave(LaneClientId(name, 1, 0)))
        self.ghosts.discard(name)
        if name in self.asking:
            self.asking.remove(name)
        self.sit(name)

    # --- what holds
    @invariant()
    def never_two(self) -> None:
        inside = [name for name in NAMES if self.at[name] == "in" and name not in self.ghosts]
        assert len(inside) <= 1
        for name in inside:
            assert slot_of(self.lane.page.token()) == self.slots[name].number

    def teardown(self) -> None:
        """Everybody who asks has a turn in the end."""
        for name in NAMES:
            if self.at[name] == "in":
                self.at[name] = "out"
                if self.slots[name].exit():
                    self.slots[name].give()
            self.slots[name].rest() and self.slots[name].give()
        for name in NAMES:
            had = self.slots[name].enter() or self.slots[name].wait(0.0)
            for _ in range(8):
                if had:
                    break
                self.now_ns += TICK_NS
                self.hear(self.lane.look(self.now_ns))
                if name in self.asking:
                    self.hear(self.lane.name_next(LaneClientId(name, 1, 0)))
                had = self.slots[name].wait(0.0)
            assert had, name
            if self.slots[name].exit():
                self.slots[name].give()
        assert slot_of(self.lane.page.token()) in {NOBODY, *(slot.number for slot in self.slots.values())}
        for slot in self.slots.values():
            slot.close()
        self.lane.page.close()
        os.close(self.lane.call_fd)


Histories.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
