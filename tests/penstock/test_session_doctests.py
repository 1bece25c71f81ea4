from __future__ import annotations

import doctest

from penstock import session_loop, session_replay


def test_the_examples_in_the_docstrings_hold() -> None:
    for module in (session_loop, session_replay):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed
