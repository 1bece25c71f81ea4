"""Reservations: a team's own devices for a time, who makes way, and who is not started before."""

from __future__ import annotations

from typing import Any

import pytest
from matcher_facts import causes, job, matcher, node, rounds, run_all

from penstock_log import ReservationCancelled, ReservationMade


def reserved(
    team: str = "a", gpus: int = 2, from_s: float = 100.0, until_s: float = 200.0, *, n: int = 1, kind: str = ""
) -> Any:
    return ReservationMade(
        at_s=1.0,
        pool="default",
        reservation_id=f"{team}-{n}",
        team=team,
        gpus=gpus,
        from_s=from_s,
        until_s=until_s,
        kind=kind,
    )


def opaque(job_id: str, at_s: float = 1.0, **fields: Any) -> Any:
    return job(job_id, at_s=at_s, opaque=True, **fields)


def pool(**more: Any) -> Any:
    return matcher(min_run_s=1.0, **more).given(node("n1", fast=4))


def preempted(facts: Any) -> dict[str, str]:
    return {p.job_id: p.reason for fact in rounds(facts) for p in fact.preemptions}


def test_runs_of_others_make_way_once_a_reservation_has_begun():
    one = pool().given(reserved(), *(job(f"b{i}", team="b") for i in range(4)))
    assert len(run_all(one, 2.0)) == 4
    one.given(job("a0", at_s=50.0, gpus=2, team="a"))
    assert not preempted(one.at(50.0).settle())
    found = preempted(one.at(100.0).settle())
    assert len(found) == 2
    assert all("team `b`: 4 devices in use, 0 of its own" in reason for reason in found.values())


def test_what_a_team_does_not_claim_is_lent_and_nothing_is_left_once_it_is_over():
    one = pool().given(reserved(), *(job(f"b{i}", team="b") for i in range(4)))
    assert len(run_all(one, 150.0)) == 4
    one.given(job("a0", at_s=201.0, gpus=2, team="a"))
    assert not preempted(one.at(201.0).settle())


def test_a_cancelled_reservation_holds_no_longer():
    one = pool().given(reserved(), *(job(f"b{i}", team="b") for i in range(4)))
    run_all(one, 2.0)
    one.given(ReservationCancelled(at_s=90.0, pool="default", reservation_id="a-1"), job("a0", at_s=99.0, team="a"))
    assert not preempted(one.at(150.0).settle())


def test_the_matcher_wakes_up_when_a_reservation_begins_and_when_it_ends():
    one = pool().given(reserved(), *(job(f"b{i}", team="b") for i in range(5)))
    run_all(one, 2.0)
    assert one.at(3.0).decision().wake_at_s == pytest.approx(100.0)
    assert one.at(101.0).decision().wake_at_s == pytest.approx(200.0)


def test_a_job_that_could_not_save_is_not_started_on_the_last_devices_that_a_reservation_needs():
    one = pool().given(reserved(), *(opaque(f"b{i}", team="b") for i in range(4)))
    assert run_all(one, 2.0).keys() == {"b0", "b1"}
    assert causes(one) == {"b2": "reservation", "b3": "reservation"}


@pytest.mark.parametrize(
    "fields", [{"time_limit_s": 90.0}, {"duration_s": 60.0}, {"opaque": False}, {"team": "a"}], ids=str
)
def test_others_are_started_until_it_begins(fields: dict[str, Any]):
    one = pool().given(reserved(), *(job(f"b{i}", **{"opaque": True, "team": "b", **fields}) for i in range(4)))
    assert len(run_all(one, 2.0)) == 4


def test_a_job_whose_time_limit_ends_too_late_waits_and_starts_once_the_reservation_is_over():
    one = pool().given(reserved(gpus=4), opaque("b0", team="b", time_limit_s=99.0))
    one.at(2.0).settle()
    assert causes(one) == {"b0": "reservation"}
    one.given(*(opaque(f"a{i}", at_s=3.0, team="a") for i in range(4)))
    assert run_all(one, 3.0).keys() == {"a0", "a1", "a2", "a3"}


def test_far_from_its_begin_a_reservation_keeps_nobody_back():
    one = pool().given(reserved(from_s=10_000.0, until_s=20_000.0), *(opaque(f"b{i}", team="b") for i in range(4)))
    assert len(run_all(one, 2.0)) == 4


