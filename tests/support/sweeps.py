"""Sizes of random sweeps: a sample in `make test`, all of a sweep in `make thorough`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import pytest

THOROUGH: Final = os.environ.get("PENSTOCK_TESTS_THOROUGH") == "1"
"""Whether this session runs sweeps to their end, as `make thorough` does."""

FEWEST: Final = 8


def examples(all_of_them: int) -> int:
    """
    Return how many random examples a property is tried with: a quarter of all of them, unless the session is thorough.

    At least `FEWEST` are tried, or all of them where there are fewer.
    """
    return all_of_them if THOROUGH else max(all_of_them // 4, min(all_of_them, FEWEST))


def sampled(cases: Sequence[Any], every: int = 4) -> list[Any]:
    """
    Return the cases of a parametrized test, all but the first of each `every` of them marked `thorough`.

    A case is a value, a tuple of values, or a `pytest.param`.
    """
    return [case if at % every == 0 else _thorough(case) for at, case in enumerate(cases)]


def _thorough(case: Any) -> Any:
    mark = pytest.mark.thorough
    if hasattr(case, "marks"):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, mark])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
