"""How long an iteration takes, and how far that may be off."""

from __future__ import annotations

from math import hypot
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sessions.pace import UNKNOWN, WARM_UP, IterationBlocks, MeanTime, trimmed

times = st.floats(1e-4, 10.0)


def noisy(count: int, *, mean_s: float = 0.1, seed: int = 1) -> list[float]:
    return [float(time_s) for time_s in mean_s * np.random.default_rng(seed).uniform(0.8, 1.2, count)]


def about(mean_s: float, error_s: float = 0.0) -> Any:
    return pytest.approx((mean_s, error_s), abs=1e-8)


def in_blocks(times_s: list[float], sizes: list[int]) -> MeanTime:
    blocks, done = IterationBlocks(), 0
    found = UNKNOWN
    for size in sizes:
        done += size
        found = blocks.measured(done, sum(times_s[:done]))
    return found


# --- a sample


def test_nothing_is_known_of_no_iterations() -> None:
    assert trimmed([]) == UNKNOWN


def test_a_single_iteration_has_a_time_and_no_error() -> None:
    assert trimmed([0.5]) == about(0.5)


def test_the_first_iterations_of_a_sample_are_a_warm_up() -> None:
    assert trimmed([60.0] * WARM_UP + [0.1] * 20) == about(0.1)


def test_what_the_host_does_between_moves_the_mean_little() -> None:
    quiet = noisy(25)
    disturbed = [*quiet[:10], quiet[10] + 5.0, *quiet[11:20], quiet[20] + 9.0, *quiet[21:]]
    assert trimmed(disturbed).iteration_s == pytest.approx(trimmed(quiet).iteration_s, rel=0.05)
    assert trimmed(disturbed).error_s < 0.01


@given(st.lists(times, min_size=1, max_size=60))
def test_the_mean_of_a_sample_lies_within_what_was_seen(times_s: list[float]) -> None:
    mean_s, error_s = trimmed(times_s)
    assert min(times_s) <= mean_s * (1 + 1e-9)
    assert mean_s <= max(times_s) * (1 + 1e-9)
    assert 0.0 <= error_s < hypot(10.0, 10.0)


def test_two_standard_errors_hold_the_true_time_of_most_samples() -> None:
    found = [trimmed(noisy(25, seed=seed)) for seed in range(400)]
    held = [abs(mean_s - 0.1) <= 2 * error_s for mean_s, error_s in found]
    assert 0.9 <= fmean(held) <= 0.99


# --- an ordinary run


def test_an_ordinary_run_is_known_by_its_blocks_the_first_left_out() -> None:
    assert in_blocks([5.0, *[0.1] * 9], [1, 4, 5]) == about(0.1)


def test_of_one_block_there_is_a_mean_without_error() -> None:
    assert in_blocks([5.0, 0.1, 0.3], [1, 2]) == about(0.2)


def test_a_block_without_iterations_says_nothing() -> None:
    blocks = IterationBlocks()
    assert blocks.measured(0, 0.0) == UNKNOWN
    blocks.measured(1, 9.0)
    before = blocks.measured(3, 9.2)
    assert blocks.measured(3, 9.2) == before == about(0.1)


def test_an_iteration_that_was_not_done_after_all_closes_no_block() -> None:
    blocks = IterationBlocks()
    blocks.measured(1, 1.0)
    before = blocks.measured(5, 5.0)
    assert blocks.measured(4, 5.0) == before


@given(st.lists(st.integers(1, 30), min_size=3, max_size=20), st.integers(0, 1000))
def test_blocks_of_any_sizes_give_the_mean_of_all_iterations(sizes: list[int], seed: int) -> None:
    times_s = noisy(sum(sizes), seed=seed)
    mean_s, error_s = in_blocks(times_s, sizes)
    assert mean_s == pytest.approx(fmean(times_s[sizes[0] :]))
    assert 0.0 <= error_s <= mean_s


def test_the_error_of_blocks_is_about_that_of_their_iterations() -> None:
    times_s = noisy(4_010)
    expected_s = stdev(times_s) / 4_000**0.5
    assert in_blocks(times_s, [10, *[40] * 100]).error_s == pytest.approx(expected_s, rel=0.3)
