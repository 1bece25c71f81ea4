"""What becomes of the turn of a holder for whom others wait."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_sharing.token.protocol import LaneClientId
from penstock_sharing.token.shared_page import AWAY, BUSY, ITERATIONS, SINCE_NS, STATE, SharedPage, Token
from penstock_sharing.token.slot_table import (
    ENDING_NS,
    GRACE_NS,
    RETURN_NS,
    STOPPED_NS,
    HolderWatch,
    ProcessPulse,
    SlotTable,
    State,
    Verdict,
    state_of,
)

TICK_NS = 4_000_000
LONG_NS = 3_600_000_000_000


class Patient(ProcessPulse):
    """A process whose state a test says."""

    def __init__(self) -> None:
        super().__init__(0)
        self.state: State = "runs"

    def read_state(self) -> State:
        return self.state


class Ward:
    """A watch over one holder, in an iteration that began at 0."""

    def __init__(self) -> None:
        self.page = SharedPage.make(4)
        slots = SlotTable(self.page)
        self.slot = self.page.first_word(slots.take(LaneClientId("holder", 1, 0), 1, 0))
        self.patient = slots[0].pulse = Patient()
        self.watch = HolderWatch(self.page, slots)
        self.turn = 1
        self.be(BUSY)

    def be(self, state: int) -> None:
        self.page.words[self.slot + STATE] = state
        self.page.words[self.slot + SINCE_NS] = 0

    def look(self, now_ns: int, slot: int = 0) -> Verdict:
        return self.watch.look(Token(0, self.turn, slot).word, now_ns)


@pytest.fixture
def ward() -> Iterator[Ward]:
    one = Ward()
    yield one
    one.page.close()


def test_a_holder_that_runs_keeps_its_turn_however_long_its_iteration_is(ward: Ward) -> None:
    assert {ward.look(now_ns) for now_ns in range(1, LONG_NS, LONG_NS // 50)} == {"wait"}


def test_a_holder_that_ends_loses_its_turn_by_the_second_tick(ward: Ward) -> None:
    ward.patient.state = "ends"
    assert ward.look(TICK_NS) == "wait"
    assert ward.look(2 * TICK_NS) == "tell and overrule"
    assert 2 * TICK_NS < 10_000_000
    assert ENDING_NS < TICK_NS


def test_looks_in_quick_succession_take_no_turn_from_a_holder_that_ends(ward: Ward) -> None:
    ward.patient.state = "ends"
    assert {ward.look(TICK_NS + each) for each in range(0, ENDING_NS, ENDING_NS // 10)} == {"wait"}


def test_that_another_holder_has_ended_in_its_turn_is_not_held_against_the_next(ward: Ward) -> None:
    ward.patient.state = "ends"
    ward.look(TICK_NS)
    ward.turn = 2
    assert ward.look(2 * TICK_NS) == "wait"
    assert ward.look(3 * TICK_NS) == "tell and overrule"


def test_a_stopped_holder_has_its_turn_for_a_while(ward: Ward) -> None:
    ward.patient.state = "stopped"
    assert ward.look(STOPPED_NS) == "wait"
    assert ward.look(STOPPED_NS + 1) == "tell and overrule"


def test_a_holder_that_is_long_between_two_iterations_is_recalled(ward: Ward) -> None:
    ward.be(AWAY)
    assert ward.look(TICK_NS) == "wait"
    ward.page.words[ward.slot + ITERATIONS] += 1
    assert ward.look(2 * TICK_NS) == "wait", "it has done another one meanwhile"
    assert ward.look(2 * TICK_NS + GRACE_NS) == "recall"


def test_whoever_comes_to_wait_gives_the_holder_its_time(ward: Ward) -> None:
    ward.be(AWAY)
    ward.look(TICK_NS)
    ward.watch.begin()
    assert ward.look(TICK_NS + GRACE_NS) == "wait"


def test_a_holder_that_does_not_come_back_to_a_new_broker_is_revoked(ward: Ward) -> None:
    assert ward.look(TICK_NS, slot=3) == "wait"
    assert ward.look(TICK_NS + RETURN_NS, slot=3) == "overrule"


def test_the_kernel_is_asked_how_a_process_is() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(1)
    pulse = ProcessPulse(child)
    felt = [pulse.read_state()]
    os.kill(child, signal.SIGSTOP)
    os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)
    felt.append(pulse.read_state())
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    felt.append(pulse.read_state())
    os.waitpid(child, 0)
    felt.append(pulse.read_state())
    pulse.close()
    assert felt == ["runs", "stopped", "ends", "runs"]


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("7 (a) Z 1) S 1 7 7 0 -1 4194304 0", "runs"),
        ("7 (a) D 1 7 7 0 -1 4194816 0", "ends"),
        ("7 (a) t 1 7 7 0 -1 4194304 0", "stopped"),
        ("", "runs"),
        ("7 (a) R", "runs"),
    ],
)
def test_a_line_says_how_a_process_is(line: str, state: State) -> None:
    assert state_of(line.encode()) == state


def test_the_file_of_a_process_is_closed_when_it_leaves() -> None:
    page = SharedPage.make(4)
    slots = SlotTable(page)
    who = LaneClientId("job", 1, 0)
    before = open_files()
    number = slots.take(who, os.getpid(), 0)
    assert slots[number].pulse.read_state() == "runs"
    assert open_files() == before + 1
    slots.leave(number, 1)
    assert open_files() == before
    page.close()


def open_files() -> int:
    """Count the lines of processes that are open here."""
    names = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.readlink(name).endswith("/stat") for name in names if Path(name).is_symlink())
