"""Which pilots the allocator plans: where jobs wait that would run on them, and never without end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from matcher_facts import device, job, node
from matcher_facts import ended as run_ended

from penstock_allocator import demand
from penstock_allocator.machine import AllocatorSettings, AllocatorState, decider
from penstock_log import (
    AllocationAdded,
    AllocationPaused,
    AllocationRemoved,
    AllocationResumed,
    AllocationSpec,
    AnyEvent,
    JobCancelled,
    NodeJoined,
    NodeLeft,
    PilotEnded,
    PilotPlanned,
    PilotsPaused,
    PilotStarted,
    PilotSubmitted,
    PilotWithdrawn,
    Placement,
    RoundDecided,
    Slot,
)
from penstock_log.allocation_spec import PodOptions
from penstock_scheduler.pool.pool_index import PoolIndex
from penstock_testing import Scenario, delivery

Allocator = Scenario[AllocatorState]


def allocator(**settings: Any) -> Allocator:
    return Scenario(decider(AllocatorSettings(look_s=0.001, **settings)))


def added(name: str = "lab", **fields: Any) -> AllocationAdded:
    return AllocationAdded(name=name, spec=AllocationSpec(provider="slurm", **{"max_pilots": 4, **fields}), at_s=0.0)


def submitted(pilot_id: str, at_s: float = 2.0) -> PilotSubmitted:
    name = pilot_id.rpartition("-")[0]
    return PilotSubmitted(name=name, pilot_id=pilot_id, provider_id="1", at_s=at_s)


def joined(pilot_id: str, at_s: float = 3.0, node_id: str = "", **kinds: int) -> tuple[PilotStarted, NodeJoined]:
    name = pilot_id.rpartition("-")[0]
    labels = {"allocation": name, "pilot": pilot_id}
    devices = [device(n, kind) for n, kind in enumerate(k for k, many in kinds.items() for _ in range(many))]
    return (
        PilotStarted(name=name, pilot_id=pilot_id, at_s=at_s),
        NodeJoined(node_id=node_id or pilot_id, devices=tuple(devices), labels=labels, at_s=at_s),
    )


def ended(pilot_id: str, state: str = "finished", at_s: float = 9.0, reason: str = "") -> PilotEnded:
    name = pilot_id.rpartition("-")[0]
    return PilotEnded(name=name, pilot_id=pilot_id, state=state, reason=reason, at_s=at_s)  # type: ignore[arg-type]


def planned(facts: list[AnyEvent]) -> list[str]:
    return [fact.pilot_id for fact in facts if isinstance(fact, PilotPlanned)]


def known(**fields: Any) -> Allocator:
    """Return an allocator whose first pilot has shown two fast devices, and has ended."""
    first = [PilotPlanned(name="lab", pilot_id="lab-1", at_s=1.0), submitted("lab-1"), *joined("lab-1", fast=2)]
    gone = NodeLeft(node_id="lab-1", at_s=8.0)
    return allocator().given(added(**fields), *first, gone, ended("lab-1")).at(10.0)


def test_no_pilot_is_planned_where_no_job_waits() -> None:
    assert allocator().given(added()).at(5.0).settle() == []


def test_one_pilot_is_planned_for_many_jobs_before_it_is_known_what_a_pilot_has() -> None:
    found = allocator().given(added(), *(job(f"j{n}") for n in range(9))).at(5.0).settle()
    assert planned(found) == ["lab-1"]


def test_the_first_pilot_is_planned_for_a_job_of_a_kind_that_nobody_has_seen() -> None:
    assert planned(allocator().given(added(), job("j", kinds=("a100",))).at(5.0).settle()) == ["lab-1"]


def test_as_many_pilots_are_planned_as_the_waiting_jobs_would_fill() -> None:
    assert planned(known(backlog=9).given(*(job(f"j{n}") for n in range(3))).settle()) == ["lab-2", "lab-3"]


def test_no_more_pilots_wait_for_their_start_than_the_backlog() -> None:
    one = known(backlog=1).given(*(job(f"j{n}") for n in range(6)))
    assert planned(one.settle()) == ["lab-2"]
    one.given(submitted("lab-2"), *joined("lab-2", at_s=11.0, fast=2)).at(12.0)
    assert planned(one.settle()) == ["lab-3"]


def test_there_are_never_more_pilots_than_the_most() -> None:
    one = known(backlog=9, max_pilots=2).given(*(job(f"j{n}") for n in range(20)))
    assert planned(one.settle()) == ["lab-2", "lab-3"]


def test_no_pilot_is_planned_for_a_job_that_would_not_run_on_it() -> None:
    assert known().given(job("j", kinds=("slow",))).settle() == []
    assert known(max_pilots=4, backlog=9).given(job("j", gpus=9)).settle() == [], "four pilots have eight devices"


def test_a_gang_that_one_pilot_does_not_hold_gets_as_many_as_hold_it() -> None:
    assert planned(known(backlog=9, max_pilots=9).given(job("j", gpus=5), job("k")).settle()) == [
        "lab-2",
        "lab-3",
        "lab-4",
    ]
    assert planned(known(backlog=2).given(job("j", gpus=3)).settle()) == ["lab-2", "lab-3"]
    assert known(backlog=9, max_pilots=2).given(job("j", gpus=5)).settle() == [], "two pilots have four devices"


def test_a_gang_of_more_pilots_than_may_wait_gets_one_after_the_other() -> None:
    one = known(backlog=1).given(job("j", gpus=3))
    assert planned(one.settle()) == ["lab-2"]
    one.given(submitted("lab-2"), PilotStarted(name="lab", pilot_id="lab-2", at_s=11.0)).at(12.0)
    assert planned(one.settle()) == ["lab-3"]
    one.given(submitted("lab-3"), PilotStarted(name="lab", pilot_id="lab-3", at_s=13.0)).at(14.0)
    assert one.settle() == []


def test_a_gang_brings_the_first_pilot_though_nobody_knows_what_it_has() -> None:
    assert planned(allocator().given(added(), job("j", gpus=4)).at(5.0).settle()) == ["lab-1"]
    assert planned(allocator().given(added(nodes=2), job("j", gpus=4, kinds=("a100",))).at(5.0).settle()) == ["lab-1"]


def test_what_is_asked_of_slurm_says_how_many_devices_the_first_pilots_have() -> None:
    options = ("--partition=gpu", "--gres=gpu:2")
    jobs = [job(f"j{n}") for n in range(20)]
    one = allocator().given(added(options=options, backlog=9, max_pilots=9), *jobs[:3]).at(5.0)
    assert planned(one.settle()) == ["lab-1", "lab-2"]
    many = allocator().given(added(options=options, backlog=9, max_pilots=9), *jobs).at(5.0)
    assert planned(many.settle()) == ["lab-1", "lab-2", "lab-3"], "no more than may fail before it is paused"
    gang = allocator().given(added(options=options), job("j", gpus=4)).at(5.0)
    assert planned(gang.settle()) == ["lab-1", "lab-2"]


def test_each_gang_that_fills_a_pilot_gets_one() -> None:
    assert planned(known(backlog=9).given(job("j", gpus=2), job("k", gpus=2)).settle()) == ["lab-2", "lab-3"]


def test_a_gang_over_the_nodes_of_a_pilot_gets_one_and_one_too_large_for_all_gets_none() -> None:
    assert planned(known(nodes=2, backlog=9).given(job("j", gpus=4)).settle()) == ["lab-2"]
    assert known(nodes=2, max_pilots=1).given(job("j", gpus=5)).settle() == []


@pytest.mark.parametrize("jobs", range(1, 20))
def test_as_many_pilots_come_as_jobs_fill_however_many_there_are(jobs: int) -> None:
    one = known(backlog=7, max_pilots=7).given(*(job(f"j{n}", gpus=2) for n in range(jobs)))
    assert len(planned(one.facts())) == min(7, jobs)


def test_no_pilot_is_planned_for_a_job_that_an_idle_node_takes() -> None:
    assert known().given(node("own", fast=1), job("j")).settle() == []


def of_two_nodes(*, gpus: int) -> Allocator:
    """Return an allocator that has a pilot of two nodes on its way, of two devices each, for such a gang."""
    one = known(nodes=2, backlog=9).given(job("j", gpus=gpus)).at(10.0)
    assert planned(one.settle()) == ["lab-2"]
    return one.given(submitted("lab-2"), *joined("lab-2", 20.0, "lab-2-0", fast=2)).at(21.0)


def test_the_other_nodes_of_a_pilot_are_on_their_way_after_the_first() -> None:
    one = of_two_nodes(gpus=4)
    assert one.settle() == []
    one.given(joined("lab-2", 25.0, "lab-2-1", fast=2)[1]).at(26.0)
    assert one.settle() == []


def test_nodes_of_a_pilot_that_do_not_follow_the_first_are_not_awaited_for_ever() -> None:
    one = of_two_nodes(gpus=4).then().then_wakes_at(320.0)
    assert planned(one.at(320.0).settle()) == ["lab-3"]


def test_a_job_that_is_to_begin_later_brings_a_pilot_when_its_time_comes() -> None:
    one = known().given(job("j", begin_s=1_000.0), job("k", begin_s=2_000.0, gpus=2))
    one.then().then_wakes_at(1_000.0)
    assert planned(one.at(1_000.0).settle()) == ["lab-2"]
    one.at(1_001.0).then_wakes_at(2_000.0)
    assert planned(one.at(2_000.0).settle()) == ["lab-3"]
    one.at(2_001.0).then_wakes_at(None)


def test_a_pilot_on_its_way_counts_for_the_job_that_it_was_planned_for() -> None:
    one = known().given(job("j"))
    assert planned(one.settle()) == ["lab-2"]
    assert one.given(submitted("lab-2")).at(100.0).settle() == []


def test_two_allocations_submit_no_two_pilots_for_one_job() -> None:
    one = allocator().given(added("a", kinds=("fast",)), added("b", kinds=("fast",)), job("j")).at(5.0)
    assert planned(one.facts()) == ["a-1"]
    assert planned(one.settle()) == ["a-1"]
    assert one.at(6.0).settle() == []


def test_two_allocations_share_what_one_alone_may_not_submit() -> None:
    one = allocator().given(added("a", kinds=("fast",), max_pilots=1), added("b", kinds=("fast",), max_pilots=1))
    one.given(*(job(f"j{n}") for n in range(9))).at(5.0)
    assert planned(one.settle()) == ["a-1", "b-1"]


def test_allocations_of_two_pools_plan_at_once() -> None:
    one = allocator().given(added("a"), added("b", pool="other"), job("j"), job("k", pool="other")).at(5.0)
    assert planned(one.facts()) == ["a-1", "b-1"]


def test_each_kind_is_asked_of_the_allocation_that_has_it() -> None:
    one = allocator().given(added("a", kinds=("a100",)), added("v", kinds=("v100",)), job("j", kinds=("v100",)))
    assert planned(one.at(5.0).settle()) == ["v-1"]


def refused(one: Allocator, pilot_id: str, job_id: str) -> Allocator:
    """Let a job be placed on a pilot's node, which refuses its user; the pilot ends for want of runs."""
    slots = (Slot(node_id=pilot_id, devices=(0,)),)
    placement = Placement(job_id=job_id, kind="fast", slots=slots, epoch=1)
    round_ = RoundDecided(pool="default", placements=(placement,), at_s=12.0)
    end = msgspec.structs.replace(run_ended(job_id, 13.0, pilot_id, outcome="preempted"), refuses_user=True)
    return one.given(submitted(pilot_id), *joined(pilot_id, 11.0, fast=2), round_, end)


