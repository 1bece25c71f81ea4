"""What is learnt of lengths: bounded, the same for the same log, fair, fading; and the prior of the first day."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_policies.job_lengths import FADING, FIRST, KEPT, Lengths, blend, read_prior
from sweeps import examples

times = st.lists(st.floats(0.1, 1e6), max_size=60)


def of(values: np.ndarray | list[float]) -> Lengths:
    lengths = Lengths()
    for number, gpu_s in enumerate(values):
        lengths.add(f"job-{number}", float(gpu_s))
    return lengths


def test_memory_is_bounded_and_the_sample_is_a_fair_one():
    drawn = np.random.default_rng(1).lognormal(5.0, 2.0, 10 * KEPT)
    lengths = of(drawn)
    assert len(lengths.kept) == len(lengths.edition_gpu_s) == KEPT
    for quantile in (0.1, 0.5, 0.9):
        rank = np.searchsorted(np.sort(drawn), np.quantile(lengths.edition_gpu_s, quantile)) / drawn.size
        assert rank == pytest.approx(quantile, abs=0.05)


def test_what_jobs_were_long_ago_fades():
    lengths = of([1.0] * FADING + [2.0] * FADING)
    old = lengths.edition_gpu_s.count(1.0) / KEPT
    assert old == pytest.approx(np.exp(-1) / (1 + np.exp(-1)), abs=0.06)


@given(times)
def test_until_it_is_full_an_edition_has_every_job_so_far(values):
    lengths = of(values)
    assert lengths.edition_gpu_s == sorted(values[: lengths.edition_count])
    assert len(values) - lengths.edition_count < max(FIRST, lengths.edition_count // 4)


def test_editions_become_rarer_as_there_is_more_to_go_by_and_never_end():
    lengths = Lengths()
    out = [n for n in range(1, 9 * KEPT) if lengths.add(f"j{n}", 1.0)]
    gaps = np.diff([0, *out])
    assert gaps[0] == FIRST
    assert len(out) < 60
    assert gaps.max() <= KEPT // 4


def test_a_job_that_took_no_device_time_says_nothing():
    lengths = Lengths()
    assert not lengths.add("a", 0.0)
    assert lengths == Lengths()


@settings(max_examples=examples(50))
@given(times, times)
def test_a_prior_gives_way_one_for_one(edition, prior):
    found = blend(edition, sorted(prior))
    assert len(found) == max(len(edition), len(prior))
    assert found == sorted(found)
    assert set(found) <= {*edition, *prior}
    if len(edition) >= len(prior):
        assert found == sorted(edition)


def test_what_is_left_of_a_prior_has_its_shape():
    prior = sorted(np.random.default_rng(1).lognormal(5.0, 2.0, 1000).tolist())
    left = blend([1e-9] * 700, prior)[700:]
    assert np.quantile(left, [0.25, 0.5, 0.75]) == pytest.approx(np.quantile(prior, [0.25, 0.5, 0.75]), rel=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no number in it"),
        ("gpu_s\n", "no number in it"),
        ("5\nlong\n", "line 2 is 'long'; expected one number of GPU-seconds a line"),
        ("5\n0\n", "line 2 is '0'; expected GPU-seconds above 0"),
        ("5\ninf\n", "line 2 is 'inf'; expected GPU-seconds above 0"),
    ],
)
def test_a_prior_that_cannot_be_used_is_refused_with_its_line(text, message):
    with pytest.raises(ValueError, match=message):
        read_prior(text)


def test_comments_and_empty_lines_of_a_prior_are_left_out():
    assert read_prior("# of last year\n\n7  # a sweep\n3\n") == [3.0, 7.0]
