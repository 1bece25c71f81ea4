"""Which copies of checkpoints a donor keeps, for whom, and which of them go first."""

from __future__ import annotations

import pytest

from penstock_log import Checkpoint, Job, JobSpec, JobState
from penstock_log.spec import CheckpointTier
from penstock_memory.kept_copies import MOST_OF_ONE, KeepingRefused, KeptCopies, KeptCopy


def job(job_id: str = "j1", tier: CheckpointTier = "memory") -> Job:
    spec = JobSpec(name=job_id, command=("train",), checkpoint_tier=tier)
    return Job(id=job_id, spec=spec, submitted_s=0.0)


def copy(step: int, *leases: str, job_id: str = "j1", user: str = "ann", generation: int = 1) -> KeptCopy:
    return KeptCopy(
        job_id=job_id,
        user=user,
        generation=generation,
        step=step,
        digest=f"digest of {step}",
        size=100,
        leases=leases or (f"{job_id}-{step}",),
    )


def last(step: int, tier: CheckpointTier = "memory", generation: int = 1) -> Checkpoint:
    return Checkpoint(generation=generation, step=step, digest=f"digest of {step}", tier=tier)


def keeping(*jobs: Job) -> KeptCopies:
    return KeptCopies({each.id: each for each in jobs}.get)


def test_a_copy_is_kept_until_the_log_has_a_newer_checkpoint() -> None:
    one = job()
    kept = keeping(one)
    kept.add_copy(copy(10))
    one.checkpoint = last(10)
    kept.add_copy(copy(20))
    assert kept.over() == []
    one.checkpoint = last(20)
    assert kept.over() == ["j1-10"]


def test_a_checkpoint_of_a_later_run_is_newer_whatever_its_step() -> None:
    one = job()
    kept = keeping(one)
    kept.add_copy(copy(90))
    one.checkpoint = last(20, generation=2)
    assert kept.over() == ["j1-90"]


def test_copies_of_a_job_that_is_over_are_not_needed() -> None:
    one = job()
    kept = keeping(one)
    kept.add_copy(copy(10))
    one.state = JobState.CANCELLED
    assert kept.over() == ["j1-10"]


@pytest.mark.parametrize(
    ("jobs", "why"), [((), "the log has no job j1 that is not over"), ((job(tier="disk"),), "does not ask for")]
)
def test_nothing_is_kept_for_a_job_that_does_not_ask_for_it(jobs: tuple[Job, ...], why: str) -> None:
    with pytest.raises(KeepingRefused, match=why):
        keeping(*jobs).add_copy(copy(10))


def test_one_account_cannot_fill_a_donor_nor_take_the_place_of_another() -> None:
    kept = keeping(job())
    for step in range(MOST_OF_ONE):
        kept.add_copy(copy(step, user="eve"))
    with pytest.raises(KeepingRefused, match="3 copies for job j1 are here already"):
        kept.add_copy(copy(10, user="eve"))
    kept.add_copy(copy(10, user="ann"))


def test_a_copy_is_shown_to_its_account_and_to_who_may_have_all() -> None:
    kept = keeping(job())
    kept.add_copy(copy(10))
    assert kept.find_copy("j1", 10, "digest of 10", "ann").step == 10
    assert kept.find_copy("j1", 10, "digest of 10", "").step == 10
    for step, digest, user in ((10, "digest of 10", "eve"), (10, "another", "ann"), (11, "digest of 10", "ann")):
        with pytest.raises(KeepingRefused, match="no copy of the checkpoint"):
            kept.find_copy("j1", step, digest, user)


def test_a_copy_goes_whole() -> None:
    kept = keeping(job())
    kept.add_copy(copy(10, "a", "b", "c"))
    kept.add_copy(copy(20, "d"))
    assert kept.drop(["b", "of nobody"]) == {"a", "b", "c", "of nobody"}
    assert len(kept) == 1
    assert "a" not in kept
    assert "d" in kept


def test_copies_whose_checkpoint_is_on_a_disk_go_first() -> None:
    memory, disk = job("m"), job("d")
    kept = keeping(memory, disk)
    kept.add_copy(copy(10, "m1", "m2", job_id="m"))
    kept.add_copy(copy(10, "d1", "d2", job_id="d"))
    memory.checkpoint, disk.checkpoint = last(10), last(10, "disk")
    assert kept.least_needed(0) == []
    assert kept.least_needed(1) == ["d1", "d2"]
    assert kept.least_needed(3) == ["d1", "d2", "m1", "m2"]
    assert [each.job_id for each in kept.on_memory_only(["d1", "m1"])] == ["m"]