def test_no_second_pilot_is_planned_for_a_user_whose_jobs_the_pilots_refuse() -> None:
    one = known().given(job("j", user="bob"))
    assert planned(one.settle()) == ["lab-2"]
    refused(one, "lab-2", "j").at(20.0)
    assert one.settle() == []
    one.given(NodeLeft(node_id="lab-2", at_s=30.0), ended("lab-2", at_s=31.0)).at(1e6)
    assert one.settle() == []
    assert planned(one.given(job("own", user="ada")).at(2e6).settle()) == ["lab-3"]


def test_a_pilot_on_its_way_is_none_for_a_user_whose_jobs_it_refuses() -> None:
    one = known(backlog=9).given(job("j", user="bob"))
    assert planned(one.settle()) == ["lab-2"]
    refused(one, "lab-2", "j").given(PilotPlanned(name="lab", pilot_id="lab-3", at_s=14.0))
    one.given(added("other", kinds=("fast",))).at(20.0)
    assert planned(one.settle()) == ["other-1"]


def test_an_allocation_that_is_resumed_tries_the_users_again_that_it_refused() -> None:
    one = refused(
        known().given(job("j", user="bob"), PilotPlanned(name="lab", pilot_id="lab-2", at_s=10.0)), "lab-2", "j"
    )
    one.given(NodeLeft(node_id="lab-2", at_s=30.0), ended("lab-2", at_s=31.0)).at(40.0)
    assert one.settle() == []
    assert planned(one.given(AllocationResumed(name="lab", at_s=41.0)).at(42.0).settle()) == ["lab-3"]


