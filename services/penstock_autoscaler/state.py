"""What the autoscaler knows: nodes, jobs in their order, how workloads scale, and what resizing them costs."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock_events import Demand, Jobs, Rank, Scalability
from penstock_policies.autoscale.shown import Shown
from penstock_policies.cluster import Cluster
from penstock_policies.order import BY_QUEUE, Manner
from penstock_policies.speeds import Speeds
from penstock_policies.stopping import Costs

WORKLOADS: Final = 4096
"""Workloads of which it is remembered how they scale."""

Because = Literal["arrival", "completion", "nodes", "order", "profile", "interval"]


class Change(msgspec.Struct, frozen=True):
    """The last fact that could change a pool's sizes, and what the last one that was more than a step of a run was."""

    seq: int = 0
    because: Because = "interval"


class Pool(msgspec.Struct):
    """
    One pool's jobs.

    Attributes
    ----------
    jobs : dict of str to None
        Ids of those that are not over, in order of submission.
    elastic : dict of str to None
        The elastic ones among them.
    """

    jobs: dict[str, None] = msgspec.field(default_factory=dict)
    elastic: dict[str, None] = msgspec.field(default_factory=dict)
    manner: Manner = BY_QUEUE
    change: Change = Change()


class State(msgspec.Struct):
    """
    Nodes, and jobs that are not over.

    Attributes
    ----------
    ranks : dict of str to Rank
        By job id.
    pools : dict of str to Pool
    scaled : dict of str to tuple of Scalability
        Workload key → how it goes on each kind of device; the one told of last comes last.
    speeds : Speeds
    costs : Costs
        What stopping and resuming workloads takes.
    returning : dict of str to str
        Job that has stopped to be resized, until it is placed → the kind for which that was.
    void : dict of str to Demand
        Job → the last demand of it that changed nothing.
    shown : Shown
        What runs of elastic jobs have shown of them.
    """

    cluster: Cluster = msgspec.field(default_factory=Cluster)
    jobs: Jobs = msgspec.field(default_factory=Jobs)
    ranks: dict[str, Rank] = msgspec.field(default_factory=dict)
    pools: dict[str, Pool] = msgspec.field(default_factory=dict)
    scaled: dict[str, tuple[Scalability, ...]] = msgspec.field(default_factory=dict)
    speeds: Speeds = msgspec.field(default_factory=Speeds)
    costs: Costs = msgspec.field(default_factory=Costs)
    returning: dict[str, str] = msgspec.field(default_factory=dict)
    void: dict[str, Demand] = msgspec.field(default_factory=dict)
    shown: Shown = msgspec.field(default_factory=Shown)

    def pool(self, name: str) -> Pool:
        """Return what is known of a pool."""
        found = self.pools.get(name)
        if found is None:
            found = self.pools[name] = Pool()
        return found

    def note(self, name: str, seq: int, because: Because | None = None) -> None:
        """Note that a pool's sizes may come out otherwise; None: for no reason but that a run got on."""
        pool = self.pool(name)
        pool.change = Change(seq, because or pool.change.because)
