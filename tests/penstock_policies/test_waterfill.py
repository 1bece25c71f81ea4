from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_policies.waterfill import allot, packing_c, run_time_s, worth_resizing

REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference" / "fluid.json"

run_times = st.lists(st.floats(min_value=1e-6, max_value=1e9), min_size=1, max_size=50).map(np.array)


def reference(table: str) -> list[dict[str, Any]]:
    if not REFERENCE.exists():
        pytest.skip(f"{REFERENCE.name} is not beside the repository: the published cases are not checked")
    cases = json.loads(REFERENCE.read_text())[table]
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
def test_only_the_narrowest_trials_can_exceed_the_devices(h1_s, gpus, c, d):
    widths = allot(h1_s, gpus, c, d)
    assert widths[widths >= 1].sum() <= gpus + (c == 1) * len(h1_s)
    assert widths.sum() <= gpus + len(h1_s) / c


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
