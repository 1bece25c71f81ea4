"""
Slabs of borrowed memory: what a node offers, who is asked for one, and which goes first, after Infiniswap (NSDI 2017).

A client counts what it reads and writes in each slab, smoothed (:func:`smoothed`), and borrows memory for those that
are hot (:func:`is_hot`). Its agent asks few donors (:func:`donor_choices`) and takes the one with the most free memory
(:func:`better_donor`). A donor follows its own free memory (:func:`slabs_to_offer`). When it has to take slabs back, it
asks after the activity of some more than it needs (:func:`eviction_sample`), and evicts the least active of these
(:func:`least_active`); :func:`all_lightly_active` says how often that meets no busy one.

References
----------
Gu et al., Efficient Memory Disaggregation with Infiniswap, NSDI 2017, sections 4.2 to 4.4.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np

K = TypeVar("K")


def smoothed(measured: float, before: float, weight: float = 0.2) -> float:
    """
    Return the exponentially weighted moving average after one more measurement.

    Parameters
    ----------
    measured, before : float
        What was measured, and the average until then (0 at first), in one unit.
    weight : float
        Share of the new measurement; 0 to 1.

    Examples
    --------
    >>> smoothed(100.0, 0.0), smoothed(100.0, 20.0)
    (20.0, 36.0)
    """
    return weight * measured + (1.0 - weight) * before


def is_hot(activity: float, threshold: float = 20.0) -> bool:
    """
    Return whether a slab is worth borrowing memory for: its activity, in pages a second, is above the threshold.

    Examples
    --------
    >>> is_hot(20.0), is_hot(36.0)
    (False, True)
    """
    return activity > threshold


def slabs_to_offer(free_bytes: int, headroom_bytes: int, slab_bytes: int, offered: int, *, hysteresis: int = 1) -> int:
    """
    Return how many slabs a node should have, lent and free ones together.

    Parameters
    ----------
    free_bytes : int
        What the node would have free without any slab: the caller adds what its slabs take.
    headroom_bytes : int
        What has to stay free.
    slab_bytes : int
        Size of a slab.
    offered : int
        Slabs that it has now.
    hysteresis : int
        It gets more slabs only when more than so many above ``offered`` fit. It shrinks at once.

    Raises
    ------
    ValueError
        If a slab has no size.

    Examples
    --------
    >>> [slabs_to_offer(free, headroom_bytes=20, slab_bytes=10, offered=3) for free in (10, 45, 55, 65, 70)]
    [0, 2, 3, 3, 5]
    """
    if slab_bytes <= 0:
        raise ValueError(f"slab_bytes is {slab_bytes}; expected the positive size of a slab")
    fitting = max(0, free_bytes - headroom_bytes) // slab_bytes
    return offered if offered <= fitting <= offered + hysteresis else fitting


def donor_choices(
    donors: Mapping[str, int], lending: Collection[str], rng: np.random.Generator, choices: int = 2
) -> list[str]:
    """
    Return which donors to ask for a slab, in random order.

    Parameters
    ----------
    donors : mapping of name to int
        Free slabs of each donor, as last heard. Who has none is not asked.
    lending : collection of names
        Donors that lend to this client already: they are asked only where fewer than ``choices`` others are left.
    rng : np.random.Generator
    choices : int
        How many to ask.

    Returns
    -------
    list of names
        ``choices`` of them, or all that have a free slab where these are fewer.

    Notes
    -----
    A last donor that does not lend to this client is asked by chance, as the others are. It is most often the fullest
    one, which lost each comparison so far: asked every time, it would leave one choice where there should be two.

    References
    ----------
    Gu et al., NSDI 2017, section 4.2; Mitzenmacher, The power of two choices, 2001.

    Examples
    --------
    >>> import numpy as np
    >>> donors = {"n1": 3, "n2": 0, "n3": 1, "n4": 8}
    >>> sorted(donor_choices(donors, {"n4"}, np.random.default_rng(1)))
    ['n1', 'n3']
    >>> donor_choices({"n1": 1, "n2": 0}, {"n1"}, np.random.default_rng(1))
    ['n1']
    """
    free = [name for name, slabs in donors.items() if slabs > 0]
    fresh = [name for name in free if name not in lending]
    return _sample(fresh if len(fresh) >= choices else free, choices, rng)


def better_donor(free: Mapping[str, int]) -> str | None:
    """
    Return the donor with the most free memory, the first of equal ones; None where nobody has any.

    Examples
    --------
    >>> better_donor({"n1": 2 << 30, "n2": 5 << 30}), better_donor({"n1": 0})
    ('n2', None)
    """
    best = max(free, key=free.__getitem__, default=None)
    return best if best is not None and free[best] > 0 else None


def eviction_sample(lent: Sequence[K], count: int, extra: int, rng: np.random.Generator) -> list[K]:
    """
    Return the slabs whose activity is asked after before ``count`` are evicted: ``count + extra`` at random.

    All slabs are returned, in random order, where there are no more.
    """
    return _sample(lent, count + extra, rng)


def least_active(activity: Mapping[K, float], count: int) -> list[K]:
    """
    Return the ``count`` least active slabs, least first, and equally active ones in the mapping's order.

    Who does not know a slab's activity, passes 0: nobody uses it.

    Examples
    --------
    >>> least_active({"a": 9.0, "b": 0.5, "c": 0.0, "d": 0.5}, 2)
    ['c', 'b']
    """
    return sorted(activity, key=activity.__getitem__)[:count]


def all_lightly_active(count: int, extra: int, p_busy: float) -> float:
    """
    Return the probability that batch eviction meets no busy slab.

    Parameters
    ----------
    count, extra : int
        Slabs to evict (E), and how many more are asked (E').
    p_busy : float
        Share of busy slabs.

    Notes
    -----
    At least E of E + E' slabs are lightly active, with each busy by chance, independently of the others.

    References
    ----------
    Gu et al., NSDI 2017, section 4.4.

    Examples
    --------
    >>> round(all_lightly_active(10, 0, 0.1), 6), round(all_lightly_active(10, 5, 0.1), 6)
    (0.348678, 0.99775)
    """
    asked = count + extra
    return math.fsum(
        math.comb(asked, busy) * p_busy**busy * (1.0 - p_busy) ** (asked - busy) for busy in range(extra + 1)
    )


def _sample(of: Sequence[K], count: int, rng: np.random.Generator) -> list[K]:
    """Return ``count`` of some things at random, without repetition, or all where they are fewer."""
    return [of[i] for i in rng.permutation(len(of))[: max(0, count)]]
