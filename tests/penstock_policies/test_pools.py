"""What a pool is run by, and what of it can be set live."""

from __future__ import annotations

import doctest

import pytest

from penstock_events import Setting
from penstock_events import policy as events_policy
from penstock_policies import pools
from penstock_policies.order import Rules
from penstock_policies.pools import Ordering


def test_the_examples_hold() -> None:
    assert doctest.testmod(pools).failed == doctest.testmod(events_policy).failed == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"order": "by-mood"}, "order is 'by-mood': expected one of fifo, fifo-backfill"),
        ({"thresholds_gpu_s": [5, 4]}, "thresholds_gpu_s is .* expected rising numbers"),
        ({"promote_knob": -1}, "promote_knob is -1.0; expected a number above 0"),
        ({"window": "wide"}, 'window: expected a whole number from 1 to 4096, got "wide"'),
        ({"overhead_share": 0}, "overhead_share: expected a finite number above 0 and of at most 1, got 0"),
        ({"patience": 1}, "no setting of a pool is called 'patience'; did you mean 'patience_s'"),
        ({"zz": 1}, "expected one of .*order"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(settings: dict[str, Setting], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pools.checked(settings)


def test_every_default_is_accepted_as_it_stands() -> None:
    assert pools.checked(pools.defaults()) == pools.defaults()


def test_settings_go_to_whom_they_belong() -> None:
    live: dict[str, Setting] = {"order": "fifo", "patience_s": 1.5, "promote_knob": None}
    assert pools.overlaid(Ordering(promote_knob=2.0), live) == Ordering(order="fifo")
    assert pools.overlaid(Rules(), live) == Rules(patience_s=1.5)


def test_settings_with_nothing_over_them_stay_the_same_object() -> None:
    rules = Rules()
    assert pools.overlaid(rules, {"order": "fifo"}) is rules