def test_reservations_of_several_teams_and_quotas_add_up():
    one = pool(quotas={"b": 1}).given(
        reserved("a", 1, 0.0), reserved("a", 1, 50.0, n=2), *(job(f"c{i}", team="c") for i in range(4))
    )
    run_all(one, 60.0)
    one.given(*(job(f"{team}{i}", at_s=70.0, team=team) for team in "ab" for i in range(3)))
    found = preempted(one.at(70.0).settle())
    assert len(found) == 3


def test_who_waits_for_a_reservation_does_not_keep_others_from_starting():
    one = pool().given(reserved(gpus=4), opaque("b0", team="b"), job("c0", team="c"), opaque("a0", team="a"))
    assert run_all(one, 2.0).keys() == {"c0", "a0"}


def test_reservations_that_are_over_are_forgotten():
    one = pool().given(reserved(until_s=150.0))
    one.given(
        ReservationMade(at_s=160.0, pool="default", reservation_id="b-2", team="b", gpus=1, from_s=170.0, until_s=180.0)
    )
    assert [made.reservation_id for made in one.state.reservations("default")] == ["b-2"]


# --- of one kind
def mixed(**more: Any) -> Any:
    return matcher(min_run_s=1.0, **more).given(node("n1", fast=2, slow=2))


def test_a_reservation_of_a_kind_takes_back_devices_of_this_kind_for_a_job_that_asks_for_it():
    one = mixed().given(reserved(from_s=0.0, kind="fast"), *(job(f"b{i}", team="b") for i in range(4)))
    kinds = run_all(one, 2.0)
    one.given(job("a0", at_s=50.0, team="a", kinds=("fast",)))
    (stopped,) = preempted(one.at(50.0).settle())
    assert kinds[stopped] == "fast"


def test_it_covers_no_job_that_could_run_on_another_kind_and_none_on_another():
    one = mixed().given(reserved(from_s=0.0, kind="fast"), *(job(f"b{i}", team="b") for i in range(4)))
    run_all(one, 2.0)
    one.given(job("a0", at_s=50.0, team="a"), job("a1", at_s=50.0, team="a", kinds=("slow",)))
    assert preempted(one.at(50.0).settle()) == {}


def test_it_covers_no_more_than_is_reserved_and_adds_to_the_quota():
    one = mixed(quotas={"a": 1, "b": 1}).given(reserved(gpus=1, from_s=0.0, kind="fast"))
    one.given(*(job(f"b{i}", team="b", kinds=("fast",)) for i in range(2)))
    run_all(one, 2.0)
    one.given(*(job(f"a{i}", at_s=50.0, team="a", kinds=("fast",)) for i in range(2)))
    assert len(preempted(one.at(50.0).settle())) == 1  # b0 is covered by b's quota
    gang = mixed(quotas={"a": 1}).given(reserved(gpus=1, from_s=0.0, kind="fast"))
    gang.given(*(job(f"b{i}", team="b", kinds=("fast",)) for i in range(2)))
    run_all(gang, 2.0)
    gang.given(job("a0", at_s=50.0, team="a", gpus=2, kinds=("fast",)))
    assert len(preempted(gang.at(50.0).settle())) == 2


def test_a_run_on_the_kind_keeps_it_whatever_it_asked_for():
    one = mixed().given(reserved(from_s=0.0, kind="fast"), *(job(f"a{i}", team="a") for i in range(4)))
    kinds = run_all(one, 2.0)
    one.given(reserved("b", from_s=0.0, kind="fast", n=2, gpus=2), job("b0", at_s=50.0, team="b", gpus=2))
    assert preempted(one.at(50.0).settle()) == {}
    assert sorted(kinds.values()) == ["fast", "fast", "slow", "slow"]


def test_before_it_begins_jobs_that_could_not_save_have_the_other_kinds():
    one = mixed().given(reserved(kind="fast"), *(opaque(f"b{i}", team="b", kinds=("slow",)) for i in range(2)))
    one.given(opaque("b2", team="b", kinds=("fast",)))
    assert run_all(one, 2.0) == {"b0": "slow", "b1": "slow"}
    assert causes(one) == {"b2": "reservation"}
