"""
Exact matching of jobs to devices of several kinds: which job gets which kind, and in which order.

Read `schedule` first (the question, its oracle and the kernels' state), then `flow` (levels instead of machines),
`shortest_paths` (the exact search), `start_prices` (where it begins) and `solver` (the whole, with its proof).
`matching_warmup` compiles the kernels ahead. What is compiled loads when it is first used: numba takes most of a
second.

In reading order:

* ``schedule``: The question and its oracle; loading of the kernels.
* ``solver``: The exact matching, kept as jobs come and go, and its proof.
* ``start_prices``: Prices to begin with.
* ``shortest_paths``: The exact part.
* ``flow``: The flow that all of them work on.
* ``matching_warmup``: Compiles the kernels ahead.
"""

from typing import Any

from penstock_policies.matching import schedule
from penstock_policies.matching.schedule import (
    IMPOSSIBLE_US,
    WARMING,
    ExpandedSchedule,
    Floats,
    Ints,
    are_being_compiled,
    are_kept,
    assign_lsa,
    can_be_kept,
    interpret,
    savings_us,
    starts_us,
    warm,
)

Assignment = ExpandedSchedule
"""The name under which the result of `assign` was published."""

__all__ = [
    "IMPOSSIBLE_US",
    "WARMING",
    "Assignment",
    "ExpandedSchedule",
    "Floats",
    "Ints",
    "KeptMatching",
    "are_being_compiled",
    "are_kept",
    "assign",
    "assign_lsa",
    "can_be_kept",
    "interpret",
    "savings_us",
    "starts_us",
    "warm",
]


def __getattr__(name: str) -> Any:
    return getattr(schedule, name)
