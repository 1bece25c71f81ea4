"""The size that a run has: which batch its script uses, and what becomes of the learning rate there."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.sessions.checkpoint import Manifest
from penstock.sessions.rates import Resize
from penstock.sessions.sampling import Sampling
from penstock.sessions.setup import Setup

_log = logging.getLogger("penstock.session")


class Sizing:
    """
    A session's size, and what its script was told of it.

    Attributes
    ----------
    adapt : callable or None
        What the script does with a size, once it has said so.
    """

    def __init__(self, setup: Setup, sampling: Sampling) -> None:
        self.adapt: Callable[[Resize], object] | None = None
        self._setup, self._sampling = setup, sampling
        self._loaded: Manifest | None = None
        self._asked = False
        self._scaled = False

    def wish(self) -> int:
        """Return the batch size that Penstock wishes, to a script that asks for it."""
        self._asked = True
        return self._setup.batch_size

    @property
    def used(self) -> int:
        """The batch size that the script uses: its sampler's, or the one that it asked for; 0 where it did neither."""
        return self._sampling.batch_size or (self._setup.batch_size if self._asked else 0)

    def resume(self, manifest: Manifest) -> None:
        """Remember with what a checkpoint was trained."""
        self._loaded = manifest

    def now(self) -> Resize:
        """Return what the run has, and had."""
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
            self._say(size)
        return size.factor

    def begin(self) -> None:
        """The first loop begins: the script's function is called."""
        if self.adapt is not None:
            self.adapt(self.now())
            self.factor()

    def end(self) -> None:
        """The script is through: warn if it was to change its learning rate, and has not."""
        size = self.now()
        ignored = self.adapt is None if size.rule == "callback" else size.factor != 1 and not self._scaled
        if ignored and not self._setup.rank:
            _log.warning(
                "lr_rule_ignored rule=%s base_batch_size=%d batch_size=%d: the script neither asks session.lr() "
                "nor has it changed in session.on_resize()",
                *(size.rule, size.base_batch_size, size.batch_size),
            )

    def _say(self, size: Resize) -> None:
        """Say it in the job's output: as a warning, since nothing less is shown where a script sets up no logging."""
        if self._setup.base_batch_size and not self._setup.rank:
            _log.warning(
                "lr_scaled rule=%s base_batch_size=%d batch_size=%d factor=%.6g",
                *(size.rule, size.base_batch_size, size.batch_size, size.factor),
            )
