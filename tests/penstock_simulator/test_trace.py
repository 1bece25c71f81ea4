"""Parts of traces, their figures, and traces without names."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_simulator.trace import Trace, about, anonymized, sample, scale_load, window
from penstock_simulator.traces import TraceError
from sweeps import examples


def hourly(jobs: int) -> Trace:
    return Trace(
        name="hourly",
        job_ids=[f"job-{i}" for i in range(jobs)],
        submit_s=1000.0 + 3600.0 * np.arange(jobs),
        num_gpus=np.where(np.arange(jobs) % 4 == 0, 4, 1),
        duration_s=np.full(jobs, 1800.0),
        users=["ann" if i % 2 else "bob" for i in range(jobs)],
        models=["bert"] * jobs,
        dropped={"zero GPUs": 3},
    )


def test_a_window_is_half_open_and_counted_from_the_first_submission() -> None:
    part = window(hourly(10), 3600.0, 3 * 3600.0)
    assert part.job_ids == ["job-1", "job-2"]
    assert (part.users, part.dropped) == (["ann", "bob"], {})


def test_an_empty_window_tells_the_span() -> None:
    with pytest.raises(TraceError, match=r"from 1e\+06 s to 2e\+06 s; the trace spans 0 to 32400 s"):
        window(hourly(10), 1e6, 2e6)


@given(jobs=st.integers(1, 20), seed=st.integers(0, 99))
@settings(max_examples=examples(25), deadline=None)
def test_a_sample_has_each_job_at_most_once_in_the_order_of_the_trace(jobs: int, seed: int) -> None:
    trace = hourly(20)
    part = sample(trace, jobs, np.random.default_rng(seed))
    assert len(part) == len(set(part.job_ids)) == jobs
    assert (np.diff(part.submit_s) > 0).all()
    where = {job_id: i for i, job_id in enumerate(trace.job_ids)}
    for job_id, gpus, user in zip(part.job_ids, part.num_gpus, part.users, strict=True):
        assert (trace.num_gpus[where[job_id]], trace.users[where[job_id]]) == (gpus, user)
    assert sample(trace, jobs, np.random.default_rng(seed)).job_ids == part.job_ids


def test_more_jobs_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(TraceError, match="11 jobs cannot be drawn from 10; expected 1 to 10"):
        sample(hourly(10), 11, np.random.default_rng(0))


def test_scaling_the_load_brings_jobs_closer_together_and_changes_nothing_else() -> None:
    trace = hourly(10)
    dense = scale_load(trace, 2.0)
    assert dense.submit_s[0] == trace.submit_s[0]
    assert np.diff(dense.submit_s).tolist() == [1800.0] * 9
    assert about(dense).busy_gpus == pytest.approx(2 * about(trace).busy_gpus)
    with pytest.raises(TraceError, match="cannot be scaled by 0"):
        scale_load(trace, 0.0)


def test_the_figures_of_a_trace() -> None:
    found = about(hourly(9), [4, 8])
    assert (found.rows, found.jobs, found.dropped) == (12, 9, {"zero GPUs": 3})
    assert (found.span_s, found.jobs_per_h) == (8 * 3600.0, 9 / 8)
    assert found.gpu_h == (3 * 4 + 6) * 0.5
    assert found.busy_gpus == pytest.approx(9 / 8)
    assert found.load == {"4": pytest.approx(9 / 32), "8": pytest.approx(9 / 64)}
    assert [(size.gpus, size.jobs, size.gpu_h) for size in found.gpus] == [(1, 6, 3.0), (4, 3, 6.0)]
    assert found.duration_s == dict.fromkeys(("min", "p5", "p25", "p50", "p75", "p95", "p99", "max", "mean"), 1800.0)
    assert [(party.name, party.jobs) for party in found.users.largest] == [("bob", 5), ("ann", 4)]
    assert (found.vcs.count, found.models.count) == (0, 1)


def test_fractions_count_as_such_in_the_load() -> None:
    half = Trace(
        name="half",
        job_ids=["a", "b"],
        submit_s=np.array([0.0, 100.0]),
        num_gpus=np.array([1, 1]),
        duration_s=np.array([100.0, 100.0]),
        gpu_share=np.array([0.5, 1.0]),
    )
    assert (about(half).busy_gpus, about(half).fractional) == (1.5, 1)


def test_a_trace_without_jobs_has_figures_too() -> None:
    found = about(window(hourly(1), 0, 1))
    assert (found.span_s, found.load, found.jobs_per_h) == (0.0, {}, 0.0)
    empty = Trace(name="", job_ids=[], submit_s=np.empty(0), num_gpus=np.empty(0, np.int64), duration_s=np.empty(0))
    assert (about(empty).jobs, about(empty).duration_s, about(empty).gpus) == (0, {}, ())


def test_an_anonymous_trace_has_no_name_left_and_the_same_figures() -> None:
    trace = hourly(10)
    anonymous = anonymized(trace, b"key")
    left = {anonymous.name, *anonymous.job_ids, *anonymous.users, *anonymous.models}
    assert not left & {trace.name, *trace.job_ids, *trace.users, *trace.models}
    assert anonymous.submit_s[0] == 0.0
    assert np.diff(anonymous.submit_s).tolist() == np.diff(trace.submit_s).tolist()
    assert anonymous.num_gpus.tolist() == trace.num_gpus.tolist()
    assert sorted(Counter(anonymous.users).values()) == sorted(Counter(trace.users).values())


def test_the_same_key_gives_the_same_hashes_and_another_key_others() -> None:
    one, again, other = (anonymized(hourly(4), key).users for key in (b"a", b"a", b"b"))
    assert one == again
    assert not set(one) & set(other)


def test_a_user_and_a_model_of_one_name_are_not_told_as_one() -> None:
    trace = Trace(
        name="",
        job_ids=["x"],
        submit_s=np.zeros(1),
        num_gpus=np.ones(1, np.int64),
        duration_s=np.ones(1),
        users=["x"],
        models=["x"],
        vcs=[""],
    )
    found = anonymized(trace, b"k")
    assert len({found.job_ids[0][1:], found.users[0][1:], found.models[0][1:]}) == 3
    assert found.vcs == [""]
