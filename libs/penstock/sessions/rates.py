"""
What becomes of a script's learning rate where its job has been given another batch size. Pure.

References
----------
Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017 (linear).
Krizhevsky, *One weird trick for parallelizing convolutional neural networks*, 2014 (square root).
"""

from __future__ import annotations

import math
from typing import Literal, assert_never, get_args

import msgspec

Rule = Literal["keep", "linear", "sqrt", "callback"]
RULES: tuple[str, ...] = get_args(Rule)


class Resize(msgspec.Struct, frozen=True, kw_only=True):
    """
    What a run has, and what the state that it goes on from was trained with.

    Attributes
    ----------
    batch_size : int
        Of one step over all processes; 0 where nobody has said.
    base_batch_size : int
        For which the script's learning rate is meant.
    previous_batch_size : int
        Of the run that saved the checkpoint; the base where none was loaded.
    world_size, previous_world_size : int
        Processes now and then; the same where no checkpoint was loaded.
    rule : {"keep", "linear", "sqrt", "callback"}
        The job's, for its learning rate.
    """

    batch_size: int
    base_batch_size: int
    previous_batch_size: int
    world_size: int
    previous_world_size: int
    rule: Rule

    @property
    def factor(self) -> float:
        """What the script's learning rate is multiplied by; 1 where the script's own function is to say."""
        return factor(self.rule, self.base_batch_size, self.batch_size)


def factor(rule: Rule, base_batch_size: int, batch_size: int) -> float:
    """
    Return what a learning rate meant for one batch size is multiplied by at another.

    Examples
    --------
    >>> [factor(rule, 32, 128) for rule in ("keep", "linear", "sqrt")]
    [1.0, 4.0, 2.0]
    """
    if not base_batch_size or not batch_size:
        return 1.0
    match rule:
        case "keep" | "callback":
            return 1.0
        case "linear":
            return batch_size / base_batch_size
        case "sqrt":
            return math.sqrt(batch_size / base_batch_size)
        case _:
            assert_never(rule)
