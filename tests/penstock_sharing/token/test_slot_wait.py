"""How a member waits for its turn, by a clock and a wakeup that a test moves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns

import pytest

from penstock_sharing.token.lane_token import LaneToken, open_lane
from penstock_sharing.token.protocol import LaneClientId
from penstock_sharing.token.shared_page import PACE_NS, SINCE_NS, FutexWord, SharedPage, slot_of
from penstock_sharing.token.slot_wait import LEAST_SPIN_NS, SlotWait, SpinTuner
from penstock_sharing.token.token_slot import TokenSlot

LOOK_NS = 1_000
PACE = 1_000_000
LATE = 50_000
DEADLINE = 250_000_000


class Wakeup(FutexWord):
    """The wake-up word of a slot, on which somebody sleeps by the clock of a story."""

    def __init__(self, story: Story, number: int) -> None:
        super().__init__(memoryview(story.memory), 0)
        self.value = story.lane.page.wakeup_word(number).value
        self._story = story

    def wait(self, seen: int, timeout_s: float) -> None:
        self._story.sleep(seen, round(timeout_s * 1e9))


class Story:
    """
    A holder whose turn began at 0 and whose pace is known, and the successor, which is next.

    What happens, happens at its time, be it that the successor sleeps then or that it spins.
    """

    def __init__(self) -> None:
        self.lane: LaneToken = open_lane("0/0", slots=4)
        self.memory = bytearray(8)
        self.holder, self.successor = self._sit("holder"), self._sit("successor")
        for slot, name in ((self.holder, "holder"), (self.successor, "successor")):
            slot.wait(0.0)
            self.lane.look(0)
            self.lane.name_next(LaneClientId(name, 1, 0))
        assert self.holder.wait(0.0)
        words, first = self.lane.page.words, self.lane.page.first_word(self.holder.number)
        words[first + PACE_NS], words[first + SINCE_NS] = PACE, 0
        self.now_ns = self.spun_ns = 0
        self.slept: list[int] = []
        self.events: list[tuple[int, Callable[[], object]]] = []
        number = self.successor.number
        self.waiting = SlotWait(
            self.lane.page,
            number,
            SpinTuner(2),
            wakeup=Wakeup(self, number),
            clock=lambda: self.now_ns,
            breathe=self._breathe,
        )

    def at(self, now_ns: int, event: Callable[[], object]) -> None:
        self.events.append((now_ns, event))

    def give(self) -> None:
        """The holder's turn is over."""
        assert self.holder.exit()
        self.holder.give()

    def wait(self) -> bool:
        """Have the successor wait once; return whether it has the token."""
        seen = self.lane.page.wakeup_word(self.successor.number).value.value
        return self.has_it() or self.waiting.until(DEADLINE, seen, self.has_it)

    def wait_until_it_has_it(self) -> None:
        while not self.wait():
            assert self.now_ns < DEADLINE

    def has_it(self) -> bool:
        return slot_of(self.lane.page.token()) == self.successor.number

    def sleep(self, seen: int, most_ns: int) -> None:
        """Sleep until something rings, or for so long; who wakes up by itself is late."""
        self.slept.append(most_ns)
        until_ns = self.now_ns + most_ns
        while self._rung() == seen and self.events and self.events[0][0] <= until_ns:
            self._happen(self.events[0][0])
        if self._rung() == seen:
            self._happen(until_ns + LATE)

    def _breathe(self) -> None:
        self.spun_ns += LOOK_NS
        self._happen(self.now_ns + LOOK_NS)

    def _rung(self) -> int:
        return self.lane.page.wakeup_word(self.successor.number).value.value

    def _happen(self, now_ns: int) -> None:
        self.now_ns = max(self.now_ns, now_ns)
        while self.events and self.events[0][0] <= self.now_ns:
            self.events.pop(0)[1]()

    def _sit(self, name: str) -> TokenSlot:
        number = self.lane.slot_for(LaneClientId(name, 1, 0), os.getpid())
        return TokenSlot("0/0", SharedPage(os.dup(self.lane.page.fd)), number, os.dup(self.lane.call_fd))


@contextmanager
def told() -> Iterator[Story]:
    story = Story()
    try:
        yield story
    finally:
        for slot in (story.holder, story.successor):
            slot.close()
        story.lane.page.close()
        os.close(story.lane.call_fd)


@pytest.fixture
def story() -> Iterator[Story]:
    with told() as one:
        yield one


def test_the_successor_is_awake_when_the_turn_ends_as_foreseen(story: Story) -> None:
    story.at(PACE, story.give)
    assert story.wait()
    assert PACE <= story.now_ns <= PACE + LOOK_NS
    assert len(story.slept) == 1
    assert 0 < story.spun_ns <= LEAST_SPIN_NS


def test_a_turn_that_lasts_longer_is_slept_through_after_a_short_spin(story: Story) -> None:
    story.at(40 * PACE, story.give)
    story.wait_until_it_has_it()
    assert story.now_ns == 40 * PACE
    assert story.spun_ns <= LEAST_SPIN_NS
    assert len(story.slept) == 2


