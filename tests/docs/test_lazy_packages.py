"""Packages whose names are loaded when they are used give what type checkers see."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest


@pytest.mark.parametrize("package", ["penstock_bus", "penstock_bus.nats", "penstock_log", "penstock_log.views"])
def test_a_name_is_what_type_checkers_take_it_for(package: str) -> None:
    module = import_module(package)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    seen = next(node for node in tree.body if isinstance(node, ast.If)).body
    static = {alias.name: node.module for node in seen if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(static) == set(module.__all__)
    for name, home in static.items():
        assert home is not None
        assert getattr(module, name) is getattr(import_module(home), name), name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing
