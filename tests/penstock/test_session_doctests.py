from __future__ import annotations

import doctest

from penstock.sessions import loop, rates, replay, sampler, timing


def test_the_examples_in_the_docstrings_hold() -> None:
    for module in (loop, rates, replay, sampler, timing):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed
