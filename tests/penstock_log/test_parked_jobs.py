"""Where a job's process is parked, by the log alone."""

import pytest
from fact_factories import ended, placed, preempted, started, submitted

from penstock_log import Event, JobCancelled, JobTable, NodeJoined, NodeLeft, RoundDecided, RunUnparked
from penstock_log.job_state import Parked

PARKED = ended(outcome="preempted", at_s=7.0, steps=40, parked=True, parked_bytes=2**30)
LIFE = (submitted(), placed(), started(), preempted(), PARKED)


def unparked(epoch: int = 1, node: str = "n1") -> RunUnparked:
    return RunUnparked(at_s=8.0, job_id="j1", epoch=epoch, node_id=node, reason="no room")


def fold(*events: Event) -> JobTable:
    jobs = JobTable()
    for event in events:
        jobs.apply(event)
    return jobs


def test_a_preempted_job_is_parked_where_its_run_ended() -> None:
    jobs = fold(*LIFE)
    assert jobs["j1"].parked == Parked(node_id="n1", epoch=1, held_bytes=2**30, since_s=7.0)
    assert (jobs["j1"].parked_on, jobs.parked) == ("n1", {"n1": ["j1"]})
    assert jobs["j1"].state == "PD"


@pytest.mark.parametrize(
    "event",
    [
        unparked(),
        placed(epoch=2),
        JobCancelled(job_id="j1", at_s=9.0),
        RoundDecided(at_s=9.0, pool="default", lost_nodes=("n1",)),
        NodeJoined(node_id="n1", devices=(), at_s=9.0),
        NodeLeft(node_id="n1", reason="shutdown", at_s=9.0),
    ],
    ids=lambda event: type(event).__name__,
)
def test_it_is_parked_no_more(event: Event) -> None:
    jobs = fold(*LIFE, event)
    assert (jobs["j1"].parked, jobs["j1"].parked_on, jobs.parked) == (None, "", {})


@pytest.mark.parametrize(
    "event", [unparked(epoch=2), unparked(node="n2"), NodeLeft(node_id="n2", reason="shutdown", at_s=9.0)]
)
def test_what_befalls_another_changes_nothing(event: Event) -> None:
    assert fold(*LIFE, event)["j1"].parked_on == "n1"


def test_a_job_that_is_over_is_not_parked() -> None:
    cancelled = JobCancelled(job_id="j1", at_s=6.0)
    assert fold(*LIFE[:-1], cancelled, PARKED).parked == {}


def test_a_job_that_is_forgotten_is_not_parked() -> None:
    jobs = fold(*LIFE)
    jobs.forget("j1")
    assert jobs.parked == {}
    jobs.apply(NodeLeft(node_id="n1", reason="shutdown", at_s=9.0))
