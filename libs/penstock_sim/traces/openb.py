"""Alibaba's GPU-sharing cluster of 2023 (openb): its pods."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock_sim.trace import Trace
from penstock_sim.traces.gathering import Gathering
from penstock_sim.traces.source import Source
from penstock_sim.traces.table import Table

REQUIRED: Final = ("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
_STATES: Final = {"Succeeded": "completed", "Failed": "failed", "Running": "running"}


def read(source: Source) -> Trace:
    """
    Read ``openb_pod_list_*.csv``: a pod's length is from its scheduling to its deletion, in seconds.

    A pod of one device asks for ``gpu_milli`` thousandths of it. Its kinds stand as published: ``V100M16|V100M32`` is
    either. A pod that was still running when the record was taken counts with what it had run, as state ``running``.

    References
    ----------
    Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent, USENIX
    ATC 2023; https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023.
    """
    jobs = Gathering(source.name)
    for block in Table(source, REQUIRED).blocks():
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
            states=[_STATES.get(phase, "") for phase in block.texts("pod_phase")],
        )
    return jobs.trace()
