"""Jobs that wait for others: what unblocks them, what can never come, and what is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from gateway_cases import NOW_S, Gateway, ended, gateway, joined, placed, refusal, spec, started, submitted, sweep_spec

from penstock_bus import Delivery
from penstock_bus.decider import Fold
from penstock_bus.memory import MemoryBus
from penstock_gateway import dependencies
from penstock_gateway.dependencies import DependencyProgress, Dependents, has_come
from penstock_log import (
    AnyEvent,
    Commit,
    JobCancelled,
    JobFinished,
    JobsArchived,
    JobSubmitted,
    JobTable,
    JobUnblocked,
    SweepFinished,
    SweepSubmitted,
    UserSet,
)
from penstock_log.spec import ArrayMember

WENT_ON = {
    "completed": DependencyProgress(True, "completed"),
    "failed": DependencyProgress(True, "failed"),
    "started": DependencyProgress(True),
}
COMES = {
    "after": {"waiting": None, "started": True, "completed": True, "failed": True, "cancelled": True},
    "afterok": {"waiting": None, "started": None, "completed": True, "failed": False, "cancelled": False},
    "afterany": {"waiting": None, "started": None, "completed": True, "failed": True, "cancelled": True},
    "afternotok": {"waiting": None, "started": None, "completed": False, "failed": True, "cancelled": True},
}
"""Slurm's table."""


@pytest.mark.parametrize(("kind", "how"), list(product(COMES, COMES["after"])))
def test_what_comes_is_as_in_slurm(kind: str, how: str) -> None:
    there = WENT_ON.get(how, DependencyProgress(False, "cancelled" if how == "cancelled" else ""))
    assert has_come(f"{kind}:j1", there) is COMES[kind][how]


async def facts_about(gateway: Gateway, job_id: str, *kinds: type[AnyEvent]) -> list[Any]:
    found = await gateway.bus.read("penstock.evt.>")
    facts = [fact for one in found for fact in one.commit.facts]
    return [fact for fact in facts if isinstance(fact, kinds) and getattr(fact, "job_id", "") == job_id]


async def decided(gateway: Gateway, job_id: str) -> JobUnblocked | JobCancelled:
    """Return what the gateway says of a blocked job."""
    async for delivery in gateway.bus.follow():
        for fact in delivery.commit.facts:
            if isinstance(fact, JobUnblocked | JobCancelled) and fact.job_id == job_id:
                return fact
    raise AssertionError("the log has ended")


async def announced(gateway: Gateway, job_id: str) -> None:
    """Wait until the gateway has announced a job's end."""
    async for delivery in gateway.bus.follow():
        if any(isinstance(fact, JobFinished) and fact.job_id == job_id for fact in delivery.commit.facts):
            return


async def test_a_job_goes_on_once_all_that_it_waits_for_has_come() -> None:
    waiting = submitted("j3", after=("afterok:j1", "afterany:j2"))
    async with gateway(MemoryBus(), joined(), submitted("j1"), submitted("j2"), waiting) as served:
        assert (await served.query("why", {"id": "j3"}))["cause"] == "dependency"
        await served.told(placed("j1"), started("j1"), ended("j1"))
        why = await served.query("why", {"id": "j3"})
        assert why["evidence"] == "it waits until j2 has ended (it has not started)"
        await served.told(placed("j2"), started("j2"), ended("j2", "failed"))
        assert await decided(served, "j3") == JobUnblocked(
            at_s=pytest.approx(NOW_S + 100, abs=10), job_id="j3", met=("afterok:j1", "afterany:j2")
        )
        assert (await served.query("why", {"id": "j3"}))["cause"] != "dependency"


async def test_a_job_that_can_never_start_is_cancelled_and_so_are_those_behind_it() -> None:
    facts = [submitted("j1"), submitted("j2", after=("afterok:j1",)), submitted("j3", after=("afterok:j2",))]
    async with gateway(MemoryBus(), joined(), *facts) as served:
        await served.told(placed("j1"), started("j1"), ended("j1", "failed"))
        second, third = await decided(served, "j2"), await decided(served, "j3")
        assert isinstance(second, JobCancelled)
        assert second.reason == "it was to wait until j1 has completed, and j1 has failed"
        assert isinstance(third, JobCancelled)
        assert third.reason == "it was to wait until j2 has completed, and j2 was cancelled"
        await announced(served, "j2")
        told = [line["text"] for line in (await served.query("story", {"id": "j2"}))["lines"]]
        assert told[-2:] == [f"cancelled: {second.reason}", "cancelled (ran 0.0 s in 0 runs)"]