def test_a_turn_that_ends_earlier_wakes_the_successor_at_once(story: Story) -> None:
    story.at(PACE // 2, story.give)
    story.wait_until_it_has_it()
    assert story.now_ns == PACE // 2
    assert story.spun_ns == 0


def test_one_that_is_not_next_sleeps_until_its_wakeup_rings(story: Story) -> None:
    story.lane.name_next(None)
    story.at(5 * PACE, lambda: story.lane.name_next(LaneClientId("successor", 1, 0)))
    assert not story.wait()
    assert story.now_ns == 5 * PACE
    assert story.slept == [DEADLINE]


def test_one_that_is_told_late_that_it_is_next_spins_all_the_same(story: Story) -> None:
    story.lane.name_next(None)
    story.at(PACE // 2, lambda: story.lane.name_next(LaneClientId("successor", 1, 0)))
    story.at(PACE, story.give)
    story.wait_until_it_has_it()
    assert PACE <= story.now_ns <= PACE + LOOK_NS
    assert story.spun_ns > 0


def test_a_holder_that_has_said_no_pace_is_waited_for_asleep(story: Story) -> None:
    story.lane.page.words[story.lane.page.first_word(story.holder.number) + PACE_NS] = 0
    story.at(PACE, story.give)
    assert story.wait()
    assert story.slept == [DEADLINE]


def test_the_end_of_a_turn_is_foreseen_by_the_time_that_it_lasts_at_least(story: Story) -> None:
    story.lane.name_next(LaneClientId("successor", 1, 0), least_ns=5 * PACE // 2)
    story.at(3 * PACE, lambda: story.lane.name_next(LaneClientId("successor", 1, 0)))
    story.at(3 * PACE, story.give)
    assert story.wait()
    assert 3 * PACE <= story.now_ns <= 3 * PACE + LOOK_NS
    assert story.spun_ns > 0


def spinning_heir(story: Story) -> int:
    """Return a moment at which the successor spins, and the holder does not give its turn."""
    story.at(10 * PACE, story.give)
    return PACE - 5_000


def test_a_successor_that_spins_stops_when_it_is_called(story: Story) -> None:
    moment = spinning_heir(story)
    story.events.insert(0, (moment, story.successor.nudge))
    assert not story.wait()
    assert moment <= story.now_ns <= moment + LOOK_NS
    assert story.spun_ns > 0


def test_a_successor_that_spins_stops_when_it_is_seated_elsewhere(story: Story) -> None:
    moment = spinning_heir(story)
    story.events.insert(0, (moment, lambda: story.lane.call(LaneClientId("successor", 1, 0), stays=False)))
    assert not story.wait()
    assert moment <= story.now_ns <= moment + LOOK_NS


def test_a_successor_that_spins_has_the_token_of_a_holder_that_is_revoked(story: Story) -> None:
    def revoke() -> None:
        story.lane.revoke()
        story.lane.name_next(LaneClientId("successor", 1, 0))

    moment = spinning_heir(story)
    story.events.insert(0, (moment, revoke))
    assert story.wait()
    assert moment <= story.now_ns <= moment + LOOK_NS


def test_a_successor_that_is_stopped_while_it_sleeps_before_its_spin_goes_on_with_the_token(
    story: Story,
) -> None:
    story.at(PACE, lambda: setattr(story, "now_ns", 60 * PACE))
    story.at(PACE, story.give)
    story.wait_until_it_has_it()
    assert story.now_ns >= 60 * PACE


def test_the_broker_rings_the_wakeup_of_one_that_it_names_only_if_that_wants_it_and_once() -> None:
    for keen in (False, True):
        with told() as story:
            wakeup = story.lane.page.wakeup_word(story.successor.number).value
            story.lane.name_next(None)
            SlotWait(story.lane.page, story.successor.number, SpinTuner(2 if keen else 1)).begin()
            before = wakeup.value
            story.lane.name_next(LaneClientId("successor", 1, 0))
            assert (wakeup.value != before) == keen
            before = wakeup.value
            story.lane.name_next(LaneClientId("successor", 1, 0), least_ns=1)
            assert wakeup.value == before


def test_a_wakeup_that_is_rung_several_times_never_looks_as_before(story: Story) -> None:
    page, number = story.lane.page, story.successor.number
    seen = {page.wakeup_word(number).value.value}
    for _ in range(5):
        page.notify(number)
        assert page.wakeup_word(number).value.value not in seen
        seen.add(page.wakeup_word(number).value.value)


def test_a_member_says_the_pace_of_the_middle_one_of_its_last_three_turns(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = [monotonic_ns()]
    monkeypatch.setattr("penstock_sharing.token.token_slot.monotonic_ns", lambda: now_ns[0])
    lane, holder = story.lane, story.holder
    lane.recall()
    story.give()
    paces = []
    for turn_ms, iterations in ((10, 1), (90, 3), (20, 1)):
        holder.wait(0.0)
        lane.look(0)
        lane.name_next(LaneClientId("holder", 1, 0))
        assert holder.wait(0.0)
        now_ns[0] += turn_ms * 1_000_000
        for _ in range(iterations):
            assert not holder.exit()
        lane.recall()
        assert not holder.enter()  # the turn is over
        paces.append(lane.page.words[lane.page.first_word(holder.number) + PACE_NS] / 1e6)
    assert paces[2] == 20.0
