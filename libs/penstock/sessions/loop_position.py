"""
Where a script is in its loops, and which items were done before a checkpoint, so that a resumed script repeats and
omits none. Pure: no clock, no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Literal, Optional, TypeVar

import msgspec

T = TypeVar("T")


class FinishedLoops(msgspec.Struct, frozen=True, omit_defaults=True):
    """So many loops in a row that ended after ``items`` items each; of ``session.epochs()``, after so many epochs."""

    items: int
    loops: int
    epochs: bool = False


class LoopRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a checkpoint knows of one loop.

    Attributes
    ----------
    items : int
        That were done; of ``session.epochs()``, the epochs that were complete.
    state : {"open", "ended", "reopened"}
        ``ended``: what stands behind it was done as well. ``reopened``: so it was, but the loop goes on if it is longer
        now, and then has another end.
    epochs : bool
        Whether it was one of ``session.epochs()``.
    inner : LoopHistory or None
        Of the epoch in which such a loop was.
    """

    items: int = 0
    state: Literal["open", "ended", "reopened"] = "open"
    epochs: bool = False
    inner: Optional[LoopHistory] = None


class LoopHistory(msgspec.Struct, omit_defaults=True):
    """
    The loops that ended, in run lengths, and the items done in the one that is open.

    A script that ran 1,000 equal epochs keeps one :class:`FinishedLoops`.

    Attributes
    ----------
    items : int
        Of the open loop; of ``session.epochs()``, the epochs that are complete.
    inner : LoopHistory or None
        The loops of the present epoch, where ``session.epochs()`` is open.
    may_go_on : bool
        Whether the last loop goes on if it is longer now, since another job begins from here.
    """

    ended: list[FinishedLoops] = []
    items: int = 0
    inner: Optional[LoopHistory] = None
    may_go_on: bool = False

    def end(self, *, epochs: bool = False) -> None:
        """Note that the open loop ended, by exhaustion or by ``break``."""
        last = self.ended[-1] if self.ended else None
        if last is not None and (last.items, last.epochs) == (self.items, epochs):
            self.ended[-1] = FinishedLoops(self.items, last.loops + 1, epochs)
        else:
            self.ended.append(FinishedLoops(self.items, 1, epochs))
        self.items = 0

    def reopen(self) -> None:
        """Note that the last loop has not ended after all."""
        *before, last = self.ended
        self.ended = [*before, FinishedLoops(last.items, last.loops - 1, last.epochs)] if last.loops > 1 else before

    @property
    def has_epochs(self) -> bool:
        """Whether any of it was ``session.epochs()``."""
        return self.inner is not None or any(run.epochs for run in self.ended)

    def copy(self) -> LoopHistory:
        """Return a history that later loops do not change."""
        inner = self.inner.copy() if self.inner is not None else None
        return LoopHistory(list(self.ended), self.items, inner, self.may_go_on)

    def reopened(self) -> LoopHistory:
        """
        Return a history whose last loop goes on if it is longer now.

        Examples
        --------
        >>> [loop.state for loop in LoopHistory([FinishedLoops(items=10, loops=3)]).reopened().replay()]
        ['ended', 'ended', 'reopened']
        """
        history = self.copy()
        history.may_go_on = bool(self.ended) and not self.items and self.inner is None
        return history

    def replay(self) -> Iterator[LoopRecord]:
        """Yield each loop that had begun."""
        left = sum(run.loops for run in self.ended)
        for run in self.ended:
            for _ in range(run.loops):
                left -= 1
                last = self.may_go_on and not left
                yield LoopRecord(items=run.items, state="reopened" if last else "ended", epochs=run.epochs)
        if self.inner is not None:
            yield LoopRecord(items=self.items, epochs=True, inner=self.inner.copy())
        elif self.items:
            yield LoopRecord(items=self.items)


class SamplerPosition(msgspec.Struct, frozen=True, kw_only=True):
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
    samples: Optional[int] = None

    @property
    def done(self) -> int:
        """
        Samples that were done, over all epochs; where they were not counted, the epochs before are taken to be whole.

        Examples
        --------
        >>> SamplerPosition(epoch=2, seen=3, size=10).done, SamplerPosition(epoch=2, seen=3, size=10, samples=17).done
        (23, 17)
        """
        return self.epoch * self.size + self.seen if self.samples is None else self.samples

    def reopened(self) -> SamplerPosition:
        """Return a place from which the last loop goes on where it has anything left."""
        return msgspec.structs.replace(self, closed=False)


