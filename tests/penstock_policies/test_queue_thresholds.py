"""Thresholds from lengths: better than one queue by simulation, none for equal jobs, rounded, and for any input."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_policies.queue_thresholds import DEFAULT_GPU_S, LOAD, SHORTEST_GPU_S, learnt_thresholds_gpu_s


def mean_response_s(lengths_s: np.ndarray, arrivals_s: np.ndarray, limits: tuple[float, ...]) -> float:
    """Run jobs through one server that always serves the first of the lowest level; return their mean time there."""
    edges = (*limits, math.inf)
    waiting: list[tuple[int, float, int]] = []  # level, when it came to it, which
    done, ended_s, at_s, came = np.zeros(len(lengths_s)), np.zeros(len(lengths_s)), 0.0, 0
    while came < len(lengths_s) or waiting:
        if not waiting:
            at_s = max(at_s, arrivals_s[came])
        while came < len(lengths_s) and arrivals_s[came] <= at_s:
            heapq.heappush(waiting, (0, arrivals_s[came], came))
            came += 1
        level, _, job = waiting[0]
        until_s = at_s + min(lengths_s[job], edges[level]) - done[job]
        next_s = arrivals_s[came] if came < len(lengths_s) else math.inf
        if level and next_s < until_s:  # who comes in is of the first level
            done[job] += next_s - at_s
            at_s = next_s
            continue
        done[job] = min(lengths_s[job], edges[level])
        at_s = until_s
        heapq.heappop(waiting)
        if done[job] >= lengths_s[job]:
            ended_s[job] = at_s
        else:
            heapq.heappush(waiting, (level + 1, at_s, job))
    return float((ended_s - arrivals_s).mean())


@pytest.mark.parametrize("spread", [1.5, 2.0])
def test_jobs_of_very_different_lengths_are_over_sooner_by_learnt_thresholds(spread):
    rng = np.random.default_rng(7)
    lengths_s = rng.lognormal(1.0, spread, 20_000)
    arrivals_s = np.cumsum(rng.exponential(lengths_s.mean() / LOAD, len(lengths_s)))
    learnt = learnt_thresholds_gpu_s(sorted(rng.lognormal(1.0, spread, 1_024)))
    assert len(learnt) == 2
    by_queues_s = mean_response_s(lengths_s, arrivals_s, learnt)
    assert by_queues_s < 0.5 * mean_response_s(lengths_s, arrivals_s, ())
    for factor in (1 / 30, 30):
        others = tuple(factor * limit for limit in learnt)
        assert by_queues_s < mean_response_s(lengths_s, arrivals_s, others)


def test_jobs_that_are_about_equally_long_get_one_queue():
    assert learnt_thresholds_gpu_s(sorted(np.random.default_rng(7).normal(100.0, 5.0, 200))) == ()
    assert learnt_thresholds_gpu_s([2.0] * 50) == ()


def test_a_job_as_long_as_those_that_were_seen_ends_within_the_threshold():
    (limit,) = learnt_thresholds_gpu_s([10.0] * 20 + [1_000.0])
    assert 10.0 < limit <= 11.0


def test_jobs_that_only_start_and_end_teach_nothing():
    assert learnt_thresholds_gpu_s([0.02] * 10 + [0.07] * 10 + [0.9]) == ()
    assert learnt_thresholds_gpu_s([0.02] * 20 + [60.0] * 3) == (1.1,)


def test_nothing_seen_gives_the_default():
    assert learnt_thresholds_gpu_s([]) == DEFAULT_GPU_S


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=100))
def test_thresholds_rise_lie_among_the_lengths_and_have_two_digits(lengths):
    found = learnt_thresholds_gpu_s(sorted(lengths))
    assert list(found) == sorted(set(found))
    assert all(min(lengths) < limit <= 1.13 * max(*lengths, SHORTEST_GPU_S) for limit in found)
    assert all(limit > SHORTEST_GPU_S for limit in found)
    assert all(limit == pytest.approx(float(f"{limit:.1e}")) for limit in found)
