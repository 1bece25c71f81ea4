"""Philly's jobs in the filtered form that was published with Sia."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock_sim.trace import Trace
from penstock_sim.traces import pacific
from penstock_sim.traces.gathering import Gathering
from penstock_sim.traces.source import Source
from penstock_sim.traces.table import Table

REQUIRED: Final = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")


def read(source: Source) -> Trace:
    """
    Read ``timestamp,duration,num_gpus,gpu_time,cluster``; times of submission come out in seconds since 1970.

    The rows stand in no order and have no ids: a job is called by its row, the first is 0. Local time jumps back one
    hour at the end of summer time: see :func:`penstock_sim.traces.pacific.epoch_s`.

    References
    ----------
    Jayaram Subramanya et al., Sia, SOSP 2023; the data are Philly's (CC-BY-4.0).
    """
    jobs = Gathering(source.name)
    for block in Table(source, REQUIRED).blocks():
        submit_s = pacific.epoch_s(block.texts("timestamp"))
        block.refuse(np.isnan(submit_s), "timestamp", "a time such as 2017-10-09 07:01:55")
        num_gpus, duration_s = block.whole("num_gpus"), block.numbers("duration")
        ids = [str(block.first + i) for i in range(len(block))]
        jobs.add(ids, submit_s, num_gpus, duration_s, broken=block.broken, vcs=block.texts("cluster"))
    return jobs.trace()
