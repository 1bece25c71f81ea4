"""
One part on an aggregator: who has joined, who has pushed, what is answered to whom. Pure: no sockets, no clock.

========== ============================================= ====================================================
phase      what it waits for                             what ends it
========== ============================================= ====================================================
JOINING    all ranks, with what they have                the last rank joins: COLLECTING
COPYING    the aggregator before, with the state         the copy is whole: COLLECTING
COLLECTING all ranks' pushes of the next step            :meth:`Part.complete`, again and again
MOVED      nobody: it has its result until it is copied  the part is dropped, or opened anew
OVER       nobody: the part or its run is closed
========== ============================================= ====================================================

Every call returns the answers that are due now, of whoever asked: an answer to a pull may come of another rank's push.
A step is counted once all ranks' pushes of it are there; a push that was counted is never counted again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.aggregation.frames import PartFlag, PartStatus
from penstock.aggregation.rules import mean_of, state_size, update
from penstock_log.aggregation_messages import OpenPart

Vector = NDArray[Any]
Asker = Any
"""Who asked, in the words of the caller; it comes back with the answer."""


class PartPhase(Enum):
    """What a part waits for."""

    JOINING = "joining"
    COPYING = "copying"
    COLLECTING = "collecting"
    MOVED = "moved"
    OVER = "over"


class PartAnswer(NamedTuple):
    """What is to be said to whom."""

    asker: Asker
    status: PartStatus
    step: int = 0
    safe_step: int = 0
    vectors: tuple[Vector, ...] = ()
    reason: str = ""


class JoinedRank(NamedTuple):
    """What a rank brings."""

    completed: int
    """The last step whose result it has."""
    oldest_push: int
    """The first step that it could push again."""
    held_step: int = 0
    held: tuple[Vector, ...] = ()
    """Parameters and optimizer state after that step; of the holder, in update mode."""


class _Pull(NamedTuple):
    rank: int
    step: int
    flags: int
    asker: Asker


class _Push(NamedTuple):
    rank: int
    step: int
    values: Vector
    is_own: bool
    """Whether the memory is the part's, from :meth:`Part.take_buffer`."""


