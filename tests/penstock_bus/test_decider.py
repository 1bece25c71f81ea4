import msgspec
from release_decider import DECIDER, submitted

from penstock_bus import Snapshot
from penstock_bus.decider import Fold
from penstock_log import JobReleased, NodeLeft, subjects
from penstock_testing import delivery


def test_a_commit_is_folded_fact_by_fact_and_once() -> None:
    fold = Fold(DECIDER)
    assert fold.apply(delivery(3, submitted("j1"), JobReleased(job_id="j1", at_s=1.0)))
    assert not fold.apply(delivery(3, submitted("j2"), subject=subjects.job("j2")))
    assert (fold.state.seen, fold.state.released, fold.last_seq) == ({"j1": 3}, {"j1"}, 3)


def test_heads_hold_only_the_subjects_that_the_service_writes() -> None:
    fold = Fold(DECIDER)
    fold.apply(delivery(1, submitted("j1")))
    fold.apply(delivery(2, NodeLeft(node_id="n1", at_s=0.0)))
    fold.apply(delivery(5, JobReleased(job_id="j1", at_s=0.0)))
    assert fold.heads == {subjects.job("j1"): 5}


def test_a_snapshot_brings_back_state_heads_and_sequence() -> None:
    fold, resumed = Fold(DECIDER), Fold(DECIDER)
    fold.apply(delivery(4, submitted("j1")))
    assert resumed.restore(fold.snapshot())
    assert resumed.encoded() == fold.encoded()
    assert resumed.last_seq == 4


def test_a_snapshot_of_another_schema_is_ignored() -> None:
    fold = Fold(DECIDER)
    fold.apply(delivery(4, submitted("j1")))
    assert not Fold(DECIDER).restore(msgspec.structs.replace(fold.snapshot(), schema="released.v0"))


def test_a_snapshot_from_before_commits_out_of_place_were_dropped_is_ignored() -> None:
    fold = Fold(DECIDER)
    fold.apply(delivery(4, submitted("j1")))
    assert not Fold(DECIDER).restore(msgspec.structs.replace(fold.snapshot(), schema=DECIDER.schema))


def test_a_damaged_snapshot_is_ignored_and_leaves_the_fold_empty() -> None:
    fold = Fold(DECIDER)
    assert not fold.restore(Snapshot(schema=fold.schema, last_seq=9, state=b"\x93\x01"))
    assert (fold.last_seq, fold.heads, fold.state) == (0, {}, DECIDER.state())


def test_without_a_snapshot_the_fold_starts_empty() -> None:
    assert not Fold(DECIDER).restore(None)
