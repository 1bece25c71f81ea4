"""The examples in the policies' docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import penstock_policies

MODULES = [name for _, name, _ in pkgutil.iter_modules(penstock_policies.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name):
    result = doctest.testmod(importlib.import_module(f"penstock_policies.{name}"))
    assert result.failed == 0
