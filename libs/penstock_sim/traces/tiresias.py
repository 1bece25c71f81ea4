"""The jobs of the public Tiresias simulator."""

from __future__ import annotations

from typing import Final

from penstock_sim.trace import Trace
from penstock_sim.traces.gathering import Gathering
from penstock_sim.traces.source import Source
from penstock_sim.traces.table import Table

REQUIRED: Final = ("job_id", "num_gpu", "submit_time", "duration")


def read(source: Source) -> Trace:
    """
    Read ``job_id,num_gpu,submit_time,iterations,model_name,duration,interval``, times in seconds.

    ``iterations`` and ``interval`` are not used: ``duration`` is the exclusive run time on ``num_gpu`` devices.

    References
    ----------
    Gu et al., Tiresias, NSDI 2019; https://github.com/SymbioticLab/Tiresias (Apache-2.0).
    """
    jobs = Gathering(source.name)
    for block in Table(source, REQUIRED).blocks():
        submit_s, num_gpus = block.numbers("submit_time"), block.whole("num_gpu")
        duration_s, ids = block.numbers("duration"), block.texts("job_id")
        jobs.add(ids, submit_s, num_gpus, duration_s, broken=block.broken, models=block.texts("model_name"))
    return jobs.trace()
