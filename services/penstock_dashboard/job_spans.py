"""
The life of each job as spans of one trace, folded from the log.

A job is a trace: a root span from its submission to its end, and below it a span for each time it waited, was started
and ran. What happened at one moment (a checkpoint, a preemption) is an event of the span in which it fell. The ids
follow from the job's id, so that the same log gives the same spans, whoever exports them and however often.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2s
from typing import Final, Literal, assert_never

import msgspec

from penstock_log import (
    Commit,
    Event,
    JobCancelled,
    JobEntered,
    JobFinished,
    JobHeld,
    JobReleased,
    JobSpec,
    JobSubmitted,
    JobTimedOut,
    JobTimeSet,
    JobUnblocked,
    Placement,
    Preemption,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunRewound,
    RunStarted,
    RunWarned,
)
from penstock_log.tracing import TraceParent, parsed

SCHEMA: Final = "job-spans.v1"
MOST_EVENTS: Final = 100
Value = str | int | float | bool


class SpanEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened at one moment of a span."""

    name: str
    at_s: float
    attributes: dict[str, Value] = {}


class JobSpan(msgspec.Struct, frozen=True, kw_only=True):
    """
    One span.

    Attributes
    ----------
    trace_id, span_id, parent_id : str
        32, 16 and 16 hexadecimal digits; no parent: empty.
    error : str
        Why what it stands for failed; empty where it did not.
    """

    name: str
    trace_id: str
    span_id: str
    begun_s: float
    ended_s: float
    parent_id: str = ""
    attributes: dict[str, Value] = {}
    events: tuple[SpanEvent, ...] = ()
    error: str = ""


class _Open(msgspec.Struct, kw_only=True):
    """A span that has not ended."""

    name: Literal["wait", "start", "run"]
    epoch: int
    begun_s: float
    attributes: dict[str, Value] = {}
    events: list[SpanEvent] = []


class _OpenJob(msgspec.Struct, kw_only=True):
    """A job that has not ended, with the span that it is in."""

    id: str
    trace: TraceParent
    submitted_s: float
    attributes: dict[str, Value]
    span: _Open | None
    nodes: set[str] = set()
    events: list[SpanEvent] = []
    timed_out: bool = False


class SpanState(msgspec.Struct, kw_only=True):
    """The jobs that have not ended."""

    jobs: dict[str, _OpenJob] = {}


def trace_of(job_id: str, trace: str = "") -> TraceParent:
    """
    Return the trace of a job, and its parent's span: those that its submission came with, or an id of its own.

    Examples
    --------
    >>> trace_of("j1") == trace_of("j1"), trace_of("j1") == trace_of("j2"), len(trace_of("j1").trace_id)
    (True, False, 32)
    """
    return parsed(trace) or TraceParent(trace_id=_hash(job_id, 16))


def span_id(job_id: str, name: str = "", epoch: int = 0) -> str:
    """Return the id of a span of a job; of its root span by default."""
    return _hash(f"{job_id} {name} {epoch}", 8)


def _hash(text: str, size_bytes: int) -> str:
    return blake2s(text.encode(), digest_size=size_bytes).hexdigest()


def apply(state: SpanState, event: Event, commit: Commit, seq: int) -> Iterator[JobSpan]:
    """Fold one fact in, and yield the spans that it ends."""
    match event:
        case JobSubmitted():
            state.jobs[event.job_id] = _OpenJob(
                id=event.job_id,
                trace=trace_of(event.job_id, commit.trace),
                submitted_s=event.at_s,
                attributes=_about(event.spec, event.job_id, seq),
                span=_Open(name="wait", epoch=0, begun_s=event.at_s),
            )
        case RoundDecided():
            for preemption in event.preemptions:
                _preempted(state, preemption, event.at_s, seq)
            for placement in event.placements:
                yield from _placed(state, placement, event.at_s, seq)
        case RunStarted():
            yield from _started(state, event, seq)
        case RunEnded():
            yield from _ended(state, event, seq)
        case JobFinished():
            yield from _finished(state, event, seq)
        case (
            JobCancelled()
            | JobHeld()
            | JobReleased()
            | JobUnblocked()
            | JobTimedOut()
            | JobTimeSet()
            | JobEntered()
            | RunCheckpointed()
            | RunRewound()
            | RunWarned()
        ):
            _happened(state, event, seq)
        case _:
            pass


def _about(spec: JobSpec, job_id: str, seq: int) -> dict[str, Value]:
    found: dict[str, Value] = {
        "penstock.job.id": job_id,
        "penstock.job.name": spec.name,
        "penstock.job.gpus": spec.gpus,
        "penstock.pool": spec.pool,
        "penstock.seq": seq,
    }
    more = {
        "enduser.id": spec.user,
        "penstock.team": spec.team,
        "penstock.model": spec.model,
        "penstock.sweep": spec.parent,
    }
    return found | {name: value for name, value in more.items() if value}


def _placed(state: SpanState, placement: Placement, at_s: float, seq: int) -> Iterator[JobSpan]:
    if (job := state.jobs.get(placement.job_id)) is None:
        return
    yield from _closed(job, at_s)
    slots = [f"{slot.node_id}/{placement.kind}{index}" for slot in placement.slots for index in slot.devices]
    about: dict[str, Value] = {
        "penstock.devices": ", ".join(slots),
        "penstock.kind": placement.kind,
        "penstock.seq": seq,
    }
    job.span = _Open(name="start", epoch=placement.epoch, begun_s=at_s, attributes=about)
    job.nodes = {slot.node_id for slot in placement.slots}


