"""The states of a part: whatever comes in whatever order, each step is counted once, and in the order of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.aggregation.frames import PartFlag, PartStatus
from penstock_aggregator.parts import JoinedRank, Part, PartAnswer, PartPhase
from penstock_log.aggregation_messages import OpenPart, RuleName, UpdateRule

WORLD = 3
HOLDER = 1
OK = PartStatus.OK


def opened(rule: RuleName = "mean", how: Any = "join", part: int = HOLDER) -> Part:
    order = OpenPart(
        job_id="j",
        epoch=1,
        part=part,
        generation=1,
        elements=2,
        dtype="f4",
        world_size=WORLD,
        rule=UpdateRule(name=rule, lr=-1.0),
        how=how,
    )
    return Part(order)


def ones() -> Any:
    return np.ones(2, "f4")


def all_joined(part: Part, step: int = 0) -> list[PartAnswer]:
    held = tuple(np.full(2, step, "f4") for _ in range(part.held_vectors)) if part.updates else ()
    answers = []
    for rank in range(WORLD):
        answers += part.join(rank, JoinedRank(step, step + 1, step, held if rank == part.holder else ()), rank)
    return answers


def pushed(part: Part, step: int, ranks: Sequence[int] = range(WORLD)) -> list[PartAnswer]:
    answers = []
    for rank in ranks:
        answers += part.push(rank, step, ones(), f"push {rank}", is_own=False)
        if part.is_whole:
            answers += part.complete()
    return answers


def statuses(answers: Sequence[PartAnswer]) -> list[tuple[Any, PartStatus]]:
    return [(answer.asker, answer.status) for answer in answers]


def test_ranks_are_answered_once_the_last_has_joined() -> None:
    part = opened()
    assert part.join(0, JoinedRank(4, 4), "a") == []
    assert part.join(2, JoinedRank(3, 3), "c") == []
    assert [answer[:4] for answer in part.join(1, JoinedRank(4, 4), "b")] == [
        ("a", OK, 3, 3),
        ("c", OK, 3, 3),
        ("b", OK, 3, 3),
    ]


def test_ranks_that_have_not_what_is_needed_are_told_who() -> None:
    part = opened()
    part.join(0, JoinedRank(3, 3), "a")
    part.join(1, JoinedRank(5, 5), "b")
    answers = part.join(2, JoinedRank(5, 4), "c")
    assert {answer.status for answer in answers} == {PartStatus.NOT_KEPT}
    assert "rank 1 has the result of step 5 and its pushes from step 5, and" in answers[0].reason


def test_a_part_with_an_optimizer_needs_what_its_holder_has() -> None:
    part = opened("momentum")
    for rank in range(WORLD):
        answers = part.join(rank, JoinedRank(0, 1), rank)
    assert "rank 1 holds the part, and brought 0 vectors of 2" in answers[0].reason


def test_a_rank_that_did_not_hear_the_answer_joins_again() -> None:
    part = opened()
    all_joined(part, 4)
    assert [answer[:3] for answer in part.join(1, JoinedRank(4, 4), "again")] == [("again", OK, 4)]


def test_a_step_is_safe_once_its_holder_says_so() -> None:
    part = opened("sgd")
    all_joined(part)
    pushed(part, 1)
    pushed(part, 2)
    assert part.safe_step == 0
    part.push_refusal(0, 3, 2, "no holder")
    assert part.safe_step == 0
    part.push_refusal(HOLDER, 3, 2, "holder")
    assert part.safe_step == 2
    part.push_refusal(HOLDER, 3, 99, "holder")
    assert part.safe_step == 2


def test_a_mean_is_safe_once_all_ranks_have_it() -> None:
    part = opened()
    all_joined(part)
    pushed(part, 1)
    assert part.safe_step == 0
    pushed(part, 2)
    assert part.safe_step == 1


def test_a_part_moves_with_a_step_that_is_not_whole_left_behind() -> None:
    part, other = opened("adamw"), opened("adamw", "copy")
    all_joined(part)
    pushed(part, 1)
    assert part.push(0, 2, ones(), "a", is_own=False) == []
    assert part.pull(0, 2, 0, "waits") == []
    assert statuses(part.begin_move() or []) == [("waits", PartStatus.MOVED)]
    assert part.begin_move() is None
    assert statuses(part.push(1, 2, ones(), "b", is_own=False)) == [("b", PartStatus.MOVED)]
    assert statuses(part.pull(2, 1, 0, "late")) == [("late", OK)]
    assert other.push(2, 2, ones(), "c", is_own=False) == []
    assert other.pull(1, 1, 0, "late too") == []
    assert not other.is_whole
    answers = other.take_copy(part.completed, part.safe_step, part.copy_vectors)
    assert statuses(answers) == [("late too", OK)]
    assert statuses(other.push(2, 2, ones(), "again", is_own=False)) == [("again", PartStatus.COUNTED)]
    pushed(other, 2, [0, 1])
    assert other.completed == 2


def test_pushes_that_came_before_the_copy_and_are_counted_in_it_are_forgotten() -> None:
    part = opened("mean", "copy")
    part.push(0, 7, ones(), "a", is_own=True)
    part.push(1, 8, ones(), "b", is_own=True)
    part.take_copy(7, 6, [ones()])
    pushed(part, 8, [0])
    assert not part.is_whole
    pushed(part, 8, [2])
    assert part.completed == 8


def test_a_whole_step_is_completed_before_its_part_moves() -> None:
    part = opened()
    all_joined(part)
    for rank in range(WORLD):
        part.push(rank, 1, ones(), rank, is_own=False)
    part.pull(0, 1, 0, "waits")
    assert (part.begin_move(), part.phase) == ([], PartPhase.COLLECTING)
    assert statuses(part.complete()) == [("waits", OK)]
    assert part.phase is PartPhase.MOVED


@pytest.mark.parametrize("status", [PartStatus.RUN_OVER, PartStatus.STALE])
def test_a_part_that_is_closed_says_why_to_all(status: PartStatus) -> None:
    part = opened()
    part.join(0, JoinedRank(0, 1), "joins")
    assert part.close(status, "the end") == [PartAnswer("joins", status, reason="the end")]
    late = [
        *part.join(1, JoinedRank(0, 1), 1),
        *part.push(1, 1, ones(), 2, is_own=False),
        *part.pull(1, 1, 0, 3),
    ]
    assert [(answer.status, answer.reason) for answer in late] == [(status, "the end")] * 3


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["push", "pull", "state", "join", "move", "die"]),
        st.integers(0, WORLD - 1),
        st.integers(-1, 2),
    ),
    max_size=150,
)


class Rehearsal:
    """
    Three ranks and their part, with events in any order: steps off by some, duplicates, moves, deaths.

    A good rank pushes step ``completed + 1`` until it has its result; what a test adds to the step makes it a bad push,
    which has to be refused. The lr is -1 and all values are ones, so the parameters count the updates.
    """

    def __init__(self, rule: RuleName) -> None:
        self.part = opened(rule)
        self.completed = [0] * WORLD
        self.held = (0, tuple(np.zeros(2, "f4") for _ in range(self.part.held_vectors)))
        self.asked: dict[int, tuple[str, int, int]] = {}
        self.answered: set[int] = set()
        all_joined(self.part)

    def take(self, answers: Sequence[PartAnswer]) -> None:
        for answer in answers:
            assert answer.asker not in self.answered, "answered twice"
            self.answered.add(answer.asker)
            what, rank, step = self.asked[answer.asker]
            if answer.status != OK or what not in {"pull", "state"} or not answer.vectors:
                continue
            assert answer.step == step
            if self.part.updates:
                assert answer.vectors[0].tolist() == [step, step], "a step was lost, or counted twice"
            else:
                assert answer.vectors[0].tolist() == [1, 1]
            self.completed[rank] = max(self.completed[rank], step)
            if what == "state" and rank == HOLDER:
                self.held = (step, tuple(vector.copy() for vector in answer.vectors))

    def ask(self, what: str, rank: int, step: int) -> int:
        number = len(self.asked)
        self.asked[number] = (what, rank, step)
        return number

    def happens(self, what: str, rank: int, off: int) -> None:
        part = self.part
        step = max(0, self.completed[rank] + 1 + off)
        number = self.ask(what, rank, step)
        if what == "push":
            before = part.completed
            self.take(part.push(rank, step, ones(), number, is_own=False))
            if part.is_whole:
                self.take(part.complete())
                assert part.completed == before + 1
        elif what in {"pull", "state"}:
            self.take(part.pull(rank, step, PartFlag.STATE if what == "state" else 0, number))
        elif what == "join" and part.phase is PartPhase.COLLECTING:
            self.take(part.join(rank, JoinedRank(self.completed[rank], self.completed[rank]), number))
        elif what == "move":
            answers = part.begin_move()
            assert answers is not None
            self.take(answers)
            self.part = opened(part.order.rule.name, "copy")
            self.take(self.part.take_copy(part.completed, part.safe_step, [each.copy() for each in part.copy_vectors]))
        elif what == "die":
            self.part = opened(part.order.rule.name)
            for each in range(WORLD):
                oldest = (self.held[0] if part.updates else min(self.completed)) + 1
                held = self.held[1] if part.updates and each == HOLDER else ()
                joiner = self.ask("join", each, self.completed[each])
                self.take(self.part.join(each, JoinedRank(self.completed[each], oldest, self.held[0], held), joiner))
            assert self.part.phase is PartPhase.COLLECTING
            self.replay()

    def replay(self) -> None:
        """Do what good ranks do after a death: push again what came after the state, up to what any of them has."""
        while self.part.completed < max(self.completed):
            step = self.part.completed + 1
            for rank in range(WORLD):
                assert self.part.push(rank, step, ones(), self.ask("push", rank, step), is_own=False) == []
            self.take(self.part.complete())


@given(events=EVENTS, rule=st.sampled_from(["mean", "sgd"]))
def test_each_step_is_counted_once_in_any_order_of_events(events: list[tuple[str, int, int]], rule: RuleName) -> None:
    rehearsal = Rehearsal(rule)
    for what, rank, off in events:
        rehearsal.happens(what, rank, off if what in {"push", "pull"} else -1 if what == "state" else 0)
        assert max(rehearsal.completed) <= rehearsal.part.completed
    for rank in range(WORLD):  # whatever was before, good ranks go on
        rehearsal.happens("pull", rank, 0 if rehearsal.completed[rank] < rehearsal.part.completed else -1)
    last = rehearsal.part.completed + 1
    for rank in range(WORLD):
        if rank not in rehearsal.part._pushes:
            rehearsal.take(rehearsal.part.push(rank, last, ones(), rehearsal.ask("push", rank, last), is_own=False))
    assert rehearsal.part.is_whole
    rehearsal.take(rehearsal.part.complete())
    assert rehearsal.part.completed == last