def test_a_paused_allocation_and_a_removed_one_plan_nothing() -> None:
    one = known().given(AllocationPaused(name="lab", at_s=9.0), job("j"))
    assert one.settle() == []
    one.given(AllocationResumed(name="lab", at_s=10.0))
    assert planned(one.settle()) == ["lab-2"]
    assert known().given(AllocationRemoved(name="lab", at_s=9.0), job("j")).settle() == []


def test_so_many_pilots_are_kept_as_are_asked_for_though_no_job_waits() -> None:
    assert planned(known(min_pilots=2, backlog=9).settle()) == ["lab-2", "lab-3"]


@pytest.mark.parametrize("state", ["failed", "refused"])
def test_pilots_that_fail_come_more_slowly_and_then_no_more(state: str) -> None:
    one, at_s = allocator(most_failures=3, backoff_s=10.0).given(added(), job("j")), 5.0
    for number, wait_s in ((1, 10.0), (2, 20.0)):
        assert planned(one.at(at_s).settle()) == [f"lab-{number}"]
        one.given(ended(f"lab-{number}", state, at_s, "no such account"))
        one.at(at_s + wait_s - 1.0).then().then_wakes_at(at_s + wait_s)
        at_s += wait_s
    assert planned(one.at(at_s).settle()) == ["lab-3"]
    one.given(ended("lab-3", state, at_s, "no such account"))
    paused = one.at(at_s + 1e6).settle()
    assert [type(fact) for fact in paused] == [PilotsPaused]
    assert "no such account" in paused[0].reason  # type: ignore[union-attr]
    assert one.at(at_s + 2e6).settle() == []
    one.given(AllocationResumed(name="lab", at_s=at_s + 2e6))
    assert planned(one.settle()) == ["lab-4"]


