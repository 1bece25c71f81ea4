"""Which seeds a simulation is run with."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cli.errors import bad_input


def several(named: Sequence[int], count: int) -> tuple[int, ...]:
    """
    Return the seeds that ``--seed`` and ``--seeds`` ask for; none where neither does.

    Examples
    --------
    >>> several([], 1), several([7], 1), several([], 3), several([7], 3), several([1, 5, 1], 1)
    ((), (7,), (0, 1, 2), (7, 8, 9), (1, 5))
    """
    seeds = tuple(dict.fromkeys(named))
    if count == 1:
        return seeds
    if len(seeds) > 1:
        bad_input(f"--seeds {count} counts from one --seed, and {len(seeds)} are named; leave one of them out")
    first = seeds[0] if seeds else 0
    return tuple(range(first, first + count))
