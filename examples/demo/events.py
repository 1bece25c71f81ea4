"""The demo as it happens, a line for each thing, for output that is no terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import msgspec

import penstock
from penstock_log import (
    AnyEvent,
    Job,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    JobTable,
    KindSpeed,
    NodeJoined,
    RoundDecided,
    RunEnded,
    RunStarted,
    SamplesRequested,
    ScaleDecided,
    SweepFinished,
    SweepSubmitted,
    WorkloadProfiled,
    views,
)

PAGE = 1000
NAME_WIDTH = 16


async def facts_after(client: penstock.Client, seq: int) -> AsyncIterator[tuple[int, AnyEvent]]:
    """Yield the log's facts behind a sequence, each with its own."""
    while page := (await client.events(after=seq, limit=PAGE)).events:
        for view in page:
            yield view.seq, fact_of(view)
        seq = page[-1].seq


def fact_of(view: views.EventView) -> AnyEvent:
    """Return the fact that a view shows."""
    fact: AnyEvent = msgspec.convert({**view.fact, "type": view.type, "at_s": view.at_s}, AnyEvent)
    return fact


class EventLines:
    """
    Prints a line for each thing that happens, with the seconds since the demo's start.

    Parameters
    ----------
    began_s : float
        When the demo started, in seconds since the epoch.
    now_s : callable
        Returns the time, likewise.
    write : callable
        Takes a line.
    """

    def __init__(self, began_s: float, now_s: Callable[[], float], write: Callable[[str], object]) -> None:
        self._began_s, self._now_s, self._write = began_s, now_s, write
        self._narrator, self._seq = Narrator(), 0

    async def watch(self, client: penstock.Client) -> None:
        """Print what happens until cancelled."""
        async for view in client.follow_events():
            self._tell(view.seq, fact_of(view))

    async def finish(self, client: penstock.Client) -> None:
        """Print what has happened since."""
        async for seq, fact in facts_after(client, self._seq):
            self._tell(seq, fact)

    def refuse(self, name: str, reason: str) -> None:
        """Print that a job was not accepted."""
        self._line(self._now_s(), name, reason)

    def _tell(self, seq: int, fact: AnyEvent) -> None:
        self._seq = seq
        for name, text in self._narrator.sentences(fact):
            self._line(fact.at_s, name, text)

    def _line(self, at_s: float, name: str, text: str) -> None:
        self._write(f"{max(0.0, at_s - self._began_s):6.1f} s  {name:<{NAME_WIDTH}}  {text}")


class Narrator:
    """Says in words what facts mean; knows the jobs by what it has been told."""

    def __init__(self) -> None:
        self._jobs = JobTable()
        self._workloads: dict[str, str] = {}

    def sentences(self, fact: AnyEvent) -> Iterator[tuple[str, str]]:
        """Yield whom a fact is about, and what it says of it; nothing for what people need not know."""
        yield from self._before(fact)
        self._jobs.apply(fact)
        yield from self._after(fact)

    def _before(self, fact: AnyEvent) -> Iterator[tuple[str, str]]:
        """Yield what is said of jobs as they were before the fact."""
        match fact:
            case ScaleDecided():
                for demand in fact.demands:
                    if (job := self._known(demand.job_id)) is not None and job.placement is not None:
                        size = f"{_count(demand.gpus, 'device')} and a batch of {demand.batch_size}"
                        yield job.spec.name, f"is to go on on {size}, from {job.spec.gpus} and {job.spec.batch_size}"
            case RoundDecided():
                for preemption in fact.preemptions:
                    if (job := self._known(preemption.job_id)) is not None and preemption.for_job:
                        yield job.spec.name, f"is preempted for {self._name(preemption.for_job)}"
            case RunEnded() if (job := self._known(fact.job_id)) is not None and fact.outcome != "completed":
                reason = f": {fact.reason}" if fact.outcome == "failed" and fact.reason else ""
                yield job.spec.name, f"has stopped after step {fact.steps:,} ({fact.outcome}{reason})"

    def _after(self, fact: AnyEvent) -> Iterator[tuple[str, str]]:
        match fact:
            case NodeJoined():
                kinds = ", ".join(f"{device.kind}{device.index}" for device in fact.devices)
                yield fact.node_id, f"has joined with {kinds}"
            case JobSubmitted():
                yield fact.spec.name, f"submitted: {_asked(self._jobs[fact.job_id])}"
            case SweepSubmitted():
                yield fact.spec.name, "submitted: a sweep"
            case SamplesRequested():
                self._workloads[fact.key] = fact.spec.model
                kinds = ", ".join(dict.fromkeys(sample.kind for sample in fact.samples))
                yield fact.spec.model, f"a new workload, sampled on {kinds}"
            case WorkloadProfiled() if model := self._workloads.pop(fact.key, ""):
                yield model, f"relative speeds: {', '.join(map(_speed, fact.speeds))}"
            case RunStarted() if (job := self._known(fact.job_id)) is not None:
                again = f", resumed after step {fact.resumed_step:,}" if fact.resumed_step else ""
                yield job.spec.name, f"started on {_devices(job, fact)}{again}"
            case JobCancelled() if (job := self._known(fact.job_id)) is not None:
                yield job.spec.name, f"is cancelled: {fact.reason}"
            case JobFinished() if self._known(fact.job_id) is not None:
                yield fact.name, f"{fact.state} after {fact.steps:,} steps in {_count(fact.attempts, 'run')}"
            case SweepFinished():
                yield "digits", f"{fact.state}, the best trial is {self._name(fact.best_job_id)}"

    def _known(self, job_id: str) -> Job | None:
        """Return a job; None for a sample of the profiler."""
        job = self._jobs.get(job_id)
        return job if job is not None and job.sample is None else None

    def _name(self, job_id: str) -> str:
        job = self._jobs.get(job_id)
        return job.spec.name if job is not None else job_id


def _asked(job: Job) -> str:
    spec = job.spec
    gpus = f"{spec.min_gpus} to {spec.max_gpus} devices" if spec.elastic else _count(spec.gpus, "device")
    return f"{gpus}{f' of {spec.kinds[0]}' if spec.kinds else ''}"


def _devices(job: Job, fact: RunStarted) -> str:
    kind = job.placement.kind if job.placement is not None else ""
    return ", ".join(f"{kind}{device}" for device in fact.devices)


def _speed(speed: KindSpeed) -> str:
    return f"{speed.kind} {speed.speed:.2f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
