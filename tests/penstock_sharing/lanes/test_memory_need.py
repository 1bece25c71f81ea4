"""What a job needs, as its iterations show it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_sharing.lanes import MemoryEstimate, MemoryNeed, MemoryReading, differs
from sweeps import examples

samples = st.builds(
    lambda allocated, more, framework: MemoryReading(allocated, allocated + more, framework),
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.integers(0, 10**9),
)


def test_the_parts_add_up():
    need = MemoryNeed(300, 50, 400)
    assert (need.resident_bytes, need.alone_bytes) == (350, 750)


def test_less_than_nothing_is_an_error():
    with pytest.raises(ValueError, match="expected 0 or more"):
        MemoryNeed(1, -1, 0)


def test_the_first_iteration_does_not_count():
    estimate = MemoryEstimate()
    estimate.see(MemoryReading(100, 2000))
    assert estimate.need is None
    estimate.see(MemoryReading(300, 900))
    assert estimate.need == MemoryNeed(300, 0, 600)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(samples, min_size=2, max_size=20), st.integers(1, 5))
def test_the_need_covers_every_remembered_peak(seen, window):
    estimate = MemoryEstimate(window)
    for sample in seen:
        estimate.see(sample)
    need = estimate.need
    for sample in seen[1:][-window:]:
        assert need.persistent_bytes + need.ephemeral_bytes >= sample.peak_bytes
        assert need.persistent_bytes >= sample.allocated_bytes
        assert need.framework_bytes >= sample.framework_bytes


def test_it_falls_when_the_larger_iterations_are_a_window_behind():
    estimate = MemoryEstimate(window=2)
    for peak in (900, 900, 500, 400):
        estimate.see(MemoryReading(300, peak))
    assert estimate.need == MemoryNeed(300, 0, 200)


def test_a_window_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="out of range"):
        MemoryEstimate(window=0)


def test_a_byte_more_is_news_and_a_little_less_is_not():
    known = MemoryNeed(1000, 100, 500)
    assert differs(known, MemoryNeed(1001, 100, 500))
    assert not differs(known, known)
    assert not differs(known, MemoryNeed(951, 95, 475))
    assert differs(known, MemoryNeed(1000, 100, 474))