async def test_a_job_waits_for_a_sweep() -> None:
    swept = SweepSubmitted(at_s=NOW_S, sweep_id="s1", spec=sweep_spec(id="s1"))
    waiting = submitted("j1", after=("afterok:s1",))
    async with gateway(MemoryBus(), joined(), swept, waiting) as served:
        assert (await served.query("why", {"id": "j1"}))["cause"] == "dependency"
        await served.told(SweepFinished(at_s=NOW_S + 9, sweep_id="s1", state="completed"))
        assert isinstance(await decided(served, "j1"), JobUnblocked)


async def test_a_blocked_job_is_not_placed_and_a_hold_counts_beside() -> None:
    waiting = submitted("j2", after=("afterok:j1",))
    async with gateway(MemoryBus(), joined(), submitted("j1"), waiting, placed("j2", 1)) as served:
        assert (await served.query("job", {"id": "j2"}))["job"]["state"] == "PD"
        await served.command("hold", {"id": "j2"})
        await served.told(placed("j1"), started("j1"), ended("j1"))
        await decided(served, "j2")
        assert (await served.query("why", {"id": "j2"}))["cause"] == "held"


async def test_what_had_come_before_the_submission_counts() -> None:
    facts = [submitted("j1"), placed("j1"), started("j1"), ended("j1")]
    async with gateway(MemoryBus(), joined(), *facts) as served:
        await served.command("submit", {"spec": spec(id="j2", after=("afterok:j1",))})
        assert isinstance(await decided(served, "j2"), JobUnblocked)


async def test_the_unique_beginning_of_an_id_is_taken_for_the_whole_one() -> None:
    async with gateway(MemoryBus(), joined(), submitted("abc1"), submitted("xyz1")) as served:
        asked = {"spec": spec(id="j2", after=("afterok:ab", "afterany:abc1", "afterok:ab"))}
        await served.command("submit", asked)
        await served.told(submitted("ab9"))  # with which the beginning is unique no more
        assert not (await served.command("submit", asked))["created"]  # the same job, submitted again, is the same
        (fact,) = await facts_about(served, "j2", JobSubmitted)
        assert fact.spec.after == ("afterok:abc1", "afterany:abc1")


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (("afterok:j2",), "$.after[0]: the job would wait for itself; leave it out"),
        (("after:j1", "after:j9"), "$.after[1]: no job or sweep 'j9'; expected the id of a job or sweep that is there"),
        (("afterok:k",), "$.after[0]: 2 ids begin with 'k', write more of it"),
        (("afterok:j0",), "$.after: it was to wait until j0 has completed, and j0 has failed; leave it out"),
        (
            ("soon:j1",),
            "after[0]: expected after:ID, afterok:ID, afterany:ID or afternotok:ID, with the id of a job, an ",
        ),
    ],
)
async def test_what_makes_no_sense_is_refused_with_its_place(after: tuple[str, ...], says: str) -> None:
    over = [submitted("j0"), placed("j0"), started("j0"), ended("j0", "failed")]
    async with gateway(MemoryBus(), joined(), *over, submitted("j1"), submitted("k1"), submitted("k2")) as served:
        asked = {"spec": spec(id="j2", after=after)}
        for request in (served.command("submit", asked), served.query("dryrun", asked)):
            code, text = await refusal(request)
            assert (code, says in text) == (400, True), text


async def test_a_dry_run_knows_what_has_come() -> None:
    over = [submitted("j0"), placed("j0"), started("j0"), ended("j0")]
    async with gateway(MemoryBus(), joined(), *over, submitted("j1")) as served:
        assert (await served.query("dryrun", {"spec": spec(after=("afterok:j0",))}))["starts"]
        found = await served.query("dryrun", {"spec": spec(after=("afterok:j0", "afterok:j1"))})
        assert (found["starts"], found["cause"], found["evidence"]) == (False, "dependency", "it waits for afterok:j1")
        later = await served.query("dryrun", {"spec": spec(begin_s=NOW_S + 3_600)})
        assert (later["starts"], later["cause"]) == (False, "begin")


