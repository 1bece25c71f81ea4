"""Arrays of which so many jobs run at a time: who may start, whatever becomes of the others."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import (
    ACTIVE,
    TERMINAL,
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSpec,
    JobSubmitted,
    JobTable,
    JobUnblocked,
    Placement,
    RoundDecided,
    RunEnded,
    RunStarted,
    Slot,
)
from penstock_log.job_state import JobState
from penstock_log.spec import ArrayMember

JOBS = 6
MOST = 2


def submitted(
    number: int,
    *,
    hold: bool = False,
    retries: int = 0,
    user: str = "",
    most: int = MOST,
    jobs: int = JOBS,
    after: tuple[str, ...] = (),
) -> JobSubmitted:
    array = ArrayMember(id="exp", index=number, count=jobs, most=most)
    spec = JobSpec(name="j", command=("true",), id=f"exp-{number}", array=array, hold=hold, retries=retries, user=user)
    spec = msgspec.structs.replace(spec, after=after)
    return JobSubmitted(at_s=1.0, job_id=spec.id, spec=spec)


def placed(table: JobTable, job_id: str) -> list[Event]:
    job = table.get(job_id)
    epoch = job.epoch + 1 if job is not None else 1
    placement = Placement(job_id=job_id, epoch=epoch, kind="fast", slots=(Slot(node_id="n1", devices=(0,)),))
    started = RunStarted(at_s=2.0, job_id=job_id, epoch=epoch, node_id="n1", devices=(0,))
    return [RoundDecided(at_s=2.0, pool="default", placements=(placement,)), started]


def may_start(table: JobTable) -> list[str]:
    return [job.id for job in table if job.startable and job.state not in TERMINAL]


def ended(table: JobTable, job_id: str, outcome: str = "completed") -> RunEnded:
    return RunEnded(at_s=3.0, job_id=job_id, epoch=table[job_id].epoch, node_id="n1", outcome=outcome)  # type: ignore[arg-type]


def test_the_next_job_may_start_when_one_is_over_and_is_told_of_as_changed() -> None:
    table = JobTable()
    for number in range(JOBS):
        table.apply(submitted(number))
    assert may_start(table) == ["exp-0", "exp-1"]
    for job_id in ("exp-0", "exp-1"):
        for event in placed(table, job_id):
            table.apply(event)
    for event in placed(table, "exp-3"):  # by a matcher that does not know better
        assert table.apply(event) == []
    changed = table.apply(ended(table, "exp-1"))
    assert [job.id for job in changed] == ["exp-1", "exp-2"]
    assert may_start(table) == ["exp-0", "exp-2"]
    assert table["exp-2"].eligible_s == 3.0


def test_a_job_that_waits_for_others_has_no_place_and_keeps_none_out() -> None:
    table = JobTable()
    for number in range(4):
        table.apply(submitted(number, after=(f"afterok:prep-{number}",) if number < 2 else ()))
    assert may_start(table) == ["exp-2", "exp-3"]
    for event in placed(table, "exp-2"):
        table.apply(event)
    table.apply(JobUnblocked(at_s=4.0, job_id="exp-1"))
    assert may_start(table) == ["exp-2", "exp-3"]
    assert table["exp-1"].in_line
    changed = table.apply(ended(table, "exp-2"))
    assert [job.id for job in changed] == ["exp-2", "exp-1"]
    assert may_start(table) == ["exp-1", "exp-3"]
    table.apply(JobCancelled(at_s=6.0, job_id="exp-0"))
    table.apply(JobCancelled(at_s=6.0, job_id="exp-1"))
    assert list(table.arrays["exp/"].places) == ["exp-3"]


def test_a_job_that_was_held_does_not_wait_in_line_for_the_one_that_waits_for_it() -> None:
    table = JobTable()
    table.apply(submitted(0, most=1))
    table.apply(submitted(1, most=1, after=("afterok:exp-0",)))
    table.apply(JobHeld(at_s=4.0, job_id="exp-0"))
    table.apply(JobReleased(at_s=5.0, job_id="exp-0"))
    assert may_start(table) == ["exp-0"]
    for event in placed(table, "exp-0"):
        table.apply(event)
    table.apply(ended(table, "exp-0"))
    table.apply(JobUnblocked(at_s=6.0, job_id="exp-1"))
    assert may_start(table) == ["exp-1"]


def test_a_log_of_a_version_that_gave_blocked_jobs_a_place_folds_to_the_runs_that_there_were() -> None:
    table = JobTable()
    table.apply(submitted(0, most=1, after=("afterok:prep",)))
    table.apply(submitted(1, most=1))
    assert may_start(table) == ["exp-1"], "where that version had exp-0 before it"
    table.apply(JobUnblocked(at_s=1.5, job_id="exp-0"))
    changed = [job.id for event in placed(table, "exp-0") for job in table.apply(event)]
    assert changed == ["exp-1", "exp-0", "exp-0"]
    assert (table["exp-0"].state in ACTIVE, may_start(table)) == (True, ["exp-0"])
    for event in placed(table, "exp-1"):
        assert table.apply(event) == []
    table.apply(ended(table, "exp-0"))
    assert may_start(table) == ["exp-1"]


def test_a_preempted_or_retried_job_keeps_its_place_and_a_held_one_gives_it_up() -> None:
    table = JobTable()
    for number in range(4):
        table.apply(submitted(number, retries=1))
    for event in placed(table, "exp-0"):
        table.apply(event)
    table.apply(ended(table, "exp-0", "failed"))
    assert table["exp-0"].state is JobState.PENDING
    assert may_start(table) == ["exp-0", "exp-1"]
    table.apply(JobHeld(at_s=4.0, job_id="exp-0"))
    assert may_start(table) == ["exp-1", "exp-2"]
    table.apply(JobReleased(at_s=5.0, job_id="exp-0"))
    assert may_start(table) == ["exp-1", "exp-2"]
    table.apply(JobCancelled(at_s=6.0, job_id="exp-1"))
    assert may_start(table) == ["exp-0", "exp-2"]  # it comes first again


def test_an_array_that_is_over_is_forgotten_and_a_snapshot_has_the_others() -> None:
    table = JobTable()
    for number in range(3):
        table.apply(submitted(number))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(table), type=JobTable)
    assert may_start(again) == ["exp-0", "exp-1"]
    for number in range(3):
        table.apply(JobCancelled(at_s=6.0, job_id=f"exp-{number}"))
    assert table.arrays == {}


def test_how_many_run_is_what_the_first_says_and_nothing_that_others_submit() -> None:
    table = JobTable()
    for number in range(4):
        table.apply(submitted(number, user="ann", most=3))
    table.apply(submitted(4, user="bob", most=1))
    table.apply(submitted(5, user="ann", most=1))
    table.apply(JobCancelled(at_s=6.0, job_id="exp-0"))
    assert may_start(table) == ["exp-1", "exp-2", "exp-3", "exp-4"]
    table.forget("exp-4")
    assert list(table.arrays) == ["exp/ann"]


def test_a_held_job_is_looked_at_no_more_and_gets_its_place_again() -> None:
    table = JobTable()
    for number in range(JOBS):
        table.apply(submitted(number, hold=number == 5))
    for number in range(JOBS):
        table.apply(JobHeld(at_s=4.0, job_id=f"exp-{number}"))
    table = msgspec.msgpack.decode(msgspec.msgpack.encode(table), type=JobTable)
    window = table.arrays["exp/"]
    assert (window.open, list(window.line), may_start(table)) == ({}, [], [])
    for number in (5, 4, 3, 0):
        table.apply(JobReleased(at_s=5.0, job_id=f"exp-{number}"))
    assert may_start(table) == ["exp-4", "exp-5"]
    table.apply(JobHeld(at_s=6.0, job_id="exp-4"))
    assert may_start(table) == ["exp-0", "exp-5"]
    table.apply(JobCancelled(at_s=6.0, job_id="exp-3"))
    table.apply(JobCancelled(at_s=6.0, job_id="exp-0"))
    assert may_start(table) == ["exp-5"]
    assert list(table.arrays["exp/"].places) == ["exp-1", "exp-2", "exp-4", "exp-5"]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, JOBS - 1)), max_size=60))
def test_never_too_many_run_and_none_waits_without_need(acts: list[tuple[int, int]]) -> None:
    table = JobTable()
    for kind, number in acts:
        job_id = f"exp-{number}"
        job = table.get(job_id)
        events: list[Event] = (
            [submitted(number, hold=number == 0, after=("afterok:prep",) if number == 3 else ())]
            if kind == 0 or job is None
            else []
        )
        if job is not None and kind == 1:
            events = placed(table, job_id)
        elif job is not None and kind == 2 and job.state in ACTIVE:
            events = [ended(table, job_id, ("completed", "failed", "preempted")[number % 3])]
        elif kind == 3:
            events = [JobCancelled(at_s=4.0, job_id=job_id)]
        elif kind == 4:
            events = [JobHeld(at_s=4.0, job_id=job_id)]
        elif kind == 5:
            events = [JobReleased(at_s=4.0, job_id=job_id)]
        elif kind == 6:
            events = [JobUnblocked(at_s=4.0, job_id=job_id)]
        for event in events:
            table.apply(event)
        running = [job for job in table if job.state in ACTIVE or job.state is JobState.COMPLETING]
        assert len(running) <= MOST
        waits = [job for job in table if job.in_line and not (job.held or job.blocked) and job.state not in TERMINAL]
        window = table.arrays.get("exp/")
        assert not waits or (window is not None and len(window.open) == MOST)
