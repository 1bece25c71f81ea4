"""Alibaba PAI, July and August 2020: jobs of several tasks, each of several instances."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from penstock_sim.trace import Floats, Trace
from penstock_sim.traces.errors import TraceError
from penstock_sim.traces.gathering import NO_END, NO_GPUS, Gathering
from penstock_sim.traces.source import Source
from penstock_sim.traces.table import BROKEN, Block, Table

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
_STATES: Final = {"Terminated": "completed", "Failed": "failed", "Running": "running"}


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


def read(source: Source) -> Trace:
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
    gathering = Gathering(source.name)
    for block in _table(source, _TASKS).blocks():
        _fold(block, found, gathering)
    if source.beside is not None:
        _add_beside(replace(source, path=source.beside), found)
    return _gathered(gathering, found)


def _table(source: Source, columns: tuple[str, ...]) -> Table:
    first = source.head().partition("\n")[0]
    return Table(source, columns, header=() if first.startswith(f"{FIRST},") else columns)


def _fold(block: Block, found: dict[str, _Job], gathering: Gathering) -> None:
    percent, instances = block.numbers("plan_gpu", empty=0.0), block.numbers("inst_num", empty=1.0)
    start_s, end_s = block.numbers("start_time", empty=np.nan), block.numbers("end_time", empty=np.nan)
    gathering.drop(BROKEN, int(block.broken.sum()))
    gathering.drop(NO_GPUS, int((~block.broken & (percent * instances <= 0)).sum()))
    names, kinds, states = block.texts(FIRST), block.texts("gpu_type"), block.texts("status")
    for i in np.flatnonzero(~block.broken & (percent * instances > 0)).tolist():
        gpus, single = float(percent[i] * instances[i] / 100.0), bool(instances[i] == 1)
        state = _STATES.get(states[i], "")
        task = _Job(gpus, float(start_s[i]), float(end_s[i]), kinds[i], state, single)
        found[names[i]] = _together(found[names[i]], task) if names[i] in found else task


def _together(job: _Job, task: _Job) -> _Job:
    """Return a job with one task more; one that has not ended has nan for its end, and so has the job."""
    state = job.state if job.state != "completed" else task.state
    start_s, end_s = min(job.start_s, task.start_s), float(np.maximum(job.end_s, task.end_s))
    kind = job.kind if task.kind in job.kind.split("|") else f"{job.kind}|{task.kind}".strip("|")
    return _Job(job.gpus + task.gpus, start_s, end_s, kind, state, False, tasks=job.tasks + task.tasks)


def _add_beside(source: Source, found: Mapping[str, _Job]) -> None:
    width = source.head().partition("\n")[0].count(",") + 1
    if width == len(_JOBS):
        _add_submissions(source, found)
    elif width == len(_INSTANCES):
        _add_instances(source, found)
    else:
        raise TraceError(f"{source.path} has {width} columns; expected pai_job_table (6) or pai_instance_table (9)")


def _add_submissions(source: Source, found: Mapping[str, _Job]) -> None:
    for block in _table(source, _JOBS).blocks():
        submit_s = block.numbers("start_time", empty=np.nan)
        for name, user, at_s in zip(block.texts(FIRST), block.texts("user"), submit_s.tolist(), strict=True):
            if job := found.get(name):
                job.submit_s, job.user = at_s, user


def _add_instances(source: Source, found: Mapping[str, _Job]) -> None:
    spans: dict[str, tuple[float, float]] = {}
    for block in _table(source, _INSTANCES).blocks():
        starts, ends = block.numbers("start_time", empty=np.nan), block.numbers("end_time", empty=np.nan)
        for name, start_s, end_s in zip(block.texts(FIRST), starts.tolist(), ends.tolist(), strict=True):
            if name in found and math.isfinite(end_s - start_s):
                first_s, last_s = spans.get(name, (start_s, end_s))
                spans[name] = (min(first_s, start_s), max(last_s, end_s))
    for name, (first_s, last_s) in spans.items():
        found[name].start_s, found[name].end_s = first_s, last_s


def _gathered(gathering: Gathering, found: Mapping[str, _Job]) -> Trace:
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
