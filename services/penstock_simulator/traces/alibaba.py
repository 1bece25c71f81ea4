"""
Alibaba's two traces: PAI and openb.

:func:`read_pai` reads the jobs of PAI, July and August 2020: each has several tasks, and each task several instances.
:func:`read_openb` reads the pods of the GPU-sharing cluster of 2023 (openb). :func:`read_nodes` reads a published list
of machines, openb's or Philly's, as a cluster.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from penstock_simulator.trace import Floats, Trace, TraceError
from penstock_simulator.traces.columns import (
    BROKEN,
    NO_END,
    NO_GPUS,
    DelimitedTable,
    TableBlock,
    TraceBuilder,
    TraceSource,
)
from penstock_simulator.virtual_cluster import NodeGroup, SimulatedNodes

_TASKS: Final = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
_JOBS: Final = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
_INSTANCES: Final = (
    "job_name",
    "task_name",
    "inst_name",
    "worker_name",
    "inst_id",
    "status",
    "start_time",
    "end_time",
    "machine",
)
FIRST: Final = "job_name"
WIDTH: Final = len(_TASKS)
_PAI_STATES: Final = {"Terminated": "completed", "Failed": "failed", "Running": "running"}


@dataclass
class _Job:
    gpus: float
    start_s: float
    end_s: float
    kind: str
    state: str
    single: bool
    submit_s: float = np.nan
    user: str = ""
    tasks: int = 1


def read_pai(source: TraceSource) -> Trace:
    """
    Read ``pai_task_table.csv``, with or without a first line of names.

    A job's demand is that of all its tasks with GPUs: instances times ``plan_gpu`` per cent. A lone instance keeps its
    fraction of a device; other demands are rounded up to whole devices. It runs from the first start of these tasks to
    their last end. ``source.beside`` may name ``pai_job_table.csv``, which knows users and when jobs were submitted,
    or ``pai_instance_table.csv``, which knows when the instances ran; without the former a job counts as submitted
    when its first task started.

    References
    ----------
    Weng et al., MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous GPU Clusters, NSDI
    2022; https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2020.
    """
    found: dict[str, _Job] = {}
    gathering = TraceBuilder(source.name)
    for block in _table(source, _TASKS).blocks():
        _fold(block, found, gathering)
    if source.beside is not None:
        _add_beside(replace(source, path=source.beside), found)
    return _gathered(gathering, found)


def _table(source: TraceSource, columns: tuple[str, ...]) -> DelimitedTable:
    first = source.head().partition("\n")[0]
    return DelimitedTable(source, columns, header=() if first.startswith(f"{FIRST},") else columns)


def _fold(block: TableBlock, found: dict[str, _Job], gathering: TraceBuilder) -> None:
    percent, instances = block.numbers("plan_gpu", empty=0.0), block.numbers("inst_num", empty=1.0)
    start_s, end_s = block.numbers("start_time", empty=np.nan), block.numbers("end_time", empty=np.nan)
    gathering.drop(BROKEN, int(block.broken.sum()))
    gathering.drop(NO_GPUS, int((~block.broken & (percent * instances <= 0)).sum()))
    names, kinds, states = block.texts(FIRST), block.texts("gpu_type"), block.texts("status")
    for i in np.flatnonzero(~block.broken & (percent * instances > 0)).tolist():
        gpus, single = float(percent[i] * instances[i] / 100.0), bool(instances[i] == 1)
        state = _PAI_STATES.get(states[i], "")
        task = _Job(gpus, float(start_s[i]), float(end_s[i]), kinds[i], state, single)
        found[names[i]] = _together(found[names[i]], task) if names[i] in found else task


def _together(job: _Job, task: _Job) -> _Job:
    """Return a job with one task more; one that has not ended has nan for its end, and so has the job."""
    state = job.state if job.state != "completed" else task.state
    start_s, end_s = min(job.start_s, task.start_s), float(np.maximum(job.end_s, task.end_s))
    kind = job.kind if task.kind in job.kind.split("|") else f"{job.kind}|{task.kind}".strip("|")
    return _Job(job.gpus + task.gpus, start_s, end_s, kind, state, False, tasks=job.tasks + task.tasks)


def _add_beside(source: TraceSource, found: Mapping[str, _Job]) -> None:
    width = source.head().partition("\n")[0].count(",") + 1
    if width == len(_JOBS):
        _add_submissions(source, found)
    elif width == len(_INSTANCES):
        _add_instances(source, found)
    else:
        raise TraceError(f"{source.path} has {width} columns; expected pai_job_table (6) or pai_instance_table (9)")


def _add_submissions(source: TraceSource, found: Mapping[str, _Job]) -> None:
    for block in _table(source, _JOBS).blocks():
        submit_s = block.numbers("start_time", empty=np.nan)
        for name, user, at_s in zip(block.texts(FIRST), block.texts("user"), submit_s.tolist(), strict=True):
            if job := found.get(name):
                job.submit_s, job.user = at_s, user


def _add_instances(source: TraceSource, found: Mapping[str, _Job]) -> None:
    spans: dict[str, tuple[float, float]] = {}
    for block in _table(source, _INSTANCES).blocks():
        starts, ends = block.numbers("start_time", empty=np.nan), block.numbers("end_time", empty=np.nan)
        for name, start_s, end_s in zip(block.texts(FIRST), starts.tolist(), ends.tolist(), strict=True):
            if name in found and math.isfinite(end_s - start_s):
                first_s, last_s = spans.get(name, (start_s, end_s))
                spans[name] = (min(first_s, start_s), max(last_s, end_s))
    for name, (first_s, last_s) in spans.items():
        found[name].start_s, found[name].end_s = first_s, last_s


def _gathered(gathering: TraceBuilder, found: Mapping[str, _Job]) -> Trace:
    jobs = list(found.values())
    gpus = np.array([job.gpus for job in jobs], np.float64)
    single = np.array([job.single for job in jobs], bool)
    start_s = np.array([job.start_s for job in jobs], np.float64)
    length_s: Floats = np.array([job.end_s for job in jobs], np.float64) - start_s
    submit_s = np.array([job.submit_s for job in jobs], np.float64)
    submit_s = np.where(np.isnan(submit_s), start_s, submit_s)
    gathering.add(
        list(found),
        submit_s,
        np.ceil(gpus - 1e-9).astype(np.int64),
        length_s,
        unfit={NO_END: np.isnan(length_s) | np.isnan(submit_s)},
        shares=np.where(single & (gpus < 1), gpus, 1.0),
        users=[job.user for job in jobs],
        kinds=["" if job.kind == "MISC" else job.kind for job in jobs],
        states=[job.state for job in jobs],
    )
    return gathering.trace()


REQUIRED: Final = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
_OPENB_STATES: Final = {"Succeeded": "completed", "Failed": "failed", "Running": "running"}


def read_openb(source: TraceSource) -> Trace:
    """
    Read ``openb_pod_list_*.csv``: a pod's length is from its scheduling to its deletion, in seconds.

    A pod of one device asks for ``gpu_milli`` thousandths of it. Its kinds stand as published: ``V100M16|V100M32`` is
    either. A pod that was still running when the record was taken counts with what it had run, as state ``running``.

    References
    ----------
    Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent, USENIX
    ATC 2023; https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023.
    """
    jobs = TraceBuilder(source.name)
    for block in DelimitedTable(source, REQUIRED).blocks():
        created_s, scheduled_s = block.numbers("creation_time"), block.numbers("scheduled_time", empty=np.nan)
        deleted_s, num_gpus = block.numbers("deletion_time", empty=np.nan), block.whole("num_gpu")
        shares = np.where(num_gpus == 1, block.numbers("gpu_milli", empty=1000.0) / 1000.0, 1.0)
        block.refuse(~block.broken & ((shares <= 0) | (shares > 1)), "gpu_milli", "1 to 1000")
        jobs.add(
            block.texts("name"),
            created_s,
            num_gpus,
            deleted_s - scheduled_s,
            broken=block.broken,
            unfit={"zero GPUs": num_gpus < 1, "never scheduled": np.isnan(scheduled_s)},
            shares=shares,
            kinds=block.texts("gpu_spec"),
            states=[_OPENB_STATES.get(phase, "") for phase in block.texts("pod_phase")],
        )
    return jobs.trace()


OPENB: Final = ("sn", "gpu", "model")
PHILLY: Final = ("machineId", "number of GPUs", "single GPU mem")
_GIB: Final = {"P100": 16.0, "T4": 16.0, "A10": 24.0, "V100M16": 16.0, "V100M32": 32.0}
"""Of the kinds that are sold; openb's G1, G2 and G3 are undisclosed and count as 16."""

