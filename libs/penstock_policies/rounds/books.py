"""What rounds remember of the past: what stopping costs, how far users are, and which gangs devices are kept for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from penstock_events import Device, Job, RoundDecided
from penstock_policies import progress
from penstock_policies.cluster import Cluster
from penstock_policies.progress import Progress
from penstock_policies.stopping import Costs


class Books(msgspec.Struct):
    """
    A part of the fold that rounds are decided from.

    Attributes
    ----------
    costs : Costs
        What stopping and resuming costs, for each workload.
    progress : dict of str to Progress
        Pool → how far its users are.
    staying : dict of str to dict of str to str
        Pool → its patient gangs and the kind that each waits for, as the last round said.
    classes : dict of str to list of (Device, int)
        Pool → its classes of equal devices and their numbers, until a node comes or goes.
    """

    costs: Costs = msgspec.field(default_factory=Costs)
    progress: dict[str, Progress] = msgspec.field(default_factory=dict)
    staying: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    classes: dict[str, list[tuple[Device, int]]] = msgspec.field(default_factory=dict)

    def progress_of(self, pool: str) -> Progress:
        """Return the accounts of a pool's users; empty ones where it has had none."""
        return self.progress.get(pool) or Progress()

    def staying_in(self, pool: str) -> Mapping[str, str]:
        """Return the patient gangs of a pool."""
        return self.staying.get(pool, {})

    def decided(self, event: RoundDecided) -> None:
        """Fold a round in, before its jobs change."""
        for preemption in event.preemptions:
            self.costs.ask(preemption.job_id, event.at_s)
        if not event.lost_nodes:  # a round that says only this
            self.staying[event.pool] = event.keeps

    def arrive(self, job: Job, at_s: float) -> None:
        """Note a new job."""
        if job.sample is None:
            self.progress.setdefault(job.spec.pool, Progress()).arrive(job.spec.user, at_s)

    def note(self, job: Job, at_s: float, cluster: Cluster, speed: Callable[[str, str], float], key: str) -> None:
        """Note what has happened to a job of a workload: it may have started to execute, or ended to."""
        if job.placement is None:
            self.costs.forget(job.id)
        if job.sample is not None:
            return
        book, user = self.progress[job.spec.pool], job.spec.user
        if job.placement is None or not job.started_s:
            if job.id in book.rates:
                book.stop(job.id, user, at_s)
        elif job.id not in book.rates or job.spec.sharing != "exclusive":
            classes = self._classes(job.spec.pool, cluster)
            rate = job.share * progress.rate(job.spec, job.placement.kind, partial(speed, key), classes)
            if book.rates.get(job.id, rate) != rate:  # somebody came or went beside it
                book.stop(job.id, user, at_s)
            book.start(job.id, user, rate, at_s)

    def leave(self, job: Job, at_s: float) -> None:
        """Note that a job is over."""
        self.costs.forget(job.id)
        if job.sample is None:
            book = self.progress[job.spec.pool]
            book.stop(job.id, job.spec.user, at_s)
            book.leave(job.spec.user, at_s)

    def _classes(self, pool: str, cluster: Cluster) -> list[tuple[Device, int]]:
        if pool not in self.classes:
            self.classes[pool] = progress.classes(node.devices for node in cluster.present(pool))
        return self.classes[pool]
