"""What a decision about sizes is made from, whoever knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock_events import Job, Rank, Scalability, workload
from penstock_policies.autoscale.shown import Shown
from penstock_policies.cluster import Cluster
from penstock_policies.speeds import Speeds
from penstock_policies.stopping import Costs


class Knows(Protocol):
    """Nodes, the order of jobs, and what is known of their workloads."""

    @property
    def cluster(self) -> Cluster:
        """The nodes."""

    @property
    def ranks(self) -> Mapping[str, Rank]:
        """By job id."""

    @property
    def scaled(self) -> Mapping[str, tuple[Scalability, ...]]:
        """Workload key → how it goes on each kind of device."""

    @property
    def speeds(self) -> Speeds:
        """How fast workloads are on each kind."""

    @property
    def costs(self) -> Costs:
        """What stopping and resuming workloads takes."""

    @property
    def returning(self) -> Mapping[str, str]:
        """Job that has stopped to be resized, until it is placed → the kind for which that was."""

    @property
    def shown(self) -> Shown:
        """What runs of elastic jobs have shown of them."""


def key_of(job: Job) -> str:
    """Return a job's workload key."""
    return job.profile_key or workload.key(job.spec)
