"""Elastic jobs come to other sizes, and back from those that did not do; no processes that die fail them."""

from __future__ import annotations

from typing import Any

import pytest
from fact_factories import ended, placed, preempted, started, submitted
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock_log import Batch, Demand, Event, Job, JobCancelled, JobState, JobTable, RoundDecided, RunCheckpointed
from penstock_log.decision_facts import ScaleDecided
from penstock_log.job_state import TERMINAL, Size
from sweeps import examples

BATCH = Batch(min=32, max=512, step=32, base=64)
LOST = RoundDecided(at_s=9.0, pool="default", lost_nodes=("n1",))


def sized(epoch: int, gpus: int, at_s: float = 0.5, dropped: tuple[str, ...] = (), **fields: Any) -> ScaleDecided:
    demand = Demand(job_id="j1", epoch=epoch, gpus=gpus, **fields)
    return ScaleDecided(at_s=at_s, pool="default", demands=(demand,), dropped=dropped)


def checkpointed(step: int, epoch: int) -> RunCheckpointed:
    return RunCheckpointed(at_s=4.0, job_id="j1", epoch=epoch, node_id="n1", step=step)


def fold(*events: Event) -> JobTable:
    jobs = JobTable()
    for event in events:
        jobs.apply(event)
    return jobs


def elastic(**spec: Any) -> JobTable:
    """A new job for 1 to 8 devices that was sized once, as it was submitted: its next epoch is 2."""
    return fold(submitted(min_gpus=1, max_gpus=8, batch=BATCH, batch_size=64, **spec), sized(0, 1))


def ran(jobs: JobTable, outcome: str, *, until: int, loop: int, nodes: tuple[str, ...] = ("n1",), **end: Any) -> Job:
    """Have the job placed and run to the given step, `loop` steps of them in this run."""
    epoch = jobs["j1"].epoch + 1
    jobs.apply(placed(epoch=epoch, nodes=nodes, at_s=10.0 * epoch))
    for node in nodes:
        jobs.apply(started(epoch=epoch, node=node, at_s=10.0 * epoch + 1))
    if outcome == "preempted":
        jobs.apply(preempted(epoch=epoch))
    for node in nodes:
        steps = {"steps": until, "loop_steps": loop} if node == nodes[0] else {}
        jobs.apply(ended(outcome=outcome, epoch=epoch, node=node, at_s=10.0 * epoch + 6, **steps, **end))
    return jobs["j1"]


def resized(gpus: int, steps: int = 100, **fields: Any) -> JobTable:
    """A job that did some steps on one device and is to go on with another size."""
    jobs = elastic()
    ran(jobs, "preempted", until=steps, loop=steps)
    jobs.apply(sized(2, gpus, **fields))
    return jobs


# --- to another size
def test_a_new_job_is_sized_once_and_a_placement_decided_before_that_is_void():
    jobs = fold(submitted(min_gpus=1, max_gpus=8, batch=BATCH, batch_size=64), sized(0, 1), placed(epoch=1))
    assert (jobs["j1"].epoch, jobs["j1"].state, jobs["j1"].size) == (1, JobState.PENDING, Size(1, 64))


def test_a_running_job_becomes_its_last_demand_when_its_run_has_made_way():
    jobs = elastic()
    for event in (placed(epoch=2), started(epoch=2), sized(2, 4), preempted(epoch=2), sized(2, 2, batch_size=128)):
        jobs.apply(event)
    job = jobs["j1"]
    assert (job.state, job.size) == (JobState.PREEMPTING, Size(1, 64))
    jobs.apply(ended(outcome="preempted", epoch=2, steps=5, loop_steps=5))
    assert (job.state, job.size, job.demand) == (JobState.PENDING, Size(2, 128), None)


def test_a_batch_of_nothing_means_the_batch_that_it_has():
    jobs = elastic()
    jobs.apply(sized(1, 2, batch_size=128))
    jobs.apply(sized(2, 4))
    assert jobs["j1"].size == Size(4, 128)


def test_a_size_for_one_kind_binds_the_job_to_it_and_one_for_any_kind_lets_it_go():
    jobs = elastic(kinds=("fast", "slow"))
    jobs.apply(sized(1, 2, kinds=("slow",)))
    assert jobs["j1"].spec.kinds == ("slow",)
    jobs.apply(sized(2, 2, kinds=("fast",)))
    jobs.apply(sized(3, 2))
    assert jobs["j1"].spec.kinds == ("fast", "slow")


