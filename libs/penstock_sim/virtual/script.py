"""What a virtual cluster is to live through: its nodes, its jobs, and how much work these really are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock_events import AnyEvent, JobSubmitted, NodeJoined, Sample, SamplesRequested
from penstock_sim.cluster import Nodes
from penstock_sim.trace import Trace
from penstock_sim.virtual import workload
from penstock_sim.virtual.costs import Costs
from penstock_sim.virtual.speedups import Speed
from penstock_sim.virtual.tasks import Task
from penstock_sim.virtual.workload import Telling

Sampled = Callable[[SamplesRequested, Sample], Task]
"""Gives a sample that the profiler asked for its work."""


@dataclass(frozen=True)
class Outage:
    """
    A node fails at ``at_s``; what it says when it is back, None if it does not come back.

    Attributes
    ----------
    heard_s : float or None
        When it was last heard of, if not at ``at_s``.
    """

    node_id: str
    at_s: float
    back: NodeJoined | None
    heard_s: float | None = None


@dataclass(frozen=True)
class Script:
    """
    All that happens to a cluster from outside, on virtual time.

    Attributes
    ----------
    trace : Trace
        The jobs, for the outcome.
    tasks : sequence of Task, (J,)
        By row of the trace.
    submitted : callable
        From a row to its submission, later rows never earlier.
    nodes : sequence of NodeJoined
        In the order in which devices are numbered.
    facts : sequence of (subject, fact, actor)
        Further facts, such as speeds that are known; each becomes true at its time.
    outages : sequence of Outage
    sampled : Sampled
    shift_s : float
        Virtual time less the trace's.
    executors : callable or None
        Makes the executors, where they are not the plain ones.
    """

    trace: Trace
    tasks: Sequence[Task]
    submitted: Callable[[int], JobSubmitted]
    nodes: Sequence[NodeJoined]
    speed: Speed
    sampled: Sampled
    shift_s: float
    facts: Sequence[tuple[str, AnyEvent, str]] = ()
    outages: Sequence[Outage] = field(default_factory=tuple)
    executors: Callable[..., Any] | None = None

    @property
    def sizes(self) -> Mapping[str, int]:
        """Devices of each node."""
        return {joined.node_id: len(joined.devices) for joined in self.nodes}


def of_trace(trace: Trace, cluster: Nodes, speed: Speed, telling: Telling, costs: Costs) -> Script:
    """Return what a trace on a cluster is; speeds are known from the beginning unless they are to be sampled."""
    ids = workload.job_ids(trace)
    models = [str(model) for model in trace.models] or [""] * len(trace)
    rows = zip(ids, trace.num_gpus.tolist(), models, trace.duration_s.tolist(), strict=True)
    tasks = [
        Task(job_id, row, gpus, model, work_s, starting_s=costs.start_s, iteration_s=costs.iteration_s)
        for row, (job_id, gpus, model, work_s) in enumerate(rows)
    ]

    def sampled(asked: SamplesRequested, sample: Sample) -> Task:
        work_s = sample.iterations * costs.iteration_s
        name, model = sample.sample_id, asked.spec.model
        return Task(name, -1, 1, model, work_s, starting_s=costs.start_s, iteration_s=costs.iteration_s)

    return Script(
        trace=trace,
        tasks=tasks,
        submitted=workload.submissions(trace, ids, telling),
        nodes=list(workload.nodes(cluster)),
        speed=speed,
        sampled=sampled,
        shift_s=workload.shift_s(trace),
        facts=[] if telling.profile else list(workload.profiles(trace, cluster, speed)),
    )
