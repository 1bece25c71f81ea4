from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import published
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock_policies.waterfill import (
    Mechanisms,
    allot,
    fill,
    hand_out,
    packing_c,
    resized,
    run_time_s,
    widest,
    worth_resizing,
)

run_times = st.lists(st.floats(min_value=1e-6, max_value=1e9), min_size=1, max_size=50).map(np.array)


def reference(table: str) -> list[dict[str, Any]]:
    cases = published.reference("fluid.json")[table]
    return cases if isinstance(cases, list) else [cases]


def test_allotments_are_those_of_the_published_algorithm():
    for case in reference("allotment"):
        h1 = case["h1"] if isinstance(case["h1"], dict) else dict.fromkeys(range(81), 10.0)
        expected = case["w"] if isinstance(case["w"], dict) else dict.fromkeys(range(81), 0.25)
        widths = allot(np.array(list(h1.values())), case["n"], case["c"], case["d"])
        assert widths.tolist() == list(expected.values()), case["name"]
        assert widths.sum() == case["sum_w"], case["name"]
        assert (widths.sum() <= case["n"]) == case["fits"], case["name"]


def test_run_times_are_those_of_the_published_model():
    for case in reference("run_time_h_of_w"):
        assert run_time_s(case["h1"], case["w"], case["alpha"], case["beta"]) == pytest.approx(case["h"])


def test_growing_and_shrinking_follow_the_published_rule():
    for case in reference("dynamic"):
        resize = worth_resizing(
            case["h_remaining_1"],
            case["w"],
            case["w_new"],
            overhead_s=case["eps"],
            alpha=case["alpha"],
            beta=case["beta"],
        )
        assert resize == (case["decision"] != "keep"), case


def test_packing_stops_where_the_gain_falls_below_the_threshold():
    for case in reference("packing_c"):
        assert (
            packing_c(np.array(list(case["avg_time_per_iter_by_p"].values())), case["O_th"]) == case["c_last_p_above"]
        )


def test_one_trial_a_device_where_packing_never_gains():
    assert packing_c(np.array([1.0, 2.0, 4.0]), least_gain=0.0) == 1


def test_the_same_width_is_never_worth_a_restart():
    assert not worth_resizing(30.0, 2, 2, overhead_s=0.0, alpha=1.3, beta=1.05)


@given(h1_s=run_times, gpus=st.integers(0, 10_000), c=st.integers(1, 8), d=st.integers(1, 64))
def test_no_trial_gets_more_than_d_or_less_than_its_share_of_one_device(h1_s, gpus, c, d):
    widths = allot(h1_s, gpus, c, d)
    assert widths.shape == h1_s.shape
    assert widths.max() <= d
    assert widths.min() >= min(1.0 / c, d)


@given(h1_s=run_times, gpus=st.integers(0, 10_000), c=st.integers(1, 8), d=st.integers(1, 64))
@example(h1_s=np.ones(3), gpus=0, c=5, d=1)
def test_only_the_narrowest_trials_can_exceed_the_devices(h1_s, gpus, c, d):
    widths = allot(h1_s, gpus, c, d)
    assert widths[widths >= 1].sum() <= gpus + (c == 1) * len(h1_s)
    assert np.rint(widths * c).sum() <= gpus * c + len(h1_s)  # in whole parts of a device: 3 * 0.2 is more than 3 / 5


