"""
Everything that happens to a virtual cluster from outside.

A :class:`Script` has the nodes, the jobs, their real work, and the outages, all on virtual time. :func:`of_trace` makes
one from a trace and a cluster: it writes the facts that services would have written of them. :class:`RunCosts` says
what a run costs beside its work, and :class:`Failures` when nodes fail.

:func:`read` and :func:`relative` give the speed of each model on each kind of device, relative to the model's fastest
kind. The file is TOML or JSON: model → kind → speed, in any unit (samples a second will do). ``"*"`` stands for models
that have no entry of their own.

```toml
["resnet-50"]
v100 = 4.1
k80 = 1.0

["*"]
v100 = 2.0
k80 = 1.0
```
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from penstock_log import (
    AnyEvent,
    Device,
    JobSpec,
    JobSubmitted,
    KindSpeed,
    NodeJoined,
    ProfileSample,
    SamplesRequested,
    WorkloadProfiled,
    subjects,
    workload,
)
from penstock_simulator.engine.tasks import VirtualTask
from penstock_simulator.trace import Floats, Trace
from penstock_simulator.virtual_cluster import SimulatedNodes, read_table

Sampled = Callable[[SamplesRequested, ProfileSample], VirtualTask]
"""Gives a sample that the profiler asked for its work."""


@dataclass(frozen=True)
class Outage:
    """
    A failure of a node at ``at_s``, with what the node says when it is back, or None if it does not come back.

    Attributes
    ----------
    heard_s : float or None
        When the node was last heard of, if not at ``at_s``.
    """

    node_id: str
    at_s: float
    back: NodeJoined | None
    heard_s: float | None = None


@dataclass(frozen=True)
class Script:
    """
    Everything that happens to a cluster from outside, on virtual time.

    Attributes
    ----------
    trace : Trace
        The jobs, for the outcome.
    tasks : sequence of VirtualTask, (J,)
        The real work of each job, by row of the trace.
    submitted : callable
        From a row to its submission; times never fall from row to row.
    nodes : sequence of NodeJoined
        In the order in which devices are numbered.
    facts : sequence of (subject, fact, actor)
        Further facts, such as speeds that are known; each becomes true at its time.
    outages : sequence of Outage
    sampled : Sampled
    shift_s : float
        Virtual time less the trace's time.
    executors : callable or None
        Makes the executors, where they are not the plain ones.
    unblocks : bool
        Whether some jobs wait for others.
    """

    trace: Trace
    tasks: Sequence[VirtualTask]
    submitted: Callable[[int], JobSubmitted]
    nodes: Sequence[NodeJoined]
    speed: Speed
    sampled: Sampled
    shift_s: float
    facts: Sequence[tuple[str, AnyEvent, str]] = ()
    outages: Sequence[Outage] = field(default_factory=tuple)
    executors: Callable[..., Any] | None = None
    unblocks: bool = False

    @property
    def sizes(self) -> Mapping[str, int]:
        """Devices of each node."""
        return {joined.node_id: len(joined.devices) for joined in self.nodes}


def job_ids(trace: Trace) -> list[str]:
    """
    Return an id for each job that the log can take: the trace's own where they all can be, else numbers.

    Numbers sort as the rows do, so that ties are settled in the trace's order.
    """
    own = [str(job_id).lower() for job_id in trace.job_ids]
    if len(set(own)) == len(own) and all(map(_ID.fullmatch, own)):
        return own
    digits = len(str(len(trace)))
    return [f"j{row:0{digits}d}" for row in range(len(trace))]


def shift_s(trace: Trace) -> float:
    """Return what is added to the trace's clock to give virtual time."""
    return ORIGIN_S - float(trace.submit_s[0]) if len(trace) else 0.0