def _started(state: SpanState, event: RunStarted, seq: int) -> Iterator[JobSpan]:
    job = state.jobs.get(event.job_id)
    if job is None or job.span is None or job.span.name != "start" or job.span.epoch != event.epoch:
        return
    about = {**job.span.attributes, "penstock.seq": seq, "penstock.resumed_step": event.resumed_step}
    yield from _closed(job, event.at_s)
    job.span = _Open(name="run", epoch=event.epoch, begun_s=event.at_s, attributes=about)


def _ended(state: SpanState, event: RunEnded, seq: int) -> Iterator[JobSpan]:
    """Close the run once the last of its nodes is done; the job then waits, unless its end comes at once."""
    job = state.jobs.get(event.job_id)
    if job is None or job.span is None or job.span.epoch != event.epoch:
        return
    job.nodes.discard(event.node_id)
    if job.nodes:
        return
    about: dict[str, Value] = {
        "penstock.outcome": "timed_out" if job.timed_out and event.outcome == "preempted" else event.outcome,
        "penstock.steps": event.steps,
        "penstock.end_seq": seq,
    }
    if event.exit_code is not None:
        about["process.exit.code"] = event.exit_code
    job.span.attributes = {**job.span.attributes, **about}
    yield from _closed(job, event.at_s, event.reason or "failed" if event.outcome == "failed" else "")
    job.span = _Open(name="wait", epoch=event.epoch, begun_s=event.at_s)


def _finished(state: SpanState, event: JobFinished, seq: int) -> Iterator[JobSpan]:
    if (job := state.jobs.pop(event.job_id, None)) is None:
        return
    ended_s = max(event.at_s, job.submitted_s)
    if job.span is not None and (job.span.name != "wait" or job.span.begun_s < ended_s):
        yield from _closed(job, ended_s)
    about = {**job.attributes, "penstock.state": event.state, "penstock.end_seq": seq, "penstock.gpu_s": event.gpu_s}
    yield JobSpan(
        name=f"job {job.attributes['penstock.job.name']}",
        trace_id=job.trace.trace_id,
        span_id=span_id(job.id),
        parent_id=job.trace.parent_id,
        begun_s=job.submitted_s,
        ended_s=ended_s,
        attributes=about,
        events=tuple(job.events),
        error=event.reason or "failed" if event.state == "failed" else "",
    )


def _closed(job: _OpenJob, at_s: float, error: str = "") -> Iterator[JobSpan]:
    """Yield the span that a job is in, ended now."""
    span, job.span = job.span, None
    if span is not None:
        yield JobSpan(
            name=span.name,
            trace_id=job.trace.trace_id,
            span_id=span_id(job.id, span.name, span.epoch),
            parent_id=span_id(job.id),
            begun_s=span.begun_s,
            ended_s=max(at_s, span.begun_s),
            attributes={"penstock.job.id": job.id, "penstock.epoch": span.epoch, **span.attributes},
            events=tuple(span.events),
            error=error,
        )


def _preempted(state: SpanState, preemption: Preemption, at_s: float, seq: int) -> None:
    if (job := state.jobs.get(preemption.job_id)) is not None:
        _note(
            job, SpanEvent(name="preempted", at_s=at_s, attributes={"reason": preemption.reason, "penstock.seq": seq})
        )


_BY_PEOPLE: Final = {JobCancelled: "cancelled", JobHeld: "held", JobReleased: "released", JobEntered: "entered"}
_OF_TIME: Final = {JobTimedOut: "timed out", JobTimeSet: "time set"}
Happened = (
    JobCancelled
    | JobHeld
    | JobReleased
    | JobUnblocked
    | JobTimedOut
    | JobTimeSet
    | JobEntered
    | RunCheckpointed
    | RunRewound
    | RunWarned
)


def _happened(state: SpanState, event: Happened, seq: int) -> None:
    if (job := state.jobs.get(event.job_id)) is None:
        return
    job.timed_out |= isinstance(event, JobTimedOut)
    name, more = _worded(event)
    _note(job, SpanEvent(name=name, at_s=event.at_s, attributes={"penstock.seq": seq, **more}))


def _worded(event: Happened) -> tuple[str, dict[str, Value]]:
    match event:
        case RunCheckpointed():
            return "checkpointed", {"step": event.step}
        case RunRewound():
            return "rewound", {"step": event.step, "reason": event.reason}
        case RunWarned():
            return "warned", {"warning": event.warning}
        case JobCancelled() | JobHeld() | JobReleased() | JobEntered():
            return _BY_PEOPLE[type(event)], {"by": event.by}
        case JobTimedOut() | JobTimeSet():
            return _OF_TIME[type(event)], {"limit_s": event.limit_s}
        case JobUnblocked():
            return "unblocked", {"met": ", ".join(event.met)}
        case _:
            assert_never(event)


def _note(job: _OpenJob, event: SpanEvent) -> None:
    """Note an event in the span that the job is in; the first ones are kept."""
    events = job.span.events if job.span is not None else job.events
    if len(events) < MOST_EVENTS:
        events.append(event)