async def test_a_job_says_before_when_it_is_not_to_begin() -> None:
    async with gateway(MemoryBus(), joined(), submitted("j1", begin_s=NOW_S + 3_600)) as served:
        why = await served.query("why", {"id": "j1"})
        assert why["cause"] == "begin"
        assert why["evidence"].startswith("not before 2023-11-14 23:13:20 UTC, in 58 min")


def test_a_simulation_unblocks_as_the_gateway_does() -> None:
    facts = [
        submitted("j1"),
        submitted("j2", after=("afterok:j1",)),
        submitted("j3", after=("afternotok:j1",)),
        submitted("j4", after=("afterok:long-gone",)),
        placed("j1"),
        started("j1"),
        ended("j1"),
        JobsArchived(at_s=NOW_S + 9, archive="main", job_ids=("j1",)),
    ]
    fold = Fold(dependencies.unblocker())
    for seq, fact in enumerate(facts, 1):
        commit = Commit(id=str(seq), actor="test", facts=(fact,))
        fold.apply(Delivery(subject=f"penstock.evt.job.{seq}", seq=seq, stored_s=fact.at_s, pending=0, commit=commit))
    proposals = fold.decider.decide(fold.state, NOW_S + 10).proposals
    made = {fact.job_id: type(fact) for one in proposals for fact in one.facts if hasattr(fact, "job_id")}
    assert made == {"j2": JobUnblocked, "j3": JobCancelled, "j4": JobUnblocked}


async def test_of_what_others_may_not_see_nobody_learns_that_ids_begin_so() -> None:
    facts = [
        UserSet(at_s=NOW_S, user="eve", role="user", teams=("red",), by="root"),
        submitted("sec1", user="ada", team="blue"),
        submitted("sec2", user="ada", team="blue"),
    ]
    async with gateway(MemoryBus(), joined(), *facts) as served:
        eve = Gateway(MemoryBus(served.bus.server, user="eve"), served.shell)  # type: ignore[attr-defined]
        code, text = await refusal(eve.command("submit", {"spec": spec(id="e1", after=("afterok:sec",))}))
        assert (code, "no job or sweep 'sec'" in text) == (400, True), text
        code, text = await refusal(eve.command("submit", {"spec": spec(id="e1", after=("afterok:sec1",))}))
        assert code == 403


async def test_a_held_job_that_is_released_says_what_it_still_waits_for() -> None:
    waiting = submitted("j2", after=("afterok:j1",), hold=True)
    async with gateway(MemoryBus(), joined(), submitted("j1"), waiting) as served:
        said = (await served.command("release", {"id": "j2"}))["message"]
        assert said.endswith("once it waits for nothing else: it waits until j1 has completed (it has not started)")


def test_each_fact_looks_only_at_the_jobs_that_wait_for_what_has_moved() -> None:
    asked: list[str] = []

    def progress_of(entity_id: str) -> DependencyProgress:
        asked.append(entity_id)
        return DependencyProgress(started=True)

    waiting, jobs = Dependents(), JobTable()
    for number in range(300):
        after = tuple(f"afterok:t{target}" for target in range(20))
        (job,) = jobs.apply(submitted(f"w{number}", after=after))
        waiting.note(job, progress_of, 1)
    asked.clear()
    waiting.follow("t3", progress_of, 2)
    waiting.follow("nobody", progress_of, 3)
    assert asked == ["t3"] * 300


async def test_that_a_sweep_has_started_is_known_once_its_trials_are_archived() -> None:
    trial = submitted("t1", parent="s1")
    swept = SweepSubmitted(at_s=NOW_S, sweep_id="s1", spec=sweep_spec(id="s1"))
    ran = (trial, placed("t1"), started("t1"), ended("t1"))
    archived = JobsArchived(at_s=NOW_S + 9, archive="main", job_ids=("t1",))
    async with gateway(MemoryBus(), joined(), swept, *ran, archived, submitted("j1", after=("after:s1",))) as served:
        assert isinstance(await decided(served, "j1"), JobUnblocked)


