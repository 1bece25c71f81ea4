"""The examples in the docstrings of the packed host are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import penstock_packed

MODULES = [name for _, name, _ in pkgutil.iter_modules(penstock_packed.__path__) if name != "__main__"]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_packed_module_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"penstock_packed.{name}"))
    assert result.failed == 0
