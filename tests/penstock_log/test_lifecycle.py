import msgspec
import pytest
from fact_factories import ended, placed, preempted, started, submitted
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import (
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobState,
    JobTable,
    JobUnblocked,
    ProfileSample,
    RoundDecided,
    SamplesRequested,
)
from penstock_log.job_state import TERMINAL, TRANSITIONS


def fold(*events: Event) -> JobTable:
    jobs = JobTable()
    for event in events:
        jobs.apply(event)
    return jobs


def test_a_job_that_exits_with_zero_is_completed():
    job = fold(submitted(gpus=2), placed(), started(at_s=2), ended(at_s=5, steps=9))["j1"]
    assert (job.state, job.waited_s, job.executed_s, job.attempts, job.steps) == (JobState.COMPLETED, 1.0, 3.0, 1, 9)
    assert job.attained_gpu_s(100.0) == 6.0


def test_a_metric_that_diverged_has_no_value_of_an_earlier_run():
    jobs = fold(submitted(), placed(), started(), ended(outcome="preempted", at_s=5, metrics={"loss": 0.5, "acc": 0.7}))
    for event in (placed(epoch=2), started(epoch=2), ended(epoch=2, at_s=9, diverged=("loss",))):
        jobs.apply(event)
    assert (jobs["j1"].metrics, jobs["j1"].diverged) == ({"acc": 0.7}, ("loss",))


def test_a_failed_run_is_tried_again_after_a_back_off_that_doubles():
    jobs = fold(submitted(retries=2, backoff_s=1.0), placed(), started(), ended(outcome="failed", at_s=5, exit_code=3))
    assert (jobs["j1"].state, jobs["j1"].not_before_s) == (JobState.PENDING, 6.0)
    for event in (placed(epoch=2), started(epoch=2), ended(outcome="failed", epoch=2, at_s=9)):
        jobs.apply(event)
    assert jobs["j1"].not_before_s == 11.0


def test_a_job_without_retries_left_has_failed_with_the_last_reason():
    job = fold(submitted(), placed(), started(), ended(outcome="failed", exit_code=3, reason="exit code 3"))["j1"]
    assert (job.state, job.exit_code, job.reason, job.finished_s) == (JobState.FAILED, 3, "exit code 3", 5.0)


def test_a_preempted_job_waits_again_and_keeps_its_attained_service():
    jobs = fold(submitted(), placed(), started(at_s=2), preempted(), ended(outcome="preempted", at_s=6, steps=40))
    job = jobs["j1"]
    assert (job.state, job.preemptions, job.failures, job.executed_s, job.steps) == (JobState.PENDING, 1, 0, 4.0, 40)
    assert job.placement is None


def test_a_lost_node_is_not_held_against_the_job():
    jobs = fold(submitted(), placed(), started(), RoundDecided(at_s=9, pool="default", lost_nodes=("n1",)))
    assert (jobs["j1"].state, jobs["j1"].failures, jobs["j1"].preemptions) == (JobState.PENDING, 0, 0)


def test_facts_of_an_older_epoch_change_nothing():
    jobs = fold(
        submitted(), placed(), started(), RoundDecided(at_s=9, pool="default", lost_nodes=("n1",)), placed(epoch=2)
    )
    before = msgspec.json.encode(jobs)
    for late in (ended(epoch=1), started(epoch=1), preempted(epoch=1), placed(epoch=2), placed(epoch=4)):
        jobs.apply(late)
    assert msgspec.json.encode(jobs) == before


def test_a_gang_ends_when_its_last_node_has_ended_and_with_the_worst_outcome():
    jobs = fold(submitted(gpus=2), placed(nodes=("n1", "n2")), started(node="n1"), started(node="n2"))
    jobs.apply(ended(outcome="failed", node="n1", reason="exit code 1"))
    assert jobs["j1"].state is JobState.RUNNING
    assert jobs["j1"].stopping
    jobs.apply(ended(outcome="completed", node="n2"))
    assert (jobs["j1"].state, jobs["j1"].reason) == (JobState.FAILED, "exit code 1")


@pytest.mark.parametrize("lost_first", [True, False])
def test_a_gang_that_fails_because_one_of_its_nodes_was_lost_is_not_blamed(lost_first):
    jobs = fold(submitted(gpus=2), placed(nodes=("n1", "n2")), started(node="n1"), started(node="n2"))
    lost = RoundDecided(at_s=9, pool="default", lost_nodes=("n1",))
    failed = ended(outcome="failed", node="n2", reason="exit code 1: connection reset by peer")
    for event in (lost, failed) if lost_first else (failed, lost):
        jobs.apply(event)
    job = jobs["j1"]
    assert (job.state, job.failures, job.reason) == (JobState.PENDING, 0, "its node was lost")


def test_a_sample_that_is_named_like_a_job_leaves_the_job_alone():
    sample = ProfileSample(sample_id="j1", kind="slow", iterations=5)
    job = fold(submitted(), SamplesRequested(at_s=1, key="k", spec=submitted().spec, samples=(sample,)))["j1"]
    assert (job.sample, job.profile_key) == (None, "")


