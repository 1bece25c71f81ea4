"""
The session's sampler and the run's batch size. Pure; without numpy.

:class:`SamplerState` is the one sampler that a session may have: which loop is over it, and how far it is.
:class:`RunSize` is the size that a run has: which batch its script uses, and what becomes of the learning rate there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.sessions.checkpoint import Manifest
from penstock.sessions.loop_position import SamplerPosition
from penstock.sessions.setup import ProcessSetup, Resize, SessionError

if TYPE_CHECKING:
    from penstock.sessions.sampler import DataSampler


class SamplerState:
    """A session's sampler, once there is one, and its place in the last checkpoint, once that is loaded."""

    def __init__(self) -> None:
        self._sampler: DataSampler | None = None
        self._resumed: SamplerPosition | None = None
        self._begun_step = self._ended_step = 0
        self._before_last: SamplerPosition | None = None

    @property
    def batch_size(self) -> int:
        """The samples of one step over all processes; 0 without a sampler."""
        return self._sampler.batch_size if self._sampler else 0

    def adopt(self, sampler: DataSampler) -> DataSampler:
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

    def resume(self, place: SamplerPosition | None) -> None:
        """Go on from a checkpoint, whether it is loaded before the sampler is made or after."""
        self._resumed = place
        if self._sampler is not None and place is not None:
            self._sampler.resume(place)

    def of(self, items: object) -> DataSampler | None:
        """Return the sampler if the items come from it: they are the sampler, or have it as their ``batch_sampler``."""
        ours = self._sampler
        return ours if ours is not None and (items is ours or getattr(items, "batch_sampler", None) is ours) else None

    def open(self, sampler: DataSampler, step: int, done: int) -> None:
        """
        Note that a loop over the sampler begins after so many steps of the job.

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

    def close(self, sampler: DataSampler, step: int) -> None:
        """Note that the loop over the sampler ended."""
        steps = step - self._begun_step
        self._ended_step, self._before_last = step, sampler.after(max(steps - 1, 0))
        sampler.close(steps)

    def place(self, step: int) -> SamplerPosition | None:
        """Return the sampler's place after so many steps of the job; a failed last step of a loop does not count."""
        if step < self._ended_step:
            return self._before_last
        return self._sampler.after(step - self._begun_step) if self._sampler else self._resumed


_log = logging.getLogger("penstock.session")


class RunSize:
    """
    A session's size, and what its script knows of it.

    Attributes
    ----------
    adapt : callable or None
        What the script does with a size, once it has given it.
    """

    def __init__(self, setup: ProcessSetup, sampling: SamplerState) -> None:
        self.adapt: Callable[[Resize], object] | None = None
        self._setup, self._sampling = setup, sampling
        self._loaded: Manifest | None = None
        self._asked = False
        self._scaled = False

    def desired(self) -> int:
        """Return the batch size that the job should have, to a script that asks for it."""
        self._asked = True
        return self._setup.batch_size

    @property
    def used(self) -> int:
        """The batch size that the script uses: its sampler's, or the one that it asked for; 0 where it did neither."""
        return self._sampling.batch_size or (self._setup.batch_size if self._asked else 0)

    def resume(self, manifest: Manifest) -> None:
        """Remember the size with which a checkpoint was trained."""
        self._loaded = manifest

    def now(self) -> Resize:
        """Return the size that the run has, and the one that it had."""
        setup = self._setup
        batch_size = self._sampling.batch_size or setup.batch_size
        base = setup.base_batch_size or batch_size
        before_batch, before_world = (self._loaded.batch_size, self._loaded.world_size) if self._loaded else (0, 0)
        return Resize(
            batch_size=batch_size,
            base_batch_size=base,
            previous_batch_size=before_batch or base,
            world_size=setup.world_size,
            previous_world_size=before_world or setup.world_size,
            rule=setup.lr_rule,
        )

    def factor(self) -> float:
        """Return what the script's learning rate is multiplied by; it is logged the first time."""
        size = self.now()
        if not self._scaled:
            self._scaled = True
            self._log_scaling(size)
        return size.factor

    def begin(self) -> None:
        """Call the script's function, as the first loop begins."""
        if self.adapt is not None:
            self.adapt(self.now())
            self.factor()

    def end(self) -> None:
        """Warn at the script's end if it was to change its learning rate, and has not."""
        size = self.now()
        ignored = self.adapt is None if size.rule == "callback" else size.factor != 1 and not self._scaled
        if ignored and not self._setup.rank:
            _log.warning(
                "lr_rule_ignored rule=%s base_batch_size=%d batch_size=%d: the script neither asks session.lr() "
                "nor has it changed in session.on_resize()",
                *(size.rule, size.base_batch_size, size.batch_size),
            )

    def _log_scaling(self, size: Resize) -> None:
        """Log the scaling as a warning, since nothing less is shown where a script sets up no logging."""
        if self._setup.base_batch_size and not self._setup.rank:
            _log.warning(
                "lr_scaled rule=%s base_batch_size=%d batch_size=%d factor=%.6g",
                *(size.rule, size.base_batch_size, size.batch_size, size.factor),
            )
