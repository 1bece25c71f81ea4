"""
Which samples each step is about, so that an epoch sees each of them once: over any number of processes, and any number
of resumes at other widths and batch sizes. Pure: no clock, no file.

An epoch's order is drawn for the whole data set from seed and epoch alone. A step takes the next ``batch_size`` of it,
and each process its part of those. So all that has to be kept in a checkpoint is how many of which epoch are done, and
neither the width nor the batch size of those who did them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from penstock.sessions.loop_position import SamplerPosition
from penstock.sessions.setup import SessionError

Rows = NDArray[np.int64]


class DataSampler:
    """
    One process's part of each step's batch; made by ``session.sampler()``, and iterated by ``session.iterations()``.

    Each iteration is one epoch, or the rest of the one in which a checkpoint was taken. The last batch of an epoch is
    short where the batch size does not divide the data set.

    Parameters
    ----------
    size : int
        Samples in the data set, on all processes the same.
    batch_size : int
        Samples of one step, over all processes.
    seed : int
        Of the orders.
    shuffle : bool
        Otherwise every epoch goes through the data set from the first to the last.

    Raises
    ------
    SessionError
        If the data set is empty, or a batch has fewer samples than there are processes.

    Examples
    --------
    >>> halves = [DataSampler(5, batch_size=4, rank=rank, world_size=2, shuffle=False) for rank in (0, 1)]
    >>> for half in halves:
    ...     half.open()
    >>> [[rows.tolist() for rows in half] for half in halves]
    [[[0, 2], [4]], [[1, 3], []]]
    """

    def __init__(
        self, size: int, *, batch_size: int, rank: int = 0, world_size: int = 1, seed: int = 0, shuffle: bool = True
    ) -> None:
        if size < 1:
            raise SessionError(f"the data set has {size} samples; a sampler needs at least one")
        if batch_size < world_size:
            raise SessionError(
                f"a batch of {batch_size} cannot be divided among {world_size} processes; "
                "set batch_size, of the job or in session.sampler(), to what all of them do in one step together"
            )
        self.size, self.batch_size = size, batch_size
        self._rank, self._world_size = rank, world_size
        self._seed, self._shuffle = seed, shuffle
        self._place = SamplerPosition(epoch=-1, seen=size, closed=True, size=size, seed=seed)
        self._opened = False

    @property
    def epoch(self) -> int:
        """The number of the epoch that is running, or has ended last; from 0, and -1 before the first."""
        return self._place.epoch

    def __len__(self) -> int:
        """Return the steps of the iteration that is open or comes next: fewer after a resume in the middle."""
        seen = 0 if self._place.closed else self._place.seen
        return len(range(seen, self.size, self.batch_size))

    def __iter__(self) -> Iterator[Rows]:
        """
        Return an iterator over this process's rows of each step.

        Raises
        ------
        SessionError
            If it is not ``session.iterations()`` that goes over it, so that what is done would not be counted.
        """
        if not self._opened:
            raise SessionError(
                "a sampler is iterated by session.iterations(): hand it over itself, or as the batch_sampler of a "
                "DataLoader, since nobody else knows which of its steps are done"
            )
        return self._rows(self._place)

    def _rows(self, place: SamplerPosition) -> Iterator[Rows]:
        order = self.order(place.epoch)
        for begin in range(place.seen, self.size, self.batch_size):
            yield order[begin : begin + self.batch_size][self._rank :: self._world_size]

    def order(self, epoch: int) -> Rows:
        """Return an epoch's samples in their order: (size,) int array, on all processes the same."""
        if not self._shuffle:
            return np.arange(self.size)
        return np.random.default_rng((self._seed, epoch)).permutation(self.size)

    # --- what the session does with it
    def open(self) -> None:
        """An iteration begins: of what a checkpoint has left of an epoch, or of the next epoch."""
        place = self._place
        if place.closed:
            self._place = SamplerPosition(epoch=place.epoch + 1, size=self.size, seed=self._seed, samples=place.done)
        self._opened = True

    def reopen(self) -> bool:
        """Go on with the iteration that ended last, where it has left anything of its epoch; say whether it has."""
        place = self._place
        if place.closed and place.seen < self.size:
            self._place = place.reopened()
        return not self._place.closed

    def after(self, steps: int) -> SamplerPosition:
        """Return where it is after so many steps of the iteration that is open."""
        if not self._opened:
            return self._place
        place = self._place
        seen = min(place.seen + steps * self.batch_size, self.size)
        return replace(place, seen=seen, samples=place.done + seen - place.seen)

    def close(self, steps: int) -> None:
        """The iteration ended after so many steps, by itself or by ``break``, which leaves out the epoch's rest."""
        self._place = replace(self.after(steps), closed=True)
        self._opened = False

    def resume(self, place: SamplerPosition) -> None:
        """
        Go on from a checkpoint.

        Raises
        ------
        SessionError
            If it was taken in the middle of an epoch over another number of samples, or in another order.
        """
        ours, theirs = (self.size, self._seed), (place.size, place.seed)
        if ours != theirs and not place.closed and place.seen < place.size:
            raise SessionError(
                f"the checkpoint was taken after {place.seen} of {place.size} samples in the order of seed "
                f"{place.seed}; {self.size} samples with seed {self._seed} cannot go on from there: keep both"
            )
        rest = min(place.seen, self.size) if ours == theirs else self.size
        self._place = replace(place, seen=rest, size=self.size, seed=self._seed, samples=place.done)
