from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["penstock_tuner.trials", "penstock_tuner.submissions", "penstock_profiler.sharing"])
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
