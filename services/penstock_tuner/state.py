"""What the tuner knows: nodes, jobs and sweeps that are not over, and what sweeps have shown of workloads."""

from __future__ import annotations

import msgspec

from penstock_events import Jobs
from penstock_policies.cluster import Cluster
from penstock_tuner.leases import Leases
from penstock_tuner.measures import Measures
from penstock_tuner.sweep import Sweep


class State(msgspec.Struct):
    """
    Nodes, jobs and sweeps that are not over.

    Attributes
    ----------
    sweep_of : dict of str to str
        Sweep of each opened trial that is not reported, by job id.
    unaccepted : dict of str to str
        The part of it that the gateway has not accepted and that is still wanted, oldest first.
    strangers : set of str
        Ids that look like a trial's but were taken by other jobs.
    measures : dict of str to Measures
        Workload key → what its last sweep has shown; the last one comes last.
    waits : dict of str to list of str
        Pool → jobs that wait for devices, as its last round said.
    nodes_seq, leases_seq : int
        Sequence of the last fact about nodes; of the last that gave or took devices.
    """

    cluster: Cluster = msgspec.field(default_factory=Cluster)
    jobs: Jobs = msgspec.field(default_factory=Jobs)
    sweeps: dict[str, Sweep] = msgspec.field(default_factory=dict)
    sweep_of: dict[str, str] = msgspec.field(default_factory=dict)
    unaccepted: dict[str, str] = msgspec.field(default_factory=dict)
    strangers: set[str] = msgspec.field(default_factory=set)
    measures: dict[str, Measures] = msgspec.field(default_factory=dict)
    leases: Leases = msgspec.field(default_factory=Leases)
    waits: dict[str, list[str]] = msgspec.field(default_factory=dict)
    nodes_seq: int = 0
    leases_seq: int = 0
