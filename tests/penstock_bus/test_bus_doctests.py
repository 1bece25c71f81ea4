"""The examples in the bus's docstrings are true."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from penstock_bus import matching, printable, settings
from penstock_bus.nats import follow


@pytest.mark.parametrize("module", [matching, follow, printable, settings], ids=lambda module: module.__name__)
def test_the_examples_are_true(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
