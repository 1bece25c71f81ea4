"""
What a job loses when it is preempted, as the log shows: some scripts save what they have done, others start anew.

Replay and shadow go by the same rule. One that counts no iterations begins at its beginning each time. Of others, the
last run of the workload that was preempted tells, or that one of them completed a checkpoint; of workloads of which
nobody has seen either, most others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

_NOT_KEPT: Final = frozenset({"preempted", "lost"})
_OF_ITSELF: Final = frozenset({"completed", "failed"})


class Holding(Protocol):
    """A run that is over: on what kind it held devices, for how long, and how it ended."""

    @property
    def kind(self) -> str:
        """Kind of its devices."""
        ...

    @property
    def held_s(self) -> float:
        """Seconds, from its lease on."""
        ...

    @property
    def outcome(self) -> str:
        """As the log has it."""
        ...


class Saving:
    """
    Which workloads go on where they were.

    Examples
    --------
    >>> saving = Saving()
    >>> saving.of("mlp")
    True
    >>> saving.preempted("mlp", advanced=0, loop_steps=50)
    >>> saving.of("mlp"), saving.of("cnn")
    (False, False)
    """

    def __init__(self) -> None:
        self._by_key: dict[str, bool] = {}

    def checkpointed(self, key: str) -> None:
        """Note that a run of a workload completed a checkpoint."""
        self._by_key[key] = True

    def preempted(self, key: str, *, advanced: int, loop_steps: int) -> None:
        """Note the end of a preempted run: by how many iterations its job advanced, of those that the run did."""
        if loop_steps:
            self._by_key[key] = 2 * advanced >= loop_steps

    def of(self, key: str) -> bool:
        """Say whether a preempted job of a workload goes on where it was; while nothing is known, yes."""
        known = self._by_key.get(key)
        return known if known is not None else 2 * sum(self._by_key.values()) >= len(self._by_key)


def uncounted_work_s(runs: Sequence[Holding], speed: Callable[[str], float]) -> float:
    """
    Return the work of a job that counts no iterations: what it held its devices for, at their speed.

    Nothing of runs that were preempted or lost was kept. Of a job that did not come to its end, the longest run is the
    least that its work could be.
    """
    worked_s = [run.held_s * speed(run.kind) for run in runs]
    whole_s = sum(each_s for run, each_s in zip(runs, worked_s, strict=True) if run.outcome not in _NOT_KEPT)
    if runs and runs[-1].outcome in _OF_ITSELF:
        return whole_s
    return max([whole_s, *worked_s])
