"""What would happen to a job if it were submitted now: the matcher's own round says it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from penstock_events import JobSpec, Placement, Wait, elastic, workload
from penstock_events.views import DryRunView
from penstock_gateway import fit, holding, sampled, sized, smallest
from penstock_gateway.history import device_names
from penstock_gateway.machine import State
from penstock_gateway.when import Estimate, expected_start
from penstock_policies import sampling
from penstock_policies.autoscale.settings import Settings as Sizes
from penstock_policies.order import Rules
from penstock_policies.rounds import trial
from penstock_policies.rounds.alternatives import Alternatives
from penstock_policies.rounds.pool import Pool
from penstock_policies.rounds.settings import Settings, rules_of

_WAITS_FOR_DEVICES = {"capacity", "gang", "host_cpus", "host_memory", "later_place", "order", "fairness"}


def dry_run(
    state: State, spec: JobSpec, now_s: float, settings: Settings | None = None, sizes: Sizes | None = None
) -> DryRunView:
    """
    Return where the job would start in the next rounds, or why it would wait and for how long about.

    Parameters
    ----------
    spec : JobSpec
        Of an elastic job, the size that the autoscaler would give it now is tried; that may be another when it comes.
    settings : Settings, optional
        By which the matcher decides.
    sizes : Settings, optional
        By which the autoscaler does.

    Notes
    -----
    All that follows from the job at once is tried: rounds until one starts it or none does anything, between them its
    samples, and the first size of an elastic job. A round or two more for each change, in case it would wait.
    """
    spec, warnings = elastic.settled(spec), fit.unknown_kinds(state.cluster, spec)
    rules = rules_of(state, spec.pool, settings or Settings())
    caps, kinds = smallest.caps(state, spec), fit.nodes_of(state.cluster, spec.pool).whole.kinds(spec)
    if too_large := smallest.problem(spec, caps, kinds, spec.pool):
        warnings = (*warnings, too_large)
    least = smallest.fixed(spec, caps, kinds)
    key, waits = workload.key(spec), smallest.awaits_scaling(state, spec)
    size = smallest.told(spec, least, rules.await_profile_s if waits else 0.0)
    asks, is_sized = (spec, False) if waits else (least, spec.elastic)
    pool_now = state.pool(spec.pool, state.jobs, rules.topology)
    with trial.submitted(pool_now, asks, now_s, key=key, sized=is_sized) as pool:
        with _then(state, pool, spec, now_s, rules, sizes, waits=waits) as (then, placement):
            if placement is not None:
                told = (*warnings, *_sampled_first(state, spec), *_alone_at_first(then))
                found = msgspec.structs.replace(_starts(state, placement, told), size=size)
                if spec.elastic and (len(kinds) > 1 or _width(placement) != least.gpus):  # which is for the autoscaler
                    return msgspec.structs.replace(found, kind="", devices=())
                return found
            wait = trial.wait_of(then, trial.TRIED, now_s, rules)
        estimate: Estimate = (None, "")
        if wait is not None and wait.cause in _WAITS_FOR_DEVICES:
            estimate = expected_start(state, pool, trial.TRIED, now_s)
        best = Alternatives(pool, now_s, rules).best(pool.roster.entries[trial.TRIED].ranked.job)
    said = wait or Wait(job_id=trial.TRIED, cause="capacity", evidence="the next round does not start it")
    held = said.cause == "held"
    return DryRunView(
        starts=False,
        start_in_s=estimate[0],
        basis=estimate[1],
        cause=said.cause,
        evidence="it asks to be held" if held else said.evidence,
        remedy="leave `hold` out" if held else said.remedy or (best.text if best is not None else ""),
        warnings=(*warnings, *smallest.making_way(state, spec, kinds)),
        alternative=best,
        size=size,
    )


@contextmanager
def _then(  # noqa: PLR0917 - what a dry run goes by
    state: State, pool: Pool, spec: JobSpec, now_s: float, rules: Rules, sizes: Sizes | None, *, waits: bool
) -> Iterator[tuple[Pool, Placement | None]]:
    """Be the pool once all that follows at once from the job is there, with where it starts; None if it does not."""
    with ExitStack() as stack:
        placement: Placement | None = None
        if not spec.elastic:  # one that is starts when it has a size, and not before its samples
            pool, placement = stack.enter_context(trial.settled(pool, trial.TRIED, now_s, rules))
        if placement is None:
            pool = stack.enter_context(trial.changed(pool, *sampled.coming(state, spec, now_s)))
            if spec.elastic and not waits:
                pool = stack.enter_context(trial.changed(pool, sized.as_it_comes(state, pool, spec, now_s, sizes)))
            pool, placement = stack.enter_context(trial.settled(pool, trial.TRIED, now_s, rules))
        yield pool, placement


def _width(placement: Placement) -> int:
    return sum(len(slot.devices) for slot in placement.slots)


def _starts(state: State, placement: Placement, warnings: tuple[str, ...]) -> DryRunView:
    return DryRunView(
        starts=True,
        start_in_s=0.0,
        kind=placement.kind,
        devices=tuple(device_names(placement)),
        warnings=warnings,
        beside=holding.beside(
            state.jobs, trial.TRIED, ((s.node_id, index) for s in placement.slots for index in s.devices)
        ),
    )


def _alone_at_first(pool: Pool) -> tuple[str, ...]:
    tenant = pool.roster.sharing.tenants.get(trial.TRIED)
    if tenant is None or not tenant.alone:
        return ()
    return ("nobody knows what it needs of a device's memory: it has one to itself until its run has measured it",)


def _sampled_first(state: State, spec: JobSpec) -> tuple[str, ...]:
    if not sampling.is_sampled(spec) or workload.key(spec) in state.profiles:
        return ()
    why = sampling.why_sampled(spec)
    return (f"its workload is new: the profiler runs short samples of it, since {why} (--profile off: it does not)",)
