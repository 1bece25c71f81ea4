from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from penstock_lanes import page, pulse, spinning, wire


@pytest.mark.parametrize("module", [page, pulse, spinning, wire])
def test_the_examples_in_docstrings_are_true(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert (failed, tried > 0) == (0, True)
