"""The lines that the demo prints where its output is no terminal."""

from __future__ import annotations

from demo.events import EventLines, Narrator
from demo.workload import elastic, first
from penstock_log import (
    AnyEvent,
    Demand,
    Device,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    NodeJoined,
    Placement,
    Preemption,
    ProfileSample,
    RoundDecided,
    RunEnded,
    RunStarted,
    SamplesRequested,
    ScaleDecided,
    Slot,
)
from penstock_log.validation import settled


def submitted(job_id: str = "j1") -> JobSubmitted:
    spec = settled(elastic().spec if job_id == "e1" else first().spec)
    return JobSubmitted(at_s=1.0, job_id=job_id, spec=spec)


def placed(job_id: str = "j1") -> RoundDecided:
    slots = (Slot(node_id="vm", devices=(1,)),)
    placement = Placement(job_id=job_id, epoch=1, kind="fast", slots=slots)
    return RoundDecided(at_s=2.0, pool="default", placements=(placement,))


def started(job_id: str = "j1", step: int = 0) -> RunStarted:
    return RunStarted(at_s=3.0, job_id=job_id, epoch=1, node_id="vm", devices=(1,), resumed_step=step)


def ended(outcome: str, reason: str = "") -> RunEnded:
    return RunEnded(at_s=4.0, job_id="j1", epoch=1, node_id="vm", outcome=outcome, reason=reason, steps=1200)


def told(*facts: AnyEvent) -> list[tuple[str, str]]:
    """Return what is said of the last fact."""
    narrator = Narrator()
    return [list(narrator.sentences(fact)) for fact in facts][-1]


def test_a_jobs_life_is_told():
    assert told(submitted()) == [("long", "submitted: 1 device of fast")]
    assert told(submitted(), placed()) == []
    assert told(submitted(), placed(), started()) == [("long", "started on fast1")]
    assert told(submitted(), placed(), started(step=40)) == [("long", "started on fast1, resumed after step 40")]
    stopped = told(submitted(), placed(), started(), ended("preempted"))
    assert stopped == [("long", "has stopped after step 1,200 (preempted)")]
    failed = told(submitted(), placed(), started(), ended("failed", "exit code 1"))
    assert failed == [("long", "has stopped after step 1,200 (failed: exit code 1)")]
    over = JobFinished(at_s=5.0, job_id="j1", name="long", state="completed", submitted_s=1.0, attempts=2, steps=1200)
    assert told(submitted(), over) == [("long", "completed after 1,200 steps in 2 runs")]
    assert told(submitted(), JobCancelled(at_s=5.0, job_id="j1", reason="enough")) == [("long", "is cancelled: enough")]


def test_a_completed_run_is_told_by_the_end_of_its_job():
    assert told(submitted(), placed(), started(), ended("completed")) == []


def test_a_preemption_says_for_whom():
    preemption = Preemption(job_id="j1", epoch=1, for_job="e1")
    decided = RoundDecided(at_s=4.0, pool="default", preemptions=(preemption,))
    assert told(submitted(), submitted("e1"), placed(), decided) == [("long", "is preempted for elastic")]


def test_a_resize_says_from_and_to_which_size():
    demand = Demand(job_id="e1", epoch=1, gpus=2, batch_size=128)
    decided = ScaleDecided(at_s=4.0, pool="default", demands=(demand,))
    (one,) = told(submitted("e1"), placed("e1"), started("e1"), decided)
    assert one == ("elastic", "is to go on on 2 devices and a batch of 128, from 1 and 64")
    assert told(submitted("e1"), decided) == []  # its first size


def test_samples_are_told_of_as_one():
    sample = ProfileSample(sample_id="s1", kind="fast", iterations=5)
    asked = SamplesRequested(at_s=1.0, key="k", spec=first().spec, samples=(sample, sample))
    assert told(asked) == [("mlp", "a new workload, sampled on fast")]
    assert told(asked, placed("s1"), started("s1")) == []


def test_a_line_has_the_seconds_since_the_start():
    lines: list[str] = []
    display = EventLines(began_s=100.0, now_s=lambda: 107.26, write=lines.append)
    display.refuse("never-fits", "refused")
    assert lines == ["   7.3 s  never-fits        refused"]


def test_a_node_tells_its_devices():
    devices = (Device(index=0, kind="fast", memory_bytes=1, backend="emulated"),)
    joined = NodeJoined(at_s=1.0, node_id="vm", devices=devices, incarnation="1")
    assert told(joined) == [("vm", "has joined with fast0")]
