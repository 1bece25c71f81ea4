"""
Device time by the raw facts of a log, summed by brute force: nothing of the accounts' code is used.

Each grant of a device is an interval. Time is cut at the bounds of all intervals and of the window; within a piece
nothing changes, so that each device is divided among its holders there. Steps are sets of numbers: a run that goes on
after a step takes all later ones away from the runs before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from penstock_bus import Delivery
from penstock_log import (
    JobCancelled,
    JobSpec,
    JobSubmitted,
    JobTimedOut,
    JobUnblocked,
    RoundDecided,
    RunCheckpointed,
    RunEnded,
    RunRewound,
    RunStarted,
    SamplesRequested,
    ScaleDecided,
    TrialsScaled,
)

COLUMNS = ("requested", "waited", "held", "used", "idle", "unmeasured", "lost", "lost_to_preemption")
COUNTS = ("jobs", "runs", "preemptions")
Key = tuple[str, str, str, str, str, str]


@dataclass
class Grant:
    """A device that a run holds."""

    run: Run
    device: tuple[str, int]
    begin_s: float
    end_s: float | None = None


@dataclass
class Run:
    job: Tally
    epoch: int
    kind: str
    begin_s: float
    sharing: str
    gpus: int
    started_s: float | None = None
    begun: int = 0
    steps: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    ends: list[RunEnded] = field(default_factory=list)
    end_s: float | None = None
    outcomes: set[str] = field(default_factory=set)
    timed_out: bool = False

    @property
    def outcome(self) -> str:
        if self.end_s is None:
            return ""
        worst = ("cancelled", "lost", "failed", "preempted", "completed")
        found = next(one for one in worst if one in self.outcomes)
        return "stopped at its limit" if self.timed_out and found == "preempted" else found

    @property
    def part(self) -> float:
        return self.job.spec.fraction if self.sharing == "fraction" else 1.0

    @property
    def rate(self) -> float | None:
        """Which part of its time it was in iterations, or waited for a turn; None where nothing says so."""
        steps = max((end.loop_steps for end in self.ends), default=0)
        loop_s = max((end.loop_s for end in self.ends), default=0.0)
        if self.end_s is None or not self.ends or not (steps or loop_s or self.job.measured):
            return None
        seconds = self.end_s - self.started_s if self.started_s is not None else 0.0
        return min(1.0, (loop_s + max(end.waited_s for end in self.ends)) / seconds) if seconds else 0.0


@dataclass
class Wait:
    begin_s: float
    asked: float
    kind: str = ""
    end_s: float | None = None


@dataclass
class Tally:
    """What the facts say of one job."""

    id: str
    spec: JobSpec
    submitted_s: float
    is_sample: bool
    gpus: int
    sharing: str
    waits: list[Wait] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    epoch: int = 0
    failures: int = 0
    demand: Any = None
    checkpoint: int = 0
    checkpoint_s: float = 0.0
    is_cancelled: bool = False
    is_over: bool = False
    last_s: float = 0.0
    unblocked_s: float | None = None

    def by(self, at_s: float) -> float:
        """Return the time of a fact; clocks differ, and a job's time does not go back."""
        self.last_s = max(self.last_s, at_s)
        return self.last_s

    def wait(self, at_s: float) -> None:
        part = self.spec.fraction if self.sharing == "fraction" else 1.0
        self.waits.append(Wait(at_s, self.gpus * part))

    @property
    def eligible_s(self) -> float:
        """From when on its waiting counts: not before its begin, and not while it waits for other jobs."""
        if self.is_sample:
            return self.submitted_s
        if self.spec.after and self.unblocked_s is None:
            return float("inf")
        return max(self.spec.begin_s, self.unblocked_s or 0.0 if self.spec.after else 0.0)

    @property
    def measured(self) -> bool:
        return any(end.loop_steps for run in self.runs for end in run.ends)


