"""Jobs' lives as spans: from the log, and at a collector."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from gateway_cases import ended, gateway, joined, placed, preempted, started, submitted

from penstock_bus import Append
from penstock_bus.follower import background
from penstock_bus.memory import MemoryBus
from penstock_bus.nats.log import headers_of
from penstock_bus.shell import Shell
from penstock_dashboard import job_spans
from penstock_dashboard.job_spans import JobSpan, SpanState, span_id
from penstock_dashboard.span_export import export_spans
from penstock_log import (
    AnyEvent,
    Commit,
    JobFinished,
    JobTimedOut,
    Placement,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    Slot,
    tracing,
)
from penstock_testing import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


def spans(*facts: AnyEvent, trace: str = "") -> list[JobSpan]:
    """Return the spans that a log with these facts has ended."""
    state = SpanState()

    def each() -> Iterator[JobSpan]:
        for seq, fact in enumerate(facts, 1):
            yield from job_spans.apply(state, fact, Commit(id=f"c{seq}", actor="t", facts=(fact,), trace=trace), seq)

    return list(each())


def finished(state: str = "completed", at_s: float = 1_700_000_005.0, **more: object) -> JobFinished:
    return JobFinished(**{"at_s": at_s, "job_id": "j1", "name": "job", "state": state, "submitted_s": 0.0, **more})


def test_a_job_that_waits_and_runs_is_four_spans_of_one_trace() -> None:
    found = spans(submitted(), placed(), started(), ended(steps=7, exit_code=0), finished())
    assert [span.name for span in found] == ["wait", "start", "run", "job job"]
    assert {span.trace_id for span in found} == {found[-1].trace_id}
    assert {span.parent_id for span in found[:-1]} == {found[-1].span_id}
    assert [round(span.ended_s - span.begun_s) for span in found] == [1, 1, 3, 5]
    run = found[2].attributes
    assert (run["penstock.devices"], run["penstock.steps"], run["process.exit.code"]) == ("n1/fast0", 7, 0)


def test_a_preempted_job_waits_again_and_its_runs_are_told_apart() -> None:
    again = (
        placed(epoch=2, at_s=1_700_000_008.0),
        started(epoch=2, at_s=1_700_000_009.0),
        ended(epoch=2, at_s=1_700_000_012.0),
    )
    checkpoint = RunCheckpointed(at_s=1_700_000_004.0, job_id="j1", epoch=1, node_id="n1", step=3)
    first = (submitted(), placed(), started(), preempted(reason="for j9"), checkpoint, ended(outcome="preempted"))
    found = spans(*first, *again, finished(at_s=1_700_000_012.0))
    assert [span.name for span in found] == ["wait", "start", "run", "wait", "start", "run", "job job"]
    assert len({span.span_id for span in found}) == 7
    assert [event.name for event in found[2].events] == ["preempted", "checkpointed"]
    assert found[2].events[0].attributes["reason"] == "for j9"
    assert found[2].attributes["penstock.outcome"] == "preempted"


def test_the_run_of_a_job_whose_time_is_over_is_no_preempted_one() -> None:
    over = JobTimedOut(at_s=1_700_000_004.0, job_id="j1", limit_s=2.0, executed_s=2.0)
    found = spans(submitted(), placed(), started(), over, ended(outcome="preempted"), finished("failed"))
    assert found[2].attributes["penstock.outcome"] == "timed_out"


def test_a_gang_runs_until_its_last_node_has_ended() -> None:
    slots = (Slot(node_id="n1", devices=(0,)), Slot(node_id="n2", devices=(0,)))
    grant = Placement(job_id="j1", epoch=1, kind="fast", slots=slots)
    ends = [RunEnded(at_s=10.0 + n, job_id="j1", epoch=1, node_id=f"n{n}", outcome="completed") for n in (1, 2)]
    found = spans(
        submitted(at_s=1.0), RoundDecided(at_s=2.0, pool="default", placements=(grant,)), started(at_s=3.0), *ends
    )
    assert [(span.name, span.ended_s) for span in found] == [("wait", 2.0), ("start", 3.0), ("run", 12.0)]


def test_a_failure_is_an_error_of_its_run_and_of_its_job() -> None:
    found = spans(
        submitted(), placed(), started(), ended(outcome="failed", reason="exit 3"), finished("failed", reason="exit 3")
    )
    assert [span.error for span in found] == ["", "", "exit 3", "exit 3"]


def test_a_job_that_is_cancelled_while_it_waits_has_waited() -> None:
    found = spans(submitted(), finished("cancelled"))
    assert [span.name for span in found] == ["wait", "job job"]


def test_the_same_log_gives_the_same_spans() -> None:
    facts = (submitted(), placed(), started(), ended(), finished())
    assert spans(*facts) == spans(*facts)


def test_a_job_goes_on_with_the_trace_that_it_came_with() -> None:
    found = spans(submitted(), placed(), started(), ended(), finished(), trace=f"{TRACE}-{PARENT}")
    assert {span.trace_id for span in found} == {TRACE}
    assert found[-1].parent_id == PARENT


class Collector:
    """Takes spans, or does not."""

    def __init__(self, refuses: int = 0) -> None:
        self.taken: list[JobSpan] = []
        self.refuses = refuses
        self.offered = 0

    def export(self, spans: Sequence[JobSpan]) -> bool:
        self.offered += 1
        if self.refuses:
            self.refuses -= 1
            return False
        self.taken += spans
        return True


LIFE = (submitted(), placed(), started(), ended())


async def test_one_replica_sends_spans_and_another_goes_on_where_it_ended(memory_bus: MemoryBus) -> None:
    first, second = Collector(), Collector()
    async with gateway(memory_bus, joined()) as served:
        async with background(export_spans(Shell(memory_bus, "dashboard", "d1"), first, wait_s=0.05)):
            await served.told(*LIFE)
            await eventually(lambda: len(first.taken) == 4)
        await served.told(submitted("j2"), placed("j2"), started("j2"), ended("j2"))
        async with background(export_spans(Shell(memory_bus, "dashboard", "d2"), second, wait_s=0.05)):
            await eventually(lambda: len(of_job("j2", second)) == 4)
    assert of_job("j2", first) == []
    assert {span.span_id for span in of_job("j1", second)} <= {span.span_id for span in first.taken}  # sent again


def of_job(job_id: str, collector: Collector) -> list[JobSpan]:
    return [span for span in collector.taken if span.attributes["penstock.job.id"] == job_id]


async def test_spans_that_a_collector_does_not_take_are_offered_again(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_dashboard.span_export.AGAIN_S", 0.01)
    collector = Collector(refuses=3)
    exporting = export_spans(Shell(memory_bus, "dashboard", "d1"), collector, wait_s=0.05)
    async with gateway(memory_bus, joined()) as served, background(exporting):
        await served.told(*LIFE)
        await eventually(lambda: len(collector.taken) == 4)
    assert collector.offered > 3
    assert [span.name for span in collector.taken] == ["wait", "start", "run", "job job"]


async def test_a_submission_s_trace_is_kept_in_its_commit(memory_bus: MemoryBus) -> None:
    async with gateway(memory_bus, joined()) as served:
        spec = {"name": "a", "command": ["true"], "id": "j1"}
        await served.command("submit", {"spec": spec, "traceparent": f"00-{TRACE}-{PARENT}-01"})
        await served.command("submit", {"spec": {**spec, "id": "j2"}, "traceparent": "nonsense"})
        commits = {one.subject: one.commit for one in await memory_bus.read("penstock.evt.job.*")}
    assert commits["penstock.evt.job.j1"].trace == f"{TRACE}-{PARENT}"
    assert commits["penstock.evt.job.j2"].trace == ""


def test_a_message_with_a_trace_has_the_header() -> None:
    commit = Commit(id="c1", actor="t", facts=(), trace=f"{TRACE}-{PARENT}")
    assert headers_of(Append(subject="s", commit=commit, expected=None))["traceparent"] == (
        f"00-{TRACE}-{tracing.span_of('c1')}-01"
    )


async def test_a_collector_that_speaks_otlp_gets_the_spans() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="NOT TESTED: OTLP; pip install 'penstock[otel]'")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: PLC0415

    from penstock_dashboard.otlp import OtlpExporter  # noqa: PLC0415

    received: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        received.append(head.split(b" ")[1] + b"\n" + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    found = spans(
        submitted(user="alice"), placed(), started(), ended(outcome="failed", reason="exit 3"), finished("failed")
    )
    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await asyncio.to_thread(OtlpExporter(f"http://127.0.0.1:{port}", "1").export, found)
    path, _, body = received[0].partition(b"\n")
    assert path == b"/v1/traces"
    sent = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert [span.name for span in sent] == ["wait", "start", "run", "job job"]
    assert sent[2].parent_span_id.hex() == span_id("j1") == sent[3].span_id.hex()
    assert sent[2].status.message == "exit 3"
    assert {one.key: one.value.string_value for one in sent[3].attributes}["enduser.id"] == "alice"