def test_a_pilot_that_joined_ends_a_row_of_failures() -> None:
    one = allocator(most_failures=2).given(added(), job("j")).at(5.0)
    one.settle()
    one.given(ended("lab-1", "failed", 5.0)).at(100.0)
    assert planned(one.settle()) == ["lab-2"]
    one.given(submitted("lab-2"), *joined("lab-2", fast=1), NodeLeft(node_id="lab-2", at_s=8.0), ended("lab-2"))
    assert one.state.allocations.by_name["lab"].failures == 0


def test_cancelled_pilots_are_no_failures() -> None:
    one = allocator(most_failures=1).given(added(), job("j")).at(5.0)
    one.settle()
    one.given(ended("lab-1", "cancelled")).at(50.0)
    assert planned(one.settle()) == ["lab-2"]


def test_an_allocation_of_a_name_that_was_removed_counts_its_pilots_on() -> None:
    one = known().given(AllocationRemoved(name="lab", at_s=9.0))
    assert "lab" not in one.state.allocations.by_name
    one.given(added(), job("j"))
    assert planned(one.settle()) == ["lab-2"]


def test_a_removed_allocation_stays_until_its_last_pilot_has_ended() -> None:
    one = known().given(job("j"))
    one.settle()
    one.given(AllocationRemoved(name="lab", at_s=11.0))
    assert one.state.allocations.by_name["lab"].state == "removing"
    one.given(JobCancelled(job_id="j", at_s=12.0), ended("lab-2", "cancelled", 12.0))
    assert not one.state.allocations.by_name


