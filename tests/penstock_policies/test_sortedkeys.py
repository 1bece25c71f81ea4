"""The sorted collection against a list that is sorted anew each time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_policies import sortedkeys
from penstock_policies.sortedkeys import SortedKeys

numbers = st.integers(0, 60)


@settings(deadline=None)
@given(st.sets(numbers), st.lists(numbers, max_size=150), st.integers(1, 6))
def test_it_always_holds_what_a_sorted_list_would(first, toggled, block):
    before, sortedkeys.BLOCK = sortedkeys.BLOCK, block  # type: ignore[misc] - so that blocks divide and vanish
    try:
        expected = set(first)
        keys = SortedKeys((n,) for n in first)
        for n in toggled:
            if n in expected:
                keys.remove((n,))
            else:
                keys.add((n,))
            expected ^= {n}
            assert [key[0] for key in keys] == sorted(expected)
            assert len(keys) == len(expected)
            assert keys.first == (min((n,) for n in expected) if expected else None)
    finally:
        sortedkeys.BLOCK = before  # type: ignore[misc]


@pytest.mark.parametrize("key", [(0,), (2,), (9,)])
def test_taking_out_what_is_not_there_is_an_error(key):
    with pytest.raises(KeyError):
        SortedKeys([(1,), (3,)]).remove(key)


def test_an_empty_one_has_no_first():
    assert SortedKeys().first is None
