"""Quotas and reservations in sizes: nobody grows onto what is kept for others who wait."""

from __future__ import annotations

from typing import Any

import pytest
from scaling_facts import elastic, fixed, job, node, ranked, scaled, seasoned, widths

from penstock_autoscaler import machine
from penstock_log import PolicySet, ReservationCancelled, ReservationMade
from penstock_scheduler.pool.pool_settings import MatcherSettings
from penstock_scheduler.sizing.problem import SizingSettings
from penstock_testing import Scenario

OWNED = PolicySet(at_s=90.0, pool="default", settings={"quota.vision": 4})


def reserved(from_s: float, until_s: float) -> ReservationMade:
    return ReservationMade(
        at_s=90.0, pool="default", reservation_id="vision-1", team="vision", gpus=4, from_s=from_s, until_s=until_s
    )


def test_without_quotas_a_job_grows_before_one_behind_it_that_does_not_fit_in() -> None:
    it = seasoned(1, elastic(team="speech")).given(node("n2", at_s=90.0, fast=3))
    it.given(job("v", fixed(4, team="vision"), at_s=95.0), ranked(95.0, a=0.0, v=1.0)).at(100.0)
    assert widths(it.settle()) == {"a": 4}


@pytest.mark.parametrize("known", [OWNED, reserved(90.0, 200.0)], ids=["quota", "reservation"])
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