def test_a_simulation_remembers_how_what_is_over_has_ended() -> None:
    facts = [
        submitted("j1"),
        placed("j1"),
        started("j1"),
        ended("j1", "failed"),
        submitted("j2", after=("afterok:j1",)),
    ]
    swept = [SweepSubmitted(at_s=NOW_S, sweep_id="s1", spec=sweep_spec(id="s1")), submitted("j3", after=("after:s1",))]
    fold = Fold(dependencies.unblocker())
    for seq, fact in enumerate([*facts, *swept], 1):
        commit = Commit(id=str(seq), actor="test", facts=(fact,))
        fold.apply(Delivery(subject=f"penstock.evt.job.{seq}", seq=seq, stored_s=fact.at_s, pending=0, commit=commit))
    (made,) = fold.decider.decide(fold.state, NOW_S + 10).proposals
    assert isinstance(made.facts[0], JobCancelled)


def of_array(index: int) -> JobSubmitted:
    return submitted(f"exp-{index}", array=ArrayMember(id="exp", index=index, count=3, max=2))


def ran(job_id: str, outcome: str) -> list[AnyEvent]:
    return [placed(job_id), started(job_id), ended(job_id, outcome)]


@pytest.mark.parametrize(
    ("outcomes", "becomes"),
    [
        (("completed", "failed", "completed"), JobUnblocked),
        (("failed", "failed", "failed"), JobUnblocked),
        (("completed", "completed", "completed"), JobCancelled),
        (("failed", "completed"), None),
    ],
)
async def test_a_clean_up_of_an_array_starts_once_it_has_ended_and_one_of_its_jobs_badly(
    outcomes: tuple[str, ...], becomes: type[AnyEvent] | None
) -> None:
    before = [joined(), *map(of_array, range(3))]
    after = [fact for index, outcome in enumerate(outcomes) for fact in ran(f"exp-{index}", outcome)]
    async with gateway(MemoryBus(), *before) as served:
        await served.command("submit", {"spec": spec(id="j1", after=("afternotok:exp",))})
        (waiting,) = await facts_about(served, "j1", JobSubmitted)
        assert waiting.spec.after == ("afternotok:exp",)
        again = await served.command("submit", {"spec": spec(id="j1", after=("afternotok:exp",))})
        assert not again["created"]
    fold = Fold(dependencies.unblocker())
    for seq, fact in enumerate([*before, submitted("j1", after=("afternotok:exp",)), *after], 1):
        commit = Commit(id=str(seq), actor="test", facts=(fact,))
        fold.apply(Delivery(subject=f"penstock.evt.job.{seq}", seq=seq, stored_s=fact.at_s, pending=0, commit=commit))
    found = [fact for one in fold.decider.decide(fold.state, NOW_S + 10).proposals for fact in one.facts]
    assert [type(fact) for fact in found] == ([becomes] if becomes else [])
    async with gateway(MemoryBus(), *before, submitted("j1", after=("afternotok:exp",)), *after) as served:
        if becomes is not None:
            assert type(await decided(served, "j1")) is becomes
        else:
            said = await served.query("why", {"id": "j1"})
            assert "exp has failed or was cancelled (it has started)" in str(said)


async def test_an_array_that_has_failed_before_is_cleaned_up_at_once_and_a_good_one_never() -> None:
    bad = [
        *map(of_array, range(3)),
        *(fact for i in range(3) for fact in ran(f"exp-{i}", ("completed", "failed")[i % 2])),
    ]
    async with gateway(MemoryBus(), joined(), *bad) as served:
        await served.command("submit", {"spec": spec(id="j1", after=("afternotok:exp",))})
        assert isinstance(await decided(served, "j1"), JobUnblocked)
    good = [*map(of_array, range(3)), *(fact for i in range(3) for fact in ran(f"exp-{i}", "completed"))]
    async with gateway(MemoryBus(), joined(), *good) as served:
        code, text = await refusal(served.command("submit", {"spec": spec(id="j1", after=("afternotok:exp",))}))
        assert (code, "exp has completed; leave it out" in text) == (400, True)
        code, text = await refusal(served.command("submit", {"spec": spec(id="j1", after=("afternotok:nope",))}))
        assert (code, "no job or sweep 'nope'" in text) == (400, True)
