"""What a pool is run by, and what of it can be set live."""

from __future__ import annotations

import pytest

from penstock_log import Setting
from penstock_scheduler.pool import pool_settings
from penstock_scheduler.pool.pool_settings import OrderingSettings
from penstock_scheduler.round_types import PriorityClass, RoundRules


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
        pool_settings.checked(settings)


def test_every_default_is_accepted_as_it_stands() -> None:
    assert pool_settings.checked(pool_settings.defaults()) == pool_settings.defaults()


def test_settings_go_to_whom_they_belong() -> None:
    live: dict[str, Setting] = {"order": "fifo", "patience_s": 1.5, "promote_knob": None}
    assert pool_settings.overlaid(OrderingSettings(promote_knob=2.0), live) == OrderingSettings(order="fifo")
    assert pool_settings.overlaid(RoundRules(), live) == RoundRules(patience_s=1.5)


def test_settings_with_nothing_over_them_stay_the_same_object() -> None:
    rules = RoundRules()
    assert pool_settings.overlaid(rules, {"order": "fifo"}) is rules


def test_a_quota_that_is_set_live_stands_in_place_of_the_files_and_leaves_the_others() -> None:
    base = RoundRules(quotas={"vision": 4, "speech": 2})
    assert pool_settings.overlaid(base, {"quota.vision": 16, "quota.nlp": 0}).quotas == {
        "vision": 16,
        "speech": 2,
        "nlp": 0,
    }
    assert pool_settings.overlaid(base, {}).quotas == base.quotas


@pytest.mark.parametrize("value", [-1, 1.5, True, "many", None, 10**9])
def test_a_quota_is_a_number_of_devices(value: object) -> None:
    with pytest.raises(ValueError, match=r"quota\.vision: expected a number of devices from 0"):
        pool_settings.checked({"quota.vision": value})  # type: ignore[dict-item]


def test_a_class_that_is_set_live_stands_over_the_files_parameter_by_parameter() -> None:
    base = RoundRules(classes={"urgent": PriorityClass(weight=10, preempts=True), "night": PriorityClass(weight=-5)})
    live: dict[str, Setting] = {"class.urgent.weight": 20, "class.new.teams": ["vision"], "class.new.weight": 1}
    assert pool_settings.overlaid(base, live).classes == {
        "urgent": PriorityClass(weight=20, preempts=True),
        "night": PriorityClass(weight=-5),
        "new": PriorityClass(weight=1, teams=("vision",)),
    }
    assert pool_settings.overlaid(base, {}) is base


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"class.urgent.weight": 1001}, r"class\.urgent\.weight: expected a whole number from -1000 to 1000, got 1001"),
        ({"class.urgent.weight": True}, "expected a whole number"),
        ({"class.urgent.weight": None}, "expected a whole number"),
        ({"class.urgent.preempts": 1}, "expected true or false, got 1"),
        ({"class.urgent.most_gpus": -1}, "expected a number of devices from 0"),
        ({"class.urgent.teams": "vision"}, "expected a list of teams"),
        ({"class.urgent.teams": ["<script>"]}, "'<script>' is the name of none"),
        ({"class.urgent.colour": 1}, "and the field one of weight, preempts, most_gpus, teams"),
        ({"class.a b.weight": 1}, "the name of letters, digits, - and _"),
        ({"class..weight": 1}, "is no parameter of a class"),
        ({"class.urgent": 1}, "is no parameter of a class"),
        ({"classes": 1}, "no setting of a pool is called 'classes'"),
    ],
    ids=str,
)
def test_what_no_class_can_have_is_refused_by_name(settings: dict[str, Setting], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pool_settings.checked(settings)


def test_a_class_is_written_into_settings_and_read_from_them() -> None:
    rules = PriorityClass(weight=7, preempts=True, most_gpus=4, teams=("a", "b"))
    found = pool_settings.class_settings("urgent", rules)
    assert pool_settings.overlaid(RoundRules(), pool_settings.checked(found)).classes == {"urgent": rules}
