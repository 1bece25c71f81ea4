from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import penstock_gateway
from penstock_events import problems, strict

MODULES = [
    f"penstock_gateway.{module.name}"
    for module in pkgutil.iter_modules(penstock_gateway.__path__)
    if module.name != "__main__"
]


@pytest.mark.parametrize("name", [*MODULES, problems.__name__, strict.__name__])
def test_the_examples_in_the_docstrings_are_true(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.IGNORE_EXCEPTION_DETAIL).failed == 0
