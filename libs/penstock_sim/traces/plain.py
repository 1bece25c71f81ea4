"""The plain form: ``job_id,submit_s,num_gpus,duration_s``, and what more is known of ``vc,user,model,kind,…``."""

from __future__ import annotations

from typing import Final

from penstock_sim.trace import Trace
from penstock_sim.traces.gathering import Gathering
from penstock_sim.traces.source import Source
from penstock_sim.traces.table import Table

REQUIRED: Final = ("job_id", "submit_s", "num_gpus", "duration_s")


def read(source: Source) -> Trace:
    """
    Read plain CSV; columns of other names are passed over.

    The jobs of Philly's twelve virtual clusters come in this form too.
    """
    jobs = Gathering(source.name)
    for block in Table(source, REQUIRED).blocks():
        submit_s, num_gpus = block.numbers("submit_s"), block.whole("num_gpus")
        duration_s = block.numbers("duration_s")
        shares = block.numbers("gpu_share", empty=1.0) if block.has("gpu_share") else None
        if shares is not None:
            block.refuse(~block.broken & ((shares <= 0) | (shares > 1)), "gpu_share", "above 0 and at most 1")
        batches = block.whole("batch_size", empty=0.0) if block.has("batch_size") else None
        if batches is not None:
            block.refuse(~block.broken & (batches < 0), "batch_size", "at least 0")
        jobs.add(
            block.texts("job_id"),
            submit_s,
            num_gpus,
            duration_s,
            broken=block.broken,
            shares=shares,
            batches=batches,
            vcs=block.texts("vc"),
            users=block.texts("user"),
            models=block.texts("model"),
            kinds=block.texts("kind"),
            states=block.texts("state"),
        )
    return jobs.trace()
