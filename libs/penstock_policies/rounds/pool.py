"""What a round of one pool is decided from, and the views of it that the policies work on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt

from penstock_events import Job, Rank
from penstock_events import State as JobState
from penstock_policies import estimates, skew
from penstock_policies.assignments import ASSIGNMENTS
from penstock_policies.cluster import Cluster, Node
from penstock_policies.estimates import Finished
from penstock_policies.order import BY_QUEUE, Manner, Outlook, Ranked, Rules, Running, Supply
from penstock_policies.placement import Free
from penstock_policies.progress import Progress
from penstock_policies.rounds.books import Books
from penstock_policies.rounds.leases import SAMPLE_S, Terms
from penstock_policies.rounds.roster import Roster
from penstock_policies.speeds import Speeds
from penstock_policies.stopping import Cost


class Pool(msgspec.Struct, frozen=True):
    """
    One pool's share of what the matcher knows.

    Attributes
    ----------
    roster : Roster
        Its jobs that are not over, and its devices.
    manner : Manner
        How the order is walked.
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
    roster: Roster
    ranks: dict[str, Rank]
    keys: Mapping[str, str]
    speeds: Speeds
    finished_s: Finished
    books: Books
    promised: Collection[str]
    explained_s: float
    explained: Mapping[str, str]
    manner: Manner = BY_QUEUE

    @property
    def progress(self) -> Progress:
        """How far the pool's users are."""
        return self.books.progress_of(self.name)

    @property
    def staying(self) -> Mapping[str, str]:
        """The patient gangs, and the kind that each waits for."""
        return self.books.staying_in(self.name)

    def alpha(self, rules: Rules) -> float:
        """Return the share of users whose jobs enter a round at first."""
        return rules.alpha if rules.alpha < 1.0 and len(self.progress.active) > 1 else 1.0

    @property
    def nodes(self) -> list[Node]:
        """The nodes whose executors are up, by id."""
        return self.roster.nodes

    def evicted(self) -> list[Running]:
        """Return the runs that are to move: one of their nodes is being emptied, or they are to be of another width."""
        if not self.roster.evicting and not self.roster.moving:
            return []
        return [run for run in self.roster.runs() if self.is_evicted(run.ranked.job)]

    def ranked_by(self, ranked: Ranked, now_s: float) -> Ranked:
        """Return a running job in the order as it is now: by what is left to do, positions fall as jobs execute."""
        rank = self.ranks.get(ranked.job_id)
        if rank is None or not rank.falls_per_s or not ranked.job.started_s:
            return ranked
        return ranked._replace(position=ranked.position - rank.falls_per_s * max(0.0, now_s - ranked.job.started_s))

    def is_evicted(self, job: Job) -> bool:
        """Say whether a run is to move: one of its nodes is being emptied, or it is to be of another width."""
        return can_be_stopped(job) and (job.demand is not None or bool(self.emptied(job)))

    def emptied(self, job: Job) -> list[str]:
        """Return which of a run's nodes are being emptied."""
        nodes = self.cluster.nodes
        return sorted(node_id for node_id in job.open_nodes if node_id in nodes and nodes[node_id].evicting)

    def supply(self) -> Supply:
        """Return the devices, with those of the runs that are coming to an end apart."""
        roster, coming = self.roster, Free({}, self.roster.paths)
        if roster.stopping:
            own = (job_id for job_id in roster.stopping if job_id not in roster.sharing.tenants)
            devices = chain((at for job_id in own for at in roster.run(job_id).devices), roster.sharing.leaving())
            coming.give({(node_id, device.index): (node_id, device) for node_id, device in devices}.values())
        return Supply(free=roster.free, coming=coming, whole=roster.whole)

    def outlook(self, now_s: float, rules: Rules) -> Outlook:
        """Return what this pool expects of speeds and lengths."""
        of_workload = self._speed(rules)

        def speed(job: Job, kind: str) -> float:
            return of_workload(self.keys[job.id], kind)

        def remaining(jobs: Sequence[Job]) -> list[float]:
            attained_s = np.array([job.executed_s for job in jobs])
            return list(self._left_s(jobs, attained_s, rules.prior_service_s).tolist())

        def cost(job: Job) -> Cost:
            return self.books.costs.of(self.keys[job.id])

        def together(job: Job) -> bool:
            if rules.placement == "consolidate":
                return True
            shape = job.spec.skew or self.speeds.skew(self.keys[job.id])
            return skew.consolidates(shape, rules.skew_threshold)

        def workload(job: Job) -> str:
            return self.keys[job.id]

        return Outlook(now_s, speed, remaining, rules, rules.prior_service_s, cost, self.manner, together, workload)

    def terms(self, outlook: Outlook) -> Terms:
        """Return what this pool expects of runs, the same as its outlook."""
        speed, cost = self._speed(outlook.rules), self.books.costs.of
        return Terms(outlook.now_s, self.keys, speed, cost, self.finished_s, outlook.prior_s)

    def _speed(self, rules: Rules) -> Callable[[str, str], float]:
        """Return the speed of a workload on a kind, for the length of a round: a guess is made once."""
        guesses: dict[str, float] = {}

        def speed(workload: str, kind: str) -> float:
            of_kinds = self.speeds.by_key.get(workload)
            own = of_kinds.get(kind) if of_kinds else None
            if own is not None:
                return own
            if kind not in guesses:
                guesses[kind] = self.speeds.guess(kind)
            return guesses[kind]

        return speed if ASSIGNMENTS[rules.assign].knows_speeds else _alike

    def _left_s(self, jobs: Sequence[Job], attained_s: npt.NDArray[np.float64], prior_s: float) -> estimates.Floats:
        # Seconds executed in ended runs count as if on the fastest kind; a job's log does not say which kind it was.
        declared_s = np.array([SAMPLE_S if job.sample is not None else job.spec.duration_s for job in jobs])
        expected_s = estimates.remaining_s(attained_s, self.finished_s, prior_s)
        return estimates.left_s(declared_s, attained_s, expected_s)


def can_be_stopped(job: Job) -> bool:
    """Say whether a job runs and has not been asked to stop yet."""
    return job.state is JobState.RUNNING and not job.stopping


def _alike(workload: str, kind: str) -> float:  # noqa: ARG001 - the form of all speeds
    return 1.0