def submissions(
    trace: Trace, ids: list[str], declared_s: Floats | None, *, sampled: bool
) -> Callable[[int], JobSubmitted]:
    """Return a function from a row to its submission, on virtual time."""
    at_s = (trace.submit_s + shift_s(trace)).tolist()
    gpus = trace.num_gpus.tolist()
    lengths_s = declared_s.tolist() if declared_s is not None else None
    profile: Literal["on", "off"] = "on" if sampled else "off"

    def submitted(row: int) -> JobSubmitted:
        spec = JobSpec(
            name=_name(str(trace.job_ids[row])) or ids[row],
            command=_COMMAND,
            user=str(trace.users[row]) if trace.users else "",
            team=str(trace.vcs[row]) if trace.vcs else "",
            gpus=gpus[row],
            kinds=(str(trace.kinds[row]),) if trace.kinds and trace.kinds[row] else (),
            model=str(trace.models[row]) if trace.models else "",
            profile=profile,
            duration_s=lengths_s[row] if lengths_s else 0.0,
        )
        return JobSubmitted(at_s=at_s[row], job_id=ids[row], spec=spec)

    return submitted


def nodes(cluster: SimulatedNodes) -> Iterator[NodeJoined]:
    """Yield the facts by which the nodes join, in the cluster's order, at the time 0."""
    number, digits = 0, len(str(len(cluster.sizes)))
    for group in cluster.groups:
        devices = tuple(
            Device(index=index, kind=group.kind, memory_bytes=group.memory_bytes, backend="emulated", speed=group.speed)
            for index in range(group.gpus)
        )
        for _ in range(group.count):
            number += 1
            node_id = f"n{number:0{digits}d}"
            yield NodeJoined(
                at_s=0.0,
                node_id=node_id,
                devices=devices,
                labels=dict(group.labels),
                incarnation="1",
                cpus=group.cpus,
                host_memory_bytes=group.host_memory_bytes,
                containers=group.containers,
            )


def profiles(trace: Trace, cluster: SimulatedNodes, speed: Speed) -> Iterator[tuple[str, AnyEvent, str]]:
    """Yield the facts in which a profiler would say what it knows of each model at the time 0: subject, fact, actor."""
    for model in sorted(set(map(str, trace.models)) or {""}):
        known = {kind: speed(model, kind) for kind in cluster.kinds}
        fastest = max(known.values())
        speeds = tuple(
            KindSpeed(kind=kind, iteration_s=1.0 / found, speed=found / fastest) for kind, found in known.items()
        )
        key = workload.key(JobSpec(name="any", command=_COMMAND, model=model))
        yield subjects.profile(key), WorkloadProfiled(at_s=0.0, key=key, speeds=speeds), "profiler/sim"


def of_trace(
    trace: Trace,
    cluster: SimulatedNodes,
    speed: Speed,
    costs: RunCosts,
    declared_s: Floats | None = None,
    *,
    profile: bool = False,
) -> Script:
    """
    Return a trace on a cluster as a script.

    Parameters
    ----------
    declared_s : (J,) float array or None
        The length that each job declares; None if no job declares one.
    profile : bool
        Whether unseen workloads are to be sampled; otherwise all speeds are known from the beginning.
    """
    ids = job_ids(trace)
    models = [str(model) for model in trace.models] or [""] * len(trace)
    rows = zip(ids, trace.num_gpus.tolist(), models, trace.duration_s.tolist(), strict=True)
    tasks = [
        VirtualTask(job_id, row, gpus, model, work_s, starting_s=costs.start_s, iteration_s=costs.iteration_s)
        for row, (job_id, gpus, model, work_s) in enumerate(rows)
    ]

    def sampled(asked: SamplesRequested, sample: ProfileSample) -> VirtualTask:
        work_s = sample.iterations * costs.iteration_s
        name, model = sample.sample_id, asked.spec.model
        return VirtualTask(name, -1, 1, model, work_s, starting_s=costs.start_s, iteration_s=costs.iteration_s)

    return Script(
        trace=trace,
        tasks=tasks,
        submitted=submissions(trace, ids, declared_s, sampled=profile),
        nodes=list(nodes(cluster)),
        speed=speed,
        sampled=sampled,
        shift_s=shift_s(trace),
        facts=[] if profile else list(profiles(trace, cluster, speed)),
    )


ORIGIN_S: Final = 1.0
"""Virtual time of the first submission; in a job's life, 0 means never."""