@pytest.mark.parametrize(
    "demand", [{"gpus": 9}, {"gpus": 2, "batch_size": 31}, {"gpus": 2, "batch_size": 513}, {"gpus": 2, "epoch": 0}]
)
def test_what_the_job_does_not_take_or_was_decided_before_its_last_epoch_changes_nothing(demand):
    jobs = elastic()
    assert jobs.apply(sized(**{"epoch": 1, **demand})) == []
    assert (jobs["j1"].epoch, jobs["j1"].size) == (1, Size(1, 64))


def test_a_job_with_one_batch_size_keeps_it_over_all_widths():
    jobs = fold(submitted(min_gpus=1, max_gpus=4, batch_size=64), sized(0, 4, batch_size=128))
    assert (jobs["j1"].epoch, jobs["j1"].size) == (0, Size(1, 64))
    jobs.apply(sized(0, 4))
    assert jobs["j1"].size == Size(4, 64)


def test_jobs_that_are_gone_or_unknown_are_not_sized():
    jobs = elastic()
    jobs.apply(JobCancelled(at_s=1, job_id="j1"))
    assert jobs.apply(sized(1, 4)) == []
    jobs.forget("j1")
    assert jobs.apply(sized(1, 4, dropped=("j1",))) == []


def test_a_demand_for_a_job_that_ends_before_it_makes_way_is_void():
    jobs = elastic()
    for event in (placed(epoch=2), started(epoch=2), sized(2, 4), preempted(epoch=2), ended(epoch=2, steps=9)):
        jobs.apply(event)
    job = jobs["j1"]
    assert (job.state, job.size, job.demand) == (JobState.COMPLETED, Size(1, 64), None)


def test_service_attained_on_one_width_is_kept_on_every_other():
    jobs = resized(4)
    assert jobs["j1"].attained_gpu_s(60.0) == 5.0
    ran(jobs, "preempted", until=200, loop=100)
    assert jobs["j1"].attained_gpu_s(99.0) == 5.0 + 4 * 5.0
    jobs.apply(sized(4, 2))
    ran(jobs, "completed", until=300, loop=100)
    assert jobs["j1"].attained_gpu_s(999.0) == 5.0 + 4 * 5.0 + 2 * 5.0


# --- and back
@pytest.mark.parametrize("loop", [0, 2])
def test_a_run_that_fails_at_once_with_a_new_size_goes_back_to_the_one_that_did(loop):
    jobs = resized(4, batch_size=256)
    job = ran(jobs, "failed", until=100 + loop, loop=loop, exit_code=1, reason="exit code 1: ValueError: shapes")
    assert (job.state, job.failures, job.size, job.unfit) == (JobState.PENDING, 0, Size(1, 64), (Size(4),))
    assert job.reason == (
        "it did not run on 4 devices with a batch of 256, and goes back to 1 device with a batch of 64: "
        "exit code 1: ValueError: shapes"
    )
    assert job.attained_gpu_s(99.0) == 5.0 + 4 * 5.0


def test_a_width_that_did_not_do_is_not_given_again_but_others_are():
    jobs = resized(4)
    job = ran(jobs, "failed", until=100, loop=0)
    for batch_size in (32, 64, 256):
        assert jobs.apply(sized(job.epoch, 4, batch_size=batch_size)) == []
    jobs.apply(sized(job.epoch, 8))
    assert job.size == Size(8, 64)


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_batch_that_did_not_do_is_not_given_again_on_as_many_devices_but_others_are(gpus):
    jobs = resized(gpus, batch_size=512)
    job = ran(jobs, "failed", until=100, loop=0, out_of_memory=gpus == 4)
    assert (job.size, job.unfit) == (Size(1, 64), (Size(gpus, 512),))
    assert jobs.apply(sized(job.epoch, gpus, batch_size=512)) == []
    jobs.apply(sized(job.epoch, gpus, batch_size=256))
    assert job.size == Size(gpus, 256)