def test_a_look_for_many_pilots_tries_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class CountedIndex(PoolIndex):
        def __init__(self, *args: Any) -> None:
            made.append(self)
            super().__init__(*args)

    monkeypatch.setattr(demand, "PoolIndex", CountedIndex)
    one = known(backlog=50, max_pilots=50).given(*(job(f"j{n}") for n in range(75)))
    decision = one.decider.decide(one.state, 10.0)
    assert len(planned([fact for proposal in decision.proposals for fact in proposal.facts])) == 38
    assert len(made) <= 14


@pytest.mark.parametrize(("max_pilots", "wait_s"), [(2, 1.0), (400, 4.02), (1_000, 10.0)])
def test_a_small_pool_is_looked_at_more_often_than_a_large_one(max_pilots: int, wait_s: float) -> None:
    spec = AllocationSpec(provider="slurm", max_pilots=max_pilots)
    one = Scenario(decider(AllocatorSettings(look_s=10.0))).given(AllocationAdded(name="lab", spec=spec, at_s=0.0))
    assert planned(one.given(job("j")).at(5.0).settle()) == ["lab-1"]
    one.given(submitted("lab-1", 5.0), *joined("lab-1", 5.0, fast=1), job("k"))
    assert one.state.looks["lab"].at_s == 5.0
    one.at(5.1).then()
    one.then_wakes_at(pytest.approx(5.0 + wait_s, abs=0.02))


def test_two_thousand_jobs_ask_for_no_more_pilots_than_the_backlog() -> None:
    one = known(backlog=2, max_pilots=100)
    for number in range(2_000):  # a fold checks each of them; more take no other way
        one.fold.apply(delivery(one.fold.last_seq + 1, job(f"j{number}")))
    decision = one.decider.decide(one.state, 10.0)
    assert len(planned([fact for proposal in decision.proposals for fact in proposal.facts])) == 2


def withdrawn(facts: list[AnyEvent]) -> list[str]:
    return [fact.pilot_id for fact in facts if isinstance(fact, PilotWithdrawn)]


def waiting_for(*jobs: str, **fields: Any) -> Allocator:
    """Return an allocator with a pilot in the provider's queue for each job, which fills one."""
    one = known(backlog=9, **fields).given(*(job(name, gpus=2) for name in jobs))
    found = planned(one.settle())
    assert len(found) == len(jobs)
    return one.given(*(submitted(pilot_id) for pilot_id in found))


def cancelled(*jobs: str, at_s: float) -> list[JobCancelled]:
    return [JobCancelled(job_id=name, at_s=at_s) for name in jobs]


def test_a_pilot_that_waits_is_withdrawn_once_no_job_would_run_on_it_for_a_while() -> None:
    one = waiting_for("j").given(*cancelled("j", at_s=20.0)).at(20.0)
    one.then().then_wakes_at(25.0)
    one.at(25.0).then().then_wakes_at(85.0)
    assert one.at(84.0).settle() == []
    [fact] = one.at(85.0).settle()
    assert withdrawn([fact]) == ["lab-2"]
    assert one.at(1e6).settle() == []


def test_the_pilots_that_came_last_are_withdrawn_first_and_as_many_stay_as_jobs_are_left() -> None:
    one = waiting_for("j", "k", "l").given(*cancelled("j", "l", at_s=20.0)).at(25.0)
    one.settle()
    assert withdrawn(one.at(85.0).settle()) == ["lab-3", "lab-4"]
    assert one.at(1e6).settle() == []


def test_a_pilot_whose_job_runs_elsewhere_by_now_is_withdrawn() -> None:
    one = waiting_for("j").given(node("own", fast=2)).at(25.0)
    one.settle()
    assert withdrawn(one.at(85.0).settle()) == ["lab-2"]


