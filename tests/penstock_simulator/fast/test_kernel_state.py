"""The heaps of waiting jobs and of alarms."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_simulator.fast.kernel_state import NO_JOB, new_heap, push, remove
from sweeps import examples

JOBS = 24
acts = st.lists(st.tuples(st.integers(0, JOBS - 1), st.integers(0, 3), st.integers(0, 2)), max_size=80)


@settings(max_examples=examples(60), deadline=None)
@given(acts)
def test_the_first_is_the_least_whoever_is_put_in_or_taken_out_anywhere(acts):
    heap, inside = new_heap(2, JOBS), dict[int, tuple[float, float, int]]()
    for job, key, tie in acts:
        if job in inside:
            remove(heap, 1, job)
            del inside[job]
        else:
            heap.links.key[job], heap.links.tie[job] = key, tie
            push(heap, 1, job)
            inside[job] = (key, tie, job)
        assert heap.root[0] == NO_JOB
        assert heap.root[1] == (min(inside, key=inside.__getitem__) if inside else NO_JOB)
    drained = []
    while heap.root[1] != NO_JOB:
        drained.append(int(heap.root[1]))
        remove(heap, 1, int(heap.root[1]))
    assert drained == sorted(inside, key=inside.__getitem__)