def test_a_demand_for_the_size_with_which_the_run_has_just_failed_is_void():
    jobs = resized(4)
    for event in (placed(epoch=4), started(epoch=4), sized(4, 4, kinds=("fast",)), preempted(epoch=4)):
        jobs.apply(event)
    jobs.apply(ended(outcome="failed", epoch=4, steps=100))
    assert (jobs["j1"].size, jobs["j1"].demand, jobs["j1"].spec.kinds) == (Size(1, 64), None, ())


def test_a_demand_for_another_size_that_came_meanwhile_is_taken():
    jobs = resized(4)
    for event in (placed(epoch=4), started(epoch=4), sized(4, 2), ended(outcome="failed", epoch=4, steps=100)):
        jobs.apply(event)
    assert (jobs["j1"].size, jobs["j1"].before, jobs["j1"].unfit) == (Size(2, 64), Size(1, 64), (Size(4),))


def test_a_job_resized_twice_before_a_step_goes_back_to_what_it_ran_on():
    jobs = resized(4)
    jobs.apply(sized(3, 8))
    assert ran(jobs, "failed", until=100, loop=0).size == Size(1, 64)


def test_a_job_whose_run_was_stopped_before_a_step_goes_back_past_that_size():
    jobs = resized(4)
    ran(jobs, "preempted", until=100, loop=0)
    jobs.apply(sized(jobs["j1"].epoch, 8))
    assert ran(jobs, "failed", until=100, loop=0).size == Size(1, 64)


def test_a_job_that_ran_well_with_a_size_comes_back_to_that_one():
    jobs = resized(4)
    ran(jobs, "preempted", until=150, loop=50)
    jobs.apply(sized(jobs["j1"].epoch, 8))
    assert ran(jobs, "failed", until=150, loop=0).size == Size(4, 64)


def test_a_job_that_comes_back_to_another_kind_may_be_placed_on_all_that_it_accepts():
    jobs = resized(4, kinds=("slow",))
    assert ran(jobs, "failed", until=100, loop=0).spec.kinds == ()


def test_a_checkpoint_tells_that_a_size_did_though_nobody_is_left_to_tell_how_far_it_came():
    jobs = resized(4)
    jobs.apply(placed(epoch=4))
    for event in (started(epoch=4), checkpointed(40, epoch=4), checkpointed(90, epoch=4), LOST):
        jobs.apply(event)
    assert jobs["j1"].before == Size(4, 64)


def test_a_job_that_fails_for_its_own_fault_fails_though_it_was_resized_just_before():
    jobs = resized(4)
    assert ran(jobs, "failed", until=100, loop=0).state is JobState.PENDING
    job = ran(jobs, "failed", until=100, loop=0)
    assert (job.state, job.failures) == (JobState.FAILED, 1)


def test_a_job_that_fails_later_on_its_new_size_has_failed():
    job = ran(resized(4), "failed", until=103, loop=3)
    assert (job.state, job.unfit) == (JobState.FAILED, ())


def test_a_job_that_fails_at_its_very_start_has_failed_whatever_its_size():
    jobs = elastic()
    jobs.apply(sized(1, 4))
    assert ran(jobs, "failed", until=0, loop=0).state is JobState.FAILED


def test_want_of_memory_is_held_against_the_size_at_the_very_start_and_later_too():
    jobs = elastic()
    jobs.apply(sized(1, 4, batch_size=512))
    assert ran(jobs, "failed", until=0, loop=0, out_of_memory=True).size == Size(1, 64)
    ran(jobs, "preempted", until=50, loop=50)
    jobs.apply(sized(jobs["j1"].epoch, 2))
    job = ran(jobs, "failed", until=90, loop=40, out_of_memory=True)
    assert (job.size, job.failures) == (Size(1, 64), 0)
    assert ran(jobs, "failed", until=95, loop=5, out_of_memory=True).state is JobState.FAILED


def test_retries_are_counted_as_ever_when_the_size_is_not_to_blame():
    job = ran(elastic(retries=1), "failed", until=50, loop=50)
    assert (job.state, job.failures, job.size) == (JobState.PENDING, 1, Size(1, 64))


