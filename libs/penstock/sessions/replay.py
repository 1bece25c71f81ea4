"""
Where a script is in its loops, and which items were done before a checkpoint, so that a resumed script repeats and
omits none. Pure: no clock, no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Done(msgspec.Struct, frozen=True):
    """So many loops in a row that ended after ``items`` items each."""

    items: int
    loops: int


class History(msgspec.Struct):
    """
    The loops that ended, in run lengths, and the items done in the one that is open.

    A script that ran 1,000 equal epochs keeps one :class:`Done`.
    """

    ended: list[Done] = []
    items: int = 0

    def end(self) -> None:
        """The open loop ended, by exhaustion or by ``break``."""
        if self.ended and self.ended[-1].items == self.items:
            self.ended[-1] = Done(self.items, self.ended[-1].loops + 1)
        else:
            self.ended.append(Done(self.items, 1))
        self.items = 0

    def copy(self) -> History:
        """Return a history that later loops do not change."""
        return History(list(self.ended), self.items)

    def reopened(self) -> History:
        """
        Return a history in which the last loop has not ended: it goes on if it is longer now.

        Examples
        --------
        >>> History([Done(items=10, loops=3)]).reopened()
        History(ended=[Done(items=10, loops=2)], items=10)
        """
        if self.items or not self.ended:
            return self.copy()
        *before, last = self.ended
        return History([*before, Done(last.items, last.loops - 1)] if last.loops > 1 else before, last.items)

    def replay(self) -> Iterator[tuple[int, bool]]:
        """Yield, for each loop that had begun, its items done and whether it had ended."""
        for run in self.ended:
            for _ in range(run.loops):
                yield run.items, True
        yield self.items, False


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """
    How far a sampler has come in its data set.

    Attributes
    ----------
    epoch : int
        From 0.
    seen : int
        Samples of it that were done, by all processes together.
    closed : bool
        Whether the loop over this epoch has ended, so that the next one is about the next.
    size, seed : int
        Samples in the data set, and what their order is drawn from.
    samples : int or None
        Samples that were done, over all epochs; None in checkpoints of versions that did not count them.
    """

    epoch: int
    seen: int = 0
    closed: bool = False
    size: int
    seed: int = 0
    samples: int | None = None

    @property
    def done(self) -> int:
        """
        Samples that were done, over all epochs; where nobody counted them, the epochs before are taken to be whole.

        Examples
        --------
        >>> Place(epoch=2, seen=3, size=10).done, Place(epoch=2, seen=3, size=10, samples=17).done
        (23, 17)
        """
        return self.epoch * self.size + self.seen if self.samples is None else self.samples

    def reopened(self) -> Place:
        """Return a place from which the last loop goes on where it has anything left."""
        return msgspec.structs.replace(self, closed=False)


class Course:
    """
    A script's way through its loops.

    Attributes
    ----------
    step : int
        Steps done since the job's very beginning.
    loop_steps : int
        Steps done in this run.
    waited_s : float
        Waited for turns in this run.
    begun : bool
        Whether a loop has begun, so that no checkpoint can move the start any more.
    open : bool
        Whether a loop is running.
    replaying : bool
        Whether the script has yet to come to where its checkpoint was taken.
    unattended : bool
        Whether the last step was left by ``break``, so that its boundary is still to come.
    """

    def __init__(self) -> None:
        self.step = 0
        self.loop_steps = 0
        self.waited_s = 0.0
        self.begun = False
        self.open = False
        self.replaying = False
        self.unattended = False
        self._history = History()
        self._replay: Iterator[tuple[int, bool]] = iter(())
        self._loop_start = 0

    def resume(self, step: int, history: History) -> None:
        """Go on from a checkpoint."""
        self.step = step
        self.replaying = True
        self._history = history
        self._replay = history.copy().replay()

    def next_loop(self) -> tuple[int, bool]:
        """Return how many items of the loop that comes now were done, and whether it had ended."""
        self.begun = True
        return next(self._replay, (0, False))

    def open_loop(self, done: int) -> None:
        """A loop goes on after so many items."""
        self.open = True
        self.replaying = False
        self._loop_start = self.step - done

    def close_loop(self) -> None:
        """The open loop ended."""
        self.open = False
        self._history.items = self.step - self._loop_start
        self._history.end()

    def count(self) -> None:
        """One more step is done."""
        self.step += 1
        self.loop_steps += 1

    def uncount(self) -> None:
        """The last step was not done after all."""
        self.step -= 1
        self.loop_steps -= 1

    def history(self) -> History:
        """Return what a checkpoint taken now has to remember."""
        return History(list(self._history.ended), self.step - self._loop_start if self.open else 0)


def skip(items: Iterable[T], count: int) -> Iterator[T]:
    """
    Return an iterator over all but the first items.

    Sequences are entered at the place, in O(1); everything else is consumed up to it.

    Examples
    --------
    >>> list(skip(range(5), 3)), list(skip(iter("abc"), 2)), list(skip([1], 4))
    ([3, 4], ['c'], [])
    """
    if not count:
        return iter(items)
    if isinstance(items, Sequence):
        return map(items.__getitem__, range(count, len(items)))
    rest = iter(items)
    next(islice(rest, count, count), None)
    return rest