@given(count=st.integers(1, 200), gpus=st.integers(0, 400), d=st.integers(1, 16))
def test_equal_trials_get_equal_whole_shares(count, gpus, d):
    assert allot(np.full(count, 0.1), gpus, 1, d).tolist() == [min(max(gpus // count, 1), d)] * count


def test_no_trials_get_no_devices():
    assert allot(np.empty(0), 4, 1, 4).tolist() == []


@pytest.mark.parametrize(
    ("h1_s", "gpus", "c", "d", "name"),
    [([0.0], 1, 1, 1, "h1_s"), ([np.inf], 1, 1, 1, "h1_s"), ([1.0], -1, 1, 1, "gpus"), ([1.0], 1, 0, 1, "packing_c"),
     ([1.0], 1, 1, 0, "max_gpus_d")],
)  # fmt: skip
def test_inputs_out_of_range_are_named(h1_s, gpus, c, d, name):
    with pytest.raises(ValueError, match=f"{name} is out of range; expected"):
        allot(np.array(h1_s), gpus, c, d)


# --- the mechanisms

groups = st.lists(st.floats(min_value=1.0, max_value=1000.0), min_size=1, max_size=12).map(np.array)


@given(h1_s=groups, gpus=st.integers(0, 40), c=st.integers(1, 4), d=st.integers(1, 8))
def test_each_mechanism_is_switched_off_alone(h1_s, gpus, c, d):
    assert fill(h1_s, gpus, c, d).tolist() == allot(h1_s, gpus, c, d).tolist()
    assert fill(h1_s, gpus, c, d, mechanisms=Mechanisms(intra=False)).min() >= 1
    assert fill(h1_s, gpus, c, d, mechanisms=Mechanisms(inter=False)).max() <= 1
    widths = fill(h1_s, gpus, c, d, mechanisms=Mechanisms(intra=False, inter=False))
    assert widths.tolist() == [1.0] * len(h1_s), "one trial a device is water-filling with both off"
    still = resized(h1_s, widths, gpus, c, d, overhead_s=0.0, alpha=1.1, beta=1.1, mechanisms=Mechanisms(dynamic=False))
    assert still.tolist() == widths.tolist()


@given(h1_s=groups, gpus=st.integers(1, 40), c=st.integers(1, 4), d=st.integers(1, 8))
def test_a_longer_trial_never_gets_less(h1_s, gpus, c, d):
    widths = allot(h1_s, gpus, c, d)
    order = np.argsort(h1_s)
    assert all(before <= after for before, after in pairwise(widths[order]))


@given(h1_s=groups, gpus=st.integers(1, 40), c=st.integers(1, 4), d=st.integers(1, 8), beta=st.floats(1.0, 1.5))
def test_devices_left_over_go_where_they_help_and_no_further(h1_s, gpus, c, d, beta):
    before = allot(h1_s, gpus, c, d)
    after = hand_out(h1_s, before, gpus, d, alpha=1.3, beta=beta)
    assert (after >= before).all()
    assert after.max() <= max(d, before.max())
    assert after.sum() <= max(gpus, before.sum()) + 1e-6
    for h1, was, is_now in zip(h1_s.tolist(), before.tolist(), after.tolist(), strict=True):
        assert run_time_s(h1, is_now, 1.3, beta) <= run_time_s(h1, was, 1.3, beta) + 1e-9


def test_the_whole_cluster_is_used_where_scaling_out_is_free():
    h1_s = np.array([40.0, 10.0, 6.0, 4.0])
    assert hand_out(h1_s, allot(h1_s, 16, 2, 16), 16, 16, alpha=1.0, beta=1.0).sum() == 16


# --- growing and shrinking


@example(  # growing to 3 is not worth it, growing to 2 is
    h1_s=np.array([9.0, 1.0, 1.0, 13.0, 1.0]), gpus=8, c=1, d=3, costs={"overhead_s": 1.0, "alpha": 1.2, "beta": 1.75}
)
@given(
    h1_s=groups,
    gpus=st.integers(1, 24),
    c=st.integers(1, 3),
    d=st.integers(1, 6),
    costs=st.fixed_dictionaries(
        {"overhead_s": st.floats(0.0, 50.0), "alpha": st.just(1.2), "beta": st.floats(1.0, 2.0)}
    ),
)
def test_whoever_was_moved_stays_and_nobody_is_moved_to_and_fro(h1_s, gpus, c, d, costs):
    first = allot(h1_s[::-1].copy(), gpus, c, d)
    if first.sum() > gpus:
        return
    once = resized(h1_s, first, gpus, c, d, **costs)
    assert resized(h1_s, once, gpus, c, d, **costs).tolist() == once.tolist()
    assert once.sum() <= gpus + 1e-6


@given(h1_s=groups, gpus=st.integers(1, 24), d=st.integers(1, 6))
def test_a_restart_dearer_than_the_rest_of_the_trial_is_never_worth_it(h1_s, gpus, d):
    widths = np.minimum(allot(h1_s, gpus, 1, d) + 1, d)
    assert resized(h1_s, widths, gpus, 1, d, overhead_s=1e6, alpha=1.0, beta=1.0).tolist() == widths.tolist()


def test_a_trial_left_alone_takes_the_devices_that_the_others_gave_back():
    widths = resized(np.array([30.0]), np.array([1.0]), 4, 2, 4, overhead_s=5.0, alpha=1.3, beta=1.05)
    assert widths.tolist() == [4.0]


# --- the model


@given(beta=st.floats(1.0, 3.0))
def test_no_trial_is_faster_than_on_its_widest(beta):
    most = widest(beta)
    times = [run_time_s(1.0, width, 1.0, beta) for width in range(1, 60)]
    assert times[min(most, 59) - 1] <= min(times) * (1 + 1e-9)
