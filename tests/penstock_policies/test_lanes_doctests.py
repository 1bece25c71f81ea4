"""The examples in the docstrings of the lanes are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from penstock_policies import lanes

MODULES = [name for _, name, _ in pkgutil.iter_modules(lanes.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_lanes_module_hold(name):
    result = doctest.testmod(importlib.import_module(f"penstock_policies.lanes.{name}"))
    assert result.failed == 0
