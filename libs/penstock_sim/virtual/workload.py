"""A trace and a cluster as the facts that services would have written of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock_events import (
    AnyEvent,
    Device,
    JobSpec,
    JobSubmitted,
    KindSpeed,
    NodeJoined,
    WorkloadProfiled,
    subjects,
    workload,
)
from penstock_sim.cluster import Nodes
from penstock_sim.trace import Floats, Trace
from penstock_sim.virtual.speedups import Speed

ORIGIN_S: Final = 1.0
"""Virtual time of the first submission; in a job's life, 0 means never."""

_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,61}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_COMMAND: Final = ("simulated",)


@dataclass(frozen=True)
class Telling:
    """
    What a job says of itself.

    Attributes
    ----------
    declared_s : (J,) float array or None
        Length that each job declares; None if none does.
    profile : bool
        Whether unseen workloads are to be sampled.
    """

    declared_s: Floats | None = None
    profile: bool = False


def job_ids(trace: Trace) -> list[str]:
    """
    Return an id for each job that the log can take: the trace's own where they all can be, else numbers.

    Numbers sort as the rows do, which settles ties as the trace has them.
    """
    own = [str(job_id).lower() for job_id in trace.job_ids]
    if len(set(own)) == len(own) and all(map(_ID.fullmatch, own)):
        return own
    digits = len(str(len(trace)))
    return [f"j{row:0{digits}d}" for row in range(len(trace))]


def shift_s(trace: Trace) -> float:
    """Return what is added to the trace's clock to give virtual time."""
    return ORIGIN_S - float(trace.submit_s[0]) if len(trace) else 0.0


def submissions(trace: Trace, ids: list[str], telling: Telling) -> Callable[[int], JobSubmitted]:
    """Return a function from a row to its submission, on virtual time."""
    at_s = (trace.submit_s + shift_s(trace)).tolist()
    gpus = trace.num_gpus.tolist()
    declared_s = telling.declared_s.tolist() if telling.declared_s is not None else None
    profile = "on" if telling.profile else "off"

    def submitted(row: int) -> JobSubmitted:
        spec = JobSpec(
            name=_name(str(trace.job_ids[row])) or ids[row],
            command=_COMMAND,
            user=str(trace.users[row]) if trace.users else "",
            team=str(trace.vcs[row]) if trace.vcs else "",
            gpus=gpus[row],
            kinds=(str(trace.kinds[row]),) if trace.kinds and trace.kinds[row] else (),
            model=str(trace.models[row]) if trace.models else "",
            profile=profile,  # type: ignore[arg-type]
            duration_s=declared_s[row] if declared_s else 0.0,
        )
        return JobSubmitted(at_s=at_s[row], job_id=ids[row], spec=spec)

    return submitted


def _name(text: str) -> str:
    return text if _NAME.fullmatch(text) else ""


def nodes(cluster: Nodes) -> Iterator[NodeJoined]:
    """Yield the nodes' offers, in the cluster's order, at the time 0."""
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
            )


def profiles(trace: Trace, cluster: Nodes, speed: Speed) -> Iterator[tuple[str, AnyEvent, str]]:
    """Yield what a profiler would know of each model, at the time 0: subject, fact and actor."""
    for model in sorted(set(map(str, trace.models)) or {""}):
        known = {kind: speed(model, kind) for kind in cluster.kinds}
        fastest = max(known.values())
        speeds = tuple(
            KindSpeed(kind=kind, iteration_s=1.0 / found, speed=found / fastest) for kind, found in known.items()
        )
        key = workload.key(JobSpec(name="any", command=_COMMAND, model=model))
        yield subjects.profile(key), WorkloadProfiled(at_s=0.0, key=key, speeds=speeds), "profiler/sim"


def declared_s(trace: Trace, error: float, rng: np.random.Generator) -> Floats:
    """Return lengths as people would declare them: off by a lognormal factor with this sigma; 0 is exact."""
    if not error:
        return trace.duration_s
    return trace.duration_s * np.exp(rng.normal(0.0, error, len(trace)))
