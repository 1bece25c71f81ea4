"""How a run ended: for want of memory, preempted or complete, and what it held."""

from __future__ import annotations

import pytest

from penstock_executor import run_state
from penstock_executor.run_state import LocalRun, RunProcess
from penstock_log import Job, JobSpec

JOB = Job(id="j1", spec=JobSpec(name="j", command=("x",)), submitted_s=0.0)


def ended(exit_code: int = 1, said: str = "", **fields: object):
    ranks = {0: RunProcess(exit_code=exit_code, ended_s=2.0, last_line=said, peak_bytes=7)}
    run = LocalRun(job_id="j1", epoch=1, devices=(0,), world_size=1, started_s=1.0, ranks=ranks, **fields)
    return run_state.ended(run, JOB, "n1", 3.0)


@pytest.mark.parametrize(
    "said",
    [
        "MemoryError",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: DefaultCPUAllocator: can't allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_a_process_that_says_that_memory_is_short_has_failed_for_want_of_it(said):
    fact = ended(said=said, cap_bytes=100)
    assert (fact.out_of_memory, fact.peak_memory_bytes, fact.cap_bytes) == (True, 7, 100)


def test_one_that_was_ended_for_its_memory_has_too():
    assert ended(137, ending="memory", why="it wanted more").out_of_memory


def test_one_that_was_ended_for_its_hosts_memory_says_nothing_of_its_devices():
    fact = ended(137, "MemoryError", ending="host_memory", why="ended for using more than its 1 GiB of host memory")
    assert (fact.outcome, fact.out_of_memory, fact.killed) == ("failed", False, False)
    assert fact.reason == "ended for using more than its 1 GiB of host memory"


@pytest.mark.parametrize(("exit_code", "said"), [(1, "ValueError: no"), (0, "MemoryError was caught")])
def test_one_that_fails_otherwise_or_completes_has_not(exit_code, said):
    assert not ended(exit_code, said).out_of_memory


def test_a_program_that_heeds_term_and_exits_with_0_was_preempted_and_has_not_completed():
    fact = ended(0, ending="preempted", termed_s=1.5, why="for job j2")
    assert (fact.outcome, fact.reason, fact.exit_code) == ("preempted", "for job j2", 0)
    assert ended(0, ending="preempted").outcome == "completed", "it ended before it was told"


def test_a_loop_that_was_done_when_term_came_has_completed():
    ranks = {0: RunProcess(exit_code=0, ended_s=2.0, done=True)}
    run = LocalRun(
        job_id="j1", epoch=1, devices=(0,), world_size=1, started_s=1.0, ranks=ranks, ending="preempted", termed_s=1.5
    )
    assert run_state.ended(run, JOB, "n1", 3.0).outcome == "completed"
