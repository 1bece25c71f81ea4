"""
One process's part in agreeing on the step after which a gang stops. Pure: no clock, no socket, no thread.

The promise behind :class:`~penstock_events.agent.At` is that the process does not go beyond its answer plus
``STOP_MARGIN`` before it has heard :class:`~penstock_events.agent.StopAt`. Every process keeps it, so the largest
answer plus the margin is a step that nobody has passed.

An answer may be given in the middle of a step, and has to be: a process that waits for its peers inside a collective
operation reaches no boundary while one of those peers waits at its own limit. Between two steps of a loop that takes
turns, the answer may be that the process is held: then it begins no step before it has heard.
"""

from __future__ import annotations

from typing import Literal

from penstock_events.agent import STOP_MARGIN

Verdict = Literal["go", "wait", "leave"]


class Agreement:
    """
    What this process was asked, what it answered and what was agreed.

    Steps are counts of completed iterations since the job's very beginning.
    """

    def __init__(self) -> None:
        self._begun = False
        self._asked = False
        self._answer: int | None = None
        self._held = False
        self._stop_at: int | None = None

    @property
    def stop_at(self) -> int | None:
        """The agreed step, once there is one."""
        return self._stop_at

    @property
    def held(self) -> bool:
        """Whether the answer says that no step is begun before the agreed one is heard."""
        return self._held

    @property
    def idle(self) -> bool:
        """Whether nobody has asked anything."""
        return not self._asked and self._stop_at is None

    def begin(self, step: int, *, held: bool = False) -> int | None:
        """The loop begins after this step, and a checkpoint cannot move it any more; return the answer now due."""
        self._begun = True
        return self.ask(step, held=held) if self._asked else None

    def ask(self, step: int, *, held: bool = False) -> int | None:
        """Return what to answer after so many steps; None while the loop has not begun. The first answer stands."""
        self._asked = True
        if not self._begun:
            return None
        if self._answer is None:
            self._answer, self._held = step, held
        return self._answer

    def agree(self, step: int) -> None:
        """All have answered: everyone stops after this step."""
        self._stop_at = step

    def lost(self) -> None:
        """The asker is gone. An agreed step stays, since others may have heard of it; a mere question is void."""
        self._asked = self._held = False
        self._answer = None

    def forget(self) -> None:
        """The process could not leave after all: a later question is a new one."""
        self.lost()
        self._stop_at = None

    def verdict(self, step: int) -> Verdict:
        """Return what to do at the boundary after a step."""
        if self._stop_at is not None:
            return "leave" if step >= self._stop_at else "go"
        if self._answer is not None and step >= self._answer + (0 if self._held else STOP_MARGIN):
            return "wait"
        return "go"
