"""What the log makes of checkpoints in memory, and of the disk that is written behind."""

from __future__ import annotations

import msgspec
import pytest

from penstock_log import (
    Checkpoint,
    Event,
    JobSpec,
    JobSubmitted,
    JobTable,
    Placement,
    Preemption,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunStarted,
    Slot,
    last_checkpoint,
)
from penstock_log.validation import BadInput, widened

IN_MEMORY = RunCheckpointed(
    job_id="j", epoch=1, node_id="n1", step=10, digest="d", tier="memory", peers=("n2", "n3"), at_s=4.0
)
BEHIND = msgspec.structs.replace(IN_MEMORY, tier="disk", generation=1, at_s=9.0)
PREEMPTED = (
    RoundDecided(pool="p", preemptions=(Preemption(job_id="j", epoch=1, reason="outranked"),), at_s=5.0),
    RunEnded(job_id="j", epoch=1, node_id="n1", outcome="preempted", steps=10, at_s=6.0),
)


def placed(epoch: int, node_id: str) -> RoundDecided:
    placement = Placement(job_id="j", epoch=epoch, kind="fast", slots=(Slot(node_id=node_id, devices=(0,)),))
    return RoundDecided(pool="p", placements=(placement,), at_s=2.0)


BEGUN = (
    JobSubmitted(job_id="j", spec=JobSpec(name="j", command=("x",)), at_s=1.0),
    placed(1, "n1"),
    RunStarted(job_id="j", epoch=1, node_id="n1", devices=(0,), at_s=3.0),
)


def checkpoint_after(*facts: Event) -> Checkpoint | None:
    jobs = JobTable()
    for fact in facts:
        jobs.apply(fact)
    found = jobs["j"].checkpoint
    assert last_checkpoint(facts) == found
    return found


def test_a_checkpoint_in_memory_names_its_peers() -> None:
    expected = Checkpoint(generation=1, step=10, digest="d", node_ids=("n1",), tier="memory", peers=("n2", "n3"))
    assert checkpoint_after(*BEGUN, IN_MEMORY) == expected


def test_the_disk_may_have_it_while_the_job_runs_and_after() -> None:
    expected = Checkpoint(generation=1, step=10, digest="d", node_ids=("n1",), peers=("n2", "n3"))
    assert checkpoint_after(*BEGUN, IN_MEMORY, BEHIND) == expected
    assert checkpoint_after(*BEGUN, IN_MEMORY, *PREEMPTED, BEHIND) == expected
    assert checkpoint_after(*BEGUN, IN_MEMORY, *PREEMPTED, placed(2, "n4"), BEHIND) == expected


def test_a_run_that_went_on_from_it_elsewhere_has_it_too() -> None:
    resumed = RunStarted(job_id="j", epoch=2, node_id="n4", devices=(0,), resumed_step=10, resumed_digest="d", at_s=7.0)
    found = checkpoint_after(*BEGUN, IN_MEMORY, *PREEMPTED, placed(2, "n4"), resumed, BEHIND)
    assert found is not None
    assert (found.tier, set(found.node_ids)) == ("disk", {"n1", "n4"})


def test_the_disk_that_comes_behind_a_newer_checkpoint_changes_nothing() -> None:
    newer = msgspec.structs.replace(IN_MEMORY, step=20, digest="e")
    found = checkpoint_after(*BEGUN, IN_MEMORY, newer, BEHIND)
    assert found is not None
    assert (found.step, found.tier) == (20, "memory")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"checkpoint": {"tier": "tape"}}, r'checkpoint.tier: expected "memory" or "disk", got "tape"'),
        ({"checkpoint": {"teir": "memory"}}, "unknown field"),
        ({"checkpoint": "memory"}, "expected { tier"),
        ({"checkpoint": {"tier": "memory"}, "checkpoint_tier": "disk"}, "leave one out"),
    ],
)
def test_a_tier_that_is_none_is_refused_with_what_was_expected(given: dict[str, object], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        widened(given)