_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,61}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_COMMAND: Final = ("simulated",)


def _name(text: str) -> str:
    return text if _NAME.fullmatch(text) else ""


def declared_s(trace: Trace, error: float, rng: np.random.Generator) -> Floats:
    """Return lengths as people would declare them: true ones times a lognormal factor with this sigma; 0 is exact."""
    if not error:
        return trace.duration_s
    return trace.duration_s * np.exp(rng.normal(0.0, error, len(trace)))


Speedups = Mapping[str, Mapping[str, float]]
"""Model → kind → speed."""

Speed = Callable[[str, str], float]
"""``speed(model, kind)``, at most 1."""

ANY: Final = "*"


def read(path: Path) -> Speedups:
    """
    Return a file's speed-ups.

    Raises
    ------
    ValueError
        If it cannot be read, or does not hold a number above 0 for each model and kind.
    """
    expected = "expected a table for each model: kind = speed"
    found = read_table(path, dict[str, dict[str, float]], "speed-ups", expected)
    for model, kinds in found.items():
        for kind, speed in kinds.items():
            if not (speed > 0 and math.isfinite(speed)):
                raise ValueError(f"speed-ups {path}: {model} on {kind} is {speed}; expected a number above 0")
    return found


def relative(speedups: Speedups | None, cluster: SimulatedNodes) -> Speed:
    """
    Return each model's speed on each kind, relative to the fastest kind that its entry names.

    A model or a kind without an entry is as fast as the cluster says that the kind is.

    Examples
    --------
    >>> from penstock_simulator.virtual_cluster import parse
    >>> speed = relative({"mlp": {"fast": 8.0, "slow": 2.0}}, parse("1x1@fast+1x1@slow"))
    >>> speed("mlp", "slow"), speed("mlp", "fast"), speed("cnn", "slow")
    (0.25, 1.0, 1.0)
    """
    given = {model: {k: s / max(kinds.values()) for k, s in kinds.items()} for model, kinds in (speedups or {}).items()}
    plain = {group.kind: group.speed for group in cluster.groups}

    def speed(model: str, kind: str) -> float:
        known = given.get(model) or given.get(ANY, {})
        return known.get(kind, plain[kind])

    return speed


@dataclass(frozen=True)
class RunCosts:
    """
    Costs of a run beside its work, all in seconds.

    Attributes
    ----------
    start_s : float
        Time at the beginning of every run in which devices are held and nothing advances.
    stop_s : float
        Time from a preemption until the devices are free. Work done before is kept.
    checkpoint_s : float
        Time of work between two checkpoints: after the loss of a node a job resumes from the last one. 0: the only
        checkpoints are those of preemptions.
    iteration_s : float
        Time of one iteration on the fastest kind; steps count iterations.
    parked_start_s : float or None
        In place of ``start_s`` for a run that goes on where its job is parked; None: no run is parked.
    most_parked : int
        The most runs that are parked on a node; of more, the longest parked is ended.
    """

    start_s: float = 0.0
    stop_s: float = 0.0
    checkpoint_s: float = 0.0
    iteration_s: float = 1.0
    parked_start_s: float | None = None
    most_parked: int = 32


@dataclass(frozen=True)
class Failures:
    """
    Failures of nodes: each node fails independently, at exponential intervals drawn from the seed.

    Attributes
    ----------
    mtbf_s : float
        Mean time of a node between two failures, seconds.
    repair_s : float
        Time until the node's executor is back, seconds.
    """

    mtbf_s: float
    repair_s: float = 600.0

    def __post_init__(self) -> None:
        if not (self.mtbf_s > 0 and self.repair_s >= 0):
            raise ValueError(f"mtbf_s is {self.mtbf_s}, repair_s is {self.repair_s}; expected above 0, and at least 0")

    def uptimes_s(self, seed: int, node: int) -> Iterator[float]:
        """Yield how long a node is up until each failure; the draws do not depend on other nodes."""
        rng = np.random.default_rng((seed, node))
        while True:
            yield float(rng.exponential(self.mtbf_s))
