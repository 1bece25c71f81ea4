"""
Which jobs suffer from being spread over nodes: those whose model has one tensor that outweighs the rest.

Workers exchange a model tensor by tensor. One very large tensor is one very large message, which crowds the network in
bursts and makes all wait; many tensors of like size overlap with computing. So the shape of the model decides, not its
size, and it can be read from the model before it runs.

References
----------
Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019, sections 2.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LOWEST: Final = 0.14
HIGHEST: Final = 0.61
"""Thresholds in between tell the published models apart, which lie at or below 0.138 or at or above 0.611."""

THRESHOLD: Final = 0.5


def skew(tensors_bytes: Iterable[int]) -> float:
    """
    Return the share of a model's largest tensor in all of them: 0 for a model without any, 1 for one of one tensor.

    Raises
    ------
    ValueError
        If a size is negative.

    Examples
    --------
    >>> skew([100, 300, 600])
    0.6
    >>> skew([])
    0.0
    """
    largest = total = 0
    for size in tensors_bytes:
        if size < 0:
            raise ValueError(f"a tensor has {size} bytes; expected 0 or more")
        largest, total = max(largest, size), total + size
    return largest / total if total else 0.0


def consolidates(model_skew: float, threshold: float = THRESHOLD) -> bool:
    """
    Say whether a gang with such a model belongs on as few nodes as possible.

    Parameters
    ----------
    model_skew : float
        From :func:`skew`; 0 where it is not known, which asks for nothing.
    threshold : float

    Examples
    --------
    >>> consolidates(0.744), consolidates(0.112)
    (True, False)
    """
    return model_skew > threshold


def checked(threshold: float) -> float:
    """
    Return a threshold that somebody has set.

    Raises
    ------
    ValueError
        If it does not lie between ``LOWEST`` and ``HIGHEST``.
    """
    if not LOWEST <= threshold <= HIGHEST:
        raise ValueError(f"{threshold} is no threshold of skew; expected a number from {LOWEST} to {HIGHEST}")
    return threshold