class Part:
    """
    A part of a run, from one generation on.

    Parameters
    ----------
    order : OpenPart
    allocate : callable
        Returns the memory for its result or its parameters, (elements,) of its type; called once, when it is needed.

    Attributes
    ----------
    phase : PartPhase
    completed : int
        The last step that is complete.
    safe_step : int
        Pushes of this step and those before are needed no more.
    not_finite : int
        Values of results so far that were no finite numbers.
    """

    def __init__(self, order: OpenPart, allocate: Callable[[], Vector] | None = None) -> None:
        self.order = order
        self._allocate = allocate or self._ordinary_memory
        self.dtype = np.dtype(order.dtype)
        self.bytes = order.elements * self.dtype.itemsize
        self.updates = order.rule.name != "mean"
        self.holder = order.part % order.world_size
        self.state_vectors = state_size(order.rule)
        self.phase = PartPhase.JOINING if order.how == "join" else PartPhase.COPYING
        self.completed = self.safe_step = self.not_finite = self._held_step = 0
        self._result: Vector | None = None
        self._state: tuple[Vector, ...] = ()
        self._joined: dict[int, tuple[JoinedRank, Asker]] = {}
        self._pushes: dict[int, _Push] = {}
        self._pulls: dict[int, _Pull] = {}
        self._left: set[int] = set()
        self._free: list[Vector] = []
        self._moves = False
        self._over = (PartStatus.RUN_OVER, "")

    @property
    def is_whole(self) -> bool:
        """Whether all ranks have pushed the next step, so that :meth:`complete` may be called."""
        return self.phase is PartPhase.COLLECTING and len(self._pushes) == self.order.world_size

    @property
    def awaits_copy(self) -> bool:
        """Whether a copy of the part may come."""
        return self.phase is PartPhase.COPYING

    @property
    def held_vectors(self) -> int:
        """How many vectors a holder brings, or a copy has at most."""
        return 1 + self.state_vectors

    def take_buffer(self) -> Vector:
        """Return memory to receive a push in; whoever does not push it gives it back."""
        return self._free.pop() if self._free else np.empty(self.order.elements, self.dtype)

    def give_back_buffer(self, values: Vector) -> None:
        """Take memory back that was not pushed."""
        if len(self._free) < self.order.world_size:
            self._free.append(values)

    # --- ranks
    def join(self, rank: int, brought: JoinedRank, asker: Asker) -> list[PartAnswer]:
        """A rank says what it has; all are answered once the last one has come."""
        if self.phase is PartPhase.COLLECTING:  # it did not hear the answer
            if brought.oldest_push > self.completed + 1:
                return [self._refusal(asker, PartStatus.NOT_KEPT, self._not_kept(rank, brought, self.completed))]
            return [self._answer(asker, self.completed)]
        if self.phase is not PartPhase.JOINING:
            return [self._elsewhere(asker, "there is nothing to join")]
        before = self._joined.get(rank)
        answers = [] if before is None else [self._refusal(before[1], PartStatus.COUNTED, f"rank {rank} joined again")]
        self._joined[rank] = (brought, asker)
        if len(self._joined) < self.order.world_size:
            return answers
        return answers + self._begin()

    def _begin(self) -> list[PartAnswer]:
        joined, self._joined = self._joined, {}
        step = min(brought.completed for brought, _ in joined.values())
        if self.updates:
            held = joined[self.holder][0]
            if len(held.held) != self.held_vectors:
                reason = (
                    f"rank {self.holder} holds the part, and brought {len(held.held)} vectors of {self.held_vectors}"
                )
                return [self._refusal(asker, PartStatus.NOT_KEPT, reason) for _, asker in joined.values()]
            step = held.held_step
        for rank, (brought, _) in joined.items():
            if brought.oldest_push > step + 1:
                reason = self._not_kept(rank, brought, step)
                return [self._refusal(asker, PartStatus.NOT_KEPT, reason) for _, asker in joined.values()]
        if self.updates:
            self._take_vectors(joined[self.holder][0].held)
        self.phase, self.completed, self.safe_step = PartPhase.COLLECTING, step, step
        return [self._answer(asker, step) for _, asker in joined.values()]

    def push_refusal(self, rank: int, step: int, held_step: int, asker: Asker) -> PartAnswer | None:
        """
        Say what is wrong with a push before its values are there; None where it may come.

        ``held_step``: of which step that rank holds the state, if it is the holder.
        """
        if self.updates and rank == self.holder:
            self._held_step = max(self._held_step, held_step)
            self._note_safe()
        status, reason = self._push_status(rank, step)
        return None if status == PartStatus.OK else self._refusal(asker, status, reason)

    def _note_safe(self) -> None:
        """Note that a step is safe once the holder has the state after it, which it may say before a copy is here."""
        self.safe_step = max(self.safe_step, min(self._held_step, self.completed))

    def _push_status(self, rank: int, step: int) -> tuple[PartStatus, str]:
        status, reason = PartStatus.OK, ""
        if self.phase is PartPhase.OVER:
            status, reason = self._over
        elif self.phase is PartPhase.JOINING:
            status, reason = PartStatus.TOO_EARLY, "not all ranks have joined"
        elif rank in self._pushes:
            status, reason = (
                PartStatus.COUNTED,
                f"a push of rank {rank} is here already, of step {self._pushes[rank].step}",
            )
        elif self.phase is PartPhase.COPYING:
            pass  # whether it is of the next step is known once the copy is whole
        elif step <= self.completed:
            status, reason = PartStatus.COUNTED, f"step {step} was counted; the last one is step {self.completed}"
        elif self.phase is PartPhase.MOVED:
            status, reason = PartStatus.MOVED, f"the part is on another aggregator; step {step} is not counted here"
        elif step > self.completed + 1:
            status, reason = PartStatus.TOO_EARLY, f"step {self.completed + 1} comes before step {step}"
        return status, reason

    def push(self, rank: int, step: int, values: Vector, asker: Asker, *, is_own: bool) -> list[PartAnswer]:
        """
        Count a rank's values of a step; where :attr:`is_whole` holds afterwards, the step can be completed.

        Only a push that is refused is answered: the answer to the pull says the rest.

        Parameters
        ----------
        values : (N,) array
            Not changed by anybody until the step is complete.
        is_own : bool
            Whether they are in memory of :meth:`take_buffer`.
        """
        refusal = self.push_refusal(rank, step, 0, asker)
        if refusal is not None:
            if is_own:
                self.give_back_buffer(values)
            return [refusal]
        self._pushes[rank] = _Push(rank, step, values, is_own)
        return []

    def complete(self) -> list[PartAnswer]:
        """Sum the next step up in the order of the ranks, and answer who waits for it."""
        pushes = [self._pushes[rank] for rank in range(self.order.world_size)]
        contributions = [push.values for push in pushes]
        if self._result is None:
            self._result = self._allocate()
        if self.updates:
            step = self.completed + 1
            self.not_finite += update(self.order.rule, step, contributions, self._result, self._state)
        else:
            self.not_finite += mean_of(contributions, self._result)
            self.safe_step = self.completed  # who pushes a step has the result of the one before
        self.completed += 1
        self._forget_pushes()
        answers = self._answer_pulls()
        if self._moves:
            answers += self._leave()
        return answers

    def pull(self, rank: int, step: int, flags: int, asker: Asker) -> list[PartAnswer]:
        """Answer a step's result, now or once it is complete."""
        before = self._pulls.pop(rank, None)
        answers = (
            [] if before is None else [self._refusal(before.asker, PartStatus.COUNTED, f"rank {rank} asked again")]
        )
        pull = _Pull(rank, step, flags, asker)
        if self.phase is PartPhase.OVER:
            answers.append(self._elsewhere(asker, ""))
        elif self.phase is PartPhase.JOINING:
            answers.append(self._refusal(asker, PartStatus.TOO_EARLY, "not all ranks have joined"))
        elif self.phase is PartPhase.COPYING or (self.phase is PartPhase.COLLECTING and step == self.completed + 1):
            self._pulls[rank] = pull
            answers += self._refuse_vain_pulls()
        elif step == self.completed:
            answers.append(self._result_for(pull))
        elif step < self.completed:
            answers.append(
                self._refusal(asker, PartStatus.COUNTED, f"step {self.completed} is complete, and has its place")
            )
        elif self.phase is PartPhase.MOVED:
            answers.append(self._elsewhere(asker, f"step {step} is not counted here"))
        else:
            reason = f"step {self.completed + 1} comes before step {step}"
            answers.append(self._refusal(asker, PartStatus.TOO_EARLY, reason))
        return answers

    def leave(self, rank: int) -> list[PartAnswer]:
        """A rank has ended and pushes nothing any more: whoever waits for its push does so in vain."""
        self._left.add(rank)
        return self._refuse_vain_pulls()

    def _refuse_vain_pulls(self) -> list[PartAnswer]:
        missing = sorted(self._left - self._pushes.keys())
        if self.phase is not PartPhase.COLLECTING or not missing:
            return []
        reason = (
            f"rank {missing[0]} has ended after step {self.completed}, and the others go on; all make as many steps"
        )
        pulls, self._pulls = self._pulls, {}
        return [self._refusal(pull.asker, PartStatus.RANK_LEFT, reason) for pull in pulls.values()]

    # --- moves
    def begin_move(self) -> list[PartAnswer] | None:
        """
        Move, at once unless a step only waits for :meth:`complete`: :attr:`phase` says whether it has.

        Pushes of a step that is not whole are forgotten, and their ranks push it to the other aggregator: one of them
        may be there already, and would be waited for in vain.

        Returns
        -------
        list of PartAnswer, or None
            None where the part cannot move, since it waits for ranks or for a copy itself, or has moved.
        """
        if self.phase is not PartPhase.COLLECTING:
            return None
        self._moves = True
        return [] if self.is_whole else self._leave()

    def _leave(self) -> list[PartAnswer]:
        self.phase = PartPhase.MOVED
        self._forget_pushes()
        pulls, self._pulls = self._pulls, {}
        return [self._elsewhere(pull.asker, f"step {pull.step} is not counted here") for pull in pulls.values()]

    @property
    def copy_vectors(self) -> tuple[Vector, ...]:
        """What another aggregator needs to go on: the result or the parameters, and the optimizer's state."""
        return () if self._result is None else (self._result, *self._state)

    def forget_vectors(self) -> None:
        """Forget result and state, since another aggregator has both now; who still asks for them is sent there."""
        self._result, self._state, self._free = None, (), []

    def take_copy(self, step: int, safe_step: int, vectors: Sequence[Vector]) -> list[PartAnswer]:
        """
        Go on from a copy that is whole; nothing was summed before.

        Parameters
        ----------
        step, safe_step : int
        vectors : sequence of (N,) arrays
            As :attr:`copy_vectors` of the aggregator before; the part's from now on.
        """
        if vectors:
            self._take_vectors(vectors)
        self.phase, self.completed, self.safe_step = PartPhase.COLLECTING, step, safe_step
        self._note_safe()
        early = [push for push in self._pushes.values() if push.step != step + 1]
        for push in early:
            del self._pushes[push.rank]
            if push.is_own:
                self.give_back_buffer(push.values)
        pulls, self._pulls = self._pulls, {}
        return [answer for pull in pulls.values() for answer in self.pull(*pull)]

    def _take_vectors(self, vectors: Sequence[Vector]) -> None:
        self._result = self._allocate()
        self._result[:] = vectors[0]
        self._state = tuple(vectors[1:])

    def _ordinary_memory(self) -> Vector:
        return np.empty(self.order.elements, self.dtype)

    # --- the end
    def close(self, status: PartStatus, reason: str) -> list[PartAnswer]:
        """Be over, and say so to all who wait and who come."""
        self.phase, self._over = PartPhase.OVER, (status, reason)
        waiting = [asker for _, asker in self._joined.values()] + [pull.asker for pull in self._pulls.values()]
        self._joined, self._pulls = {}, {}
        self._forget_pushes()
        self._result, self._state, self._free = None, (), []
        return [self._refusal(asker, status, reason) for asker in waiting]

    # --- answers
    def _answer_pulls(self) -> list[PartAnswer]:
        due = [pull for pull in self._pulls.values() if pull.step == self.completed]
        for pull in due:
            del self._pulls[pull.rank]
        return [self._result_for(pull) for pull in due]

    def _result_for(self, pull: _Pull) -> PartAnswer:
        if pull.flags & PartFlag.NO_VALUES:
            return self._answer(pull.asker, self.completed)
        if self._result is None and self.phase is PartPhase.MOVED:
            return self._elsewhere(pull.asker, "so is its result")
        if self._result is None:
            reason = f"the result of step {self.completed} is not here: all ranks had it when they joined"
            return self._refusal(pull.asker, PartStatus.NOT_KEPT, reason)
        if not pull.flags & PartFlag.STATE:
            return self._answer(pull.asker, self.completed, (self._result,))
        if len(self._state) < self.state_vectors:
            return self._elsewhere(pull.asker, "so is its state")
        return self._answer(pull.asker, self.completed, (self._result, *self._state))

    def _answer(self, asker: Asker, step: int, vectors: tuple[Vector, ...] = ()) -> PartAnswer:
        return PartAnswer(asker, PartStatus.OK, step, self.safe_step, vectors)

    def _refusal(self, asker: Asker, status: PartStatus, reason: str) -> PartAnswer:
        return PartAnswer(asker, status, self.completed, self.safe_step, reason=reason)

    def _elsewhere(self, asker: Asker, what: str) -> PartAnswer:
        if self.phase is PartPhase.OVER:
            return self._refusal(asker, *self._over)
        if self.phase is PartPhase.MOVED:
            return self._refusal(asker, PartStatus.MOVED, f"the part is on another aggregator; {what}")
        return self._refusal(asker, PartStatus.TOO_EARLY, f"the part waits for its copy; {what}")

    def _not_kept(self, rank: int, brought: JoinedRank, step: int) -> str:
        return (
            f"rank {rank} has the result of step {brought.completed} and its pushes from step {brought.oldest_push}, "
            f"and the part goes on after step {step}"
        )

    def _forget_pushes(self) -> None:
        for push in self._pushes.values():
            if push.is_own:
                self.give_back_buffer(push.values)
        self._pushes.clear()