@pytest.mark.parametrize("end", [{"loop": 0}, {"loop": 50, "killed": True}])
def test_a_job_that_is_cancelled_while_its_new_size_fails_is_cancelled(end):
    jobs = resized(4)
    for event in (placed(epoch=4), started(epoch=4), JobCancelled(at_s=50, job_id="j1")):
        jobs.apply(event)
    jobs.apply(ended(outcome="failed", epoch=4, steps=100, loop_steps=end["loop"], killed=end.get("killed", False)))
    assert (jobs["j1"].state, jobs["j1"].unfit) == (JobState.CANCELLED, ())


# --- processes that die
def test_a_gang_of_which_a_process_was_killed_goes_on_without_a_retry():
    jobs = resized(4)
    job = ran(jobs, "failed", until=200, loop=100, killed=True, reason="rank 1 of 4: signal SIGKILL (exit code 137)")
    assert (job.state, job.failures, job.size, job.unfit) == (JobState.PENDING, 0, Size(4, 64), ())
    assert job.reason == "one of its processes was killed (rank 1 of 4: signal SIGKILL (exit code 137))"
    assert job.pending_since_s >= job.not_before_s


@pytest.mark.parametrize("killed_first", [True, False])
def test_a_gang_over_two_nodes_is_judged_by_the_process_that_was_killed(killed_first):
    jobs = resized(2)
    for event in (placed(epoch=4, nodes=("n1", "n2")), started(epoch=4), started(epoch=4, node="n2")):
        jobs.apply(event)
    both = [
        ended(outcome="failed", epoch=4, node="n1", steps=150, killed=True, reason="signal SIGKILL", exit_code=137),
        ended(outcome="failed", epoch=4, node="n2", reason="exit code 1: its peer hung up", exit_code=1),
    ]
    for event in both if killed_first else reversed(both):
        jobs.apply(event)
    job = jobs["j1"]
    assert (job.state, job.reason) == (JobState.PENDING, "one of its processes was killed (signal SIGKILL)")


def test_a_gang_that_loses_a_process_and_gets_no_further_before_the_next_has_failed():
    jobs = resized(4)
    ran(jobs, "failed", until=200, loop=100, killed=True)
    assert ran(jobs, "failed", until=250, loop=60, killed=True).state is JobState.PENDING
    assert ran(jobs, "failed", until=240, loop=50, killed=True).state is JobState.FAILED


def test_a_size_with_which_processes_are_killed_time_after_time_at_the_start_is_left():
    jobs = resized(4)
    assert ran(jobs, "failed", until=100, loop=0, killed=True).size == Size(4, 64)
    assert ran(jobs, "failed", until=100, loop=0, killed=True).size == Size(1, 64)


def test_a_gang_of_which_a_process_was_killed_for_want_of_memory_goes_back():
    assert ran(resized(4), "failed", until=150, loop=50, killed=True, out_of_memory=True).unfit == (Size(4, 64),)


@pytest.mark.parametrize("spec", [{"gpus": 2}, {"min_gpus": 1, "max_gpus": 8, "batch_size": 64}])
def test_the_only_process_of_a_job_and_those_of_a_fixed_gang_are_not_spared(spec):
    assert ran(fold(submitted(**spec)), "failed", until=50, loop=50, killed=True).state is JobState.FAILED


# --- for want of room
def test_a_job_that_has_never_run_is_dropped_and_one_that_has_is_not():
    fresh, old = elastic(), resized(1)
    for jobs in (fresh, old):
        jobs.apply(ScaleDecided(at_s=50.0, pool="default", demands=(), dropped=("j1", "unknown")))
    assert (fresh["j1"].state, fresh["j1"].finished_s, fresh["j1"].waited_s) == (JobState.FAILED, 50.0, 50.0)
    assert "dropped" in fresh["j1"].reason
    assert old["j1"].state is JobState.PENDING


# --- whatever comes
SIZES = [Size(gpus, batch) for gpus in (1, 2, 4, 8, 9) for batch in (0, 32, 64, 512, 1024)]


