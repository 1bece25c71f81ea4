"""A cluster's log as a trace: what jobs asked for, and how long they really ran."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from penstock.client import facts as views_of
from penstock_bus import Delivery
from penstock_log import AnyEvent, JobCancelled, JobSpec, JobSubmitted, RoundDecided, RunEnded, RunStarted
from penstock_log.decision_facts import Placement, Slot
from penstock_log.facts import ProfileSample, SamplesRequested
from penstock_simulator import traces
from penstock_simulator.trace import Trace
from penstock_simulator.traces import TraceError, log_file
from penstock_simulator.traces.log_file import LogTrace
from penstock_testing import delivery


def submitted(job_id: str, at_s: float, **fields: object) -> JobSubmitted:
    spec = JobSpec(name=job_id, command=("true",), **fields)  # type: ignore[arg-type] # any field of a job
    return JobSubmitted(job_id=job_id, spec=spec, at_s=at_s)


def placed(job_id: str, at_s: float, *nodes: str, epoch: int = 1) -> RoundDecided:
    slots = tuple(Slot(node_id=node, devices=(0,)) for node in nodes)
    return RoundDecided(
        pool="default", placements=(Placement(job_id=job_id, epoch=epoch, kind="fast", slots=slots),), at_s=at_s
    )


def started(job_id: str, at_s: float, node: str = "n1", epoch: int = 1) -> RunStarted:
    return RunStarted(job_id=job_id, epoch=epoch, node_id=node, devices=(0,), at_s=at_s)


def ended(job_id: str, at_s: float, outcome: str = "completed", node: str = "n1", epoch: int = 1) -> RunEnded:
    return RunEnded(job_id=job_id, epoch=epoch, node_id=node, outcome=outcome, at_s=at_s)  # type: ignore[arg-type]


LOG: tuple[AnyEvent, ...] = (
    submitted("j1", 100.0, user="ann", team="nlp", model="bert", gpus=2, kinds=("fast", "slow")),
    submitted("j2", 101.0, user="bob"),
    submitted("j3", 102.0, user="bob"),
    submitted("j4", 103.0, user="bob"),
    placed("j1", 104.0, "n1", "n2"),
    started("j1", 105.0, "n1"),
    started("j1", 106.0, "n2"),
    ended("j1", 115.0, "preempted", "n1"),
    ended("j1", 116.0, "preempted", "n2"),
    placed("j2", 116.0, "n1"),
    started("j2", 117.0),
    placed("j1", 118.0, "n1", "n2", epoch=2),
    started("j1", 120.0, "n1", epoch=2),
    started("j1", 120.0, "n2", epoch=2),
    ended("j1", 125.0, "completed", "n1", epoch=2),
    ended("j1", 125.0, "completed", "n2", epoch=2),
    JobCancelled(job_id="j3", at_s=126.0),
    ended("j2", 127.0, "failed"),
    placed("j4", 128.0, "n1"),
    started("j4", 130.0),
    submitted("j5", 135.0),
)


def deliveries(log: Iterable[AnyEvent] = LOG) -> list[Delivery]:
    return [delivery(seq, fact) for seq, fact in enumerate(log, 1)]


def history(log: Iterable[AnyEvent] = LOG) -> Trace:
    found = LogTrace("cluster")
    for one in deliveries(log):
        found.add(one)
    return found.trace()


def test_a_job_is_as_long_as_all_its_runs_together() -> None:
    trace = history()
    assert list(trace.job_ids) == ["j1", "j2", "j4"]
    assert trace.submit_s.tolist() == [100.0, 101.0, 103.0]
    assert trace.num_gpus.tolist() == [2, 1, 1]
    assert trace.duration_s.tolist() == [(116.0 - 105.0) + (125.0 - 120.0), 10.0, 5.0]


def test_what_the_specification_says_of_a_job_is_kept() -> None:
    trace = history()
    assert (trace.users, trace.vcs) == (["ann", "bob", "bob"], ["nlp", "", ""])
    assert (trace.models, trace.kinds) == (["bert", "", ""], ["fast|slow", "", ""])


def test_a_job_that_still_runs_counts_with_what_it_has_run_and_says_so() -> None:
    assert history().states == ["completed", "failed", "running"]


def test_jobs_that_never_started_are_counted_as_dropped() -> None:
    assert history().dropped == {"never started": 2}


def test_samples_of_the_profiler_are_no_jobs() -> None:
    sample = ProfileSample(sample_id="j1-s1", kind="fast", iterations=3)
    asked = SamplesRequested(key="w", spec=JobSpec(name="j1", command=("true",)), samples=(sample,), at_s=90.0)
    ran = (placed("j1-s1", 91.0, "n1"), started("j1-s1", 92.0), ended("j1-s1", 93.0))
    trace = history((asked, *ran, *LOG))
    assert (list(trace.job_ids), trace.dropped["sample of the profiler"]) == (["j1", "j2", "j4"], 1)


def test_an_empty_log_is_a_trace_without_jobs() -> None:
    assert len(history(())) == 0


@pytest.mark.parametrize("form", ["a fact a line", "a page", "a page on one line"])
def test_saved_events_are_told_by_their_content_and_read(tmp_path: Path, form: str) -> None:
    path = tmp_path / "events.json"
    views = [view for one in deliveries() for view in views_of(one)]
    page = msgspec.json.encode({"events": views, "seq": len(views)})
    match form:
        case "a fact a line":
            path.write_bytes(b"".join(msgspec.json.encode(view) + b"\n" for view in views))
        case "a page":
            path.write_bytes(msgspec.json.format(page, indent=2))
        case _:
            path.write_bytes(page)
    trace = traces.read(path)
    assert trace.name == "events"
    assert trace.duration_s.tolist() == history().duration_s.tolist()


def test_the_log_that_a_simulation_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sim.jsonl"
    path.write_bytes(b"".join(map(log_file.encode, deliveries())))
    assert traces.read(path).duration_s.tolist() == history().duration_s.tolist()


def test_a_line_that_is_no_fact_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sim.jsonl"
    path.write_bytes(b"".join(map(log_file.encode, deliveries()[:2])) + b'{"seq": "three"}\n')
    with pytest.raises(TraceError, match=r"sim\.jsonl: line 3 is no fact of a log"):
        traces.read(path)