def test_cancelling_a_waiting_job_ends_it_at_once_and_a_running_one_when_its_processes_are_gone():
    cancel = JobCancelled(at_s=4, job_id="j1", by="ada")
    assert fold(submitted(), cancel)["j1"].state is JobState.CANCELLED
    jobs = fold(submitted(), placed(), started(), cancel)
    assert jobs["j1"].state is JobState.COMPLETING
    jobs.apply(ended(outcome="completed"))
    assert jobs["j1"].state is JobState.CANCELLED


def test_a_placement_that_crossed_a_cancellation_or_a_hold_is_void():
    assert fold(submitted(), JobCancelled(at_s=1, job_id="j1"), placed())["j1"].state is JobState.CANCELLED
    jobs = fold(submitted(), JobHeld(at_s=1, job_id="j1"), placed())
    assert (jobs["j1"].state, jobs["j1"].epoch) == (JobState.PENDING, 0)
    jobs.apply(JobReleased(at_s=2, job_id="j1"))
    jobs.apply(placed())
    assert jobs["j1"].state is JobState.RUNNING


def test_a_sample_is_a_job_of_its_own_bound_to_one_kind():
    spec = submitted(gpus=2, retries=5).spec
    sample = ProfileSample(sample_id="s-1", kind="slow", iterations=5)
    job = fold(SamplesRequested(at_s=1, key="k", spec=spec, samples=(sample,)))["s-1"]
    assert (job.spec.gpus, job.spec.kinds, job.spec.retries, job.profile_key) == (1, ("slow",), 0, "k")


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_nothing_leads_out_of_a_terminal_state(state):
    assert TRANSITIONS[state] == {}


EVENTS = st.one_of(
    st.builds(placed, epoch=st.integers(1, 3), nodes=st.sampled_from([("n1",), ("n1", "n2")])),
    st.builds(started, epoch=st.integers(1, 3), node=st.sampled_from(["n1", "n2"])),
    st.builds(preempted, epoch=st.integers(1, 3)),
    st.builds(
        ended,
        outcome=st.sampled_from(["completed", "failed", "preempted", "cancelled", "lost"]),
        epoch=st.integers(1, 3),
        node=st.sampled_from(["n1", "n2"]),
    ),
    st.just(JobCancelled(at_s=4, job_id="j1")),
    st.just(JobHeld(at_s=4, job_id="j1")),
    st.just(JobReleased(at_s=4, job_id="j1")),
    st.just(RoundDecided(at_s=4, pool="default", lost_nodes=("n1",))),
)


@given(st.lists(EVENTS, max_size=25))
def test_whatever_comes_a_lease_is_held_exactly_while_nodes_are_open_and_the_end_is_final(events):
    jobs = fold(submitted(retries=1))
    end = None
    for event in events:
        jobs.apply(event)
        job = jobs["j1"]
        assert (job.placement is not None) == bool(job.open_nodes)
        assert (job.placement is not None) == (
            job.state in {JobState.RUNNING, JobState.PREEMPTING, JobState.COMPLETING}
        )
        if end is not None:
            assert msgspec.json.encode(job) == end
        if job.state in TERMINAL:
            end = msgspec.json.encode(job)


@given(st.lists(EVENTS, max_size=25))
def test_a_fold_survives_being_written_down_and_read_at_any_point(events):
    live = fold(submitted(retries=1), *events)
    half = len(events) // 2
    resumed = msgspec.msgpack.decode(msgspec.msgpack.encode(fold(submitted(retries=1), *events[:half])), type=JobTable)
    for event in events[half:]:
        resumed.apply(event)
    assert resumed == live


# --- when it could begin
def test_time_before_its_begin_is_not_waited_and_counts_in_its_order_all_the_same() -> None:
    jobs = fold(submitted(begin_s=50.0))
    assert [jobs["j1"].queued_by(at_s) for at_s in (0.0, 40.0, 50.0, 57.0)] == [0.0, 0.0, 0.0, 7.0]
    assert (jobs["j1"].waited_by(40.0), jobs["j1"].pending_since_s) == (40.0, 0.0)
    jobs.apply(placed(at_s=60.0))
    assert (jobs["j1"].queued_by(99.0), jobs["j1"].waited_s) == (10.0, 60.0)


def test_time_in_which_a_job_is_blocked_is_not_waited_and_later_waits_are() -> None:
    jobs = fold(submitted(after=("afterok:j0",)))
    assert jobs["j1"].queued_by(40.0) == 0.0
    unblocked = JobUnblocked(job_id="j1", at_s=50.0, met=("afterok:j0",))
    for event in (
        unblocked,
        unblocked,
        placed(at_s=53.0),
        started(at_s=54.0),
        preempted(),
        ended(outcome="preempted", at_s=60.0),
    ):
        jobs.apply(event)
    assert jobs["j1"].queued_by(64.0) == 3.0 + 4.0


def test_a_job_that_is_cancelled_before_it_could_begin_has_not_waited() -> None:
    for spec in ({"begin_s": 50.0}, {"after": ("afterok:j0",)}):
        jobs = fold(submitted(**spec), JobCancelled(job_id="j1", at_s=30.0))
        assert jobs["j1"].queued_by(99.0) == 0.0