class Life(RuleBasedStateMachine):
    """One elastic job, and everything that may be said of it, in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = elastic(retries=1)
        self.at_s, self.attained_gpu_s, self.ends, self.spared = 1.0, 0.0, 0, 0

    @property
    def job(self) -> Job:
        return self.jobs["j1"]

    def say(self, event: Event) -> None:
        was = self.job.state
        self.jobs.apply(event)
        self.ends += was not in TERMINAL and self.job.state in TERMINAL

    @rule(size=st.sampled_from(SIZES), late=st.integers(0, 1), kinds=st.sampled_from([(), ("fast",)]))
    def it_is_sized(self, size: Size, late: int, kinds: tuple[str, ...]) -> None:
        fields = {"batch_size": size.batch_size, "kinds": kinds}
        self.say(sized(self.job.epoch - late, size.gpus, at_s=self.at_s, **fields))

    @rule(nodes=st.sampled_from([("n1",), ("n1", "n2")]))
    def it_is_placed_and_starts(self, nodes: tuple[str, ...]) -> None:
        epoch = self.job.epoch + 1
        self.say(placed(epoch=epoch, nodes=nodes, at_s=self.at_s))
        for node in nodes:
            self.say(started(epoch=epoch, node=node, at_s=self.at_s))

    @precondition(lambda self: self.job.placement is not None)
    @rule(
        outcome=st.sampled_from(["preempted", "failed", "lost", "completed"]),
        done=st.sampled_from([0, 1, 50]),
        killed=st.booleans(),
        out_of_memory=st.booleans(),
    )
    def a_run_ends(self, outcome: str, done: int, killed: bool, out_of_memory: bool) -> None:
        (node, *_), steps = sorted(self.job.open_nodes), self.job.checkpoint_step + done
        how = {"killed": killed, "out_of_memory": out_of_memory} if outcome == "failed" else {}
        ends = {"epoch": self.job.epoch, "node": node, "at_s": self.at_s, "steps": steps, "loop_steps": done}
        self.say(ended(outcome=outcome, **ends, **how))

    @rule(step=st.integers(1, 30))
    def it_saves(self, step: int) -> None:
        self.say(checkpointed(self.job.checkpoint_step + step, epoch=self.job.epoch))

    @rule()
    def it_is_preempted(self) -> None:
        self.say(preempted(epoch=self.job.epoch, at_s=self.at_s))

    @rule()
    def a_node_is_lost(self) -> None:
        self.say(RoundDecided(at_s=self.at_s, pool="default", lost_nodes=("n1",)))

    @rule()
    def it_is_to_be_dropped(self) -> None:
        self.say(ScaleDecided(at_s=self.at_s, pool="default", demands=(), dropped=("j1",)))

    @precondition(lambda self: self.at_s > 40)
    @rule()
    def it_is_cancelled(self) -> None:
        self.say(JobCancelled(at_s=self.at_s, job_id="j1"))

    @rule(passed_s=st.integers(1, 10))
    def time_passes(self, passed_s: int) -> None:
        self.at_s += passed_s

    @invariant()
    def it_ends_once(self) -> None:
        assert self.ends == (self.job.state in TERMINAL)

    @invariant()
    def what_it_has_attained_never_falls(self) -> None:
        attained = self.job.attained_gpu_s(self.at_s)
        assert attained >= self.attained_gpu_s - 1e-9
        self.attained_gpu_s = attained

    @invariant()
    def its_size_is_one_that_it_takes(self) -> None:
        spec = self.job.spec
        assert 1 <= spec.gpus <= 8
        assert BATCH.min <= spec.batch_size <= BATCH.max
        assert spec.batch == BATCH
        assert (spec.min_gpus, spec.max_gpus) == (1, 8)

    @invariant()
    def it_asks_for_no_size_that_did_not_do(self) -> None:
        assert not self.job.is_unfit(self.job.size)
        assert self.job.before is None or not self.job.is_unfit(self.job.before)
        assert len(set(self.job.unfit)) == len(self.job.unfit)

    @invariant()
    def a_demand_is_kept_only_for_a_run(self) -> None:
        assert self.job.demand is None or self.job.placement is not None


Life.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestLife = Life.TestCase


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(SIZES), st.booleans()), min_size=40, max_size=40))
def test_a_job_that_fails_whenever_it_starts_does_not_go_on_for_ever(asked):
    jobs = resized(2)
    for size, killed in asked:
        jobs.apply(sized(jobs["j1"].epoch, size.gpus, batch_size=size.batch_size))
        if jobs["j1"].state in TERMINAL:
            return
        ran(jobs, "failed", until=100, loop=0, killed=killed)
    assert jobs["j1"].state is JobState.FAILED, jobs["j1"].unfit