class LoopCourse:
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
    put_off : bool
        Whether something is due after the last step of an epoch's loop, and is done once what stands behind it was.
    """

    def __init__(self) -> None:
        self.step = 0
        self.loop_steps = 0
        self.waited_s = 0.0
        self.begun = False
        self.open = False
        self.replaying = False
        self.unattended = False
        self.put_off = False
        self._history = LoopHistory()
        self._replay: Iterator[LoopRecord] = iter(())
        self._loop_start = 0

    @property
    def in_epochs(self) -> bool:
        """Whether ``session.epochs()`` is running."""
        return self._history.inner is not None

    def resume(self, step: int, history: LoopHistory) -> None:
        """Go on from a checkpoint."""
        self.step = step
        self.replaying = True
        self._history = LoopHistory(list(history.ended))
        self._replay = history.replay()

    # --- loops
    def next_loop(self) -> LoopRecord:
        """Return what is known of the loop that comes now."""
        self.begun = True
        loop = next(self._replay, LoopRecord())
        while loop.epochs:  # the script had epochs(), and has plain loops now: one for each epoch
            self._replay = chain(_as_loops(loop), self._replay)
            loop = next(self._replay, LoopRecord())
        return loop

    def reopen_loop(self) -> None:
        """Go on with the loop that ended last."""
        self._level.reopen()

    def open_loop(self, done: int) -> None:
        """Note that a loop goes on after so many items."""
        self.open = True
        self.replaying = False
        self._loop_start = self.step - done

    def close_loop(self) -> None:
        """Note that the open loop ended."""
        self.open = False
        self._level.items = self.step - self._loop_start
        self._level.end()

    # --- epochs
    def next_epochs(self) -> LoopRecord:
        """Return what is known of the epochs that come now: how many were complete, and how they were left."""
        loop = next(self._replay, LoopRecord(epochs=True))
        return loop if loop.epochs else self._from_loops(loop)

    def _from_loops(self, first: LoopRecord) -> LoopRecord:
        """The script had plain loops, and has epochs() now: one of them was an epoch."""
        loops = [first, *self._replay]
        whole = sum(loop.state != "open" for loop in loops)
        for _ in range(whole):
            self._history.reopen()
        last = loops[-1]
        if last.state == "open":
            return LoopRecord(items=whole, epochs=True, inner=LoopHistory(items=last.items))
        self._history.items = whole
        self._history.end(epochs=True)
        return LoopRecord(items=whole, state="reopened", epochs=True)

    def open_epochs(self, loop: LoopRecord) -> None:
        """Note that epochs go on after so many."""
        if loop.state == "reopened":
            self._history.reopen()
        self._history.items, self._history.inner = loop.items, LoopHistory()

    def begin_epoch(self, inner: LoopHistory | None = None) -> None:
        """Begin an epoch, or go on where its loops were."""
        self._history.inner = LoopHistory(list(inner.ended)) if inner is not None else LoopHistory()
        self._replay = inner.replay() if inner is not None else iter(())
        if inner is None or not (inner.ended or inner.items):
            self.replaying = False

    def end_epoch(self) -> None:
        """Note that the epoch is complete."""
        self._history.items += 1
        self._history.inner, self._replay = LoopHistory(), iter(())

    def close_epochs(self) -> None:
        """Note that there is no further epoch."""
        self._history.inner = None
        self._history.end(epochs=True)

    def count(self) -> None:
        """Count a step that is done."""
        self.step += 1
        self.loop_steps += 1

    def uncount(self) -> None:
        """Take back the count of the last step, which failed."""
        self.step -= 1
        self.loop_steps -= 1

    def history(self) -> LoopHistory:
        """Return what a checkpoint taken now has to remember."""
        history = self._history.copy()
        level = history.inner if history.inner is not None else history
        if self.open:
            level.items = self.step - self._loop_start
        return history

    @property
    def _level(self) -> LoopHistory:
        return self._history.inner if self._history.inner is not None else self._history


def _as_loops(epochs: LoopRecord) -> Iterator[LoopRecord]:
    yield from (LoopRecord(state="ended") for _ in range(epochs.items))
    if epochs.inner is not None:
        yield from epochs.inner.replay()


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
