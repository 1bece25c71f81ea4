"""Gavel: jobs as a number of training steps of known models."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from penstock_sim.trace import Floats, Ints, Trace
from penstock_sim.traces.errors import TraceError
from penstock_sim.traces.gathering import NO_GPUS, Gathering
from penstock_sim.traces.source import Source
from penstock_sim.traces.table import Table

_NEW: Final = (
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_time",
)
_OLD: Final = ("job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival_time", "scale_factor")
FORMS: Final = {len(form): form for form in (_NEW, _OLD)}
UNMEASURED: Final = "no measured speed"
Speeds = dict[tuple[str, int], float]


def read(source: Source) -> Trace:
    """
    Read a tab-separated trace of ten fields, or the older form of seven.

    A row gives steps, not seconds: the length is steps over the model's measured steps per second on
    ``source.kind``, from ``source.beside``, the JSON file of throughputs that is published with the traces. A job is
    called by its row; the first is 0. Jobs of a model and number of devices that nobody measured are dropped.

    Raises
    ------
    TraceError
        If there is no file of throughputs, or the rows have neither ten fields nor seven.

    References
    ----------
    Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads, OSDI 2020;
    https://github.com/stanford-futuredata/gavel (MIT).
    """
    header = FORMS.get(len(source.head().partition("\n")[0].split("\t")))
    if header is None:
        raise TraceError(f"{source.path}:1: no row of a Gavel trace; expected ten fields between tabs, or seven")
    if source.beside is None:
        raise TraceError(
            f"{source.path} counts steps, not seconds; give the measured steps per second, as published with Gavel "
            "in simulation_throughputs.json (--with FILE of `penstock trace`)"
        )
    speeds = throughputs(source.beside, source.kind)
    jobs = Gathering(source.name)
    for block in Table(source, delimiter="\t", header=header, quoting=False).blocks():
        gpus, steps = block.whole("scale_factor"), block.whole("total_steps")
        steps_per_s = _speeds(block.texts("job_type"), gpus, speeds)
        jobs.add(
            [str(block.first + i) for i in range(len(block))],
            block.numbers("arrival_time"),
            gpus,
            steps / steps_per_s,
            broken=block.broken,
            unfit={NO_GPUS: gpus < 1, UNMEASURED: np.isnan(steps_per_s)},
            models=block.texts("job_type"),
        )
    return jobs.trace()


@lru_cache(maxsize=8)
def throughputs(path: Path, kind: str) -> Speeds:
    """
    Return steps per second of each model and number of devices on one kind, running alone.

    Raises
    ------
    TraceError
        If the file is none of throughputs, or knows no such kind.
    """
    try:
        table: dict[str, Any] = msgspec.json.decode(Source(path).body(), type=dict[str, Any])
        if kind not in table:
            raise TraceError(f"{path} knows no device kind {kind!r}; expected one of {', '.join(table)}")
        found = {literal_eval(key): float(row["null"]) for key, row in table[kind].items()}
    except (msgspec.DecodeError, ValueError, SyntaxError, KeyError, TypeError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(
            f"{path} holds no throughputs: {error!r}; expected {{kind: {{\"('model', gpus)\": {{'null': steps/s}}}}}}"
        ) from error
    return {key: speed for key, speed in found.items() if speed > 0}


def _speeds(models: Sequence[str], gpus: Ints, speeds: Speeds) -> Floats:
    wanted = zip(models, gpus.tolist(), strict=True)
    return np.array([speeds.get(key, np.nan) for key in wanted], np.float64)
