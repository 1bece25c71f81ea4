from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_profiler.__main__ import mine, owner

names = st.sets(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=1, max_size=6)


@given(key=st.text(max_size=16), replicas=names)
def test_each_key_belongs_to_exactly_one_replica(key, replicas):
    assert sum(mine(key, replicas, me) for me in replicas) == 1


@given(key=st.text(max_size=16), replicas=names, gone=st.data())
def test_only_the_keys_of_a_replica_that_goes_move(key, replicas, gone):
    lost = gone.draw(st.sampled_from(sorted(replicas)))
    rest = replicas - {lost}
    if rest and owner(key, replicas) != lost:
        assert owner(key, rest) == owner(key, replicas)


def test_replicas_share_about_evenly():
    counts = dict.fromkeys(("a", "b", "c"), 0)
    for number in range(3000):
        counts[owner(f"key{number}", counts)] += 1
    assert all(900 < count < 1100 for count in counts.values())


def test_a_replica_that_hears_nobody_takes_everything():
    assert mine("k", [], "me")
    with pytest.raises(ValueError, match="empty"):
        owner("k", [])
