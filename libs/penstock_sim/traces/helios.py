"""Helios: SenseTime's Slurm jobs of 2020."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock_sim.trace import Trace
from penstock_sim.traces import clock
from penstock_sim.traces.gathering import Gathering
from penstock_sim.traces.source import Source
from penstock_sim.traces.table import Block, Table

REQUIRED: Final = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "duration")
SLICE: Final = ("job_id", "user", "tenant", "submit_time", "num_chips", "duration_s", "final_status")
_AHEAD_S: Final = 8 * 3600.0
_STATES: Final = {"COMPLETED": "completed", "CANCELLED": "cancelled", "CANCELED": "cancelled"}


def read(source: Source) -> Trace:
    """
    Read ``cluster_log.csv`` as published, or slices of it with ``num_chips`` and submission in microseconds.

    Dates are China Standard Time and come out in seconds since 1970; a slice keeps its own origin. Jobs that failed,
    were cancelled or lost their node are jobs too: they held their devices.

    References
    ----------
    Hu et al., Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters, SC 2021;
    https://github.com/S-Lab-System-Group/HeliosData (CC-BY-4.0).
    """
    jobs = Gathering(source.name)
    sliced = any(line.startswith("job_id,user,tenant,") for line in source.head().splitlines())
    for block in Table(source, SLICE if sliced else REQUIRED).blocks():
        (_add_slice if sliced else _add)(jobs, block)
    return jobs.trace()


def _add(jobs: Gathering, block: Block) -> None:
    submit_s = clock.epoch_s(block.texts("submit_time"), ahead_s=_AHEAD_S)
    block.refuse(np.isnan(submit_s), "submit_time", "a time such as 2020-06-09 18:41:01")
    num_gpus, duration_s = block.whole("gpu_num"), block.numbers("duration", empty=np.nan)
    jobs.add(
        block.texts("job_id"),
        submit_s,
        num_gpus,
        duration_s,
        broken=block.broken,
        vcs=block.texts("vc"),
        users=block.texts("user"),
        states=_states(block, "state"),
    )


def _add_slice(jobs: Gathering, block: Block) -> None:
    submit_s, num_gpus = block.numbers("submit_time") / 1e6, block.whole("num_chips")
    duration_s = block.numbers("duration_s", empty=np.nan)
    jobs.add(
        block.texts("job_id"),
        submit_s,
        num_gpus,
        duration_s,
        broken=block.broken,
        vcs=block.texts("tenant"),
        users=block.texts("user"),
        kinds=block.texts("chip_type"),
        states=_states(block, "final_status"),
    )


def _states(block: Block, column: str) -> list[str]:
    return [_STATES.get(state, "failed") for state in block.texts(column)]
