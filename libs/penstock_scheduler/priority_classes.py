"""
Priority classes: whose jobs come first in a pool, and for whom runs of lower classes make way.

A class has a weight. Jobs of a class with a higher weight come before all others, whatever the pool's order says of
them; among classes of one weight the order holds. A job without a class has weight 0, and so has one whose class its
pool does not have.

In :class:`penstock_scheduler.round_types.RankedJob` each weight has its own queues: those of the highest weight come
first, and :func:`place` says which they are. So whatever walks the order by queues walks it by weights.

Among jobs of one weight the order says for whom runs make way. For a job of a higher weight they do only if its class
preempts (:func:`reaches`), and then whatever they lose: their class was chosen for what may be stopped.

How many devices a class' jobs of one user may hold is told in :mod:`penstock_scheduler.class_limits`, and how classes
are set in :mod:`penstock_scheduler.pool.pool_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock_log import JobSpec
from penstock_scheduler.round_types import BORROWED, CLASS_STEP, PriorityClass, RankedJob

Classes = Mapping[str, PriorityClass]
"""Class → its rules, of one pool."""

NO_CLASSES: Final[Classes] = MappingProxyType({})


def levels(classes: Classes) -> dict[str, int]:
    """
    Return for each class how many weights come before its own; under the empty name, for jobs without a class.

    Examples
    --------
    >>> levels({"urgent": PriorityClass(weight=10), "night": PriorityClass(weight=-5), "plain": PriorityClass()})
    {'urgent': 0, 'night': 2, 'plain': 1, '': 1}
    """
    weights = {name: rules.weight for name, rules in classes.items()} | {"": 0}
    in_turn = sorted(set(weights.values()), reverse=True)
    return {name: in_turn.index(weight) for name, weight in weights.items()}


def place(queue: int, spec: JobSpec, of_classes: Mapping[str, int]) -> int:
    """
    Return the queue of a job among those of all weights, from the queue that its order gives it.

    Parameters
    ----------
    queue : int
        -1 for a profiler's sample, which comes first whatever its class.
    of_classes : mapping of str to int
        As :func:`levels` returns it.
    """
    level = of_classes.get(spec.priority_class, of_classes[""])
    return queue + level * CLASS_STEP if level and queue >= 0 else queue


def reaches(ranked: RankedJob, queue: int, classes: Classes) -> bool:
    """
    Say whether a job may preempt runs of a later queue, as far as classes go.

    Parameters
    ----------
    queue : int
        Of the runs, as :func:`place` gives it; borrowers' behind all others.
    """
    if not classes or (queue >= BORROWED and not ranked.borrows):  # which a quota takes back
        return True
    return not crosses(ranked, queue) or preempts(ranked.job.spec, classes)


def crosses(ranked: RankedJob, queue: int) -> bool:
    """Say whether runs of a queue have a lower weight than a job."""
    return max(0, queue % BORROWED) // CLASS_STEP > ranked.level


def preempts(spec: JobSpec, classes: Classes) -> bool:
    """Say whether runs of lower classes make way for a job."""
    own = classes.get(spec.priority_class)
    return own is not None and own.preempts


def any_preempts(classes: Classes) -> bool:
    """Say whether runs of lower classes make way for the jobs of some class."""
    return any(rules.preempts for rules in classes.values())


def called(spec: JobSpec) -> str:
    """Return a job's class in words."""
    return f"class `{spec.priority_class}`" if spec.priority_class else "no class"
