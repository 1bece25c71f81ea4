from __future__ import annotations

import doctest

from penstock.sessions import loop, replay


def test_the_examples_in_the_docstrings_hold() -> None:
    for module in (loop, replay):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed
