"""The stop agreement as a pure model: whatever the delays, a gang stops after one and the same step."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from penstock.sessions.agent_client import StopVote
from penstock_log.agent_protocol import STOP_MARGIN


@dataclass
class Process:
    """A process in lockstep with its peers: it ends a step only after all have begun it."""

    agreement: StopVote = field(default_factory=StopVote)
    turns: bool = False
    step: int = 0
    inside: bool = False
    left_at: int | None = None

    @property
    def begun(self) -> int:
        """The number of steps begun."""
        return self.step + self.inside


@dataclass
class Gang:
    """Processes, and an executor whose messages wait until they are delivered."""

    processes: list[Process]
    stops: set[int]
    answers: dict[int, int] = field(default_factory=dict)
    stop_ats: set[int] = field(default_factory=set)
    agreed: int = 0

    def moves(self) -> list[tuple[str, int]]:
        """Return all that can happen next."""
        moves = [("stop", i) for i in self.stops] + [("stop_at", i) for i in self.stop_ats]
        for i, process in enumerate(self.processes):
            if process.left_at is not None:
                continue
            if not process.inside and process.agreement.verdict(process.step) != "wait":
                moves.append(("boundary", i))
            if process.inside and all(other.begun > process.step for other in self.processes):
                moves.append(("end", i))
        return sorted(moves)

    def move(self, kind: str, i: int) -> None:
        """Let it happen."""
        process = self.processes[i]
        if kind == "stop":
            self.stops.discard(i)
            answer = process.agreement.ask(process.step, held=process.turns and not process.inside)
            assert answer is not None
            self._answered(i, answer + (0 if process.agreement.held else STOP_MARGIN))
        elif kind == "stop_at":
            self.stop_ats.discard(i)
            process.agreement.agree(self.agreed)
        elif kind == "end":
            process.step, process.inside = process.step + 1, False
        elif process.agreement.verdict(process.step) == "leave":
            process.left_at = process.step
        else:
            process.inside = True

    def _answered(self, i: int, step: int) -> None:
        self.answers[i] = step
        if len(self.answers) == len(self.processes):
            self.agreed = max(self.answers.values())
            self.stop_ats = set(range(len(self.processes)))


@given(st.data(), st.integers(1, 4), st.integers(0, 12), st.booleans())
def test_a_gang_in_lockstep_stops_after_one_step_whatever_the_delays(
    data: st.DataObject, size: int, head_start: int, turns: bool
) -> None:
    gang = Gang([Process(turns=turns) for _ in range(size)], stops=set())
    for process in gang.processes:
        process.agreement.begin_loop(0)
    for turn in range(600):
        if turn == head_start:
            gang.stops = set(range(size))
        moves = gang.moves()
        if not moves:
            break
        gang.move(*data.draw(st.sampled_from(moves)) if turn < 60 else moves[turn % len(moves)])
    assert {process.left_at for process in gang.processes} == {gang.agreed}
    assert gang.agreed > 0 or turns


@given(st.integers(0, 1000), st.integers(0, 5))
def test_nobody_goes_beyond_the_answer_plus_the_margin_before_the_step_is_named(answer: int, further: int) -> None:
    agreement = StopVote()
    agreement.begin_loop(0)
    agreement.ask(answer)
    assert agreement.verdict(answer + further) == ("go" if further < STOP_MARGIN else "wait")


@given(st.integers(0, 1000))
def test_one_that_is_held_begins_no_step_before_the_agreed_one_is_named(answer: int) -> None:
    agreement = StopVote()
    agreement.begin_loop(0)
    agreement.ask(answer, held=True)
    assert agreement.verdict(answer) == "wait"
    agreement.agree(answer)
    assert agreement.verdict(answer) == "leave"


def test_a_question_before_the_loop_is_answered_when_the_loop_begins() -> None:
    agreement = StopVote()
    assert agreement.ask(0) is None
    assert agreement.begin_loop(40) == 40


def test_the_first_answer_stands_when_the_question_is_repeated() -> None:
    agreement = StopVote()
    agreement.begin_loop(0)
    assert [agreement.ask(7), agreement.ask(8)] == [7, 7]


def test_a_lost_executor_frees_a_waiting_process_but_an_agreed_step_stands() -> None:
    agreement = StopVote()
    agreement.begin_loop(0)
    agreement.ask(7)
    agreement.void_question()
    assert agreement.idle
    assert agreement.verdict(50) == "go"
    agreement.agree(60)
    agreement.void_question()
    assert agreement.verdict(60) == "leave"


def test_a_step_named_too_late_is_taken_at_once() -> None:
    agreement = StopVote()
    agreement.begin_loop(0)
    agreement.agree(5)
    assert agreement.verdict(9) == "leave"