def test_jobs_that_come_again_in_time_keep_the_pilot_and_the_time_begins_anew() -> None:
    one = waiting_for("j").given(*cancelled("j", at_s=20.0)).at(25.0)
    one.settle()
    one.given(job("k", gpus=2)).at(50.0)
    assert one.settle() == []
    one.given(*cancelled("k", at_s=66.0)).at(66.0)
    assert one.settle() == []
    assert one.at(125.0).settle() == []
    assert withdrawn(one.at(126.0).settle()) == ["lab-2"]


def test_a_job_that_comes_in_the_last_moment_keeps_the_pilot() -> None:
    one = waiting_for("j").given(*cancelled("j", at_s=20.0)).at(25.0)
    one.settle()
    one.given(job("k", gpus=2))
    assert one.at(85.0).settle() == []
    assert one.at(1e6).settle() == []


def test_a_withdrawn_pilot_is_not_on_its_way_for_a_job_that_comes_later() -> None:
    one = waiting_for("j").given(*cancelled("j", at_s=20.0)).at(25.0)
    one.settle()
    one.at(85.0).settle()
    assert planned(one.given(job("k", gpus=2)).at(86.0).settle()) == ["lab-3"]


def test_pilots_that_have_started_or_are_kept_are_not_withdrawn() -> None:
    one = waiting_for("j").given(*cancelled("j", at_s=20.0), PilotStarted(name="lab", pilot_id="lab-2", at_s=21.0))
    assert one.at(1e6).settle() == []
    kept = waiting_for("j", min_pilots=1).given(*cancelled("j", at_s=20.0)).at(20.0)
    assert kept.settle() == []
    assert kept.at(1e6).settle() == []


def test_a_paused_allocation_withdraws_what_waits_for_nothing() -> None:
    one = waiting_for("j").given(*cancelled("j", at_s=20.0), AllocationPaused(name="lab", at_s=20.0)).at(25.0)
    one.settle()
    assert withdrawn(one.at(85.0).settle()) == ["lab-2"]


def test_of_two_allocations_that_wait_for_one_job_one_keeps_its_pilot() -> None:
    one = allocator().given(added("a", kinds=("fast",), gpus=2), added("b", kinds=("fast",), gpus=2))
    for name in ("a", "b"):
        one.given(PilotPlanned(name=name, pilot_id=f"{name}-1", at_s=1.0), submitted(f"{name}-1"))
    one.given(job("j", gpus=2)).at(10.0)
    assert one.settle() == []
    assert withdrawn(one.at(70.0).settle()) == ["a-1"]
    assert one.at(1e6).settle() == []


def test_the_first_pilot_of_which_nothing_is_known_stays_while_any_job_waits_that_it_may_hold() -> None:
    one = allocator().given(added(), job("j", gpus=3, kinds=("a100",))).at(5.0)
    assert planned(one.settle()) == ["lab-1"]
    one.given(submitted("lab-1"))
    assert one.at(1e6).settle() == []
    one.given(*cancelled("j", at_s=1e6))
    assert one.at(1e6 + 15.0).settle() == []
    assert withdrawn(one.at(1e6 + 75.0).settle()) == ["lab-1"]


def test_no_pilot_is_withdrawn_while_a_gang_waits_that_all_pilots_would_hold() -> None:
    for gpus, gone in ((8, []), (10, ["lab-2"])):
        one = known(backlog=1).given(job("gang", gpus=8))
        assert planned(one.settle()) == ["lab-2"]
        one.given(submitted("lab-2"), job("other", gpus=gpus), *cancelled("gang", at_s=20.0)).at(25.0)
        one.settle()
        assert withdrawn(one.at(85.0).settle()) == gone


def test_a_job_of_an_image_brings_a_pod_of_that_image_and_no_other() -> None:
    def pods(name: str, image: str) -> AllocationAdded:
        spec = AllocationSpec(provider="kubernetes", pod=PodOptions(image=image))
        return AllocationAdded(name=name, spec=spec, at_s=0.0)

    one = allocator().given(pods("jax", "lab/jax:1"), pods("torch", "lab/torch:1"), job("j", image="lab/torch:1"))
    assert planned(one.at(5.0).settle()) == ["torch-1"]
    assert planned(allocator().given(pods("jax", "lab/jax:1"), job("j", image="lab/torch:1")).at(5.0).settle()) == []
