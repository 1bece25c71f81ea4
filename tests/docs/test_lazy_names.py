"""Packages that load their modules when a name of theirs is used have every name that they say they have."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "libs"
LAZY = ("penstock", "penstock.aggregation", "penstock.memory", "penstock_bus", "penstock_bus.nats", "penstock_log",
        "penstock_log.views", "penstock_sharing.token")  # fmt: skip


def for_type_checkers(package: str) -> set[str]:
    """Return the names that a package imports for type checkers alone."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    blocks = [node.body for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imported = [line for body in blocks for line in body if isinstance(line, ast.ImportFrom)]
    return {alias.asname or alias.name for line in imported for alias in line.names}


@pytest.mark.parametrize("package", LAZY)
def test_every_name_that_type_checkers_are_told_of_is_there_at_run_time(package: str) -> None:
    names = for_type_checkers(package)
    assert names
    module = import_module(package)
    assert [name for name in sorted(names) if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", LAZY)
def test_every_published_name_is_there(package: str) -> None:
    module = import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
