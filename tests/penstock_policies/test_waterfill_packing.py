"""How many trials to pack on one device, by the two ways of reading the published rule."""

from __future__ import annotations

import numpy as np
import published
from hypothesis import given
from hypothesis import strategies as st

from penstock_policies.waterfill import packing_c

times = st.lists(st.floats(min_value=0.1, max_value=100.0), min_size=1, max_size=8).map(np.array)


def test_both_readings_of_the_rule_give_what_they_should_for_the_published_times():
    case = published.reference("fluid.json")["packing_c"]
    iteration_s = np.array(list(case["avg_time_per_iter_by_p"].values()))
    assert packing_c(iteration_s, case["O_th"]) == case["c_last_p_above"]
    assert packing_c(iteration_s, case["O_th"], stop_at_first_below=True) == case["c_stop_at_first_below"]


def test_one_more_that_gains_after_one_that_did_not_is_not_looked_for():
    jagged = np.array([10.0, 19.0, 19.5])
    assert packing_c(jagged, 0.1) == 3
    assert packing_c(jagged, 0.1, stop_at_first_below=True) == 1


@given(iteration_s=times, least_gain=st.floats(-0.5, 0.9))
def test_stopping_early_never_packs_more_and_each_trial_packed_gains(iteration_s, least_gain):
    c = packing_c(iteration_s, least_gain, stop_at_first_below=True)
    assert 1 <= c <= packing_c(iteration_s, least_gain)
    gains = [1 - (p - 1) / p * iteration_s[p - 1] / iteration_s[p - 2] for p in range(2, iteration_s.size + 1)]
    assert all(gain > least_gain for gain in gains[: c - 1])
    assert c == iteration_s.size or gains[c - 1] <= least_gain
