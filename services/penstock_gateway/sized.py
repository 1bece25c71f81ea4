"""The first size of a new elastic job: what the autoscaler decides when it comes, from what the gateway knows."""

from __future__ import annotations

import msgspec

from penstock_events import Demand, Job, Jobs, JobSpec, Rank, Scalability, ScaleDecided
from penstock_gateway.machine import State
from penstock_policies.autoscale.asking import asked
from penstock_policies.autoscale.knows import key_of
from penstock_policies.autoscale.settings import Settings
from penstock_policies.autoscale.shown import Shown
from penstock_policies.cluster import Cluster
from penstock_policies.rounds import trial
from penstock_policies.rounds.pool import Pool
from penstock_policies.speeds import Speeds
from penstock_policies.stopping import Costs


class Seen(msgspec.Struct):
    """
    What the gateway knows of a pool's elastic jobs.

    It does not know which of them ignore the batch that they are given, nor what did not fit on a device.
    """

    cluster: Cluster
    ranks: dict[str, Rank]
    scaled: dict[str, tuple[Scalability, ...]]
    speeds: Speeds
    costs: Costs
    returning: dict[str, str]
    shown: Shown


def as_it_comes(state: State, pool: Pool, spec: JobSpec, now_s: float, settings: Settings | None = None) -> Job:
    """
    Return a new elastic job with its first size; with its smallest where nothing has room for it.

    Parameters
    ----------
    pool : Pool
        With the new job, tried at its smallest size, and its samples.
    settings : Settings, optional
        By which the autoscaler decides.
    """
    smallest, chosen = pool.roster.entries[trial.TRIED].ranked.job, settings or Settings()
    new = msgspec.structs.replace(smallest, spec=spec, epoch=0)
    others = (entry.ranked.job for job_id, entry in pool.roster.entries.items() if job_id != new.id)
    jobs = [*others, new]
    wanted = asked(_seen(state, pool, jobs), jobs, pool.name, now_s, chosen)
    sized = wanted.sizing(chosen, pool.manner).jobs.get(new.id)
    if sized is None or not sized.gpus:
        return smallest
    kinds = (sized.kind,) if len(wanted.kinds[new.id]) > 1 else ()
    demand = Demand(job_id=new.id, epoch=0, gpus=sized.gpus, batch_size=sized.batch_size, kinds=kinds)
    Jobs({new.id: new}).apply(ScaleDecided(at_s=now_s, pool=pool.name, demands=(demand,)))
    return new


def _seen(state: State, pool: Pool, jobs: list[Job]) -> Seen:
    return Seen(
        cluster=state.cluster,
        ranks=pool.ranks,
        scaled={key: known.kinds for key in {key_of(job) for job in jobs} if (known := state.scaled.get(key))},
        speeds=state.speeds,
        costs=state.books.costs,
        returning={},
        shown=Shown(saves={key_of(job): True for job in jobs if job.checkpoint is not None}),
    )