Alike = Counter[tuple[str, int, float]]


def read_nodes(path: str | Path) -> SimulatedNodes:
    """
    Read a list of machines as a cluster: those of equal size and kind are a group, in the order of the file.

    openb's ``openb_node_list_*.csv`` (its machines without GPUs are left out) and Philly's ``cluster_machine_list``.

    Raises
    ------
    TraceError
        If it is no such list, or lists no GPU.
    """
    source = TraceSource(Path(path))
    names = {name.strip() for name in source.head().partition("\n")[0].split(",")}
    alike: Alike = Counter()
    if names.issuperset(OPENB):
        for block in DelimitedTable(source, OPENB).blocks():
            _add_openb(block, alike)
    elif names.issuperset(PHILLY):
        for block in DelimitedTable(source, PHILLY).blocks():
            _add_philly(block, alike)
    else:
        raise TraceError(
            f"{path} is no list of machines; expected the columns {', '.join(OPENB)} or {', '.join(PHILLY)}"
        )
    if not alike:
        raise TraceError(f"{path} lists no machine with a GPU; name another file")
    return SimulatedNodes(
        [NodeGroup(count=n, gpus=gpus, kind=kind, memory_gib=gib) for (kind, gpus, gib), n in alike.items()]
    )


def _add_openb(block: TableBlock, alike: Alike) -> None:
    kinds = block.texts("model")
    sizes = block.whole("gpu").tolist()
    alike.update((kind or "gpu", n, _GIB.get(kind, 16.0)) for kind, n in zip(kinds, sizes, strict=True) if n)


def _add_philly(block: TableBlock, alike: Alike) -> None:
    memories = block.texts("single GPU mem")
    sizes = block.whole("number of GPUs").tolist()
    alike.update((f"{gib:g}gb", n, gib) for gib, n in zip(map(_gib, memories), sizes, strict=True) if n)


def _gib(text: str) -> float:
    found = re.fullmatch(r"\s*(\d+)\s*GB", text)
    if found is None:
        raise TraceError(f"{text!r} is no memory of a GPU; expected such as 12GB")
    return float(found[1])
