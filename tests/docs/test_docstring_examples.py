"""Every example in a docstring of the product holds."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT = ("penstock.estimate_torch",)
"""Modules that load PyTorch, which may not be there."""


def modules() -> list[str]:
    found = []
    for root in ("libs", "services"):
        for path in sorted((ROOT / root).rglob("*.py")):
            if ">>> " in path.read_text():
                name = ".".join(path.relative_to(ROOT / root).with_suffix("").parts)
                found.append(name.removesuffix(".__init__"))
    return [name for name in found if name not in WITHOUT]


def test_there_are_examples_in_many_modules() -> None:
    assert len(modules()) > 60


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_the_docstrings_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert result.attempted
    assert not result.failed
