"""What a round of one pool is decided from, and the views of it that the policies work on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock_events import Device, Job, Rank
from penstock_events import State as JobState
from penstock_policies import estimates, skew
from penstock_policies.assignments import ASSIGNMENTS
from penstock_policies.cluster import Cluster, Node
from penstock_policies.order import Outlook, Ranked, Rules, Running, Supply
from penstock_policies.placement import Free, Located
from penstock_policies.progress import Progress
from penstock_policies.rounds.books import Books
from penstock_policies.speeds import Speeds
from penstock_policies.stopping import Cost

SAMPLE_S: Final = 5.0
"""Expected length of a profiler's sample, seconds."""


@dataclass(frozen=True)
class Pool:
    """
    One pool's share of what the matcher knows.

    Attributes
    ----------
    jobs : sequence of Job
        Those that are not over.
    books : Books
        What rounds remember of the past.
    promised : collection of str
        Waiting jobs for which others were preempted.
    explained_s : float
        When the last round was; minus infinity before the first.
    explained : mapping of str to str
        Job → cause, as the last round said.
    """

    name: str
    cluster: Cluster
    jobs: Sequence[Job]
    ranks: Mapping[str, Rank]
    keys: Mapping[str, str]
    speeds: Speeds
    finished_s: Sequence[float]
    books: Books
    promised: Collection[str]
    explained_s: float
    explained: Mapping[str, str]

    @property
    def progress(self) -> Progress:
        """How far the pool's users are."""
        return self.books.progress_of(self.name)

    @property
    def staying(self) -> Mapping[str, str]:
        """The patient gangs, and the kind that each waits for."""
        return self.books.staying_in(self.name)

    def nodes(self) -> list[Node]:
        """Return the nodes whose executors are up, by id."""
        return sorted(self.cluster.present(self.name), key=lambda node: node.id)

    def order(self) -> list[Ranked]:
        """
        Return all jobs in rank order.

        A job that the ranker has not seen yet counts as one of queue 0 at its submission: the matcher never waits.
        """
        jobs = {job.id: job for job in self.jobs}
        keys = sorted(self._key(job) for job in self.jobs)
        return [Ranked(key[0], float(place), key[3], jobs[key[3]]) for place, key in enumerate(keys)]

    def waiting(self, order: Sequence[Ranked]) -> list[Ranked]:
        """
        Return the waiting jobs, those first for which others were preempted.

        Otherwise samples, which outrank all but must not preempt, would take what was made free for somebody else, who
        would preempt once more.
        """
        found = [ranked for ranked in order if ranked.job.state is JobState.PENDING]
        return sorted(found, key=lambda ranked: ranked.job_id not in self.promised)

    def runs(self, order: Sequence[Ranked]) -> list[Running]:
        """Return the jobs that hold devices, with those of their devices whose nodes take jobs."""
        nodes = {node.id: {device.index: device for device in node.devices} for node in self.cluster.usable(self.name)}
        return [
            Running(ranked, job.placement.kind, tuple(_devices(job, nodes)))
            for ranked in order
            if (job := ranked.job).placement is not None
        ]

    def is_evicted(self, job: Job) -> bool:
        """Say whether a run is to move because one of its nodes is being emptied."""
        nodes = self.cluster.nodes
        return can_be_stopped(job) and any(node_id in nodes and nodes[node_id].evicting for node_id in job.open_nodes)

    def supply(self, coming: Sequence[Running], topology: Sequence[str] = ()) -> Supply:
        """Return the devices, with those of the runs that are ``coming`` to an end apart."""
        paths = self.cluster.paths(topology, self.name)
        stopping = Free({}, paths)
        stopping.give(device for run in coming for device in run.devices)
        return Supply(
            free=Free(self.cluster.free(self.jobs, self.name), paths),
            coming=stopping,
            whole=Free({node.id: node.devices for node in self.cluster.usable(self.name)}),
        )

    def outlook(self, now_s: float, rules: Rules) -> Outlook:
        """Return what this pool expects of speeds and lengths."""
        known: dict[tuple[str, str], float] = {}

        def speed(job: Job, kind: str) -> float:
            at = (self.keys[job.id], kind)
            if at not in known:
                known[at] = self.speeds.of(*at)
            return known[at]

        def remaining(jobs: Sequence[Job]) -> list[float]:
            return self._left_s(jobs, [job.executed_s for job in jobs], rules.prior_service_s)

        def cost(job: Job) -> Cost:
            return self.books.costs.of(self.keys[job.id])

        def together(job: Job) -> bool:
            shape = job.spec.skew or self.speeds.skew(self.keys[job.id])
            return skew.consolidates(shape, rules.skew_threshold)

        if not ASSIGNMENTS[rules.assign].knows_speeds:
            return Outlook(now_s, lambda *_: 1.0, remaining, rules, rules.prior_service_s, cost, together=together)
        return Outlook(now_s, speed, remaining, rules, rules.prior_service_s, cost, together=together)

    def ends_s(self, runs: Sequence[Running], outlook: Outlook) -> list[float]:
        """Return in how many seconds each run is expected to end."""
        jobs = [run.ranked.job for run in runs]
        speeds = [outlook.speed(run.ranked.job, run.kind) for run in runs]
        had_s = [job.executed_by(outlook.now_s) * speed for job, speed in zip(jobs, speeds, strict=True)]
        left_s = self._left_s(jobs, had_s, outlook.prior_s)
        return [left / speed for left, speed in zip(left_s, speeds, strict=True)]

    def _left_s(self, jobs: Sequence[Job], attained_s: Sequence[float], prior_s: float) -> list[float]:
        # Seconds executed in ended runs count as if on the fastest kind; a job's log does not say which kind it was.
        expected = estimates.remaining_s(np.asarray(attained_s, dtype=np.float64), self.finished_s, prior_s)
        return [
            estimates.declared_s(SAMPLE_S, had_s)
            if job.sample is not None
            else estimates.declared_s(job.spec.duration_s, had_s)
            if job.spec.duration_s
            else float(left_s)
            for job, had_s, left_s in zip(jobs, attained_s, expected, strict=True)
        ]

    def _key(self, job: Job) -> tuple[int, float, float, str]:
        rank = self.ranks.get(job.id)
        if rank is None or job.sample is not None:
            return -1 if job.sample is not None else 0, job.submitted_s, job.submitted_s, job.id
        return rank.key


def can_be_stopped(job: Job) -> bool:
    """Say whether a job runs and has not been asked to stop yet."""
    return job.state is JobState.RUNNING and not job.stopping


def _devices(job: Job, nodes: Mapping[str, Mapping[int, Device]]) -> Iterator[Located]:
    if job.placement is None:
        return
    for slot in job.placement.slots:
        if slot.node_id in job.open_nodes and slot.node_id in nodes:
            held = nodes[slot.node_id]
            yield from ((slot.node_id, held[index]) for index in slot.devices if index in held)
