"""Quotas and reservations in sizes: nobody grows onto what is kept for others who wait."""

from __future__ import annotations

from typing import Any

import pytest
from scaling_facts import elastic, fixed, job, node, ranked, scaled, seasoned, widths

from penstock_autoscaler import machine
from penstock_log import PolicySet, ReservationCancelled, ReservationMade, Setting
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_testing import Scenario

OWNED = PolicySet(at_s=90.0, pool="default", settings={"quota.vision": 4})


def reserved(from_s: float, until_s: float, kind: str = "") -> ReservationMade:
    return ReservationMade(
        at_s=90.0,
        pool="default",
        reservation_id="vision-1",
        team="vision",
        gpus=4,
        from_s=from_s,
        until_s=until_s,
        kind=kind,
    )


def test_without_quotas_a_job_grows_before_one_behind_it_that_does_not_fit_in() -> None:
    it = seasoned(1, elastic(team="speech")).given(node("n2", at_s=90.0, fast=3))
    it.given(job("v", fixed(4, team="vision"), at_s=95.0), ranked(95.0, a=0.0, v=1.0)).at(100.0)
    assert widths(it.settle()) == {"a": 4}


@pytest.mark.parametrize(
    "known", [OWNED, reserved(90.0, 200.0), reserved(90.0, 200.0, "fast")], ids=["quota", "reservation", "of a kind"]
)
def test_nobody_grows_onto_what_is_kept_for_others_who_wait(known: Any) -> None:
    it = seasoned(1, elastic(team="speech")).given(node("n2", at_s=90.0, fast=3), known)
    it.given(job("v", fixed(4, team="vision"), at_s=95.0), ranked(95.0, a=0.0, v=1.0)).at(100.0)
    assert widths(it.settle()) == {}


def test_what_nobody_claims_is_lent() -> None:
    it = seasoned(1, elastic(team="speech")).given(node("n2", at_s=90.0, fast=3), OWNED).at(100.0)
    assert widths(it.settle()) == {"a": 4}


def test_a_borrower_shrinks_to_let_the_owner_in() -> None:
    it = seasoned(4, elastic(team="speech")).given(OWNED)
    it.given(job("v", fixed(3, team="vision"), at_s=95.0), ranked(95.0, a=0.0, v=1.0)).at(100.0)
    assert widths(it.settle()) == {"a": 1}


def test_a_reservation_counts_from_its_begin_to_its_end_and_the_autoscaler_wakes_up_then() -> None:
    it = seasoned(1, elastic(team="speech"), interval_s=1e6).given(node("n2", at_s=90.0, fast=3), reserved(50.0, 150.0))
    it.given(job("v", fixed(4, team="vision"), at_s=95.0), ranked(95.0, a=0.0, v=1.0)).at(100.0)
    assert widths(it.settle()) == {}
    assert it.decision().wake_at_s == 150.0
    assert widths(it.at(151.0).settle()) == {"a": 4}


def test_a_cancelled_reservation_keeps_nothing() -> None:
    it = seasoned(1, elastic(team="speech")).given(node("n2", at_s=90.0, fast=3), reserved(50.0, 150.0))
    it.given(ReservationCancelled(at_s=92.0, pool="default", reservation_id="vision-1"))
    it.given(job("v", fixed(4, team="vision"), at_s=95.0), ranked(95.0, a=0.0, v=1.0)).at(100.0)
    assert widths(it.settle()) == {"a": 4}


@pytest.mark.parametrize(("quotas", "gpus"), [({}, 4), ({"vision": 4}, 1)], ids=str)
def test_the_quotas_of_the_matchers_file_count_too(quotas: dict[str, int], gpus: int) -> None:
    work = elastic(team="speech")
    it = Scenario(machine.decider(SizingSettings(), MatcherSettings(quotas=quotas)))
    it.given(node(fast=4), scaled(work), job("v", fixed(4, team="vision")), job("a", work), ranked(1.5, a=0.0, v=1.0))
    assert widths(it.at(2.0).settle()) == {"a": gpus}


def test_a_reservation_of_another_kind_keeps_nothing_of_this_one() -> None:
    it = seasoned(1, elastic(team="speech")).given(node("n2", at_s=90.0, fast=3), reserved(90.0, 200.0, "slow"))
    it.given(job("v", fixed(4, team="vision"), at_s=95.0), ranked(95.0, a=0.0, v=1.0)).at(100.0)
    assert widths(it.settle()) == {"a": 4}


# --- priority classes
CLASSES: dict[str, Setting] = {
    "class.small.most_gpus": 2,
    "class.urgent.weight": 5,
    "class.urgent.preempts": True,
    "class.gold.weight": 5,
}


def with_classes(scenario: Any) -> Any:
    return scenario.given(PolicySet(at_s=90.0, pool="default", settings=CLASSES))


def test_an_elastic_job_does_not_grow_past_what_its_class_lets_its_user_hold() -> None:
    it = with_classes(seasoned(1, elastic(priority_class="small")).given(node("n2", at_s=90.0, fast=7)))
    assert widths(it.at(100.0).settle()) == {"a": 2}


def test_two_of_a_user_share_what_the_class_allows_and_another_user_has_as_much() -> None:
    it = with_classes(seasoned(1, elastic(priority_class="small", user="ada")).given(node("n2", at_s=90.0, fast=9)))
    for name, user in (("b", "ada"), ("c", "bob")):
        it.given(job(name, elastic(priority_class="small", user=user), at_s=95.0))
    it.given(ranked(95.0, a=0.0, b=1.0, c=2.0)).at(100.0)
    assert widths(it.settle()) == {"b": 1, "c": 2}


def test_nobody_shrinks_for_a_job_that_its_class_keeps_waiting() -> None:
    it = with_classes(seasoned(4, elastic(user="ada", priority_class="")))
    it.given(job("v", fixed(3, user="bob", priority_class="small"), at_s=95.0), ranked(95.0, a=0.0, v=1.0)).at(100.0)
    assert widths(it.settle()) == {}


def test_the_job_of_a_higher_class_has_its_devices_first() -> None:
    it = with_classes(seasoned(1, elastic(team="speech")).given(node("n2", at_s=90.0, fast=3)))
    it.given(job("v", fixed(4, priority_class="urgent"), at_s=95.0), ranked(95.0, a=0.0, v=1.0)).at(100.0)
    assert widths(it.settle()) == {}
