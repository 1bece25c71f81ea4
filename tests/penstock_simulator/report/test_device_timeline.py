"""Thinned timelines keep their extremes and their means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcome_rows import outcome_of, random_trace

from penstock_simulator.report import device_timeline
from penstock_simulator.trace import Floats
from sweeps import examples

MODULES = ("devices", "facts", "folder", "palette", "table", "text_gantt", "thin", "plots.by_gpus", "plots.style")
Steps = list[tuple[int, int]]
steps = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50)), min_size=1, max_size=60)


def by_the_second(drawn: Steps, until_s: int) -> Floats:
    """The step function's value in each second, by looking at every step."""
    ordered = sorted(drawn, key=lambda step: step[0])
    value = np.zeros(until_s)
    for at_s, held in ordered:
        value[at_s:] = held
    return value


@settings(max_examples=examples(60), deadline=None)
@given(steps, st.integers(1, 20))
def test_a_column_has_the_mean_the_least_and_the_most_of_its_seconds(drawn: Steps, count: int) -> None:
    until_s = 12 * count
    ordered = sorted(drawn, key=lambda step: step[0])
    at_s, values = (np.array(column, dtype=np.float64) for column in zip(*ordered, strict=True))
    found = device_timeline.columns(at_s, values, device_timeline.edges(0, until_s, count))
    seconds = by_the_second([step for step in ordered if step[0] < until_s], until_s).reshape(count, 12)
    np.testing.assert_allclose(found.mean, seconds.mean(axis=1))
    np.testing.assert_array_equal(found.least, seconds.min(axis=1))
    np.testing.assert_array_equal(found.most, seconds.max(axis=1))


def test_a_spike_of_one_second_in_a_year_is_still_the_most_of_its_column() -> None:
    year_s = 365 * 86_400.0
    found = device_timeline.columns(np.array([0.0, 1e7, 1e7 + 1]), [3, 9_000, 3], device_timeline.edges(0, year_s, 100))
    assert found.most.max() == 9_000
    assert found.mean.max() < 3.1


@given(st.integers(1, 5_000), st.integers(8, 100))
def test_a_thinned_distribution_is_short_and_keeps_both_ends(size: int, most: int) -> None:
    kept = device_timeline.points(size, most)
    assert kept.size <= max(most, 1)
    assert (kept[0], kept[-1]) == (0, size - 1)
    assert (np.diff(kept) > 0).all()


def test_shares_of_devices_add_up_to_the_gpu_time_that_was_held() -> None:
    outcome = outcome_of(random_trace(60, seed=3), gpus=50)
    assert outcome.spells is not None
    held_s = float((outcome.spells.to_s - outcome.spells.from_s).sum())
    end_s = float(outcome.spells.to_s.max())
    shares = device_timeline.device_shares(outcome.spells, 50, (0.0, end_s), (20, 30))
    assert shares.shape == (17, 30)
    per_row = np.bincount(device_timeline.row_of(50, 20))
    assert (shares.mean(axis=1) * per_row).sum() * end_s == pytest.approx(held_s)
