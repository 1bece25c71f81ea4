"""The one sampler that a session may have: which loop is over it, and how far it is. Pure; without numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.sessions.replay import Place
from penstock.sessions.setup import SessionError

if TYPE_CHECKING:
    from penstock.sessions.sampler import Sampler


class Sampling:
    """A session's sampler, once there is one, and where the last checkpoint left it, once that is loaded."""

    def __init__(self) -> None:
        self._sampler: Sampler | None = None
        self._resumed: Place | None = None
        self._begun_step = self._ended_step = 0
        self._before_last: Place | None = None

    @property
    def batch_size(self) -> int:
        """The samples of one step over all processes; 0 without a sampler."""
        return self._sampler.batch_size if self._sampler else 0

    def adopt(self, sampler: Sampler) -> Sampler:
        """
        Take the session's sampler.

        Raises
        ------
        SessionError
            If there is one already, or if it cannot go on where the checkpoint was taken.
        """
        if self._sampler is not None:
            message = "this session has a sampler already; a checkpoint keeps the place of one"
            raise SessionError(message)
        if self._resumed is not None:
            sampler.resume(self._resumed)
        self._sampler = sampler
        return sampler

    def resume(self, place: Place | None) -> None:
        """Go on from a checkpoint, whether it is loaded before the sampler is made or after."""
        self._resumed = place
        if self._sampler is not None and place is not None:
            self._sampler.resume(place)

    def of(self, items: object) -> Sampler | None:
        """Return the sampler if the items come of it: it is they, or a DataLoader's ``batch_sampler``."""
        ours = self._sampler
        return ours if ours is not None and (items is ours or getattr(items, "batch_sampler", None) is ours) else None

    def open(self, sampler: Sampler, step: int, done: int) -> None:
        """
        A loop over it begins after so many steps of the job.

        Raises
        ------
        SessionError
            If a checkpoint knows of steps ``done`` in this loop, and of no samples: it was taken without a sampler.
        """
        if done and self._resumed is None:
            message = (
                f"the checkpoint was taken in a loop without a sampler, after {done} items: nobody knows which samples "
                "those were; go on with the script that took it, or from the beginning with another checkpoint folder"
            )
            raise SessionError(message)
        sampler.open()
        self._begun_step = step

    def close(self, sampler: Sampler, step: int) -> None:
        """That loop ended."""
        steps = step - self._begun_step
        self._ended_step, self._before_last = step, sampler.after(max(steps - 1, 0))
        sampler.close(steps)

    def place(self, step: int) -> Place | None:
        """Return how far it is after so many steps of the job; a loop's last one is taken back where it has failed."""
        if step < self._ended_step:
            return self._before_last
        return self._sampler.after(step - self._begun_step) if self._sampler else self._resumed