class Oracle:
    """All intervals of a log."""

    def __init__(self, log: Iterable[Delivery], now_s: float = 0.0) -> None:
        self.jobs: dict[str, Tally] = {}
        self.grants: list[Grant] = []
        self.now_s = 0.0
        for delivery in log:
            self.now_s = now_s or delivery.stored_s
            for fact in delivery.commit.facts:
                self._read(fact)
        for job in self.jobs.values():
            _lose_steps(job)

    def _read(self, fact: Any) -> None:
        if isinstance(fact, JobSubmitted):
            self._add(fact.job_id, fact.spec, fact.at_s)
        elif isinstance(fact, SamplesRequested):
            self._add_samples(fact)
        elif isinstance(fact, ScaleDecided | TrialsScaled):
            self._scale(fact)
        elif isinstance(fact, RoundDecided):
            self._decide(fact)
        elif isinstance(fact, JobCancelled | JobTimedOut):
            job = self.jobs[fact.job_id]
            job.is_cancelled = True  # whatever becomes of its run, it does not wait again
            if not job.runs or job.runs[-1].end_s is not None:
                self._over(job, fact.at_s)
            elif isinstance(fact, JobTimedOut):
                job.runs[-1].timed_out = True
        elif isinstance(fact, JobUnblocked):
            job = self.jobs[fact.job_id]
            job.unblocked_s = fact.at_s if job.unblocked_s is None else job.unblocked_s
        elif isinstance(fact, RunStarted | RunEnded | RunCheckpointed | RunRewound):
            self._of_run(fact)

    def _add_samples(self, fact: SamplesRequested) -> None:
        for one in fact.samples:
            job = self._add(one.sample_id, fact.spec, fact.at_s, is_sample=True)
            job.gpus, job.sharing = one.gpus, "exclusive"
            job.waits[0].asked = one.gpus

    def _scale(self, fact: ScaleDecided | TrialsScaled) -> None:
        for demand in fact.demands:
            self._demand(demand, fact.at_s)
        for job_id in getattr(fact, "dropped", ()):
            self._over(self.jobs[job_id], fact.at_s)

    def _decide(self, fact: RoundDecided) -> None:
        for node in fact.lost_nodes:
            for grant in [one for one in self.grants if one.end_s is None and one.device[0] == node]:
                grant.run.outcomes.add("lost")
                self._release(grant, fact.at_s)
        for placement in fact.placements:
            self._place(placement, fact.at_s)

    def _add(self, job_id: str, spec: JobSpec, at_s: float, *, is_sample: bool = False) -> Tally:
        job = Tally(job_id, spec, at_s, is_sample, spec.gpus, spec.sharing)
        if job_id not in self.jobs:
            self.jobs[job_id] = job
            job.wait(job.by(at_s))
        return self.jobs[job_id]

    def _demand(self, demand: Any, at_s: float) -> None:
        job = self.jobs.get(demand.job_id)
        if job is None or demand.epoch != job.epoch or job.is_over:
            return
        if job.runs and job.runs[-1].end_s is None:
            job.demand = demand
            return
        job.epoch += 1
        before = job.gpus
        job.gpus, job.sharing = demand.gpus, demand.sharing
        if job.gpus != before:
            at_s = job.by(at_s)
            job.waits[-1].end_s = at_s
            job.wait(at_s)

    def _place(self, placement: Any, at_s: float) -> None:
        job = self.jobs.get(placement.job_id)
        if job is None or job.is_over or placement.epoch != job.epoch + 1:
            return
        job.epoch, at_s = placement.epoch, job.by(at_s)
        job.waits[-1].end_s, job.waits[-1].kind = at_s, placement.kind
        run = Run(job, placement.epoch, placement.kind, at_s, job.sharing, job.gpus)
        job.runs.append(run)
        devices = [(slot.node_id, index) for slot in placement.slots for index in slot.devices]
        self.grants += [Grant(run, device, at_s) for device in devices]

    def _of_run(self, fact: RunStarted | RunEnded | RunCheckpointed | RunRewound) -> None:
        job = self.jobs.get(fact.job_id)
        if job is None or not job.runs or job.runs[-1].epoch != fact.epoch or job.runs[-1].end_s is not None:
            return
        run = job.runs[-1]
        there = [one for one in self.grants if one.run is run and one.end_s is None and one.device[0] == fact.node_id]
        if not there:
            return
        if isinstance(fact, RunStarted) and run.started_s is None:
            run.started_s, run.begun = job.by(fact.at_s), fact.resumed_step
            _take(job, fact.resumed_step)
        elif isinstance(fact, RunRewound):
            job.checkpoint = fact.step if fact.generation else 0
            _take(job, fact.step)
        elif isinstance(fact, RunCheckpointed):
            job.checkpoint, job.checkpoint_s = max(job.checkpoint, fact.step), max(job.checkpoint_s, fact.at_s)
        elif isinstance(fact, RunEnded):
            run.ends.append(fact)
            run.outcomes.add(fact.outcome)
            for grant in there:
                self._release(grant, fact.at_s)

    def _release(self, grant: Grant, at_s: float) -> None:
        run = grant.run
        grant.end_s = at_s = run.job.by(at_s)
        if any(one.run is run and one.end_s is None for one in self.grants):
            return
        run.end_s, job = at_s, run.job
        until = max([run.begun, *(max(end.steps, run.begun + end.loop_steps) for end in run.ends)])
        if (
            not run.ends
            and run.started_s is not None
            and job.checkpoint > run.begun
            and job.checkpoint_s > run.started_s
        ):
            # its node is lost: it went on as fast as before its last checkpoint
            saved_s = job.checkpoint_s - run.started_s
            until = run.begun + round((job.checkpoint - run.begun) * max(saved_s, at_s - run.started_s) / saved_s)
        run.steps = set(range(run.begun + 1, until + 1))
        job.failures += run.outcome == "failed"
        again = run.outcome in {"preempted", "lost"} or (run.outcome == "failed" and job.failures <= job.spec.retries)
        if job.is_cancelled or not again or (job.is_sample and run.outcome == "failed"):
            job.is_over = True
            return
        if job.demand is not None:
            job.gpus, job.sharing, job.demand = job.demand.gpus, job.demand.sharing, None
        job.wait(at_s)

    def _over(self, job: Tally, at_s: float) -> None:
        job.is_over = True
        if job.waits[-1].end_s is None:
            job.waits[-1].end_s = job.by(at_s)

    def usage(self, since_s: float, until_s: float) -> dict[Key, dict[str, float]]:
        """Return the columns by user, team, pool, model, kind and job, in GPU-seconds."""
        until_s = min(until_s, self.now_s)
        window = (since_s, until_s)
        held = self._held(*window)
        found: defaultdict[Key, dict[str, float]] = defaultdict(lambda: dict.fromkeys((*COLUMNS, *COUNTS), 0.0))
        for job in self.jobs.values():
            for number, wait in enumerate(job.waits):
                row = found[_key(job, wait.kind)]
                end_s = wait.end_s if wait.end_s is not None else self.now_s
                waited = wait.asked * _overlap(max(wait.begin_s, job.eligible_s), end_s, window)
                row["waited"] += waited
                row["requested"] += waited
                row["jobs"] += number == 0 and not job.is_sample and since_s <= wait.begin_s < until_s
            for run in job.runs:
                parts = held[job.id, run.epoch, True], held[job.id, run.epoch, False]
                self._add_run(found[_key(job, run.kind)], run, parts, window)
        return {key: row for key, row in found.items() if any(row.values())}

    def _held(self, since_s: float, until_s: float) -> defaultdict[tuple[str, int, bool], float]:
        """Return what each run held in the window, apart for the time after and before its start."""
        bounds = {since_s, until_s, *(s for one in self.grants for s in (one.begin_s, one.end_s or self.now_s))}
        bounds |= {one.run.started_s for one in self.grants if one.run.started_s is not None}
        held: defaultdict[tuple[str, int, bool], float] = defaultdict(float)
        for begin_s, end_s in pairwise(sorted(s for s in bounds if since_s <= s <= until_s)):
            by_device: defaultdict[tuple[str, int], list[Run]] = defaultdict(list)
            for one in self.grants:
                if one.begin_s <= begin_s and (one.end_s or self.now_s) >= end_s:
                    by_device[one.device].append(one.run)
            for holders in by_device.values():
                lanes = sum(run.sharing == "lane" for run in holders)
                for run in holders:
                    part = 1 / lanes if run.sharing == "lane" else run.part
                    ran = run.started_s is not None and begin_s >= run.started_s
                    held[run.job.id, run.epoch, ran] += part * (end_s - begin_s)
        return held

    def _add_run(self, row: dict[str, float], run: Run, held: tuple[float, float], window: tuple[float, float]) -> None:
        end_s = run.end_s if run.end_s is not None else self.now_s
        row["requested"] += run.gpus * run.part * _overlap(run.begin_s, end_s, window)
        row["held"] += sum(held)
        row["runs"] += window[0] <= run.begin_s < window[1]
        row["preemptions"] += run.outcome == "preempted" and window[0] <= end_s < window[1]
        wasted = run.outcome not in {"", "completed", "cancelled"} and not run.steps
        lost = 1.0 if wasted else len(run.lost) / len(run.steps) if run.steps else 0.0
        row["lost"] += lost * sum(held)
        row["lost_to_preemption"] += lost * sum(held) * (run.outcome == "preempted")
        kept, rate = (1 - lost) * sum(held), run.rate
        if rate is None:
            row["unmeasured"] += kept
            return
        used = min(kept, (1 - lost) * rate * held[0])
        row["used"] += used
        row["idle"] += kept - used


def _overlap(begin_s: float, end_s: float, window: tuple[float, float]) -> float:
    return max(0.0, min(end_s, window[1]) - max(begin_s, window[0]))


def _key(job: Tally, kind: str) -> Key:
    spec = job.spec
    return spec.user, spec.team, spec.pool, spec.model, kind, job.id


def _take(job: Tally, step: int) -> None:
    """Take the steps behind one away from earlier runs: they are done again."""
    for run in job.runs[:-1]:
        run.lost |= {one for one in run.steps if one > step}


def _lose_steps(job: Tally) -> None:
    """Take away what the last run did behind the last checkpoint, and nobody has done since."""
    started = [run for run in job.runs if run.started_s is not None]
    if not started or started[-1].end_s is None:
        return
    last = started[-1]
    saved = last.outcome in {"preempted", "stopped at its limit"} and any(end.saves for end in last.ends)
    if last.outcome in {"completed", "cancelled"} or saved:
        return
    last.lost |= {one for one in last.steps if one > job.checkpoint}
