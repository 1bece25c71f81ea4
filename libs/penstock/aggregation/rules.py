"""
Sums in the order of ranks, and optimizers, in place.

Every value goes through the same operations in the same order wherever it is computed, so results are the same bit for
bit on an aggregator and on a rank: ``((r0 + r1) + r2) + ...``, divided by the number of ranks, and then what
``torch.optim.SGD`` or ``torch.optim.AdamW`` do with a gradient, in the vectors' own precision.

All is done in pieces of :data:`CHUNK` elements, so that what is in between stays in the processor's cache.

References
----------
Loshchilov and Hutter, *Decoupled Weight Decay Regularization*, ICLR 2019 (AdamW).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Final

import numpy as np

from penstock_log.aggregation_messages import STATE_VECTORS, UpdateRule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]

CHUNK: Final = 32_768


def state_size(rule: UpdateRule) -> int:
    """
    Return how many vectors of state a rule's optimizer has beside the parameters.

    Examples
    --------
    >>> [state_size(UpdateRule(name=name)) for name in ("mean", "sgd", "momentum", "adamw")]
    [0, 0, 1, 2]
    """
    return STATE_VECTORS[rule.name]


def mean_of(contributions: Sequence[Vector], out: Vector) -> int:
    """
    Write the mean of all ranks' contributions.

    Parameters
    ----------
    contributions : sequence of (N,) arrays
        In the order of ranks.
    out : (N,) array
        None of the contributions.

    Returns
    -------
    int
        How many values of the mean are no finite numbers.

    Examples
    --------
    >>> out = np.empty(2, "f4")
    >>> mean_of([np.array([1, 2], "f4"), np.array([3, np.inf], "f4")], out), out
    (1, array([ 2., inf], dtype=float32))
    """
    not_finite = 0
    with np.errstate(all="ignore"):
        for start in range(0, len(out), CHUNK):
            piece = out[start : start + CHUNK]
            _mean_piece(contributions, start, piece)
            not_finite += count_not_finite(piece)
    return not_finite


def update(
    rule: UpdateRule, step: int, contributions: Sequence[Vector], params: Vector, state: Sequence[Vector]
) -> int:
    """
    Update parameters in place, with the mean of all ranks' contributions as their gradient.

    Parameters
    ----------
    rule : UpdateRule
        Any but ``mean``.
    step : int
        From 1: how many updates the parameters have after this one.
    contributions : sequence of (N,) arrays
        In the order of ranks.
    params : (N,) array
    state : sequence of (N,) arrays
        As many as :func:`state_size` says; zeros at first.

    Returns
    -------
    int
        How many of the updated parameters are no finite numbers.
    """
    apply = _STEPS[rule.name](rule, step, params.dtype.type)
    gradient = np.empty(min(CHUNK, len(params)), params.dtype)
    scratch = np.empty_like(gradient)
    not_finite = 0
    with np.errstate(all="ignore"):
        for start in range(0, len(params), CHUNK):
            piece = params[start : start + CHUNK]
            mean = gradient[: len(piece)]
            _mean_piece(contributions, start, mean)
            apply(mean, piece, [one[start : start + CHUNK] for one in state], scratch[: len(piece)])
            not_finite += count_not_finite(piece)
    return not_finite


def count_not_finite(values: Vector) -> int:
    """Return how many values are no finite numbers; quick where there is none."""
    if math.isfinite(float(np.add.reduce(values))):
        return 0
    return len(values) - int(np.count_nonzero(np.isfinite(values)))


def _mean_piece(contributions: Sequence[Vector], start: int, out: Vector) -> None:
    stop = start + len(out)
    if len(contributions) == 1:
        out[:] = contributions[0][start:stop]
        return
    np.add(contributions[0][start:stop], contributions[1][start:stop], out=out)
    for more in contributions[2:]:
        np.add(out, more[start:stop], out=out)
    np.divide(out, out.dtype.type(len(contributions)), out=out)


_Apply = Callable[["Vector", "Vector", "list[Vector]", "Vector"], None]
"""Takes a gradient, which it may change, parameters, state and scratch of the same length."""


def _sgd(rule: UpdateRule, step: int, number: Callable[[float], Any]) -> _Apply:
    del step
    lr, decay = number(rule.lr), number(rule.weight_decay)

    def apply(gradient: Vector, params: Vector, state: list[Vector], scratch: Vector) -> None:
        del state
        if rule.weight_decay:
            np.multiply(params, decay, out=scratch)
            np.add(gradient, scratch, out=gradient)
        np.multiply(gradient, lr, out=scratch)
        np.subtract(params, scratch, out=params)

    return apply


def _momentum(rule: UpdateRule, step: int, number: Callable[[float], Any]) -> _Apply:
    del step
    lr, decay, momentum = number(rule.lr), number(rule.weight_decay), number(rule.momentum)

    def apply(gradient: Vector, params: Vector, state: list[Vector], scratch: Vector) -> None:
        (velocity,) = state
        if rule.weight_decay:
            np.multiply(params, decay, out=scratch)
            np.add(gradient, scratch, out=gradient)
        np.multiply(velocity, momentum, out=velocity)
        np.add(velocity, gradient, out=velocity)
        np.multiply(velocity, lr, out=scratch)
        np.subtract(params, scratch, out=params)

    return apply


def _adamw(rule: UpdateRule, step: int, number: Callable[[float], Any]) -> _Apply:
    shrink = number(1 - rule.lr * rule.weight_decay)
    weight1, beta2, weight2 = number(1 - rule.beta1), number(rule.beta2), number(1 - rule.beta2)
    step_size = number(rule.lr / (1 - rule.beta1**step))
    root = number((1 - rule.beta2**step) ** 0.5)
    eps = number(rule.eps)

    def apply(gradient: Vector, params: Vector, state: list[Vector], scratch: Vector) -> None:
        average, squares = state
        np.multiply(params, shrink, out=params)
        np.subtract(gradient, average, out=scratch)
        np.multiply(scratch, weight1, out=scratch)
        np.add(average, scratch, out=average)
        np.multiply(squares, beta2, out=squares)
        np.multiply(gradient, gradient, out=gradient)
        np.multiply(gradient, weight2, out=gradient)
        np.add(squares, gradient, out=squares)
        np.sqrt(squares, out=scratch)
        np.divide(scratch, root, out=scratch)
        np.add(scratch, eps, out=scratch)
        np.divide(average, scratch, out=scratch)
        np.multiply(scratch, step_size, out=scratch)
        np.subtract(params, scratch, out=params)

    return apply


_STEPS: Final = {"sgd": _sgd, "momentum": _momentum, "adamw": _adamw}
